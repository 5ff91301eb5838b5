"""A small run is killed before each of its operations on files: checkpoints, links, deletions, events, predictions, the end.

The same command goes on each time to the bytes of a run that nothing happened to. The ordinary suite plays a few such kills
out of the table of faults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fault import Fault, Round, Strike
from harness import Harness

PARTS = 6  # tests that share the operations

pytestmark = [
    pytest.mark.multi,
    pytest.mark.nightly("kills a training before each of 300 file operations"),
    pytest.mark.xdist_group("clock"),
]


def killed(operation: int) -> Fault:
    """The row of one kill."""
    rounds = (Round("killed", (Strike(f"operation {operation}", "kill all", 0),)),)
    return Fault(f"operation {operation}", "killed at every operation", "journal", 1, "resumed", rounds)


@pytest.fixture(scope="module")
def harness(tmp_path_factory) -> Iterator[Harness]:
    with Harness(tmp_path_factory.mktemp("operations")) as harness:
        yield harness


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_before_each_operation_it_goes_on_to_the_same_bytes(harness, part):
    counts = harness.unbroken(killed(0)).with_suffix(".counts")
    operations = json.loads(counts.read_text())["operation"]
    assert operations > 100
    wrong = []
    # The last four write the report of a run that has ended; threads may come there in another number.
    for number in range(1 + part, operations - 4, PARTS):
        played = harness.play(killed(number))
        wrong += [] if played.good else [f"operation {number}", *played.problems, played.said]
    assert not wrong, "\n".join(wrong)
