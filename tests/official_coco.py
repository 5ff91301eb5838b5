"""pycocotools as the judge of our scores: what every user of it writes, without its printing."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from paceline.models.metrics.coco import BoxScores, Detections, GroundTruth

ALL, MAX_100 = 0, 2


def loaded(source: Path | dict[str, Any]) -> COCO:
    """A file of annotations, or what stands in one."""
    with contextlib.redirect_stdout(io.StringIO()):
        if isinstance(source, Path):
            return COCO(str(source))
        files = COCO()
        files.dataset = source
        files.createIndex()
        return files


def truth_of(truth: GroundTruth, **columns: Any) -> COCO:
    """The same data as a file has it; `columns` go into every annotation: a value, or a function of its row and its image."""
    owner = np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts)).tolist()
    return loaded(
        {
            "images": [
                {"id": int(number), "height": int(height), "width": int(width)}
                for number, height, width in zip(truth.image_ids, truth.heights, truth.widths)
            ],
            "categories": [{"id": k, "name": str(k)} for k in range(1, truth.num_classes + 1)],
            "annotations": [
                {
                    "id": row + 1,
                    "image_id": int(truth.image_ids[image]),
                    "category_id": int(truth.classes[row]),
                    "bbox": truth.boxes[row].tolist(),
                    "area": float(truth.areas[row]),
                    "iscrowd": int(truth.crowd[row]),
                    **{key: value(row, image) if callable(value) else value for key, value in columns.items()},
                }
                for row, image in enumerate(owner)
            ],
        }
    )


def size_of(truth: GroundTruth, image: int) -> list[int]:
    """Height and width of a photo, as a mask has them."""
    return [int(truth.heights[image]), int(truth.widths[image])]


def results_of(
    truth: GroundTruth, found: Detections, categories: Sequence[int] = (), masks: Iterable[bytes] = ()
) -> list[dict[str, Any]]:
    """Detections as a results file has them, their boxes or their masks; class k is categories[k - 1], or k."""
    shapes = [
        {"segmentation": {"size": size_of(truth, image), "counts": counts}} for image, counts in zip(found.images, masks)
    ]
    return [
        {
            "image_id": int(truth.image_ids[image]),
            "category_id": categories[int(k) - 1] if categories else int(k),
            "score": float(score),
            **shape,
        }
        for image, k, score, shape in zip(
            found.images, found.classes, found.scores, shapes or [{"bbox": box} for box in found.boxes.tolist()]
        )
    ]


def judge(wanted: COCO, found: list[dict[str, Any]], kind: str) -> COCOeval:
    """Where nothing was found, loadRes fails: an empty set stands in."""
    results = wanted if found else loaded({**wanted.dataset, "annotations": []})
    with contextlib.redirect_stdout(io.StringIO()):
        scorer = COCOeval(wanted, results.loadRes(found) if found else results, kind)
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    return scorer


def assert_same(ours: BoxScores, judged: COCOeval) -> None:
    """Bit for bit: no tolerance anywhere."""
    assert list(ours.metrics.values()) == judged.stats.tolist()
    precision, recall = judged.eval["precision"], judged.eval["recall"]
    np.testing.assert_array_equal(ours.curves.T, precision[0, :, :, ALL, MAX_100])
    for k, score in enumerate(ours.per_class):
        for value, values in (
            (score.ap, precision[:, :, k, ALL, MAX_100]),
            (score.ap50, precision[0, :, k, ALL, MAX_100]),
            (score.ar100, recall[:, k, ALL, MAX_100]),
        ):
            there = values[values > -1]
            assert value == (np.mean(there) if there.size else -1)
