"""--auto-config in whole commands: what was chosen stands in run.json, as flags it gives the same bits, and nothing is looked at
twice.
"""

from __future__ import annotations

import shlex

import pytest
from run_files import cut_after, facts_of, tensor_files
from tiny_runs import NET, command, refused

pytestmark = pytest.mark.usefixtures("no_report")


def test_a_run_its_flags_a_resume_and_a_repeat_have_the_same_bits(class_photos, tmp_path, capsys):
    words = [
        "train",
        "classify-demo",
        "--data",
        class_photos,
        *NET,
        "--epochs",
        1,
        "--system",
        "cpu",
        "--save-every",
        3,
        "--keep-checkpoints",
        9,
    ]
    said = command(capsys, *words, "--auto-config", "--output-dir", tmp_path / "one")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  --")] == ["4", "0.0125", "6"]
    facts = facts_of(tmp_path / "one")
    assert (
        facts["auto_config"] == {"global_batch_size": 4, "optim.lr": 0.0125, "patience": 6}
        and not facts["options"]["auto_config"]
    )
    assert (facts["recipe"]["global_batch_size"], facts["recipe"]["optim"]["lr"], facts["options"]["patience"]) == (
        4,
        0.0125,
        6,
    )
    (flags,) = [line.partition(":  ")[2] for line in lines if line.startswith("the same settings without --auto-config:")]
    assert "--auto-config" not in flags and flags.endswith("--global-batch-size 4 --optim.lr 0.0125 --patience 6")
    typed = shlex.split(flags.replace(str(tmp_path / "one"), str(tmp_path / "flags")))
    assert command(capsys, *typed[1:]).code == 0
    assert facts_of(tmp_path / "flags")["recipe"] == facts["recipe"] and "auto_config" not in facts_of(tmp_path / "flags")
    refused(command(capsys, *words, "--auto-config", "--output-dir", tmp_path / "flags"), "without --auto-config")
    cut = cut_after(tmp_path / "one", 3)
    said = command(capsys, *words, "--auto-config", "--output-dir", cut)
    assert said.code == 0 and "auto:" not in said.out and facts_of(cut)["auto_config"] == facts["auto_config"]
    refused(command(capsys, *words, "--auto-config", "--output-dir", cut), "finished")
    assert command(capsys, "train", cut / "run.json", "--output-dir", tmp_path / "again").code == 0
    refused(
        command(capsys, "train", cut / "run.json", "--auto-config", "--output-dir", tmp_path / "no"),
        "--auto-config ... run",
    )
    for run in ("flags", "again"):
        assert tensor_files(tmp_path / run) == tensor_files(cut)


def test_show_plans_so_and_prints_the_command(ssd_run, capsys):
    said = command(capsys, "plan", "ssd-demo", "--data", ssd_run.data, "--auto-config")
    assert said.code == 0, said.err
    (line,) = [line for line in said.out.splitlines() if line.startswith("to train:")]
    flags = line.partition(":  ")[2].split()
    assert (
        flags[:3] == ["paceline", "train", "ssd-demo"] and "--auto-config" not in flags and "--global-batch-size" in flags
    )
    refused(command(capsys, "plan", "ssd-demo", "--auto-config"), "--auto-config ... --data DIR")
    refused(command(capsys, "plan", ssd_run.folder, "--auto-config"), "--auto-config", "--data DIR")
    refused(command(capsys, "train", "ssd-demo", "--synthetic", "--auto-config"), "--auto-config")
    refused(command(capsys, "plan", "ssd", "--data", ssd_run.data, "--auto-config"), "--auto-config", "ssd")
