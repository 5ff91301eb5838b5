"""Nodes and ranks as `plan` is told them: on the command line, by a run, or by what was published."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tiny_runs import command, refused

from paceline.cli.commands.launch import LaunchFlags
from paceline.cli.commands.plan import PlanFlags
from paceline.cli.flags import parse_run_args
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.config.system import parse_env
from paceline.distributed.device.systems import SYSTEMS


def plan_of(capsys, *words) -> dict:
    said = command(capsys, "plan", *words, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)["plan"]


def test_a_run_is_planned_for_other_numbers_of_nodes(capsys, ssd_run):
    before = plan_of(capsys, ssd_run.folder)
    plan = plan_of(capsys, ssd_run.folder, "--nodes", "2")
    assert (plan["world_size"], plan["nodes"]) == (2, 2) and (before["world_size"], before["nodes"]) == (1, 1)
    assert plan["images_per_rank"] == before["images_per_rank"] / 2
    assert plan_of(capsys, ssd_run.folder, "--world-size", "2", "--nodes", "2") == plan


def test_ranks_of_a_run_are_on_the_nodes_that_they_were_on(capsys, tmp_path, ssd_run):
    """A CPU system has one rank per node, so two ranks on one host are more than the system says."""
    facts = json.loads((ssd_run.folder / "run.json").read_text())
    facts |= {"world_size": 2, "plan": {**facts["plan"], "world_size": 2, "nodes": 1}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    for words, nodes in (((), 1), (("--nodes", "2"), 2), (("--world-size", "2"), 2)):
        plan = plan_of(capsys, tmp_path, *words)
        assert (plan["world_size"], plan["nodes"]) == (2, nodes)


def test_nodes_and_ranks_that_disagree_are_refused(capsys, ssd_run):
    words = ("--nodes", "2", "--world-size", "3")
    for what in (ssd_run.folder, "ssd-demo"):
        said = command(capsys, "plan", what, "--system", "cpu", *words)
        refused(said, "--nodes 2 ... --world-size 3")


def variables_of(words: str, options) -> dict[str, str]:
    return parse_env(parse_run_args(words.split(), options, verb="x").system)


def test_a_variable_given_by_hand_leaves_the_systems_others_as_they_are():
    machine = parse_env(SYSTEMS["p3dn"]())
    given = "--system.env NCCL_NSOCKS_PERTHREAD=4 NCCL_DEBUG=WARN"
    pairs = variables_of(f"maskrcnn-gluoncv-192 --system p3dn --nodes 24 {given}", PlanFlags())
    assert pairs == machine | {"NCCL_NSOCKS_PERTHREAD": "4", "NCCL_DEBUG": "WARN"}
    assert len(pairs) == len(machine) + 1


@pytest.mark.parametrize(
    ("nodes", "options", "published"),
    [
        ("--nodes 448", PlanFlags(), True),
        ("--world-size 3584", PlanFlags(), True),
        ("--nodes 448", LaunchFlags(), True),
        ("--nodes 224", LaunchFlags(), False),
        ("", PlanFlags(), False),
        ("", RunOptions(), False),
    ],
)
def test_variables_published_for_one_number_of_nodes_come_there_alone_and_give_way_to_the_command_line(
    nodes, options, published
):
    words = f"resnet50-mlperf-57344 --system dgx-h100 {nodes}"
    assert ("NCCL_COLLNET_ENABLE" in variables_of(words, options)) is published
    own = variables_of(f"{words} --system.env NCCL_COLLNET_ENABLE=0", options)
    assert own["NCCL_COLLNET_ENABLE"] == "0" and ("SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING" in own) is published


def test_a_run_that_is_launched_again_gets_them_too_and_keeps_its_own():
    name = "resnet50-mlperf-57344"
    system = replace(SYSTEMS["dgx-h100"](), env=("NCCL_COLLNET_ENABLE=0",))
    base = (name, RECIPES[name](), "dgx-h100", system)
    asked = parse_run_args(["--nodes", "448"], LaunchFlags(), verb="launch", base=base)
    assert parse_env(asked.system) == {"NCCL_COLLNET_ENABLE": "0", "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING": "0"}


def test_a_name_given_twice_by_hand_is_still_refused(capsys):
    said = command(capsys, "plan", "ssd-demo", "--system", "cpu", "--system.env", "A_B=1", "A_B=2")
    refused(said, "--system.env A_B: given twice")


def test_show_and_launch_say_the_same_of_nodes_that_were_not_published(capsys, tmp_path, monkeypatch):
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("resnet50-mlperf-3200", "--system", "dgx-h100", "--nodes", "2")
    note = "--nodes 2: resnet50-mlperf-3200 is the nearest configuration published for dgx-h100\n"
    assert command(capsys, "plan", *words).out.startswith(note)
    job = ("--scheduler", "slurm", "--dry-run", "--output-dir", tmp_path / "run")
    assert note in command(capsys, "launch", *words, *job).out
    assert note not in command(capsys, "launch", *words, *job, "--global-batch-size", "1600", "--optim.lr", "5").out


def test_ranks_that_only_evaluated_are_named_where_they_were_left_out(capsys):
    words = ("plan", "maskrcnn-nvidia-256-48nodes", "--system", "dgx-h100", "--nodes", "48")
    refused(command(capsys, *words), "128 ... 384 ranks", "--dedicated-eval-ranks 128")
