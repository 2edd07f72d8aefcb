"""Ends every laboratory with its test: coroutines of simulated processes need their loop to end."""

from collections.abc import Iterator

import pytest

from support.lab import Lab


@pytest.fixture(autouse=True)
def _labs_end() -> Iterator[None]:
    yield
    while Lab.made:
        Lab.made.pop().end()
