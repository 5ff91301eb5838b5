"""Annotations that can be read and make no sense train to finite losses, all of them together and, in the long form, each alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from by_night import ONE_MORE
from hostile_training import BOXES, MASKS, first_to_the_end, good
from tiny_runs import without_report

from paceline.cli.main import main
from paceline.training.logging.events import read_events


@pytest.mark.parametrize("family", [pytest.param(BOXES, id="ssd", marks=ONE_MORE), pytest.param(MASKS, id="maskrcnn")])
def test_extreme_boxes_and_masks_train_to_finite_losses(family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_report(monkeypatch)
    folder = tmp_path / "set"
    good(folder)
    for number, (change, _) in enumerate(family.cases.values()):
        change(folder)
        first_to_the_end(folder, number)
    assert main(list(map(str, family.words(folder)))) == 0
    losses = [event["loss"] for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "train"]
    assert len(losses) >= 3 and all(map(math.isfinite, losses))
