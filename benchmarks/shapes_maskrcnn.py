"""`paceline bench step --task instance-segmentation --part shapes --data DIR`: number of shapes per epoch, and their padding.

Letters: n samples of an epoch   B images of a step   f images of a forward
Counted are training forwards as a run cuts them: pixels that are padding, object slots without an object, and mask-head slots
without a positive region. An accelerator has as many mask-head slots for every image as it may have positives; a CPU computes
the positives that there are, so it has no empty ones. Region slots are full as soon as an image has so many proposals,
which it has several times over.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from paceline.config.maskrcnn import InstanceInput, InstanceRecipe
from paceline.config.plan import make_plan
from paceline.config.system import System
from paceline.data.batch import count_slots
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.batch_shapes import Shape, make_buckets, resized_sizes
from paceline.models.maskrcnn.model import MaskRCNN
from paceline.tools.bench.input import get_task


def count_shapes(
    data: Path, settings: InstanceInput, *, batch: int, each: int, positives: tuple[int, ...], epochs: int
) -> dict[str, Any]:
    """-> JSON facts of the first epochs of a run.

    batch      B; each: f, divides B
    positives  sampled positive regions of an image for which empty slots are told
    Raises DataError for data that cannot be used.
    """
    manifest = Manifest.load(prepare_if_needed(data, kind="boxes"))
    images = epochs * max(batch, manifest.splits["train"].images)
    task = get_task("instance-segmentation", manifest, settings, batch, images)
    return {
        "data": str(data),
        "images": task.data.train_images,
        "objects": int(task.data.wanted.sum()),
        "batch": batch,
        "micro_batch_size": each,
        "epochs": epochs,
        **of_forwards(task, settings, each),
        "mask_slots": {str(count): empty_mask_slots(task.recipe, task.data.classes, count) for count in positives},
    }


def of_forwards(task: Any, settings: InstanceInput, each: int) -> dict[str, Any]:
    """Shapes, padding and object slots of a run's forwards."""
    system = System("cpu", micro_batch_size=each)
    plan = make_plan(
        task.recipe, system, world=1, most=each, train_images=task.data.train_images, val_images=task.data.val_images
    )
    usable = np.concatenate(([0], np.cumsum(task.data.wanted)))
    starts = task.data.train.object_starts
    shapes: Counter[Shape] = Counter()
    pixels = used = slots = objects = 0
    for step in range(plan.total_steps):
        epochs_of, places = task.data.samples(step, forwards=plan.micro_batches)
        numbers = task.data.train_numbers[places]
        shape = task.data.shapes.of_step(step, numbers).shape
        for part in zip(np.split(epochs_of, plan.micro_batches), np.split(numbers, plan.micro_batches)):
            shapes[shape] += 1
            chosen = part[1]
            stored = task.data.train.heights[chosen], task.data.train.widths[chosen]
            sizes = resized_sizes(*stored, settings.min_size[0], settings.max_size, settings.parity.side_rounding)
            pixels += len(chosen) * math.prod(shape)
            used += int(sizes.prod(axis=1).sum())
            counts = usable[starts[chosen + 1]] - usable[starts[chosen]]
            slots += len(chosen) * count_slots(int(counts.max()))
            objects += int(counts.sum())
    return {
        "buckets": [list(shape) for shape in make_buckets(settings.min_size[0], settings.max_size, settings.size_divisor)],
        "shapes": {f"{height}x{width}": count for (height, width), count in shapes.most_common()},
        "distinct_shapes": len(shapes),
        "padding": 1 - used / pixels,
        "empty_object_slots": 1 - objects / slots,
    }


def empty_mask_slots(recipe: InstanceRecipe, classes: Any, positives: int) -> dict[str, float]:
    """Of an image with so many positive regions: what share of the mask head's slots is empty, and what that costs."""
    roi, mask = recipe.model.roi, recipe.model.mask
    slots = int(roi.samples_per_image * roi.positive_fraction)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network = MaskRCNN(recipe.model, len(classes))
        pooled = torch.empty(1, recipe.model.fpn_channels, mask.pool_size, mask.pool_size)
        network.roi_heads.masks(pooled, torch.zeros(1, dtype=torch.int64))
    empty = max(0, slots - positives)
    return {
        "slots": slots,
        "empty_on_an_accelerator": empty / slots,
        "gflop_of_empty_slots_forward": empty * counter.get_total_flops() / 1e9,
        "empty_on_a_cpu": 0.0,
    }
