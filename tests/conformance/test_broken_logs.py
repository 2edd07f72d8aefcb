"""The suite against logs that are broken on purpose: a suite that passes them proves nothing."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest

from refold.log import Ack, Entry, Log, Topic
from refold.log.memory import MemoryLog
from refold.testing.broken_logs import CAUGHT_BY, WrappedLog
from refold.testing.log_conformance import CHECKS, Can, run_check
from support.memory_maker import MakeMemoryLog


class MakeWrappedLog(MakeMemoryLog):
    """Handles in memory, each behind a wrapper."""

    can: ClassVar[frozenset[Can]] = frozenset(Can)

    def __init__(self, wrapper: type[WrappedLog]) -> None:
        super().__init__()
        self.wrapper = wrapper

    def __call__(self) -> Log:
        return self.wrapper(super().__call__())

    def memory_log(self, log: Log) -> MemoryLog:
        assert isinstance(log, WrappedLog)
        assert isinstance(log.inner, MemoryLog)
        return log.inner

    async def append_unanswered(
        self, way: str, log: Log, topic: Topic, partition: int, entries: Sequence[Entry]
    ) -> Ack:
        return await super().append_unanswered(way, log, topic, partition, entries)


def failing_checks(wrapper: type[WrappedLog]) -> set[str]:
    failed = set()
    for check in CHECKS:
        try:
            asyncio.run(run_check(check, MakeWrappedLog(wrapper)))
        except Exception:
            failed.add(check.__name__)
        except BaseException as outcome:
            # pytest.raises that sees no exception ends with an outcome of its own.
            if type(outcome).__name__ != "Failed":
                raise
            failed.add(check.__name__)
    return failed


@pytest.mark.parametrize("wrapper", CAUGHT_BY, ids=lambda wrapper: wrapper.__name__)
def test_a_broken_log_fails_the_check_that_is_there_for_it(wrapper: type[WrappedLog]) -> None:
    assert CAUGHT_BY[wrapper] in failing_checks(wrapper)


def test_the_wrapper_alone_breaks_nothing() -> None:
    assert failing_checks(WrappedLog) == set()
