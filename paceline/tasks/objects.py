"""What tasks on photos with objects share: which training objects are learned, and the ground truth.

Letters: N photos of a split   M objects   K classes, 1..K
"""

from __future__ import annotations

import numpy as np

from paceline._utils.errors import DataError
from paceline.config.detection import BoxInput
from paceline.config.instances import InstanceInput
from paceline.config.recipe import Recipe
from paceline.store.box_split import BoxSplit, open_boxes
from paceline.store.manifest import Manifest, prepare_again
from paceline.tasks.class_limits import class_limits, detection_limit
from paceline.tasks.metrics.coco import GroundTruth, subset
from paceline.tasks.self_check import ground_truth_scores_one
from paceline.tasks.task import Task
from paceline.tasks.workload import Workload


class ObjectTask(Task):
    """A detector's task on one data set of boxes."""

    def __init__(
        self, workload: Workload, recipe: Recipe, manifest: Manifest, *, limit_train=0, limit_val=0, crowd: bool
    ) -> None:
        """crowd: whether crowd regions, one annotation of many objects, are learned as objects.

        Raises DataError where the annotations, scored as detections, do not score 1, or none of them can be learned.
        """
        super().__init__(workload, recipe, manifest)
        self.train, self.val = (open_boxes(manifest, split, recipe.input.exif) for split in (manifest.learnt, "val"))
        self.train_index, self.val_index = self.train.index, self.val.index
        usable = self.train.usable.astype(bool)
        # (M,) bool, of the training objects
        self.wanted = learned(self.train, usable if crowd else usable & (self.train.crowd == 0), recipe.input)
        before = np.concatenate(([0], np.cumsum(self.wanted)))
        objects = before[self.train.object_starts[1:]] - before[self.train.object_starts[:-1]]
        limits = self._limits(manifest)
        drop_empty = recipe.input.drop_empty and objects.any()  # nothing is learned from a set to score
        numbers = np.flatnonzero(objects) if drop_empty else np.arange(len(self.train))
        # Of all images, also those that this run leaves out: the same data always has the same shapes.
        self.most_objects = int(objects.max(initial=0))
        self.classes, self.category_ids = self.val.names, self.val.category_ids.tolist()
        self.choose_images(
            numbers,
            (limit_train, limit_val),
            category_ids=list(self.category_ids),
            train_images_left_out=len(self.train) - len(numbers),
            **({"warnings": limits} if limits else {}),
        )
        self.weigh(np.bincount(self.objects_learned()[1], minlength=len(self.classes)))
        # Of this run's validation photos.
        every = GroundTruth(**self.val.truth_arrays(), num_classes=len(self.val.names))
        self.truth = subset(every, self.val_numbers)
        ground_truth_scores_one(self.truth, self.classes)

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
                    f"{manifest.called}: no object to {what} in its {len(split):,} "
                    f"{'training' if what == 'learn' else 'validation'} images ({len(kept):,} objects: {regions:,} crowd regions, "
                    f"{len(kept) - regions:,} without area or too small).\n"
                    f"{cure}, and prepare again:\n  {prepare_again(manifest)}"
                )
        train, val = ((self.train.classes, self.wanted), (self.val.classes, scored))
        limits = class_limits(self.val.names, {"train": train, "val": val} if trains else {"val": val})
        return limits + detection_limit(self.val.object_starts, *val)

    def wanted_rows(self, index: int) -> np.ndarray:
        """(n,) int64, rows of the objects of training photo `index` that are learned."""
        rows = np.arange(self.train.object_starts[index], self.train.object_starts[index + 1])
        return rows[self.wanted[rows]]

    def objects_learned(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each object that the run learns, its photo's place among the training images, and its class 0..K-1."""
        places = np.full(len(self.train), -1)
        places[self.train_numbers] = np.arange(self.train_images)
        photos = np.repeat(places, np.diff(self.train.object_starts))
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


def learned(split: BoxSplit, candidates: np.ndarray, photo: BoxInput | InstanceInput) -> np.ndarray:
    """(M,) bool: the candidates, (M,) bool, that an input's settings keep. The largest have the largest annotated area, of equal
    ones the first.
    """
    kept = candidates & (split.areas >= photo.least_area) if photo.least_area else candidates
    images = np.repeat(np.arange(len(split)), np.diff(split.object_starts))  # (M,) each object's photo
    if photo.least_box:
        ltrb = np.concatenate((split.boxes[:, :2], split.boxes[:, :2] + split.boxes[:, 2:]), axis=1)
        sides = np.stack((split.widths, split.heights), axis=1)[images]
        seen = (np.minimum(ltrb[:, 2:], sides) - np.maximum(ltrb[:, :2], 0)).clip(min=0)
        kept = kept & (seen.prod(axis=1) >= photo.least_box)
    if photo.most_objects:
        rows = np.flatnonzero(kept)
        order = rows[np.lexsort((rows, -split.areas[rows], images[rows]))]  # by photo, the largest first
        first = np.searchsorted(images[order], images[order])  # the first place of each one's photo
        kept = np.zeros_like(kept)
        kept[order[np.arange(len(order)) - first < photo.most_objects]] = True
    return kept
