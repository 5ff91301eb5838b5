"""The six training accuracies against GluonCV's own metrics, recorded from GluonCV (recorded/README.md), and a loop over points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.models.maskrcnn.loss import (
    ACCURACIES,
    anchor_box_l1,
    class_accuracy,
    mask_accuracy,
    mask_foreground_accuracy,
    objectness_accuracy,
    region_box_l1,
)

RECORDED = Path(__file__).with_name("recorded") / "gluoncv_metrics.npz"


def told(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Ours of what GluonCV was given: its columns of boxes and masks of all classes become rows of their own."""
    kind, labels = given["anchor_kind"], given["labels"].long()
    deltas, targets, mask = given["box_deltas"], given["box_targets"], given["box_mask"]
    classes = deltas.shape[2]
    rows = torch.arange(classes).expand(deltas.shape[:3]).flatten()
    # The deltas of class k stand at place k + 1, behind the background's.
    wide = torch.zeros(len(rows), classes + 1, 4)
    wide[torch.arange(len(rows)), rows + 1] = deltas.flatten(0, 2)
    logits, points = given["mask_logits"].flatten(0, 2), given["mask_targets"].flatten(0, 2)
    everything = torch.ones(len(logits), dtype=torch.bool)
    return {
        "rpn_acc": objectness_accuracy(given["anchor_logits"], kind == 1, kind >= 0),
        "rpn_l1": anchor_box_l1(given["anchor_deltas"], given["anchor_targets"], kind == 1),
        "rcnn_acc": class_accuracy(
            given["class_logits"].flatten(0, 1), labels.flatten(), labels.flatten() >= 0, labels.numel()
        ),
        "rcnn_l1": region_box_l1(
            wide.flatten(1), targets.flatten(0, 2), rows + 1, mask.flatten(0, 2).amax(1) > 0
        ),
        "mask_acc": mask_accuracy(logits, points, given["mask_mask"].flatten(0, 2).amax((1, 2)) > 0),
        # GluonCV takes every row and class here.
        "mask_fg_acc": mask_foreground_accuracy(logits, points, everything),
    }  # fmt: skip


@pytest.mark.parametrize("name", ACCURACIES)
def test_sums_and_counts_are_gluoncv_s_own(name):
    with np.load(RECORDED) as file:
        recorded = {key: file[key] for key in file.files}
    total = torch.zeros(2, dtype=torch.float64)
    for step in range(len(recorded[name])):
        given = {
            key.removeprefix(f"{step}_"): torch.from_numpy(value)
            for key, value in recorded.items()
            if key.startswith(f"{step}_")
        }
        total += told(given)[name].double()
        value, sums, count = recorded[name][step]
        np.testing.assert_allclose(total, [sums, count], rtol=1e-5)
        assert float(total[0] / total[1]) == pytest.approx(value, rel=1e-5)


def test_masks_points_are_counted_one_by_one():
    random = torch.Generator().manual_seed(3)
    logits, targets = torch.randn(5, 4, 4, generator=random), torch.rand(5, 4, 4, generator=random)
    positive = torch.tensor([True, False, True, True, False])
    right = inside = count = 0
    soft = 0.0
    for row in (0, 2, 3):
        for logit, target in zip(logits[row].flatten().tolist(), targets[row].flatten().tolist()):
            right += (logit >= 0) == (target >= 0.5)
            inside += logit >= 0 and target >= 0.5
            count, soft = count + 1, soft + target
    assert mask_accuracy(logits, targets, positive).tolist() == [right, count]
    assert mask_foreground_accuracy(logits, targets, positive).tolist() == pytest.approx([inside, soft])
    none = torch.zeros(0, 4, 4)
    assert mask_accuracy(none, none, positive[:0]).tolist() == [0, 0]
    assert mask_foreground_accuracy(none, none, positive[:0]).tolist() == [0, 0]
