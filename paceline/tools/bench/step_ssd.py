"""`paceline bench step --task detection`: matching, forward, loss, backward and optimizer on pixels and objects on the device.

Letters: B images   S side of the input, pixels   A default boxes   K classes   C = K + 1   n objects of an image
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from paceline.config.recipes.ssd import MLPERF_IMAGES, MLPERF_LR, SSDRecipe, mlperf
from paceline.config.ssd import grid_sizes
from paceline.config.system import Precision
from paceline.data.batch import DetectionBatch, Objects, detection_batch
from paceline.models.ops.anchors import default_boxes
from paceline.models.ssd import loss
from paceline.models.ssd.loss import SSDWithLoss, normalize_per_image, ssd_loss
from paceline.models.ssd.model import init_ssd
from paceline.models.ssd.workload import SSD
from paceline.tools.bench.harness import OURS, Menu, list_variants
from paceline.tools.bench.profile import ProfiledPart, resolve_part
from paceline.tools.bench.step import StepBench, make_predict_function, make_step, to_device

OBJECTS = 7  # of an image, on average, as in COCO


@dataclass(frozen=True)
class SSDInputs:
    """One batch, in the two forms that contenders want."""

    batch: DetectionBatch
    objects: list[tuple[Tensor, Tensor]]  # of each image: boxes (n, 4) ltrb fractions, labels (n,), not padded
    anchors: Tensor  # (A, 4) cxcywh


@dataclass(frozen=True, kw_only=True)
class SSDBench(StepBench):
    """What to measure."""

    task = "detection"
    depth: Literal[18, 34]  # of the trunk's ResNet
    size: int  # S
    classes: int  # K
    heads: Literal["separate", "fused"] = "separate"  # of ours

    def about(self) -> dict[str, Any]:
        return {"depth": self.depth, "size": self.size, "classes": self.classes}

    def recipe(self) -> SSDRecipe:
        """The MLPerf reference's settings for this batch and size."""
        base = mlperf()
        return replace(
            base,
            model=replace(base.model, depth=self.depth, heads=self.heads, head_channel_multiple=8),
            input=replace(base.input, image_size=self.size),
            global_batch_size=self.batch,
            bn_batch_size=self.batch,
            optim=replace(base.optim, lr=MLPERF_LR * self.batch / MLPERF_IMAGES),
        )

    def model(self, device: torch.device) -> SSDWithLoss:
        model = SSD.network.build(self.recipe(), self.classes)
        init_ssd(model.network, torch.Generator().manual_seed(0))
        return to_device(model, self.system, device)

    def scenes(self, device: torch.device) -> Iterator[tuple[str, SSDInputs]]:
        """One, synthetic."""
        yield "", make_ssd_inputs(self.batch, self.classes, self.size, device)

    def parts(self, model: Any) -> Sequence[ProfiledPart]:
        """The loss; what else there is has a kind."""
        return resolve_part("matching and loss", ssd_loss, normalize_per_image, called_in=loss)

    def ours(self, precision: Precision, scene: SSDInputs, device: torch.device) -> Menu:
        """With separate heads, and with one head convolution a level, its channels padded to a multiple of 8 as tensor cores
        want them; those weights are drawn for themselves.
        """
        fused = partial(make_step, replace(self, heads="fused"), precision, scene, device)
        return super().ours(precision, scene, device) | list_variants(OURS, fused, ", fused heads", ours=True)

    def predictor(self, precision: Precision, scene: SSDInputs, device: torch.device) -> Callable[[], Any]:
        """From pixels to detections, of a network that is not trained yet: no score is above the threshold.

        On a GPU the work is the same whatever there is to find.
        """
        return make_predict_function(self, precision, self.model(device).eval(), scene.batch, device)


def make_ssd_inputs(images: int, classes: int, size: int, device: torch.device) -> SSDInputs:
    """The same on every call: B images of `size` pixels, K classes."""
    draw = np.random.default_rng(0)
    rows = []
    for count in draw.poisson(OBJECTS, images):
        sides = np.exp(draw.uniform(np.log(0.03), np.log(0.8), (count, 2)))
        low = draw.random((count, 2)) * (1 - sides)
        boxes = np.concatenate([low, low + sides], axis=1).astype(np.float32)
        rows.append(Objects(boxes, draw.integers(1, classes + 1, count)))
    pixels = torch.from_numpy(draw.integers(0, 256, (images, 3, size, size), dtype=np.uint8))
    cells = grid_sizes(size)
    return SSDInputs(
        detection_batch(pixels, rows, torch.arange(images)).to(device),  # type: ignore[arg-type]
        [(torch.from_numpy(row.boxes).to(device), torch.from_numpy(row.classes).to(device)) for row in rows],
        default_boxes(size, cells, mlperf().model.scales[: len(cells) + 1]).to(device),
    )
