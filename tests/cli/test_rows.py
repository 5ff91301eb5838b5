"""Published rows on the command line: listed with their source, planned on their machine, trained here, refused by name."""

from __future__ import annotations

import json
import re

import pytest
from messages import check_text, raises
from run_files import facts_of
from tiny_runs import TINY_CHANGES, command, refused

import paceline
from paceline.cli.commands.plan import machine_flags, with_machine_flags
from paceline.config.recipes import RECIPES
from paceline.config.recipes.published_rows import LIKE, ROWS
from paceline.distributed.device.systems import SYSTEMS


def test_names_are_workload_submitter_machine_batch_and_no_recipe_s():
    assert len(ROWS) > 75 and not ROWS.keys() & RECIPES.keys()
    for name, row in ROWS.items():
        assert re.fullmatch(r"(resnet50|ssd|maskrcnn)@[a-z0-9][a-z0-9.-]*-\d+", name)
        assert row.make().global_batch_size == int(name.rpartition("-")[2]) == row.images * row.nodes * row.per_node
        assert row.source and (row.chip in LIKE or row.chip == "TPU")
    assert {system for system, _ in LIKE.values()} <= SYSTEMS.keys()


def test_show_plans_a_row_on_the_machine_that_it_ran_on(capsys):
    shown = json.loads(command(capsys, "plan", "ssd@nvidia-128xdgx-a100-3072", "--json").out)
    plan, system = shown["plan"], shown["system"]
    assert (plan["world_size"], plan["nodes"], plan["micro_batch_size"], plan["bn_ranks"]) == (1024, 128, 3, 8)
    assert (system["device_name"], system["precision"], system["loss_scale"]) == ("A100-SXM4-80GB", "fp16", 128.0)
    text = command(capsys, "plan", "resnet50@krai-2xa5000-408").out
    assert "v3.0 Krai 7920T_2xA5000_mxnet22.04, on 2 x RTX-A5000" in text and "2 ranks on 1 node" in text
    assert "published row" not in text  # of another chip
    words, _ = with_machine_flags(["maskrcnn@xfusion-8xl40-88"])
    assert words[1:5] == ["--system", "a100x8", "--nodes", "1"]
    _, (about, *_) = with_machine_flags(["maskrcnn@gluoncv-26-epochs-8"])
    assert ": the machine" in about


def test_a_system_that_is_named_is_taken_in_place_of_the_row_s_machine(capsys):
    name = "resnet50@dell-4xh100-3264"
    text = command(capsys, "plan", name, "--system", "h100x8").out
    assert "8 ranks on 1 node" in text and check_text(text, "408 images", "1 micro-batch")
    assert text.startswith(f"{name}: ") and check_text(text.splitlines()[0], "--system", "4 x H100-SXM5-80GB", "instead")
    for words in (["--system", "cpu"], ["--system=cpu", "--nodes", "2"]):
        assert with_machine_flags([name, *words])[0] == [name, *words] and len(with_machine_flags([name, *words])[1]) == 1
    for given in ([name, "--help"], [name, "--system", "cpu", "-h"], ["classify-demo"], []):
        assert with_machine_flags(given) == (given, [])
    assert machine_flags(ROWS["ssd@dell-dgx1-1024"])["--system"] == "dgx1"


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (["--nodes=2"], ("--nodes",)),
        (["--world-size", "2"], ("--nodes",)),
        (["--system.ranks_per_node", "2"], ("--system.ranks-per-node",)),
        (["--system.precision", "bf16"], ("--system.precision", "--system.loss-scale")),
        (["--system.device-name", "X", "--nodes", "3"], ("--system.device-name", "--nodes")),
        (["--images-per-second", "100"], ()),
    ],
    ids=" ".join,
)
def test_another_flag_of_the_machine_changes_that_alone(words, gone):
    row = ROWS["resnet50@dell-4xh100-3264"]
    taken, (about, there) = with_machine_flags([row.name, *words])
    kept = [word for name, value in machine_flags(row).items() if name not in gone for word in (name, value)]
    assert taken == [row.name, *words, *kept] and row.source in about
    assert there.endswith(f": {' '.join(kept)}") and ("your --" in there) == bool(gone)


def test_a_row_on_more_nodes_stays_on_its_accelerators(capsys):
    text = command(capsys, "plan", "resnet50@dell-4xh100-3264", "--nodes", "2").out
    assert "v3.0 Dell XE8640x4H100-SXM-80GB, on 4 x H100-SXM5-80GB" in text and "your --nodes:" in text
    assert "8 ranks on 2 nodes" in text and "408 images" in text and "4 x H100-SXM5-80GB" in text


def test_a_row_that_cannot_be_planned_on_its_machine_says_why(capsys):
    refused(command(capsys, "plan", "ssd@google-tpu-v4-1024"), "published on 8 x TPU", "TPU")
    assert "8 ranks on 1 node" in command(capsys, "plan", "ssd@google-tpu-v4-1024", "--system", "h100x8").out


@pytest.mark.parametrize("verb", ["plan", "train", "preview"])
def test_an_unknown_row_names_its_neighbours(capsys, verb):
    refused(command(capsys, verb, "resnet50@dell-4xh100-326"), "not found", "resnet50@dell-4xh100-3264", "list configs")
    refused(command(capsys, verb, "x@y"), "'x@y' ... `paceline list configs`")


def test_a_row_is_trained_like_a_recipe(tmp_path):
    ended = paceline.train(
        "resnet50@krai-2xa5000-408", output_dir=str(tmp_path / "run"), overrides={**TINY_CHANGES, "bn_batch_size": 8}, max_steps=1,
        synthetic=True, quiet=True,
    )  # fmt: skip
    assert ended.step == 1 and facts_of(tmp_path / "run")["name"] == "resnet50@krai-2xa5000-408"
    with raises(paceline.PacelineError, "'resnet50@none'"):
        paceline.train("resnet50@none")
