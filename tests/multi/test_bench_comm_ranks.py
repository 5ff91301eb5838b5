"""`paceline bench comm` between real ranks on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from small_run import ROOT, Trainer, torchrun

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]
SHORT = ["bench", "comm", "--seconds", "0.01", "--max-message-mib", "1"]


@pytest.mark.nightly("live ranks; one process's calls are checked by day")
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_time_and_check_each_call(trainer: Trainer, tmp_path, ranks):
    out = tmp_path / "comm.json"
    ended = trainer.ended_well([*SHORT, "--output", str(out)], ranks=ranks)
    assert not any(rank.text for rank in ended[1:])
    facts = json.loads(out.read_text())
    assert (facts["world_size"], facts["nodes"], facts["backend"], facts["sums_are_right"]) == (ranks, 1, "gloo", True)
    kinds = [row["kind"] for row in facts["rows"]]
    assert kinds == ["barrier", "broadcast", *["all-reduce"] * 5]
    for row in facts["rows"]:
        assert row["right"] == {"paceline": True, "torch": True}
        for times in row["seconds"].values():
            assert 0 < times["min"] <= times["median"] <= times["max"] and times["repetitions"] >= 5
            if row["kind"] == "all-reduce":
                assert times["bus_bandwidth"] / times["algorithm_bandwidth"] == pytest.approx(2 * (ranks - 1) / ranks)
    lines = ended[0].text.splitlines()
    assert "all-reduce 1 MiB fp32" in ended[0].text and f"{ranks} ranks on 1 node, gloo" in lines[0]
    assert [line.split(":")[0] for line in lines if "alpha" in line] == ["paceline", "torch"]


@pytest.mark.nightly("live ranks once more")
def test_under_torchrun_the_whole_list_is_measured(trainer: Trainer):
    done = trainer.launched(torchrun(2), ["bench", "comm", "--seconds", "0.01"])
    assert done.returncode == 0, done.stdout
    assert "buckets instance-segmentation in" in done.stdout and "NO" not in done.stdout.split()


@pytest.mark.nightly("live ranks once more")
def test_alone_it_starts_its_own_ranks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *SHORT, "--nproc-per-node", "2", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["world_size"] == 2
