"""Nodes and ranks as `show` is told them: on the command line, by a run, or by what was published."""

from __future__ import annotations

import json

from tiny_runs import command, refused


def plan_of(capsys, *words) -> dict:
    said = command(capsys, "show", *words, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)["plan"]


def test_a_run_is_planned_for_other_numbers_of_nodes(capsys, ssd_run):
    before = plan_of(capsys, ssd_run.folder)
    plan = plan_of(capsys, ssd_run.folder, "--nodes", "2")
    assert (plan["world"], plan["nodes"]) == (2, 2) and (before["world"], before["nodes"]) == (1, 1)
    assert plan["images_per_rank"] == before["images_per_rank"] / 2
    assert plan_of(capsys, ssd_run.folder, "--world", "2", "--nodes", "2") == plan


def test_nodes_and_ranks_that_disagree_are_refused(capsys, ssd_run):
    words = ("--nodes", "2", "--world", "3")
    for what in (ssd_run.folder, "ssd-tiny"):
        said = command(capsys, "show", what, "--system", "cpu", *words)
        refused(said, "--nodes 2 and --world 3 disagree: 2 x 1 ranks a node are 2")
