"""What tasks on photos with objects share: which training objects are learned, the ground truth, and the scores of boxes.

Letters: N photos of a split   M objects   K classes, 1..K
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.text import format_count, join_names
from paceline.config.maskrcnn import InstanceInput
from paceline.config.recipe import Recipe
from paceline.config.ssd import BoxInput
from paceline.data.index.box_split import BoxSplit, open_boxes
from paceline.data.index.manifest import Manifest, repeat_command
from paceline.models.datamodule import DataModule
from paceline.models.metrics.bootstrap import resample_boxes
from paceline.models.metrics.coco import GroundTruth, score_boxes, select_images
from paceline.models.metrics.detection_errors import find_best_f1
from paceline.models.metrics.self_check import ground_truth_scores_one
from paceline.models.object_predictions import box_predictions_json, join_approximations, join_detections, unpack_shard
from paceline.models.task import EvalResult, Evaluator


class ObjectData(DataModule):
    """Photos with boxes."""

    def __init__(self, recipe: Recipe, manifest: Manifest, limits: tuple[int, int], *, crowd: bool) -> None:
        """crowd: whether crowd regions, one annotation of many objects, are learned as objects.

        Raises DataError where none of the objects can be learned.
        """
        super().__init__(recipe, manifest, limits)
        self.train, self.val = (open_boxes(manifest, split, recipe.input.exif) for split in (manifest.learnt, "val"))
        self.train_index, self.val_index = self.train.index, self.val.index
        usable = self.train.usable.astype(bool)
        # (M,) bool, of the training objects
        self.wanted = select_trained_objects(
            self.train, usable if crowd else usable & (self.train.crowd == 0), recipe.input
        )
        before = np.concatenate(([0], np.cumsum(self.wanted)))
        objects = before[self.train.object_starts[1:]] - before[self.train.object_starts[:-1]]
        warnings = self._limits(manifest)
        skip_empty = recipe.input.skip_empty and objects.any()  # nothing is learned from a set to score
        numbers = np.flatnonzero(objects) if skip_empty else np.arange(len(self.train))
        # Of all images, also those that this run leaves out: the same data always has the same shapes.
        self.max_objects = int(objects.max(initial=0))
        self.classes, self.category_ids = self.val.names, self.val.category_ids.tolist()
        self.choose_images(
            numbers,
            category_ids=list(self.category_ids),
            train_images_left_out=len(self.train) - len(numbers),
            **({"warnings": warnings} if warnings else {}),
        )
        self.weigh(np.bincount(self.objects_learned()[1], minlength=len(self.classes)))

    def _limits(self, manifest: Manifest) -> list[str]:
        """What cannot be learned or scored, in words. Raises DataError if that is everything, except of a set to score."""
        scored, trains = np.asarray(self.val.crowd) == 0, "train" in manifest.splits
        for what, split, kept in (("learn", self.train, self.wanted), ("score", self.val, scored)):
            if trains and not kept.any():
                regions = np.count_nonzero(split.crowd)
                cure = (
                    "If each is one object, set its iscrowd (Pascal VOC: difficult) to 0"
                    if regions
                    else "Annotate larger objects"
                )
                raise DataError(
                    f"{manifest.called}: has no object to {what} in its {len(split):,} "
                    f"{'training' if what == 'learn' else 'validation'} images. Its {len(kept):,} objects are {regions:,} "
                    f"crowd regions and {len(kept) - regions:,} without area or too small.\n{cure}, and prepare "
                    f"again:\n  {repeat_command(manifest)}"
                )
        train, val = ((self.train.classes, self.wanted), (self.val.classes, scored))
        limits = describe_class_limits(self.val.names, {"train": train, "val": val} if trains else {"val": val})
        return limits + describe_detection_limit(self.val.object_starts, *val)

    def wanted_rows(self, index: int) -> np.ndarray:
        """(n,) int64, rows of the objects of training photo `index` that are learned."""
        rows = np.arange(self.train.object_starts[index], self.train.object_starts[index + 1])
        return rows[self.wanted[rows]]

    def objects_learned(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each object that the run learns, its photo's place among the training images, and its class 0..K-1."""
        indices = np.full(len(self.train), -1)
        indices[self.train_numbers] = np.arange(self.train_images)
        photos = np.repeat(indices, np.diff(self.train.object_starts))
        kept = self.wanted & (photos >= 0)
        return photos[kept], self.train.classes[kept] - 1

    def photos_of_classes(self) -> tuple[np.ndarray, np.ndarray]:
        """As `objects_learned`, each pair once."""
        pairs = np.unique(np.stack(self.objects_learned()), axis=1)
        return pairs[0], pairs[1]

    def val_files(self) -> list[str]:
        """Of this run's validation photos, relative to the data set's root or absolute."""
        names = (self.val_index.relative_name(int(number)) for number in self.val_numbers)
        return [name.decode("utf-8", "surrogateescape") for name in names]


class ObjectEvaluator(Evaluator):
    """Average precision of boxes; see `Evaluator` for what each method promises."""

    def __init__(self, data: ObjectData) -> None:
        """Raises DataError where the annotations, scored as detections, do not score 1."""
        super().__init__(data)
        every = GroundTruth(**data.val.truth_arrays(), num_classes=len(data.val.names))
        self.truth = select_images(every, data.val_numbers)  # of this run's validation photos
        ground_truth_scores_one(self.truth, data.classes)

    def summarize(self, packed: Sequence[bytes]) -> EvalResult:
        """The twelve numbers over all ranks' photos, and the report's predictions."""
        data, shares = self.data, [unpack_shard(share) for share in packed]
        detections = join_detections(shares, data.val_numbers)
        scores, best = score_boxes(self.truth, detections), find_best_f1(self.truth, detections)
        predictions = box_predictions_json(
            self.truth, detections, scores, best, data.val_files(), data.val_numbers, data.classes, data.category_ids
        )
        at_best, draws = best.record() if best else {}, partial(resample_boxes, self.truth, detections)
        return EvalResult(scores.metrics, len(data.val_numbers), predictions, join_approximations(shares), at_best, draws)


def select_trained_objects(split: BoxSplit, candidates: np.ndarray, photo: BoxInput | InstanceInput) -> np.ndarray:
    """(M,) bool: the candidates, (M,) bool, that an input's settings keep. The largest have the largest annotated area, of equal
    ones the first.
    """
    kept = candidates & (split.areas >= photo.min_object_area) if photo.min_object_area else candidates
    images = np.repeat(np.arange(len(split)), np.diff(split.object_starts))  # (M,) each object's photo
    if photo.min_box_area:
        ltrb = np.concatenate((split.boxes[:, :2], split.boxes[:, :2] + split.boxes[:, 2:]), axis=1)
        sides = np.stack((split.widths, split.heights), axis=1)[images]
        seen = (np.minimum(ltrb[:, 2:], sides) - np.maximum(ltrb[:, :2], 0)).clip(min=0)
        kept = kept & (seen.prod(axis=1) >= photo.min_box_area)
    if photo.max_objects:
        rows = np.flatnonzero(kept)
        order = rows[np.lexsort((rows, -split.areas[rows], images[rows]))]  # by photo, the largest first
        first = np.searchsorted(images[order], images[order])  # the first place of each one's photo
        kept = np.zeros_like(kept)
        kept[order[np.arange(len(order)) - first < photo.max_objects]] = True
    return kept


# What no training and no score on a data set of boxes can reach, in words: classes, and objects beyond COCO's 100 detections.
#
# Letters: M objects of a split, K classes 1..K

# COCO scores the best of an image and class. Source: pycocotools/cocoeval.py, Params.maxDets.
MAX_DETECTIONS = 100
RECALLS = np.linspace(0, 1, 101)
NAMED = 12
WHAT = {"train": "learned", "val": "scored"}


def describe_class_limits(names: Sequence[str], splits: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """A sentence for each kind of class that is not learned from "train", or not scored on "val".

    names   (K,)
    splits  name -> (M,) classes of all objects, and (M,) bool: those that are learned (train) or scored (val)
    """
    count, texts = len(names), []
    total = {split: np.bincount(classes, minlength=count + 1)[1:] for split, (classes, _) in splits.items()}
    used = {split: np.bincount(classes[kept], minlength=count + 1)[1:] for split, (classes, kept) in splits.items()}
    whole, left = np.sum(list(total.values()), axis=0), np.sum(list(used.values()), axis=0)
    reach = {"": (whole, left, "neither learned nor scored" if "train" in splits else "not scored")}
    reach |= {split: (total[split], used[split], f"not {WHAT[split]}") for split in splits if len(splits) > 1}
    for split, (there, counts, what) in reach.items():
        mask = (left > 0) if split else np.ones(count, bool)  # the others are named once
        hidden, absent, of = mask & (there > 0) & (counts == 0), mask & (there == 0), f" of {split}" if split else ""
        if hidden.any():
            texts.append(
                f"{there[hidden].sum():,} of {there.sum():,} objects{of} (all of {_called(names, hidden)}) are crowd "
                f"regions or unusable boxes, {what}. If each is one object, set its iscrowd (Pascal VOC: difficult) to "
                "0, and prepare the data again."
            )
        if absent.any():
            have = "has" if absent.sum() == 1 else "have"
            texts.append(
                f"{absent.sum():,} of {format_count(count, 'class')} {have} no object{of.replace('of', 'in')}, {what}: "
                f"{_called(names, absent)}."
            )
    return texts


def _called(names: Sequence[str], mask: np.ndarray) -> str:
    return join_names([name for name, is_it in zip(names, mask.tolist()) if is_it], NAMED)


def describe_detection_limit(object_starts: np.ndarray, classes: np.ndarray, scored: np.ndarray) -> list[str]:
    """A sentence if images have more objects of a class than detections are scored, with the highest AP that is possible.

    object_starts  (N+1,) of the images
    classes        (M,) 1..K
    scored         (M,) bool
    """
    images = np.repeat(np.arange(len(object_starts) - 1), np.diff(object_starts))[scored]
    pairs, objects = np.unique(np.stack([images, classes[scored]]), axis=1, return_counts=True)
    if objects.max(initial=0) <= MAX_DETECTIONS:
        return []
    whole = np.bincount(pairs[1], objects)
    possible = np.bincount(pairs[1], np.minimum(objects, MAX_DETECTIONS))[whole > 0] / whole[whole > 0]
    best = np.mean([np.count_nonzero(recall >= RECALLS) / len(RECALLS) for recall in possible])
    crowded = np.unique(pairs[0][objects > MAX_DETECTIONS])
    have = "has" if len(crowded) == 1 else "have"
    return [
        f"{format_count(len(crowded), 'image')} of val {have} more than {MAX_DETECTIONS} objects of one class (at most "
        f"{objects.max():,}). COCO's metrics count {MAX_DETECTIONS} detections per image and class, so AP is at most "
        f"{100 * best:.1f} and AR100 at most {100 * possible.mean():.1f}."
    ]
