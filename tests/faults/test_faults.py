"""Kills, stops, damage and misuse: each is named and refused, named and resumed, or changes nothing, and no bit is lost.

The ordinary suite plays a few of the table's faults; --nightly plays all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from by_night import ONE_MORE
from fault import Fault
from harness import Harness
from played import NOT_PLAYED
from table import TABLE

# One group: the undisturbed runs are made once, and frozen ranks are judged by a clock.
pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        rows = [pytest.param(fault, id=fault.row, marks=() if fault.short else ONE_MORE) for fault in TABLE]
        metafunc.parametrize("fault", rows)


@pytest.fixture(scope="module")
def harness(tmp_path_factory) -> Iterator[Harness]:
    """Plays faults; the undisturbed runs are kept."""
    with Harness(tmp_path_factory.mktemp("faults")) as harness:
        yield harness


def test_a_fault_ends_as_the_table_says_and_the_run_s_bits_are_those_of_an_undisturbed_one(harness, fault: Fault):
    played = harness.play(fault)
    if played.seen == NOT_PLAYED:
        pytest.skip("cannot mount: this fault needs a file system of its own")
    assert played.good, "\n".join([*played.problems, played.said])


def test_the_table_has_every_recipe_on_one_and_on_two_ranks_and_every_outcome():
    assert len(TABLE) >= 150
    seen = {(fault.workload, fault.ranks) for fault in TABLE}
    assert seen == {(workload, ranks) for workload in ("resnet50", "ssd", "maskrcnn") for ranks in (1, 2)}
    assert {fault.expected for fault in TABLE} == {"refused", "resumed", "unaffected"}
