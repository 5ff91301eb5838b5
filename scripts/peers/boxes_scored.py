"""What the peers for boxes have in common: which photos learn and which are scored, and pycocotools' numbers."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


class Split(NamedTuple):
    """Photos of one of COCO's splits."""

    coco: COCO
    folder: Path
    numbers: list[int]


def splits(data: Path, hold_out: bool) -> tuple[Split, Split]:
    """-> the photos to learn and those to score: val2017, or with `hold_out` every fourth of the training photos."""
    learned, scored = (_whole(data, name) for name in ("train2017", "val2017"))
    if hold_out:
        held = set(learned.numbers[::4])
        scored = learned._replace(numbers=learned.numbers[::4])
        learned = learned._replace(numbers=[number for number in learned.numbers if number not in held])
    return learned, scored


def score(rows: list[dict[str, Any]], split: Split, kind: Literal["bbox", "segm"] = "bbox") -> dict[str, float]:
    """Box (or mask) AP and AP50 of detections in COCO's form; box_ap50_NAME of each class."""
    word = "box" if kind == "bbox" else "mask"
    with contextlib.redirect_stdout(io.StringIO()):
        judge = COCOeval(split.coco, split.coco.loadRes(rows), kind)  # pyright: ignore[reportArgumentType]
        judge.params.imgIds = split.numbers
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    results = {f"{word}_ap": float(judge.stats[0]), f"{word}_ap50": float(judge.stats[1])}
    for k, category in enumerate(split.coco.loadCats(sorted(split.coco.getCatIds()))):
        found = judge.eval["precision"][0, :, k, 0, 2]  # IoU 0.5, all areas, 100 detections
        results[f"{word}_ap50_{category['name']}"] = float(found[found > -1].mean())
    return {name: round(value, 4) for name, value in results.items()}


def _whole(data: Path, name: str) -> Split:
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(data / "annotations" / f"instances_{name}.json")
    return Split(coco, data / name, sorted(coco.getImgIds()))
