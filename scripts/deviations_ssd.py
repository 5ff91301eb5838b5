"""What SSD's deviations from the published systems are worth, counted on real photos: the numbers of
docs/reference/known-differences.md.

    PYTHONPATH=. python scripts/deviations_ssd.py --data COCO --out results/deviations/ssd.json

COCO: any folder of photos with boxes that `paceline prepare` takes. Each training photo with objects is drawn `--epochs` times as the
recipes draw it; colors, ties and decoding are compared on the first `--photos` of them. One process, no network, a few minutes.
Letters: S = 300 pixels   A = 8732 default boxes   n objects
"""

from __future__ import annotations

import argparse
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from paceline.config.recipes.ssd import SSDRecipe, gaudi, mlperf, mlperf_1024
from paceline.config.ssd import BoxInput, DetectionFilter, SSDParity, grid_sizes
from paceline.data.batch import detection_batch
from paceline.data.index.manifest import Manifest
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.transforms import color_jitter, crop, resample
from paceline.data.transforms.decode import SampleSpec, dct_scale, decode_crop
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.models.ops.anchors import default_boxes
from paceline.models.ops.boxes import pairwise_iou, to_ltrb
from paceline.models.ops.matching import match
from paceline.models.registry import WORKLOADS
from paceline.models.ssd import transforms
from paceline.models.ssd.postprocess import detections_cpu, postprocess_ssd
from paceline.models.task import Task


def drawn(task: Task, number: int, epoch: int, photo: BoxInput) -> tuple[bytes, SampleSpec]:
    """A photo's bytes and its draw."""
    index = int(task.data.train_numbers[number])
    rows = task.data.wanted_rows(index)
    data, name = task.data.train.index.read(index), task.data.train.index.name(index)
    random = SampleRng(1, epoch, index)
    boxes, classes = task.data.train.boxes[rows], task.data.train.classes[rows]
    return data, transforms.sample_box_spec(read_header(data, name, photo.exif), name, boxes, classes, random, photo)


def boxes(task: Task, epochs: int, recipe: SSDRecipe) -> dict[str, int]:
    """Objects that the crop keeps, that are dropped as too thin, that touch no default box; overlaps of just a threshold."""
    corners = to_ltrb(default_boxes(300, grid_sizes(300), recipe.model.scales))
    counted: Counter[str] = Counter()
    cut, overlaps = transforms.clip_boxes_to_crop, crop._Objects.all_above

    def kept(window, ltrb, keep, flip):
        fractions, stays = cut(window, ltrb, keep, flip)
        counted["objects whose centre is in the crop"] += int(keep.sum())
        counted["of these dropped, thinner than a thousandth of the crop"] += int(keep.sum() - stays.sum())
        return fractions, stays

    def judged(objects, threshold, crop):
        ious = pairwise_iou(torch.tensor([crop], dtype=torch.float64), torch.tensor(objects.boxes, dtype=torch.float64))
        counted["crops judged by a threshold above 0"] += threshold > 0
        counted["of these with an overlap of just the threshold"] += bool(threshold > 0 and (ious == threshold).any())
        return overlaps(objects, threshold, crop)

    with patch.object(transforms, "boxes_in", kept), patch.object(crop._Objects, "all_above", judged):
        for epoch in range(epochs):
            for number in range(task.data.train_images):
                _, draw = drawn(task, number, epoch, recipe.input)
                best = pairwise_iou(torch.from_numpy(draw.label.boxes), corners).amax(dim=1)
                counted["objects that touch no default box"] += int((best == 0).sum())
    return dict(counted)


def ties(task: Task, photos: int) -> dict[str, dict[str, float]]:
    """Share of samples that another order or another precision of default boxes matches otherwise, beside recipe ssd's."""
    detectors = {
        "ssd": WORKLOADS["detection"].network.build(mlperf(), 1),
        "ssd-mlperf-*": WORKLOADS["detection"].network.build(mlperf_1024(), 1),
    }
    detectors["ssd-gaudi"] = WORKLOADS["detection"].network.build(gaudi(), 1)
    plain = replace(mlperf(), model=replace(mlperf().model, parity=SSDParity(box_order="cell")))
    detectors["the first by cell, as before"] = WORKLOADS["detection"].network.build(plain, 1)
    samples, moved, positives = 0, Counter(), Counter()
    for number in range(photos):
        label = drawn(task, number, 0, mlperf().input)[1].label
        batch = detection_batch(torch.zeros(1, 3, 1, 1, dtype=torch.uint8), [label], torch.zeros(1))
        found = {}
        for name, detector in detectors.items():
            equal = "last" if detector.settings.box_order.endswith("-last") else "first"
            corners = to_ltrb(detector.anchors) if detector.corners is None else detector.corners
            found[name] = match(batch.boxes, batch.labels, corners, order=detector.order, equal=equal)
        samples += 1
        theirs, mine = found["ssd"]
        for name, (slots, chosen) in found.items():
            other = (chosen != mine) | (chosen & mine & (slots != theirs))
            moved[name] += bool(other.any())
            positives[name] += int((chosen & ~mine).sum())
    total = {name: {"samples matched otherwise": moved[name] / samples, "default boxes a sample": positives[name] / samples}
             for name in found}  # fmt: skip
    return total


def pixels(task: Task, photos: int) -> dict[str, float]:
    """Mean difference of levels, of 255: decoding at a DCT scale beside in full, one matrix beside DALI's two steps."""
    found: dict[str, list[float]] = {}
    photo = mlperf().input
    for number in range(photos):
        data, draw = drawn(task, number, 0, photo)
        scale = dct_scale(draw.window)
        found.setdefault("share of crops decoded at a DCT scale", []).append(scale > 1)
        if scale > 1:
            out, whole = (np.zeros((300, 300, 3), np.uint8) for _ in range(2))
            decode_crop(data, SampleSpec("it", draw.header, draw.window, None, decoder="pillow"), out)
            top, left, height, width = draw.window[:4]
            full = Image.open(io.BytesIO(data)).convert("RGB")
            box = (left, top, left + width, top + height)
            whole[:] = np.asarray(full.crop(box).resize((300, 300), Image.Resampling.BILINEAR))
            found.setdefault("levels, DCT scale beside full decoding, where one is used", []).append(
                float(np.abs(out.astype(int) - whole).mean())
            )
        for recipe, names in ((mlperf_1024(), ("matrix", "dali")), (gaudi(), ("hsv", "tensorflow"))):
            pictures = []
            for name in names:
                settings = replace(recipe.input, color_jitter=name, resize="bilinear-antialias")
                data, draw = drawn(task, number, 0, settings)
                out = np.zeros((300, 300, 3), np.uint8)
                decode_and_transform(data, draw, out)
                pictures.append(out.astype(int))
            name = f"levels, jitter {names[0]} beside {names[1]}"
            found.setdefault(name, []).append(float(np.abs(pictures[0] - pictures[1]).mean()))
    return {name: float(np.mean(values)) for name, values in found.items()}


def bytes_of_gaudi(task: Task, photos: int) -> dict[str, float]:
    """Recipe ssd-gaudi's bytes beside the same arithmetic in float32, which TensorFlow neither rounds nor cuts."""
    apart, beyond, cut = [], [], []
    for number in range(photos):
        data, draw = drawn(task, number, 0, gaudi().input)
        out = np.zeros((300, 300, 3), np.uint8)
        decode_and_transform(data, draw, out)
        exact = np.zeros((300, 300, 3), np.float32)
        color = draw.color
        assert color is not None
        with patch.object(resample.np, "rint", lambda values, out: values):
            decode_crop(data, draw._replace(decoder="simplejpeg"), exact)
        planes = np.ascontiguousarray(exact.transpose(2, 0, 1))
        with patch.object(color_jitter.np, "clip", _clip_but_levels):
            color_jitter._as_tensorflow(planes, color, np.empty((7, 300, 300), np.float32))
        exact = planes.transpose(1, 2, 0)
        outside = (exact < 0) | (exact > 255)
        beyond.append(outside.mean())
        apart.append(np.abs(out - exact)[~outside].mean())
        cut.append(np.abs(out - exact).mean())
    return {
        "share of values beyond 0..255": float(np.mean(beyond)),
        "levels, of values inside": float(np.mean(apart)),
        "levels, of all values": float(np.mean(cut)),
    }


_CLIP = np.clip


def _clip_but_levels(values, low, high, out):
    return values if high == 255 else _CLIP(values, low, high, out=out)


def half_precision(seeds: int) -> dict[str, float]:
    """System A's evaluation in float16, as submitted, beside ours in float32, of drawn outputs of a full network."""
    anchors = default_boxes(300, grid_sizes(300), mlperf().model.scales)
    same, moved = [], []
    for seed in range(seeds):
        random = torch.Generator().manual_seed(seed)
        logits = 2.2 * torch.randn(1, 8732, 81, generator=random)
        deltas = 0.5 * torch.randn(1, 8732, 4, generator=random)
        rules = DetectionFilter(score_threshold=0.0, topk_candidates=200, max_detections=200, topk_per="image")
        full = postprocess_ssd(logits, deltas, anchors, rules, 0.5)[0]
        probs = logits.half().softmax(2)[0, :, 1:].float()
        half = detections_cpu(probs, deltas[0].half().float(), anchors.half().float(), rules, 0.5)
        near = pairwise_iou(full[:, :4], half[:, :4]) * (full[:, None, 5] == half[None, :, 5])
        same.append((near.amax(1) > 0.95).float().mean().item())
        pairs = near.argmax(1)[near.amax(1) > 0.95]
        moved.append(300 * (full[near.amax(1) > 0.95, :4] - half[pairs, :4]).abs().mean().item())
    return {
        "share of detections found again": float(np.mean(same)),
        "their mean shift, pixels of 300": float(np.mean(moved)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--photos", type=int, default=200)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    task = WORKLOADS["detection"].open(mlperf(), Manifest.load(prepare_if_needed(asked.data, kind="boxes")))
    photos = min(asked.photos, task.data.train_images)
    found = {
        "training photos": task.data.train_images,
        "epochs": asked.epochs,
        "photos": photos,
        "boxes": boxes(task, asked.epochs, mlperf()),
        "ties": ties(task, photos),
        "pixels": pixels(task, photos),
        "bytes": bytes_of_gaudi(task, photos),
        "float16": half_precision(10),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
