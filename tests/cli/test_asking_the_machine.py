"""The machine is asked when it is needed: what is named wrong is refused before, what was given by hand stays."""

from __future__ import annotations

import pytest
from messages import raises
from tiny_runs import command, refused

from paceline._utils.errors import RecipeError
from paceline.cli.commands.plan import PlanFlags
from paceline.cli.flags import parse_run_args
from paceline.config.system import System
from paceline.distributed.device import systems
from paceline.distributed.device.systems import DETECTED, SYSTEMS

FOUND = System("cuda", ranks_per_node=4, memory_gib=33.0, precision="fp16", channels_last="off", num_workers=5)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The names that were asked for, each answered with FOUND."""
    names: list[str] = []
    for name in DETECTED:
        monkeypatch.setitem(SYSTEMS, name, lambda name=name: names.append(name) or FOUND)
    return names


def parsed(*words: str):
    return parse_run_args(["ssd-demo", *words], PlanFlags(), verb="plan")


@pytest.mark.parametrize("name", DETECTED)
def test_the_machine_is_asked_once_and_only_when_its_answer_is_read(asked, name):
    found = parsed("--system", name)
    assert asked == [] and found.system_name == name
    assert found.system == found.system == FOUND and asked == [name]


def test_fields_given_by_hand_stand_over_the_machines_answer(asked):
    found = parsed("--system.memory-gib", "7", "--system.channels-last=on", "--system.no-async-metrics").system
    assert found == System(
        "cuda", ranks_per_node=4, memory_gib=7.0, precision="fp16", channels_last="on", num_workers=5, async_metrics=False
    )
    assert parsed("--system.num_workers=0").system.num_workers == 0  # as given, though it is a default


def test_whether_a_loss_scale_fits_is_judged_by_the_machines_precision(asked, monkeypatch):
    assert parsed("--system.loss-scale", "128").system.loss_scale == 128
    monkeypatch.setitem(SYSTEMS, "auto", System)
    with pytest.raises(RecipeError, match=r"--system\.loss-scale"):
        _ = parsed("--system.loss-scale", "128").system


@pytest.mark.parametrize("words", [(), ("--system", "gpu")])
@pytest.mark.parametrize("flag", ["--system.cuda-graph=on", "--system.kernels=triton"])
def test_what_is_for_cuda_is_judged_by_the_machines_accelerator(asked, monkeypatch, words, flag):
    found = parsed(*words, flag).system
    assert found.cuda_graph == "on" or found.kernels == "triton"
    monkeypatch.setitem(SYSTEMS, (words or ("auto",))[-1], System)
    with raises(RecipeError, flag.partition("=")[0], "cpu"):
        _ = parsed(*words, flag).system


def test_numbers_that_no_machine_has_are_refused_before_it_is_asked(asked):
    with pytest.raises(RecipeError, match=r"--system\.num-workers"):
        parsed("--system.num-workers", "-1")
    assert asked == []


def test_a_named_machine_is_not_asked_at_all(asked, capsys):
    assert parsed("--system", "h100x8").system == systems.choose_system("h100x8")
    assert command(capsys, "train", "ssd-demo", "--help").code == 0
    refused(command(capsys, "train", "ssd-demo", "--data", "/nope"), "/nope")
    assert asked == []
    assert command(capsys, "train", "ssd-demo", "--system", "gpu", "--help").code == 0
    assert asked == ["gpu"]  # whose fields are the defaults that its help shows
