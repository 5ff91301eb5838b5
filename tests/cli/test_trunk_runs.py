"""Another trunk through the command line: trained, broken off and resumed to the same bits, and predicted with."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_night import ONE_MORE
from shared_runs import FP32
from tiny_runs import command, without_report

pytestmark = pytest.mark.usefixtures("timm")
NET = (
    "--model.extra-channels 8 --input.image-size 64 --global-batch-size 4 "
    "--bn-batch-size 4 --optim.lr 0.01 --system.intra-op-threads 1"
)


@pytest.mark.parametrize(
    "trunk",
    [
        "--model.backbone timm/mobilenetv3_small_050",
        pytest.param("--model.depth 50 --model.groups 4 --model.width-per-group 16 --model.width 8", marks=ONE_MORE),
    ],
)
def test_a_run_on_another_trunk_resumes_to_the_same_bits_and_predicts(trunk, ssd_run, tmp_path, monkeypatch, capsys):
    without_report(monkeypatch)
    words = [*FP32.split(), *NET.split(), *trunk.split(), "--data", ssd_run.data]
    for out, steps in (("whole", 2), ("parts", 1), ("parts", 2)):
        assert command(capsys, "train", "ssd-demo", *words, "--output-dir", tmp_path / out, "--max-steps", steps).code == 0
    weights = [tmp_path / out / "checkpoints" / "last" / "model.safetensors" for out in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    photo = next(Path(ssd_run.data).rglob("*.jpg"))
    assert command(capsys, "predict", tmp_path / "whole", photo, "--output-dir", tmp_path / "answers").code == 0
