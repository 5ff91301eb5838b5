"""What no training and no score on a data set of boxes can reach, in words: classes, and objects beyond COCO's 100 detections.

Letters: M objects of a split, K classes 1..K
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline._utils.text import counted, some

# COCO scores the best of an image and class. Source: pycocotools/cocoeval.py, Params.maxDets.
MOST_DETECTIONS = 100
RECALLS = np.linspace(0, 1, 101)
NAMED = 12
WHAT = {"train": "learned", "val": "scored"}


def class_limits(names: Sequence[str], splits: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[str]:
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
                f"{there[hidden].sum():,} of {there.sum():,} objects{of} (all of {_called(names, hidden)}) are crowd regions or "
                f"unusable boxes, {what}. If each is one object, set its iscrowd (Pascal VOC: difficult) to 0, and prepare again."
            )
        if absent.any():
            have = "has" if absent.sum() == 1 else "have"
            texts.append(
                f"{absent.sum():,} of {counted(count, 'class')} {have} no object{of.replace('of', 'in')}, {what}: "
                f"{_called(names, absent)}."
            )
    return texts


def _called(names: Sequence[str], mask: np.ndarray) -> str:
    return some([name for name, is_it in zip(names, mask.tolist()) if is_it], NAMED)


def detection_limit(object_starts: np.ndarray, classes: np.ndarray, scored: np.ndarray) -> list[str]:
    """A sentence if images have more objects of a class than detections are scored, with the highest AP that is possible.

    object_starts  (N+1,) of the images
    classes        (M,) 1..K
    scored         (M,) bool
    """
    images = np.repeat(np.arange(len(object_starts) - 1), np.diff(object_starts))[scored]
    pairs, objects = np.unique(np.stack([images, classes[scored]]), axis=1, return_counts=True)
    if objects.max(initial=0) <= MOST_DETECTIONS:
        return []
    whole = np.bincount(pairs[1], objects)
    possible = np.bincount(pairs[1], np.minimum(objects, MOST_DETECTIONS))[whole > 0] / whole[whole > 0]
    best = np.mean([np.count_nonzero(recall >= RECALLS) / len(RECALLS) for recall in possible])
    crowded = np.unique(pairs[0][objects > MOST_DETECTIONS])
    have = "has" if len(crowded) == 1 else "have"
    return [
        f"{counted(len(crowded), 'image')} of val {have} more than {MOST_DETECTIONS} objects of one class (at most "
        f"{objects.max():,}). COCO's metrics count {MOST_DETECTIONS} detections per image and class, so AP is at most "
        f"{100 * best:.1f} and AR100 at most {100 * possible.mean():.1f}."
    ]
