"""A trained network answers for photos: a batch at a time through the model, and its outputs as results.

Letters: n photos   K classes   D places for detections   S side of a mask
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.config.recipe import Recipe
from paceline.data.batch import FoundInstances
from paceline.data.transforms.exif import orientation_of
from paceline.data.transforms.image_header import read_header
from paceline.data.transforms.sample import render
from paceline.inference.photos import Photo, encoded
from paceline.inference.predictor import PhotoPredictor, Seen, best_in, found_in
from paceline.inference.results import Found, Result
from paceline.inference.trained_model import Trained
from paceline.models.metrics.top_k import best_classes
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.models.workload import Workload
from paceline.training.evaluate import inference


class Predictor(PhotoPredictor):
    """A trained run, or weights, that answer for photos."""

    def __init__(self, trained: Trained) -> None:
        self.trained: Trained = trained

    def reader(self) -> Callable[[Photo], Seen]:
        return partial(_read, self.trained.workload, self.trained.recipe)

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
        labels, numbers = [seen.label for seen in part], torch.zeros(len(part), dtype=torch.int64)
        batch = trained.workload.data().batch(images, labels, numbers)
        with inference(trained.model), trained.autocast():
            outputs = trained.model.predict(batch.to(trained.device))  # type: ignore[operator]
        return answers_of(outputs, part, trained)


def answers_of(outputs: Any, photos: Sequence[Seen], trained: Trained) -> Sequence[Result]:
    """The workload's own results, or ours for this kind of outputs.

    outputs  of the model's `predict` for a batch, the n photos
    """
    own = trained.workload.reporting.answers(outputs, photos, trained)
    if own is not None:
        return own
    if trained.workload.finds_objects or isinstance(outputs, FoundInstances):
        return objects_found(outputs, photos, trained)
    best = zip(photos, *(part.tolist() for part in best_classes(outputs)))  # (n, K) logits
    return [best_in(seen, trained, classes, scores) for seen, classes, scores in best]


def objects_found(outputs: Tensor | FoundInstances, photos: Sequence[Seen], trained: Trained) -> list[Found]:
    """outputs: (n, D, 6), as `Detector.predict` has them; or with masks (n, D, S, S), and settings with `detect.mask_above`."""
    found, masks = outputs, None
    if isinstance(outputs, FoundInstances):
        found, masks = outputs.detections, outputs.masks
    draws = repeat(None) if masks is None else [partial(_pasted, *one, trained) for one in zip(masks, photos)]
    rows = found.cpu().double().numpy()  # type: ignore[union-attr]
    return [found_in(seen, trained, one, draw) for seen, one, draw in zip(photos, rows, draws)]


def _pasted(masks: Tensor, seen: Seen, trained: Trained, places: np.ndarray, corners: np.ndarray) -> Iterable[bytes]:
    rules, h, w = trained.recipe.model.detect, seen.header.height, seen.header.width
    chosen = masks[torch.from_numpy(places)]
    return paste_to_rle(chosen, torch.from_numpy(corners), h, w, threshold=rules.mask_above, law=rules.paste)


def _read(workload: Workload, recipe: Recipe[Any, Any], photo: Photo) -> Seen:
    data, name = encoded(photo)
    header = read_header(data, name, recipe.input.exif)
    shape = workload.network.eval_shape(recipe, header.height, header.width)
    pixels, draw = np.empty((*shape, 3), np.uint8), workload.data().draw_eval(recipe, header, name, shape)
    render(data, draw, pixels)
    return Seen(photo, header, orientation_of(data), pixels, draw.label)
