"""Box and mask scores as the COCO benchmark defines them: the twelve official numbers, and average precision per class.

Letters: N images   M objects   D detections   K classes, 1..K   T = 10 IoU thresholds   R = 101 recall points
Boxes are float64 x, y, width, height in pixels of the original image, a mask its run lengths at the photo's size.
hotcoco matches and accumulates; pycocotools is the reference: precision, recall and all means are equal to its, bit for bit
(tests/oracle/test_coco_pycocotools.py, test_mask_pycocotools.py). Nothing is printed, no file is written. Two things that it leaves to
chance are fixed here: images count in the order of their ids (this decides between equal scores on different images), and annotations
are numbered from 1 (pycocotools takes a match with an annotation of id 0 for a miss).
Of masks, objects are small, medium or large by their area as annotated, detections by the pixels of their mask. Images are matched a
few at a time, so that the runs of 200,000 masks are never in memory together.
Source: Lin et al. 2014, and cocodataset.org, "Detection Evaluation".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from paceline.data.rle import RLE, gather_rows

if TYPE_CHECKING:
    from hotcoco import COCOeval

# Place in the arrays' axis of area ranges: borders 32^2 and 96^2 square pixels.
ALL_AREAS, SMALL, MEDIUM, LARGE = range(4)
MAX_1, MAX_10, MAX_100 = range(3)  # place in the axis of most detections an image and class
IOU_50, IOU_75 = 0, 5  # place in the axis of IoU thresholds: 0.50, 0.55, ..., 0.95
RECALL_POINTS = 101  # recall 0.00, 0.01, ..., 1.00
CURVE_IOU = 0.5
ABSENT = -1.0  # the official value where no object exists


@dataclass(frozen=True)
class GroundTruth:
    """Annotated objects. Those of image i are rows starts[i]:starts[i + 1]; an image may have none."""

    image_ids: np.ndarray  # (N,) int64, unique; the annotation file's
    heights: np.ndarray  # (N,) pixels
    widths: np.ndarray  # (N,) pixels
    starts: np.ndarray  # (N+1,) int64
    boxes: np.ndarray  # (M, 4) float64 x, y, width, height, pixels
    classes: np.ndarray  # (M,) 1..K
    crowd: np.ndarray  # (M,) uint8; a crowd need not be detected, and detections on it do not count as wrong
    areas: np.ndarray  # (M,) float64 square pixels, as annotated: decides small, medium and large
    num_classes: int  # K


@dataclass(frozen=True)
class Detections:
    """A model's detections, in any order of images. Equal scores in one image: the earlier row comes first."""

    images: np.ndarray  # (D,) int64, row number in GroundTruth
    boxes: np.ndarray  # (D, 4) float64 x, y, width, height, pixels
    classes: np.ndarray  # (D,) 1..K
    scores: np.ndarray  # (D,) float32 or float64


@dataclass(frozen=True)
class ClassScore:
    """One class over all areas, at most 100 detections an image; -1 where the class has no object."""

    ap: float  # mean over IoU 0.50 ... 0.95
    ap50: float
    ar100: float
    objects: int  # without crowds
    by_size: tuple[float, ...]  # AP of small, medium and large objects, as `ap`


@dataclass(frozen=True)
class BoxScores:
    """The official numbers and the report's curves; of boxes, or of masks."""

    metrics: dict[str, float]  # box_ap, box_ap50, ..., box_ar_large, in the official order; of masks mask_ap, ...
    per_class: list[ClassScore]  # K entries; class k is entry k-1
    curves: (
        np.ndarray
    )  # (K, 101) float64, precision at IoU 0.5 and recall 0, 0.01, ..., 1; -1 where the class has no object
    mean_curve: np.ndarray  # (101,) float64, mean over the classes that have objects; -1 where none has


def no_detections() -> Detections:
    """Empty detections, D = 0."""
    return Detections(np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0, np.int32), np.zeros(0, np.float32))


def select_images(truth: GroundTruth, numbers: np.ndarray) -> GroundTruth:
    """The ground truth of these images alone, in this order: row j of the result is row numbers[j] of `truth`.

    numbers  (n,) integers, each in 0..N-1 and at most once
    Raises ValueError for a number out of range or named twice.
    """
    numbers = np.asarray(numbers, np.int64)
    images = len(truth.image_ids)
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= images or len(np.unique(numbers)) < len(numbers)):
        raise ValueError(f"image numbers must be from 0 to {images - 1}, without duplicates")
    rows = gather_rows(truth.starts, numbers)
    return GroundTruth(
        image_ids=truth.image_ids[numbers],
        heights=truth.heights[numbers],
        widths=truth.widths[numbers],
        starts=np.concatenate([[0], np.cumsum(np.diff(truth.starts)[numbers])]).astype(np.int64),
        boxes=truth.boxes[rows],
        classes=truth.classes[rows],
        crowd=truth.crowd[rows],
        areas=truth.areas[rows],
        num_classes=truth.num_classes,
    )


def score_boxes(truth: GroundTruth, detections: Detections) -> BoxScores:
    """The twelve official numbers, and per class AP, AP50, AR100, objects and the precision curve.

    Any number of images, objects and detections may be 0. It may run in a thread beside training: matching and accumulation release
    the interpreter lock; only passing the arrays holds it (a quarter of the time: 0.1 s for 500,000 detections).
    Raises ValueError where a detection names no image or class of `truth`, or is not finite.
    """
    return to_official_metrics(*_accumulated(match_with_hotcoco(truth, detections)), truth, "box")


def to_official_metrics(
    precision: np.ndarray, recall: np.ndarray, truth: GroundTruth, kind: Literal["box", "mask"]
) -> BoxScores:
    """From the scorer's arrays to the official numbers, named after `kind`.

    precision  (T, R, K, 4 areas, 3 limits) float64, -1 where a class has no object
    recall     (T, K, 4 areas, 3 limits)
    """
    objects = np.bincount(truth.classes[truth.crowd == 0], minlength=truth.num_classes + 1)[1:]
    curves = np.ascontiguousarray(precision[IOU_50, :, :, ALL_AREAS, MAX_100].T)
    present = curves[(curves > ABSENT).all(axis=1)]
    return BoxScores(
        metrics={f"{kind}_{name}": value for name, value in _twelve(precision, recall).items()},
        per_class=[
            ClassScore(
                ap=_mean(precision[:, :, k, ALL_AREAS, MAX_100]),
                ap50=_mean(precision[IOU_50, :, k, ALL_AREAS, MAX_100]),
                ar100=_mean(recall[:, k, ALL_AREAS, MAX_100]),
                objects=int(objects[k]),
                by_size=tuple(_mean(precision[:, :, k, size, MAX_100]) for size in (SMALL, MEDIUM, LARGE)),
            )
            for k in range(truth.num_classes)
        ],
        curves=curves,
        mean_curve=present.mean(axis=0) if len(present) else np.full(RECALL_POINTS, ABSENT),
    )


def check_detections(truth: GroundTruth, detections: Detections) -> None:
    """Raises ValueError where a detection names no image or class of `truth`, or where a box or score is not finite."""
    for what, values, first, last in (
        ("image", detections.images, 0, len(truth.image_ids) - 1),
        ("class", detections.classes, 1, truth.num_classes),
    ):
        wrong = (values < first) | (values > last)
        if wrong.any():
            raise ValueError(f"{wrong.sum()} detections have a {what} outside {first}..{last}: {values[wrong][0]}")
    finite = np.isfinite(detections.scores) & np.isfinite(detections.boxes).all(axis=1)
    if not finite.all():
        raise ValueError(f"{(~finite).sum()} of {len(finite)} detections have a box or score that is not finite")


def rank_image_ids(truth: GroundTruth) -> np.ndarray:
    """(N,) int64: the place of each image's id in sorted order, the scorers' id: only the order decides between equal scores."""
    location = np.empty(len(truth.image_ids), np.int64)
    location[np.argsort(truth.image_ids, kind="stable")] = np.arange(len(location))
    return location


def match_with_hotcoco(
    truth: GroundTruth, detections: Detections, wanted: RLE | None = None, result: RLE | None = None
) -> COCOeval:
    """hotcoco's scorer, all images matched: by boxes, or by the masks of both (see `score_masks`). Raises ValueError as they do."""
    from hotcoco import COCO, COCOeval, mask

    check_detections(truth, detections)
    positions = rank_image_ids(truth)
    images = [{"id": i, "height": 0, "width": 0} for i in range(len(positions))]
    categories = [{"id": k, "name": str(k)} for k in range(1, truth.num_classes + 1)]
    owners = np.repeat(np.arange(len(positions)), np.diff(truth.starts))
    sizes = np.stack([truth.heights, truth.widths], axis=1).astype(np.int64)

    def strings(masks: RLE, rows: np.ndarray) -> list[Any]:
        return [{"size": size, "counts": counts} for size, counts in zip(sizes[rows].tolist(), masks)]

    truth_coco = COCO.from_arrays(
        images,
        categories,
        positions[owners],
        truth.classes.astype(np.int64),
        truth.boxes.astype(np.float64),
        ids=np.arange(1, len(truth.classes) + 1),
        area=truth.areas.astype(np.float64),
        iscrowd=truth.crowd.astype(np.int64),
        segmentation=None if wanted is None else strings(wanted, owners),
    )
    if len(detections.scores):
        boxes, masks = detections.boxes, None
        if result is not None:
            masks = strings(result, detections.images)
            # The scorer takes width times height for the area, and nothing else from the box.
            boxes = np.zeros((len(masks), 4))
            boxes[:, 2], boxes[:, 3] = mask.area(masks), 1
        columns = (positions[detections.images], boxes, detections.scores, detections.classes)
        table = np.column_stack(columns).astype(np.float64, copy=False)
        results = truth_coco.load_res(table) if masks is None else truth_coco.load_res(table, segmentation=masks)
    else:
        empty = np.zeros(0, np.int64)
        results = COCO.from_arrays(images, categories, empty, empty, np.zeros((0, 4)))
    scorer = COCOeval(truth_coco, results, "bbox" if wanted is None else "segm")
    scorer.evaluate()
    return scorer


def _accumulated(scorer: COCOeval) -> tuple[np.ndarray, np.ndarray]:
    """-> precision (T, R, K, 4 areas, 3 limits) and recall (T, K, 4 areas, 3 limits), -1 where a class has no object."""
    scorer.accumulate()
    result = scorer.eval
    assert result is not None
    return result["precision"], result["recall"]


def _twelve(precision: np.ndarray, recall: np.ndarray) -> dict[str, float]:
    """The official summary; the means run over the same values in the same order as pycocotools', so their sums agree."""
    most = precision[:, :, :, :, MAX_100]
    return {
        "ap": _mean(most[:, :, :, ALL_AREAS]),
        "ap50": _mean(most[IOU_50, :, :, ALL_AREAS]),
        "ap75": _mean(most[IOU_75, :, :, ALL_AREAS]),
        "ap_small": _mean(most[:, :, :, SMALL]),
        "ap_medium": _mean(most[:, :, :, MEDIUM]),
        "ap_large": _mean(most[:, :, :, LARGE]),
        "ar1": _mean(recall[:, :, ALL_AREAS, MAX_1]),
        "ar10": _mean(recall[:, :, ALL_AREAS, MAX_10]),
        "ar100": _mean(recall[:, :, ALL_AREAS, MAX_100]),
        "ar_small": _mean(recall[:, :, SMALL, MAX_100]),
        "ar_medium": _mean(recall[:, :, MEDIUM, MAX_100]),
        "ar_large": _mean(recall[:, :, LARGE, MAX_100]),
    }


def _mean(values: np.ndarray) -> float:
    """Mean of what is not absent; -1 where everything is."""
    there = values[values > ABSENT]
    return float(np.mean(there)) if there.size else ABSENT


# Objects and detections that are matched at once (or those of one image): about 10 MiB of dictionaries and runs.
CHUNK = 4096


def score_masks(truth: GroundTruth, wanted: RLE, detections: Detections, rles: RLE) -> BoxScores:
    """The twelve official numbers (mask_ap, ..., mask_ar_large), and per class AP, AP50, AR100, objects and the precision curve.

    wanted  M masks, those of the rows of `truth`; only `truth.areas` counts as their area
    rles    D masks, those of the rows of `detections`, whose boxes are not read
    Any number of images, objects and detections may be 0. It may run in a thread beside training: matching releases the interpreter
    lock, and passing the masks holds it a few hundredths of a second at a time.
    Raises ValueError where masks and rows are not as many, or a detection names no image or class of `truth` or is not finite.
    """
    from hotcoco import StreamingEval, mask

    check_detections(truth, detections)
    if len(wanted) != len(truth.classes) or len(rles) != len(detections.scores):
        raise ValueError(
            f"{len(wanted)} masks for {len(truth.classes)} objects, {len(rles)} for {len(detections.scores)} detections"
        )
    scorer = StreamingEval([{"id": k, "name": str(k)} for k in range(1, truth.num_classes + 1)], "segm")
    positions = rank_image_ids(truth)
    by_place = np.argsort(positions)
    of_image = positions[detections.images]
    order = np.argsort(of_image, kind="stable")
    starts = np.searchsorted(of_image[order], np.arange(len(positions) + 1))
    sizes = np.stack([truth.heights, truth.widths], axis=1).astype(np.int64)
    for first, last in _chunks((np.diff(truth.starts)[by_place] + np.diff(starts)).tolist()):
        images = range(first, last)
        rows = order[starts[first] : starts[last]]
        size_of = sizes[detections.images[rows]].tolist()
        masks: list[Any] = [{"size": size, "counts": counts} for size, counts in zip(size_of, rles.take(rows))]
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
    return to_official_metrics(*_accumulated(scorer.finalize()), truth, "mask")


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


def _objects(truth: GroundTruth, wanted: RLE, row: int, image: int, sizes: np.ndarray) -> Iterator[dict[str, object]]:
    """The objects of image `row` as annotations of image `image`, numbered from 1."""
    size = sizes[row].tolist()
    for index in range(int(truth.starts[row]), int(truth.starts[row + 1])):
        yield {
            "id": index + 1,
            "image_id": image,
            "category_id": int(truth.classes[index]),
            "bbox": [0.0, 0.0, 0.0, 0.0],
            "area": float(truth.areas[index]),
            "iscrowd": int(truth.crowd[index]),
            "segmentation": {"size": size, "counts": wanted[index]},
        }
