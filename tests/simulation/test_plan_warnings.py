"""A worker says once, when it starts, which names in a plan are no steps of its app."""

from refold.app import App, RunContext
from support.lab import Lab


def test_a_plan_that_names_no_step_is_warned_of_once_at_the_start() -> None:
    app = App("plans")

    @app.step
    async def pay(pence: int) -> int:
        return pence

    @app.run("order", plan=[pay, "pai", "thank"])
    async def order(ctx: RunContext) -> int:
        return await ctx.step(pay, 1)

    @app.run("other", plan=["pay"])
    async def other(ctx: RunContext) -> None: ...

    lab = Lab()
    lab.worker(app)
    lab.start("order")
    lab.run(10, until=lab.ended)
    warned = [event.text for event in lab.told if event.kind == "warning"]
    assert warned == ["run order: its plan names no step of the app: pai, thank"]
    assert lab.status() == "completed"
