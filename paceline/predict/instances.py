"""Objects with their masks in photos.

Letters: N photos   H, W pixels of the network's input   h, w pixels of a photo   D places for detections   n objects found
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.batch.instances import FoundInstances, InstanceObjects, instance_batch
from paceline.boxes.paste import paste_to_rle
from paceline.config.instances import InstanceInput
from paceline.data.buckets import padded, resized
from paceline.data.header import Header, read_header
from paceline.data.instance_sample import read_evaluation_sample
from paceline.evaluate import inference
from paceline.predict.photos import Photo, encoded, name_of
from paceline.trained import Trained


@dataclass(frozen=True)
class FoundObjects:
    """The objects of one photo, best first, as evaluation scores them."""

    file: str  # path, or "" for a photo given as pixels
    width: int  # of the photo as it is stored (EXIF orientation is ignored), pixels
    height: int
    boxes: np.ndarray  # (n, 4) float64 left, top, width, height, pixels
    classes: tuple[int, ...]  # 1..K
    names: tuple[str, ...]
    scores: tuple[float, ...]  # class probabilities
    masks: tuple[bytes, ...]  # COCO's compressed run lengths: the `counts` of a mask of size (h, w)

    def rle(self, i: int) -> dict[str, Any]:
        """The mask of object `i` as COCO's tools take it: {"size": [h, w], "counts": str}."""
        return {"size": [self.height, self.width], "counts": self.masks[i].decode("ascii")}

    def mask(self, i: int) -> np.ndarray:
        """(h, w) bool, the pixels of object `i`."""
        from hotcoco.mask import decode

        return decode(self.rle(i)).astype(bool)


@dataclass(frozen=True)
class _Read:
    """A photo as the network takes it, padded on the right and below."""

    photo: Photo
    header: Header
    pixels: np.ndarray  # (H, W, 3) uint8
    objects: InstanceObjects  # none; it tells the photo's size in the input


class InstancePredictor:
    """A trained Mask R-CNN that finds objects in photos and tells which pixels are theirs."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    @property
    def classes(self) -> tuple[str, ...]:
        """Readable names; class k is classes[k - 1]."""
        return self.trained.classes

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the run does not name them."""
        return self.trained.category_ids

    def predict(self, photos: Sequence[Photo], *, batch: int = 4) -> list[FoundObjects]:
        """What was found, in the photos' order. A photo is a path, an (H, W, 3) uint8 RGB array or a PIL image.

        Raises DataError naming a photo that cannot be decoded.
        """
        return list(self.findings(photos, batch=batch))

    def findings(self, photos: Sequence[Photo], *, batch: int = 4) -> Iterator[FoundObjects]:
        """As `predict`, one after the other. A photo's answer does not depend on the others.

        batch  most photos in one forward: neighbours of the same padded shape go together
        """
        for start in range(0, len(photos), batch):
            part = [_read(photo, self.trained.recipe.input) for photo in photos[start : start + batch]]
            shapes = [read.pixels.shape for read in part]
            answers: dict[int, FoundObjects] = {}
            for shape in dict.fromkeys(shapes):
                places = [place for place, other in enumerate(shapes) if other == shape]
                answers.update(zip(places, self._answers([part[place] for place in places])))
            yield from (answers[place] for place in range(len(part)))

    def _answers(self, part: Sequence[_Read]) -> list[FoundObjects]:
        """Of photos of one shape."""
        images = torch.from_numpy(np.stack([read.pixels for read in part])).permute(0, 3, 1, 2)
        numbers = torch.zeros(len(part), dtype=torch.int64)
        samples = instance_batch(images, [read.objects for read in part], numbers)
        with inference(self.trained.model), self.trained.autocast():
            found: FoundInstances = self.trained.model.predict(samples.to(self.trained.device))  # type: ignore[operator]
        return [self._answer(read, FoundInstances(*of_photo)) for read, of_photo in zip(part, zip(*found))]

    def _answer(self, read: _Read, found: FoundInstances) -> FoundObjects:
        """found: of one photo, detections (D, 6) and masks (D, S, S)."""
        height, width = read.header.height, read.header.width
        places = (found.detections[:, 5] > 0).nonzero()[:, 0]
        rows = found.detections[places].cpu().double()
        ltrb = rows[:, :4] * torch.tensor([width, height, width, height])
        boxes = ltrb.numpy().copy()
        boxes[:, 2:] -= boxes[:, :2]
        classes = [int(label) for label in rows[:, 5].tolist()]
        return FoundObjects(
            name_of(read.photo),
            width,
            height,
            boxes,
            tuple(classes),
            tuple(self.classes[label - 1] for label in classes),
            tuple(rows[:, 4].tolist()),
            tuple(paste_to_rle(found.masks[places], ltrb, height, width)),
        )


def _read(photo: Photo, settings: InstanceInput) -> _Read:
    data, name = encoded(photo)
    header = read_header(data, name)
    short = settings.short[-1]
    height, width = resized(header.height, header.width, short, settings.long)
    pixels = np.zeros((*padded(height, width, settings, short), 3), np.uint8)
    return _Read(photo, header, pixels, read_evaluation_sample(data, name, settings, short, pixels))
