"""What GluonCV does otherwise than its recipes here, or did before they had an option for it, in numbers on a COCO folder.

    PYTHONPATH=. python scripts/originals/gluoncv_effects.py --data COCO --out results/deviations/gluoncv.json [--photos 200]

Neither MXNet nor GluonCV is needed: both rules are ours, held against theirs by tests/oracle/test_gluoncv_*.py.
COCO is a folder with annotations/instances_train2017.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools import mask as coco

from paceline.config.recipes.maskrcnn import gluoncv
from paceline.data.rle import decode_mask
from paceline.models.batch_shapes import choose_bucket, make_buckets, resized_size
from paceline.models.metrics.coco import Detections, GroundTruth, score_boxes
from paceline.models.ops.anchors import make_pyramid_anchors
from paceline.models.ops.boxes import pairwise_iou
from paceline.models.ops.matching import is_inside_image
from paceline.models.ops.paste_masks import PasteLaw, paste_to_rle
from paceline.models.ops.torchvision_kernels import roi_align

MODEL, PHOTO = gluoncv().model, gluoncv().input
SHORT, LONG = PHOTO.min_size[0], PHOTO.max_size
TIE = float(np.spacing(np.float32(1)))


def inputs(photos: Sequence[dict[str, Any]]) -> np.ndarray:
    """(N, 2) heights and widths of the photos in the input."""
    return np.array(
        [resized_size(photo["height"], photo["width"], SHORT, LONG, PHOTO.parity.side_rounding) for photo in photos]
    )


def cut_sides(photos: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The size that cutting gives, beside rounding."""
    cut = np.array([resized_size(photo["height"], photo["width"], SHORT, LONG, "cut") for photo in photos])
    return {"share_of_photos": float((cut != inputs(photos)).any(axis=1).mean())}


def best_anchors_within_rounding(photos: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Anchors of an IoU of 0.3 or more that lie below an object's best by less than 2^-23: positive there, not here."""
    rpn, anchors_seen, extra = MODEL.rpn, 0, 0
    for photo, (height, width) in zip(photos[:60], inputs(photos).tolist()):
        grids = [(-(-height // stride), -(-width // stride)) for stride in (4, 8, 16, 32, 64)]
        anchors = torch.cat(
            make_pyramid_anchors(
                grids,
                4 * grids[0][0],
                4 * grids[0][1],
                sizes=rpn.anchor_sizes,
                ratios=rpn.aspect_ratios,
                rounding=MODEL.parity.anchor_rounding,
            )
        )
        anchors = anchors[is_inside_image(anchors, torch.tensor([[height, width]]))[0]]
        scale = torch.tensor([width / photo["width"], height / photo["height"]] * 2)
        boxes = torch.tensor([[x, y, x + w, y + h] for x, y, w, h in (o["bbox"] for o in photo["objects"])]) * scale
        overlap = pairwise_iou(boxes, anchors)
        best = overlap.amax(dim=1, keepdim=True)
        near = ((overlap + TIE > best) & (overlap < best)).any(dim=0) & ~(overlap == best).any(dim=0)
        value = overlap.amax(dim=0)
        extra += int((near & (value >= rpn.bg_iou) & (value < rpn.fg_iou)).sum())
        anchors_seen += len(anchors)
    return {"anchors": anchors_seen, "kind_differs": extra}


def one_scale_for_both_sides(photos: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Detections divided by the height's scale alone: how far a box's right edge moves, pixels of the photo."""
    stored = np.array([(photo["height"], photo["width"]) for photo in photos], np.float64)
    sizes = inputs(photos)
    moved = [
        abs((x + w) * (size[1] / size[0] * hw[0] / hw[1] - 1))
        for photo, size, hw in zip(photos, sizes, stored)
        for x, _, w, _ in (entry["bbox"] for entry in photo["objects"])
    ]
    return {"mean_px": float(np.mean(moved)), "most_px": float(np.max(moved))}


def which_objects_train(photos: Sequence[dict[str, Any]]) -> dict[str, int]:
    """There: annotated area above 1 and a box of 4 square pixels of the photo. Here: sides of 1 pixel of the input."""
    objects = theirs = ours = 0
    for photo, (height, width) in zip(photos, inputs(photos).tolist()):
        for entry in photo["objects"]:
            w, h = entry["bbox"][2:]
            objects += 1
            theirs += entry["area"] > 1 and w * h >= 4
            ours += w * width / photo["width"] >= 1 and h * height / photo["height"] >= 1
    return {"objects": objects, "there": int(theirs), "here": int(ours)}


def padding(photos: Sequence[dict[str, Any]], random: np.random.RandomState) -> dict[str, float]:
    """Share of the input beyond the photo: pairs of like shape padded to the larger, as there; one photo a bucket, as here."""
    sizes = inputs(photos)
    there, here = [], []
    order = random.permutation(len(sizes))
    for first in range(0, len(order) - 1, 64):
        part = order[first : first + 64]
        part = part[np.argsort(sizes[part, 1] / sizes[part, 0], kind="stable")]
        for pair in np.array_split(part, max(1, len(part) // 2)):
            whole = sizes[pair].max(axis=0)
            there += [1 - size.prod() / whole.prod() for size in sizes[pair]]
    shapes = make_buckets(SHORT, LONG, PHOTO.size_divisor)
    for h, w in sizes.tolist():
        here.append(1 - h * w / np.prod(choose_bucket(h, w, shapes)))
    return {"there": float(np.mean(there)), "here": float(np.mean(here))}


def pasted(photos: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean IoU of an object's mask with the target that the net learns from it, pasted into the photo, by law and by area."""
    laws: tuple[PasteLaw, ...] = ("torchvision", "gluoncv")
    found: dict[str, dict[str, list[float]]] = {law: {"small": [], "medium": [], "large": []} for law in laws}
    for photo, size in zip(photos, inputs(photos).tolist()):
        stored = photo["height"], photo["width"]
        scale = torch.tensor([size[1] / stored[1], size[0] / stored[0]] * 2)
        for entry in photo["objects"]:
            x, y, w, h = entry["bbox"]
            if not isinstance(entry["segmentation"], list) or w < 2 or h < 2:
                continue
            box = torch.tensor([[x, y, x + w, y + h]])
            truth = drawn(entry["segmentation"], (1.0, 1.0), *stored)
            whole = torch.from_numpy(drawn(entry["segmentation"], scale[:2].tolist(), *size))[None, None].float()
            region = torch.cat((torch.zeros(1, 1), box * scale), dim=1)
            target = roi_align(whole, region, 28, scale=1.0, sampling_ratio=MODEL.mask.sampling_ratio, aligned=False)[0]
            area = "small" if entry["area"] < 32**2 else "medium" if entry["area"] < 96**2 else "large"
            for law in laws:
                back = decode_mask(paste_to_rle(target, box, *stored, law=law)[0], *stored)
                found[law][area].append(float((back & truth).sum() / max(1, (back | truth).sum())))
    return {law: {area: float(np.mean(values)) for area, values in by.items()} for law, by in found.items()}


def drawn(outlines: Sequence[Sequence[float]], scale: Sequence[float], height: int, width: int) -> np.ndarray:
    """(H, W) uint8 of an object's outlines, moved by a scale of x and one of y."""
    moved = [(np.reshape(outline, (-1, 2)) * scale).ravel().tolist() for outline in outlines]
    return coco.decode(coco.merge(coco.frPyObjects(moved, height, width)))


def rounded_results(photos: Sequence[dict[str, Any]], random: np.random.RandomState) -> dict[str, float]:
    """Box AP of made-up detections, and with scores of 3 and boxes of 2 decimals."""
    classes = sorted({entry["category_id"] for photo in photos for entry in photo["objects"]})
    rows = [(number, entry) for number, photo in enumerate(photos) for entry in photo["objects"]]
    boxes = np.array([entry["bbox"] for _, entry in rows])
    labels = np.array([classes.index(entry["category_id"]) + 1 for _, entry in rows])
    images = np.array([number for number, _ in rows])
    truth = GroundTruth(
        image_ids=np.arange(len(photos)),
        heights=np.array([photo["height"] for photo in photos]),
        widths=np.array([photo["width"] for photo in photos]),
        starts=np.searchsorted(images, np.arange(len(photos) + 1)),
        boxes=boxes,
        classes=labels,
        crowd=np.zeros(len(rows), np.uint8),
        areas=np.array([entry["area"] for _, entry in rows], np.float64),
        num_classes=len(classes),
    )
    # Ten guesses an object, from exact to far off, scores that follow how good they are.
    noise = random.exponential(0.12, size=(len(rows), 10, 1)) * random.normal(size=(len(rows), 10, 4))
    guesses = (boxes[:, None] + noise * boxes[:, None, [2, 3, 2, 3]]).reshape(-1, 4)
    guesses[:, 2:] = np.maximum(guesses[:, 2:], 1)
    scores = 1 / (1 + np.exp(8 * np.abs(noise).mean(axis=2).ravel() + random.normal(size=len(guesses))))
    images, labels = images.repeat(10), labels.repeat(10)
    exact = score_boxes(truth, Detections(images, guesses, labels, scores)).metrics["box_ap"]
    rounded = score_boxes(truth, Detections(images, guesses.round(2), labels, scores.round(3))).metrics["box_ap"]
    return {"exact": exact, "rounded": rounded, "difference": rounded - exact}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    listed = json.loads((arguments.data / "annotations/instances_train2017.json").read_text())
    of: dict[int, list[dict[str, Any]]] = {}
    for entry in listed["annotations"]:
        if not entry["iscrowd"]:
            of.setdefault(entry["image_id"], []).append(entry)
    photos = [{**photo, "objects": of[photo["id"]]} for photo in listed["images"] if photo["id"] in of]
    random = np.random.RandomState(arguments.seed)
    photos = [photos[place] for place in random.permutation(len(photos))[: arguments.photos]]
    found = {
        "photos": len(photos),
        "objects": sum(len(photo["objects"]) for photo in photos),
        "cut_sides": cut_sides(photos),
        "best_anchors_within_rounding": best_anchors_within_rounding(photos),
        "one_scale_for_both_sides": one_scale_for_both_sides(photos),
        "which_objects_train": which_objects_train(photos),
        "padding": padding(photos, random),
        "pasted": pasted(photos),
        "rounded_results": rounded_results(photos, random),
    }
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
