"""The table of field reports names tests that exist, and none of its reports is without one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
ROWS = [
    line.split("|")
    for line in (ROOT / "docs" / "field-reports.md").read_text().splitlines()
    if re.match(r"\| F\d\d ", line)
]
EXPECTED = (
    1,
    2,
    3,
    4,
    5,
    9,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    18,
    19,
    20,
    21,
    22,
    23,
    24,
    25,
    26,
    27,
    28,
    30,
    32,
    33,
    34,
    35,
    36,
    37,
    38,
    39,
    40,
)


def named(cell: str) -> list[tuple[str, str]]:
    """`(file, test)` of each test in a cell; `::name` belongs to the file before it."""
    found, file = [], ""
    for name in re.findall(r"`([^`]+)`", cell):
        before, _, test = name.partition("::")
        file = before or file
        found.append((file, test))
    return found


def test_every_report_of_the_core_has_a_row() -> None:
    assert [row[1].strip() for row in ROWS] == [f"F{number:02}" for number in EXPECTED]
    assert all(named(row[4]) for row in ROWS)


def test_every_test_that_is_named_exists() -> None:
    for row in ROWS:
        for file, test in named(row[4]):
            assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.M), (file, test)
