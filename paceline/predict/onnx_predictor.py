"""An ONNX file answers for photos, by onnxruntime, numpy and Pillow: the results of a run, in a process without torch.

Photos are read as the program beside the file reads them (reader.py), which has an evaluation's very pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.predict.onnx_model import Input, OnnxModel, Outputs, detections
from paceline.predict.photo_predictor import PhotoPredictor, Seen, fields_of, found_in
from paceline.predict.photos import Photo, encoded
from paceline.predict.reader import pasted
from paceline.predict.results import Answer, Found, Result
from paceline.store.orientation import orientation_of

KEPT = 5  # classes of an answer, as of a run's


class OnnxPredictor(PhotoPredictor):
    """As `Predictor`, of a file."""

    def __init__(self, opened: OnnxModel) -> None:
        self.trained: OnnxModel = opened

    def _read(self, photo: Photo) -> Seen:
        data, name = encoded(photo)
        header, (pixels, size) = self.trained.read(data, name)
        return Seen(photo, header, orientation_of(data), pixels, size)

    def _answers(self, part: Sequence[Seen]) -> list[Result]:
        outputs = self.trained.outputs([Input(seen.pixels, seen.label) for seen in part])
        kind = self._objects if self.finds_objects else self._best
        return [kind(seen, one) for seen, one in zip(part, outputs)]

    def _best(self, seen: Seen, outputs: Outputs) -> Answer:
        scores = np.where(np.isfinite(outputs[0]), outputs[0], -1)
        best = [int(place) for place in np.argsort(-scores, kind="stable")[:KEPT]]
        names = tuple(self.classes[place] for place in best)
        values = tuple(max(0.0, float(scores[place])) for place in best)
        return Answer(**fields_of(seen, self.trained), classes=tuple(best), names=names, scores=values)

    def _objects(self, seen: Seen, outputs: Outputs) -> Found:
        rules, h, w = self.trained.recipe.model.detect, seen.header.height, seen.header.width
        rows = detections(outputs, seen.label)
        places = np.flatnonzero(rows[:, 5] > 0)
        places = places[np.argsort(-rows[places, 4], kind="stable")]
        rows = rows[places].astype(np.float64)
        corners = rows[:, :4] * [w, h, w, h]
        boxes = np.column_stack((corners[:, :2], corners[:, 2:] - corners[:, :2]))
        boxes[:, 2:] += getattr(rules, "plus_one", False)
        masks = None
        if len(outputs) > 3:
            from hotcoco.mask import encode

            drawn = (pasted(outputs[3][i], box, h, w, rules.mask_above, rules.paste) for i, box in zip(places, corners))
            masks = tuple(encode(np.asfortranarray(one, np.uint8))["counts"] for one in drawn)
        return found_in(seen, self.trained, boxes, rows[:, 5].astype(int), rows[:, 4], masks)
