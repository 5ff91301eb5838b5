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
from paceline.data.batch import DetectedInstances
from paceline.data.transforms.exif import read_orientation
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.inference.image_input import Photo, encode_photo
from paceline.inference.predictor import Predictor, PreparedImage, to_classification, to_detections
from paceline.inference.results import DetectionResult, PredictionResult
from paceline.inference.trained_model import TrainedModel
from paceline.models.metrics.top_k import top_classes
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.models.workload import WorkloadSpec
from paceline.training.evaluate import inference_mode


class TorchPredictor(Predictor):
    """A trained run, or weights, that answer for photos."""

    def __init__(self, trained: TrainedModel) -> None:
        self.trained: TrainedModel = trained

    def reader(self) -> Callable[[Photo], PreparedImage]:
        return partial(_read, self.trained.workload, self.trained.recipe)

    def _answers(self, part: Sequence[PreparedImage]) -> list[PredictionResult]:
        """The results of photos that were read, in their order. Those of one shape share a forward: no answer depends on others."""
        shapes = [seen.pixels.shape for seen in part]
        answers: dict[int, PredictionResult] = {}
        for shape in dict.fromkeys(shapes):
            indices = [index for index, other in enumerate(shapes) if other == shape]
            answers.update(zip(indices, self._of_one_shape([part[index] for index in indices])))
        return [answers[index] for index in range(len(part))]

    def _of_one_shape(self, part: Sequence[PreparedImage]) -> Sequence[PredictionResult]:
        trained = self.trained
        images = torch.from_numpy(np.stack([seen.pixels for seen in part])).permute(0, 3, 1, 2)
        labels, numbers = [seen.label for seen in part], torch.zeros(len(part), dtype=torch.int64)
        batch = trained.workload.data().batch(images, labels, numbers)
        with inference_mode(trained.model), trained.autocast():
            outputs = trained.model.predict(batch.to(trained.device))  # type: ignore[operator]
        return make_results(outputs, part, trained)


def make_results(outputs: Any, photos: Sequence[PreparedImage], trained: TrainedModel) -> Sequence[PredictionResult]:
    """The workload's own results, or ours for this kind of outputs.

    outputs  of the model's `predict` for a batch, the n photos
    """
    own = trained.workload.reporting.answers(outputs, photos, trained)
    if own is not None:
        return own
    if trained.workload.finds_objects or isinstance(outputs, DetectedInstances):
        return make_detections(outputs, photos, trained)
    best = zip(photos, *(part.tolist() for part in top_classes(outputs)))  # (n, K) logits
    return [to_classification(seen, trained, classes, scores) for seen, classes, scores in best]


def make_detections(
    outputs: Tensor | DetectedInstances, photos: Sequence[PreparedImage], trained: TrainedModel
) -> list[DetectionResult]:
    """outputs: (n, D, 6), as `SSDWithLoss.predict` has them; or with masks (n, D, S, S), and settings with `detect.mask_above`."""
    detections, masks = outputs, None
    if isinstance(outputs, DetectedInstances):
        detections, masks = outputs.detections, outputs.masks
    draws = repeat(None) if masks is None else [partial(_pasted, *one, trained) for one in zip(masks, photos)]
    rows = detections.cpu().double().numpy()  # type: ignore[union-attr]
    return [to_detections(seen, trained, one, draw) for seen, one, draw in zip(photos, rows, draws)]


def _pasted(
    masks: Tensor, seen: PreparedImage, trained: TrainedModel, indices: np.ndarray, corners: np.ndarray
) -> Iterable[bytes]:
    rules, h, w = trained.recipe.model.detect, seen.header.height, seen.header.width
    chosen = masks[torch.from_numpy(indices)]
    return paste_to_rle(chosen, torch.from_numpy(corners), h, w, threshold=rules.mask_above, law=rules.paste)


def _read(workload: WorkloadSpec, recipe: Recipe[Any, Any], photo: Photo) -> PreparedImage:
    data, name = encode_photo(photo)
    header = read_header(data, name, recipe.input.exif)
    shape = workload.network.eval_shape(recipe, header.height, header.width)
    pixels, draw = np.empty((*shape, 3), np.uint8), workload.data().draw_eval(recipe, header, name, shape)
    decode_and_transform(data, draw, pixels)
    return PreparedImage(photo, header, read_orientation(data), pixels, draw.label)
