"""Photos to boxes and compressed masks: ours beside torchvision's model with its pasting and pycocotools' compression.

Letters: B images   n detections of an image
Untrained class weights are scaled up so that scores lie far apart and every image has detections. Ours pastes on its device
straight to run lengths; torchvision makes a bitmap of the whole photo for every detection, as its own evaluation does.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from paceline.bench.step_maskrcnn_scene import Scene
from paceline.bench.step_ssd_ops import times_faster
from paceline.bench.timing import seconds_of
from paceline.boxes.paste import paste_to_rle
from paceline.models.segmenter import Segmenter

# The spread of class logits that an untrained head is scaled to.
LOGIT_STD = 4.0


@torch.no_grad()
def run_predict(
    ours: Segmenter,
    theirs: nn.Module,
    scene: Scene,
    autocast: Callable[[], AbstractContextManager],
    rounds: int,
    device: torch.device,
) -> dict[str, Any]:
    """Seconds of a batch, and how many detections each has. Both models have the same weights."""
    ours.eval()
    theirs.eval()
    batch = replace(scene.batch, images=scene.batch.images.contiguous(memory_format=torch.channels_last))
    height, width = batch.images.shape[2:]
    gain = LOGIT_STD / spread(ours, batch)
    for heads in (ours.network.roi_heads, cast(Any, theirs).roi_heads):
        heads.box_predictor.cls_score.weight.mul_(gain)
    extent = torch.tensor([width, height, width, height], device=device)

    def paceline() -> list[Any]:
        with autocast():
            found = ours.predict(batch)
        pasted = []
        for rows, masks in zip(found.detections, found.masks):
            rows, masks = rows[rows[:, 5] > 0], masks[rows[:, 5] > 0]
            pasted.append(paste_to_rle(masks, rows[:, :4] * extent, height, width))
        return pasted

    def torchvision() -> list[Any]:
        with autocast():
            found = theirs(list(scene.batch.images.float() / 255))
        return [compressed(image["masks"]) for image in found]

    works: dict[str, Callable[[], list[Any]]] = {"paceline": paceline, "torchvision": torchvision}
    detections = {name: [len(image) for image in work()] for name, work in works.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(seconds_of(work, 0.0, device))
    return {
        "detections": detections,
        "seconds": {name: [wall for wall, _ in values] for name, values in taken.items()},
        "cpu_seconds": {name: [cpu for _, cpu in values] for name, values in taken.items()},
        "median_seconds": {name: statistics.median(wall for wall, _ in values) for name, values in taken.items()},
        "times_faster": {"torchvision": times_faster(taken["paceline"], taken["torchvision"], 0)},
        "times_faster_cpu": {"torchvision": times_faster(taken["paceline"], taken["torchvision"], 1)},
    }


def compressed(masks: Tensor) -> list[bytes]:
    """(n, 1, H, W) probabilities -> compressed run lengths, by pycocotools."""
    encode = importlib.import_module("pycocotools.mask").encode
    inside = (masks > 0.5).cpu().numpy()
    return [encode(np.asfortranarray(mask[0].astype(np.uint8)))["counts"] for mask in inside]


def spread(model: Segmenter, batch: Any) -> float:
    """Standard deviation of the class logits of the batch's regions."""
    seen = []
    hook = model.network.roi_heads.box_predictor.cls_score.register_forward_hook(lambda *call: seen.append(call[2]))
    model.predict(batch)
    hook.remove()
    return float(seen[0].float().std())
