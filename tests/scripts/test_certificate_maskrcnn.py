"""The certificate of Mask R-CNN, its first two steps beside torchvision, and an error that it must see."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "certificates"
STEPS, SHORT = 2, 64
SAME = 2e-5  # relative, of a float32 loss after an update


@pytest.mark.nightly("six steps of a full-size Mask R-CNN")
def test_two_steps_beside_torchvision(shared_data, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    start, ours, original, verdict = (
        importlib.import_module(name) for name in ("maskrcnn_start", "maskrcnn_ours", "maskrcnn_torchvision", "verdict")
    )
    recipe = ours.RECIPES["torchvision"](SHORT, 50)
    start.write_start(tmp_path, recipe, shared_data / "coco_mini", STEPS)
    expected = original.train(tmp_path, STEPS)
    assert max(verdict.differences(ours.ours(tmp_path, recipe, STEPS), expected)) < SAME
    moved = verdict.differences(ours.ours(tmp_path, recipe, STEPS, "RoIAlign's half pixel"), expected)
    assert moved[0] > 100 * SAME
