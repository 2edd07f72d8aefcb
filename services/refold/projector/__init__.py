"""The process that follows the log and fills the tables, and what rebuilds and verifies them."""

from refold.projector.projector import Projector
from refold.projector.settings import ProjectorEvent, ProjectorSettings

__all__ = ["Projector", "ProjectorEvent", "ProjectorSettings"]
