"""GluonCV's six training accuracies (gluoncv/utils/metrics/rcnn.py) on drawn predictions.

Letters: B images   A anchors   R regions   P places of positives   K classes   S side of a mask
Inputs have the shapes with which train_mask_rcnn.py feeds them: one column of boxes and one mask for each class.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
from gluoncv.utils.metrics.rcnn import (
    MaskAccMetric,
    MaskFGAccMetric,
    RCNNAccMetric,
    RCNNL1LossMetric,
    RPNAccMetric,
    RPNL1LossMetric,
)

B, A, R, P, K, S = 2, 40, 24, 6, 3, 4
STEPS = 2  # metrics add up over steps


def metrics(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> of each step the inputs STEP_*, after each step the six values, and the sums and counts that they are quotients of."""
    six = {
        "rpn_acc": RPNAccMetric(),
        "rpn_l1": RPNL1LossMetric(),
        "rcnn_acc": RCNNAccMetric(),
        "rcnn_l1": RCNNL1LossMetric(),
        "mask_acc": MaskAccMetric(),
        "mask_fg_acc": MaskFGAccMetric(),
    }
    arrays: dict[str, np.ndarray] = {}
    values = {name: [] for name in six}
    for step in range(STEPS):
        one = predictions(random)
        arrays.update({f"{step}_{name}": value for name, value in one.items()})
        nd = {name: mx.nd.array(value) for name, value in one.items()}
        feed = {
            "rpn_acc": ([nd["anchor_kind"], nd["anchor_kind"] >= 0], [nd["anchor_logits"]]),
            "rpn_l1": ([nd["anchor_targets"], nd["anchor_mask"]], [nd["anchor_deltas"]]),
            "rcnn_acc": ([nd["labels"]], [nd["class_logits"]]),
            "rcnn_l1": ([nd["box_targets"], nd["box_mask"]], [nd["box_deltas"]]),
            "mask_acc": ([nd["mask_targets"], nd["mask_mask"]], [nd["mask_logits"]]),
            "mask_fg_acc": ([nd["mask_targets"], nd["mask_mask"]], [nd["mask_logits"]]),
        }
        for name, metric in six.items():
            metric.update(*feed[name])
            values[name].append((metric.get()[1], metric.sum_metric, metric.num_inst))
    # (STEPS, 3): value, sum, count, after each step
    arrays.update({name: np.array(rows, np.float64) for name, rows in values.items()})
    return arrays


def predictions(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """Targets and predictions of one step. Logits of exactly 0 are among them: sigmoid(0) >= 0.5 counts as positive."""
    kind = random.choice([-1, 0, 1], size=(B, A), p=[0.3, 0.5, 0.2]).astype(np.float32)
    logits = drawn(random, B, A)
    logits[:, :3] = 0
    labels = random.randint(-1, K + 1, size=(B, R)).astype(np.float32)  # -1 ignored, 0 background
    # The places of positives: the first regions, of which the last is a negative.
    own = random.randint(0, K, size=(B, P))
    labels[:, :P] = own + 1
    labels[:, P - 1] = 0
    one_of = (np.arange(K) == own[..., None]) & (labels[:, :P, None] > 0)
    masks = np.clip(random.uniform(-0.5, 1.5, size=(B, P, 1, S, S)), 0, 1).astype(np.float32)
    masks[:, :, :, 0, 0] = 0.5  # a target of exactly a half is foreground
    mask_logits = drawn(random, B, P, K, S, S)
    mask_logits[..., 1, 1] = 0
    return {
        "anchor_kind": kind,
        "anchor_logits": logits,
        "anchor_targets": (drawn(random, B, A, 4) * (kind == 1)[..., None]).astype(np.float32),
        "anchor_mask": np.repeat((kind == 1)[..., None], 4, axis=2).astype(np.float32),
        "anchor_deltas": drawn(random, B, A, 4),
        "labels": labels,
        "class_logits": drawn(random, B, R, K + 1),
        "box_targets": np.repeat(drawn(random, B, P, 1, 4), K, axis=2),
        "box_mask": np.repeat(one_of[..., None], 4, axis=3).astype(np.float32),
        "box_deltas": drawn(random, B, P, K, 4),
        "mask_targets": np.repeat(masks, K, axis=2),
        "mask_mask": np.broadcast_to(one_of[..., None, None], (B, P, K, S, S)).astype(np.float32),
        "mask_logits": mask_logits,
    }


def drawn(random: np.random.RandomState, *shape: int) -> np.ndarray:
    return random.normal(0, 1, size=shape).astype(np.float32)
