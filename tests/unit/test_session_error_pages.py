"""The pages of R401 to R413 show exactly what an author sees."""

from pathlib import Path

import pytest

from refold_schemas.errors import (
    CallRefused,
    EffectBarred,
    ForeignAwait,
    InputRefused,
    LoopMisused,
    RefoldError,
    RegistrationRefused,
    ResultUnrecordable,
    Revalidation,
    RunTornDown,
    StepAbsent,
    StepError,
    StepOutsideRun,
    ValueTooLarge,
)

PAGES = Path(__file__).resolve().parents[2] / "docs" / "errors"
EXAMPLES: list[RefoldError | RunTornDown] = [
    RegistrationRefused(
        "step 'charge'",
        "Policy.KEYED needs to know how long the far system remembers a key",
        "add key_ttl=timedelta(…), or key_ttl=None if it remembers keys for ever",
    ),
    CallRefused(
        "step 'charge'", "was not given pence", "call it as ctx.step(charge, order, pence)"
    ),
    StepError("ValueError", "no such order", slot="load_order#1"),
    ResultUnrecordable(
        "render#1", type_name="socket", path="result.connection", reason="its type cannot be stored"
    ),
    StepAbsent("issue_refund#1"),
    Revalidation(4160, 4610, slot="read_quote#2"),
    ForeignAwait(
        "asyncio.sleep",
        "in refund_agent (line 41)",
        "use `await ctx.sleep(timedelta(…))`, a timer that survives",
    ),
    StepOutsideRun("ctx.step", "order-48211"),
    EffectBarred("charge#1", "the call was barred: its worker gave up the attempt"),
    LoopMisused(
        "each#1[25..49]",
        "the body ended without batch.commit(state)",
        "make batch.commit(state) the last line of the body, on every way through it",
    ),
    InputRefused("refund-agent", "it does not fit OrderRef: id: Field required"),
    RunTornDown("ctx.step", "order-48211"),
    ValueTooLarge("order-48211", "step decide: argument messages", 1_204_112, 1_000_000),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_the_page_of_a_code_shows_its_message(error: RefoldError | RunTornDown) -> None:
    page = (PAGES / f"{error.code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {error.code}: {type(error).__name__}\n")
    assert str(error) in page
    for heading in ("What happened", "What was kept", "What to do next", "Example"):
        assert f"\n## {heading}\n" in page
    for part in ("Kept: ", "Next: ", f"({error.code})"):
        assert part in str(error)
