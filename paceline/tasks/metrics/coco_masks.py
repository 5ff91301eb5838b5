"""Mask scores as the COCO benchmark defines them: the twelve official numbers, and average precision per class.

Letters: N images   M objects   D detections   K classes, 1..K
A mask is its run lengths at the photo's size. hotcoco matches; pycocotools is the judge: precision, recall and all means are its,
bit for bit (tests/oracle/test_mask_pycocotools.py). Objects are small, medium or large by their area as annotated, detections by
the pixels of their mask. What tasks/metrics/coco.py settles about the order of images holds here too.
Images are matched a few at a time, so that the runs of 200,000 masks are never in memory together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.boxes.run_lengths import RunLengths
from paceline.tasks.metrics.coco import BoxScores, Detections, GroundTruth, check_detections, places_of_ids, scores_of

# Objects and detections that are matched at once (or those of one image): about 10 MiB of dictionaries and runs.
CHUNK = 4096


def score_masks(truth: GroundTruth, wanted: RunLengths, detections: Detections, found: RunLengths) -> BoxScores:
    """The twelve official numbers (mask_ap, ..., mask_ar_large), and per class AP, AP50, AR100, objects and the precision curve.

    wanted  M masks, those of the rows of `truth`; only `truth.areas` counts as their area
    found   D masks, those of the rows of `detections`, whose boxes are not looked at
    Any number of images, objects and detections may be 0. It may run in a thread beside training: matching releases the interpreter
    lock, and handing over holds it a few hundredths of a second at a time.
    Raises ValueError where masks and rows are not as many, or a detection names no image or class of `truth` or is not finite.
    """
    from hotcoco import StreamingEval, mask

    check_detections(truth, detections)
    if len(wanted) != len(truth.classes) or len(found) != len(detections.scores):
        raise ValueError(
            f"{len(wanted)} masks of {len(truth.classes)} objects, {len(found)} of {len(detections.scores)} detections"
        )
    scorer = StreamingEval([{"id": k, "name": str(k)} for k in range(1, truth.num_classes + 1)], "segm")
    place = places_of_ids(truth)
    by_place = np.argsort(place)
    of_image = place[detections.images]
    order = np.argsort(of_image, kind="stable")
    starts = np.searchsorted(of_image[order], np.arange(len(place) + 1))
    sizes = np.stack([truth.heights, truth.widths], axis=1).astype(np.int64)
    for first, last in _chunks((np.diff(truth.starts)[by_place] + np.diff(starts)).tolist()):
        images = range(first, last)
        rows = order[starts[first] : starts[last]]
        size_of = sizes[detections.images[rows]].tolist()
        masks: list[Any] = [{"size": size, "counts": counts} for size, counts in zip(size_of, found.take(rows))]
        columns = np.zeros((len(rows), 7))
        columns[:, 0] = of_image[rows]
        # The scorer takes width times height for the area, and nothing else from the box.
        columns[:, 3], columns[:, 4] = mask.area(masks), 1
        columns[:, 5], columns[:, 6] = detections.scores[rows], detections.classes[rows]
        scorer.update(
            [{"id": image, "height": height, "width": width}
             for image, (height, width) in zip(images, sizes[by_place[first:last]].tolist())],
            [entry for image in images for entry in _objects(truth, wanted, int(by_place[image]), image, sizes)],
            columns,
            segmentation=masks,
        )  # fmt: skip
    evaluated = scorer.finalize()
    evaluated.accumulate()
    result = evaluated.eval
    assert result is not None
    return scores_of(result["precision"], result["recall"], truth, "mask")


def _chunks(counts: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of images that have CHUNK rows or fewer together; one image may have more."""
    first = rows = 0
    for image, count in enumerate(counts):
        if image > first and rows + count > CHUNK:
            yield first, image
            first, rows = image, 0
        rows += count
    if first < len(counts):
        yield first, len(counts)


def _objects(
    truth: GroundTruth, wanted: RunLengths, row: int, image: int, sizes: np.ndarray
) -> Iterator[dict[str, object]]:
    """The objects of image `row` as annotations of image `image`, numbered from 1."""
    size = sizes[row].tolist()
    for place in range(int(truth.starts[row]), int(truth.starts[row + 1])):
        yield {
            "id": place + 1,
            "image_id": image,
            "category_id": int(truth.classes[place]),
            "bbox": [0.0, 0.0, 0.0, 0.0],
            "area": float(truth.areas[place]),
            "iscrowd": int(truth.crowd[place]),
            "segmentation": {"size": size, "counts": wanted[place]},
        }
