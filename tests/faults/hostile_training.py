"""Annotations that can be read and make no sense: they train to finite losses, or are refused before the first step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile import Case, Family
from instance_sets import json_file, make_instances

from paceline.cli.main import main

FP32 = "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.num-workers 1"
SSD = (
    f"ssd-demo {FP32} --model.depth 10 --model.width 4 --model.extra-channels 8 --input.image-size 96 "
    "--global-batch-size 4 --optim.lr 0.01 "
    "--bn-batch-size 4 --max-steps 4 --log-every 1"
)
MASKRCNN = (
    f"maskrcnn-demo {FP32} --model.width 8 --model.fpn-channels 16 --model.roi.fc-channels 32 --model.rpn.pre-nms-topk-train 100 "
    "--model.rpn.post-nms-topk-train 32 --model.rpn.pre-nms-topk-test 100 --model.rpn.post-nms-topk-test 32 "
    "--model.detect.max-detections 20 --input.min-size 64 "
    "--input.max-size 96 --model.rpn.anchor-sizes 12 24 36 48 64 --global-batch-size 4 --bn-batch-size 4 --optim.lr "
    "0.002 --max-steps 3 --log-every 1"
)

SQUARE = [5, 5, 30, 5, 30, 30, 5, 30]


def good(folder: Path) -> None:
    make_instances(folder, train=8, val=4)


def first(**fields: Any) -> Callable[[Path], None]:
    """The first object of training with these fields."""

    def change(folder: Path) -> None:
        record = json.loads(json_file(folder, "train").read_text())
        record["annotations"][0].update(fields)
        json_file(folder, "train").write_text(json.dumps(record))

    return change


def first_to_the_end(folder: Path, number: int) -> None:
    """Keep what was done to the first object of training as one more object, and put a plain one in its place."""
    record = json.loads(json_file(folder, "train").read_text())
    objects = record["annotations"]
    plain = {"bbox": [5, 5, 25, 25], "area": 625.0, "segmentation": [SQUARE]}
    objects[0], done = {**objects[0], **plain}, {**objects[0], "id": 10**9 + number}
    json_file(folder, "train").write_text(json.dumps({**record, "annotations": [*objects, done]}))


def crowded(count: int) -> Callable[[Path], None]:
    """So many more objects on the first photo."""

    def change(folder: Path) -> None:
        record = json.loads(json_file(folder, "train").read_text())
        model = record["annotations"][0]
        for number in range(count):
            x, y = number % 60, number // 60 % 40
            box = {"bbox": [x, y, 9, 9], "segmentation": [[x, y, x + 9, y, x + 9, y + 9, x, y + 9]], "id": 10**6 + number}
            record["annotations"].append({**model, **box})
        json_file(folder, "train").write_text(json.dumps(record))

    return change


def star(points: int) -> list[float]:
    """A polygon of so many points on the photo."""
    return [30 + (8 + 15 * (n % 2)) * f(2 * math.pi * n / points) for n in range(points) for f in (math.cos, math.sin)]


# Either outcome is right where it says so: what a set with such objects is worth is the annotator's to judge.
CASES: dict[str, Case] = {
    "box of 1e300": (first(bbox=[-1e300, -1e300, 2e300, 2e300]), ""),
    "box of a million pixels": (first(bbox=[-1e6, -1e6, 2e6, 2e6]), ""),
    "box of a billionth": (first(bbox=[5, 5, 1e-9, 1e-9]), ""),
    "box beyond the photo": (first(bbox=[1e6, 1e6, 5, 5]), ""),
    "box not finite": (first(bbox=[math.nan, 1, math.inf, 5]), ""),
    "area not a number": (first(area=math.nan), ""),
    "area of 1e308": (first(area=1e308), ""),
    "area below 0": (first(area=-1e300), ""),
    "polygon of 1e300": (first(segmentation=[[-1e300, -1e300, 1e300, -1e300, 0, 1e300]]), ""),
    "polygon of a million pixels": (first(segmentation=[[-1e6, -1e6, 1e6, -1e6, 0, 1e6]]), ""),
    "20,000 polygons of one object": (first(segmentation=[SQUARE] * 20_000), ""),
    "polygon of 100,000 points": (first(segmentation=[star(100_000)]), ""),
    "mask of alternating pixels": (first(segmentation={"size": [60, 80], "counts": [1] * 4800}), ""),
    "mask of nothing": (first(segmentation={"size": [60, 80], "counts": [4800]}), ""),
    "500 objects on a photo": (crowded(500), ""),
}


def read_with(recipe: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        code = main(list(map(str, words_with(recipe)(folder))))
        assert code in (0, 2), code  # a loss that is not finite ends a run with 3

    return read


def words_with(recipe: str) -> Callable[[Path], list[object]]:
    name, *flags = recipe.split()
    return lambda folder: ["train", name, "--data", folder, "--output-dir", folder.parent / "run", *flags]


BOXES = Family("extreme boxes through SSD training", good, read_with(SSD), words_with(SSD), CASES)
MASKS = Family("extreme masks through Mask R-CNN training", good, read_with(MASKRCNN), words_with(MASKRCNN), CASES)
