"""A run's result that does not fit: its effects stay recorded, the failure says what to return."""

from refold import App, Policy, RunContext
from refold_schemas.errors.cli import RunFailedError
from support.lab import Lab


def test_a_result_of_a_run_that_does_not_fit_fails_with_the_advice_to_return_a_reference() -> None:
    lab, app = Lab(), App("wide")
    lab.broker.batch_size_max = 16_384

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def load() -> int:
        return 1

    @app.run("r")
    async def r(ctx: RunContext) -> str:
        await ctx.step(load)
        return "x" * 20_000

    lab.start("r")
    lab.worker(app)
    assert lab.run(10, until=lab.ended)
    assert lab.state().slots["load#1"].outcome is not None
    ended = lab.state().ended
    assert ended is not None
    assert ended.error is not None
    assert ended.error.type == "ValueTooLarge"
    told = RunFailedError("run-1", ended.error.type, ended.error.message)
    assert "run run-1: its result has 20," in told.message
    assert told.next.startswith("pass a reference (a key, a URL) instead of the content")
