"""Objects with their masks in photos.

Letters: H, W pixels of the network's input   S side of a mask   D places for detections
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from paceline.batch.instances import FoundInstances, InstanceObjects, instance_batch
from paceline.boxes.paste import paste_to_rle
from paceline.data.buckets import padded, resized
from paceline.data.header import Header
from paceline.data.instance_sample import read_evaluation_sample
from paceline.data.orientation import orientation_of
from paceline.evaluate import inference
from paceline.predict.photos import Photo, encoded, header_of, name_of, whole_photo
from paceline.predict.predictor import Predictor
from paceline.predict.results import Found


class _Read(NamedTuple):
    """A photo as the network takes it, padded on the right and below."""

    photo: Photo
    header: Header
    orientation: int
    pixels: np.ndarray  # (H, W, 3) uint8
    objects: InstanceObjects  # none; it tells the photo's size in the input


class InstancePredictor(Predictor[Found, _Read]):
    """A trained Mask R-CNN that finds objects in photos and tells which pixels are theirs."""

    batch, finds_objects = 4, True

    def _read(self, photo: Photo) -> _Read:
        settings = self.trained.recipe.input
        data, name = encoded(photo)
        header = header_of(data, name, settings)
        short = settings.short[-1]
        height, width = resized(header.height, header.width, short, settings.long)
        pixels = np.zeros((*padded(height, width, settings, short), 3), np.uint8)
        return _Read(
            photo, header, orientation_of(data), pixels, read_evaluation_sample(data, name, settings, short, pixels)
        )

    def _answers(self, part: Sequence[_Read]) -> list[Found]:
        """Neighbours of the same padded shape share a forward. A photo's answer does not depend on the others."""
        shapes = [read.pixels.shape for read in part]
        answers: dict[int, Found] = {}
        for shape in dict.fromkeys(shapes):
            places = [place for place, other in enumerate(shapes) if other == shape]
            answers.update(zip(places, self._of_one_shape([part[place] for place in places])))
        return [answers[place] for place in range(len(part))]

    def _of_one_shape(self, part: Sequence[_Read]) -> list[Found]:
        images = torch.from_numpy(np.stack([read.pixels for read in part])).permute(0, 3, 1, 2)
        numbers = torch.zeros(len(part), dtype=torch.int64)
        samples = instance_batch(images, [read.objects for read in part], numbers)
        with inference(self.trained.model), self.trained.autocast():
            found: FoundInstances = self.trained.model.predict(samples.to(self.trained.device))  # type: ignore[operator]
        return [self._found(read, FoundInstances(*of_photo)) for read, of_photo in zip(part, zip(*found))]

    def _found(self, read: _Read, found: FoundInstances) -> Found:
        """found: of one photo, detections (D, 6) and masks (D, S, S)."""
        height, width = read.header.height, read.header.width
        places = (found.detections[:, 5] > 0).nonzero()[:, 0]
        rows = found.detections[places].cpu().double()
        ltrb = rows[:, :4] * torch.tensor([width, height, width, height])
        boxes = ltrb.numpy().copy()
        boxes[:, 2:] -= boxes[:, :2]
        classes = [int(label) for label in rows[:, 5].tolist()]
        return Found(
            file=name_of(read.photo),
            pixels=partial(whole_photo, read.photo, self.trained.recipe.input),
            orientation=read.orientation,
            width=width,
            height=height,
            boxes=boxes,
            classes=tuple(classes),
            names=tuple(self.classes[label - 1] for label in classes),
            scores=tuple(rows[:, 4].tolist()),
            category_ids=tuple(self.category_ids[label - 1] for label in classes),
            masks=tuple(paste_to_rle(found.masks[places], ltrb, height, width)),
        )
