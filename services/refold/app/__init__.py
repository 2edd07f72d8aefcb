"""What an agent author imports: App and its steps and runs, the run context, the effect."""

from refold.app.application import App
from refold.app.context import Batch, Loop, RunContext, RunLog
from refold.app.definitions import RunDef, StepDef
from refold.app.effect import Effect

__all__ = ["App", "Batch", "Effect", "Loop", "RunContext", "RunDef", "RunLog", "StepDef"]
