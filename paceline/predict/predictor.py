"""A trained network answers for photos: a batch at a time through the model, and its outputs as results.

Letters: n photos   K classes   D places for detections   S side of a mask
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.batch import FoundInstances
from paceline.boxes.paste import paste_to_rle
from paceline.input.draw import render
from paceline.predict.photo_predictor import PhotoPredictor, Seen, fields_of, found_in
from paceline.predict.photos import Photo, encoded
from paceline.predict.results import Answer, Found, Result
from paceline.store.header import read_header
from paceline.store.orientation import orientation_of
from paceline.tasks.metrics.top_k import best_classes
from paceline.tasks.predictions import to_detections
from paceline.training.evaluate import inference
from paceline.training.trained import Trained


class Predictor(PhotoPredictor):
    """A trained run, or weights, that answer for photos."""

    def __init__(self, trained: Trained) -> None:
        self.trained: Trained = trained

    def _read(self, photo: Photo) -> Seen:
        """The photo as the network takes it; called on threads. Raises DataError."""
        workload, recipe = self.trained.workload, self.trained.recipe
        data, name = encoded(photo)
        header = read_header(data, name, recipe.input.exif)
        shape = workload.eval_shape(recipe, header.height, header.width)
        pixels, draw = np.empty((*shape, 3), np.uint8), workload.draw_eval(recipe, header, name, shape)
        render(data, draw, pixels)
        return Seen(photo, header, orientation_of(data), pixels, draw.label)

    def _answers(self, part: Sequence[Seen]) -> list[Result]:
        """The results of photos that were read, in their order. Those of one shape share a forward: no answer depends on others."""
        shapes = [seen.pixels.shape for seen in part]
        answers: dict[int, Result] = {}
        for shape in dict.fromkeys(shapes):
            places = [place for place, other in enumerate(shapes) if other == shape]
            answers.update(zip(places, self._of_one_shape([part[place] for place in places])))
        return [answers[place] for place in range(len(part))]

    def _of_one_shape(self, part: Sequence[Seen]) -> Sequence[Result]:
        trained = self.trained
        images = torch.from_numpy(np.stack([seen.pixels for seen in part])).permute(0, 3, 1, 2)
        batch = trained.workload.batch(images, [seen.label for seen in part], torch.zeros(len(part), dtype=torch.int64))
        with inference(trained.model), trained.autocast():
            outputs = trained.model.predict(batch.to(trained.device))  # type: ignore[operator]
        return answers_of(outputs, part, trained)


def answers_of(outputs: Any, photos: Sequence[Seen], trained: Trained) -> Sequence[Result]:
    """The workload's own results, or ours for this kind of outputs.

    outputs  of the model's `predict` for a batch, the n photos
    """
    own = trained.workload.answers(outputs, photos, trained)
    if own is not None:
        return own
    if isinstance(outputs, FoundInstances):
        return instances_found(outputs, photos, trained)
    return (boxes_found if trained.workload.finds_objects else best_five)(outputs, photos, trained)


def best_five(outputs: Tensor, photos: Sequence[Seen], trained: Trained) -> list[Answer]:
    """outputs: (n, K) logits."""
    classes, scores = best_classes(outputs)
    return [
        Answer(
            **fields_of(seen, trained),
            classes=tuple(best),
            names=tuple(trained.classes[index] for index in best),
            scores=tuple(values),
        )
        for seen, best, values in zip(photos, classes.tolist(), scores.tolist())
    ]


def boxes_found(outputs: Tensor, photos: Sequence[Seen], trained: Trained) -> list[Found]:
    """outputs: (n, D, 6), as `Detector.predict` has them; a network's settings may have `detect.plus_one`."""
    plus_one = trained.recipe.model.detect.plus_one
    found = []
    for seen, rows in zip(photos, outputs.cpu().numpy()):
        rows = rows[rows[:, 5] > 0].astype(np.float64)
        one = np.column_stack((np.zeros(len(rows)), rows))  # image number 0: each photo stands alone
        here = to_detections(one, np.array([seen.header.height]), np.array([seen.header.width]), plus_one)
        order = np.argsort(-here.scores, kind="stable")
        found.append(found_in(seen, trained, here.boxes[order], here.classes[order], here.scores[order]))
    return found


def instances_found(outputs: FoundInstances, photos: Sequence[Seen], trained: Trained) -> list[Found]:
    """outputs: detections (n, D, 6) and masks (n, D, S, S), or None; a network's settings have `detect.mask_above`."""
    found, rules = [], trained.recipe.model.detect
    every = repeat(None) if outputs.masks is None else outputs.masks
    for seen, detections, masks in zip(photos, outputs.detections, every):
        height, width = seen.header.height, seen.header.width
        places = (detections[:, 5] > 0).nonzero()[:, 0]
        rows = detections[places].cpu().double()
        ltrb = rows[:, :4] * torch.tensor([width, height, width, height])
        boxes = ltrb.numpy().copy()
        boxes[:, 2:] -= boxes[:, :2]
        drawn = None
        if masks is not None:
            drawn = tuple(paste_to_rle(masks[places], ltrb, height, width, threshold=rules.mask_above, law=rules.paste))
        found.append(found_in(seen, trained, boxes, rows[:, 5].long().numpy(), rows[:, 4].numpy(), drawn))
    return found
