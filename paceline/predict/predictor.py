"""From photos to results: read and decoded on threads some photos ahead, a batch at a time through the model, in order.

Letters: n photos   K classes   D places for detections   S side of a mask
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import IOBase
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, cast, overload

import numpy as np
import torch
from torch import Tensor

from paceline.batch import FoundInstances
from paceline.boxes.paste import paste_to_rle
from paceline.config.errors import DataError
from paceline.input.draw import render
from paceline.log.events import read_events
from paceline.predict.ahead import MOST_THREADS, in_order
from paceline.predict.folders import Unreadable, find_photos
from paceline.predict.photos import KINDS, WANTED, Photo, encoded, name_of, whole_photo
from paceline.predict.results import Answer, Found, Result
from paceline.predict.tiles import OVERLAP, in_tiles
from paceline.store.header import Header, read_header
from paceline.store.orientation import orientation_of
from paceline.tasks.metrics.top_k import best_classes
from paceline.tasks.predictions import to_detections
from paceline.training.evaluate import inference
from paceline.training.trained import Trained


class Seen(NamedTuple):
    """A photo as the network takes it."""

    photo: Photo
    header: Header  # its size in the recipe's frame
    orientation: int  # as EXIF has it, 1 to 8
    pixels: np.ndarray  # (H, W, 3) uint8, the network's input
    label: Any  # what the workload's `draw_eval` labelled it with


class Predictor:
    """A trained run that answers for photos: `predict` for what is at hand, `stream` for more than fits into memory."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    @property
    def finds_objects(self) -> bool:
        """Whether results are objects (`Found`); else they name whole photos (`Answer`)."""
        return self.trained.workload.finds_objects

    @property
    def classes(self) -> tuple[str, ...]:
        """Readable class names: of a classifier by class index, of a detector class k is classes[k - 1]."""
        return self.trained.classes

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the run does not name them."""
        return self.trained.category_ids

    def best_f1(self) -> dict[str, float]:
        """Of a detector's run: the threshold with the best F1 in the evaluation of these weights, and f1, precision, recall there.

        Chosen on those very photos (tasks/metrics/best_f1.py). {} where it is not known: of a file of weights, of another
        checkpoint than an evaluated one, of runs of older versions.
        """
        best = self.evaluation().get("best_f1")
        if not isinstance(best, dict) or "threshold" not in best:
            return {}
        known = all(isinstance(one, float | int) and 0 <= one <= 1 for one in best.values())
        return {str(name): float(value) for name, value in best.items()} if known else {}

    def evaluation(self) -> Mapping[str, Any]:
        """The event of these weights' newest evaluation in their run, {} where there is none; of a file what its card says."""
        trained = self.trained
        if not trained.folder.is_dir():
            return trained.facts
        events = reversed(read_events(trained.folder / "events.jsonl"))
        return next((one for one in events if one["event"] == "eval" and one["step"] == trained.step), {})

    @overload
    def predict(
        self, photos: Photo, *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> Result: ...
    @overload
    def predict(
        self, photos: Iterable[Photo], *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> list[Result]: ...
    def predict(self, photos: Any, *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP) -> Any:
        """One photo gives one result; a folder, list, tuple or generator of photos gives a list of results.

            run = paceline.load("runs/first")
            run.predict("cat.jpg").draw().show()
            for result in run.predict("holiday/"): print(result.file, result.line())

        A photo is
            a path                  str or Path; a folder means the photos in it and in its folders, in name order
            bytes                   of an image file
            a PIL image             of any mode but F
            an array                (H, W, 3) uint8, RGB (OpenCV's are BGR: array[..., ::-1]); (H, W); (H, W, 4), alpha is dropped
            a tensor                (3, H, W) or (1, H, W), uint8 or floating point from 0 to 1, on any device

        photos  one of them, a folder, or an iterable of them
        batch   most photos in one forward; None: as many as suit the model
        tile    objects: larger photos in tiles of so many pixels a side too, merged with the whole one's (tiles.py); 0: whole alone
        overlap share of a side that neighbouring tiles have in common
        return  an Answer (classes) or a Found (objects, with masks where the run has them): .draw(), .save(path), .line(),
                and of a Found .to_coco(image_id); in a list in the photos' order, a folder in it counts as its photos
        Raises DataError for the first photo that cannot be read; `stream` goes on instead.
        """
        found = []
        for place, result in enumerate(self.stream(_listed(photos), batch=batch, tile=tile, overlap=overlap)):
            if isinstance(result, Unreadable):
                name = result.file or ("" if _is_one(photos) else f"photo {place + 1} of those given")
                raise DataError(f"{name}: {result.reason}." if name else f"{result.reason}.")
            found.append(result)
        return found[0] if _is_one(photos) else found

    def stream(
        self, photos: Photo | Iterable[Photo], *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> Iterator[Result | Unreadable]:
        """Results one after the other, in the photos' order; a photo that cannot be read is an Unreadable in its place.

        photos  as `predict` takes them: one, a folder, or several, which are taken as they are needed, a few ahead; files are
                read and decoded on threads
        batch, tile, overlap  as `predict` takes them
        """
        by_name = _is_one(photos) or isinstance(photos, str | os.PathLike)  # a name is no list of letters
        listed = _listed(photos) if by_name else cast("Iterable[Photo]", photos)
        if tile and self.finds_objects:
            alone = partial(self.stream, batch=batch)
            yield from in_tiles(alone, listed, self.trained.recipe.input, tile=tile, overlap=overlap)
            return
        size = self.trained.workload.photos_at_once if batch is None else max(1, batch)
        inputs = in_order(listed, self._read_or_reason, ahead=MOST_THREADS + size)
        while part := list(islice(inputs, size)):
            answers = iter(self._answers([read for read in part if not isinstance(read, Unreadable)]))
            yield from (read if isinstance(read, Unreadable) else next(answers) for read in part)

    def _read_or_reason(self, photo: Photo) -> Seen | Unreadable:
        try:
            return self._read(photo)
        except DataError as problem:
            # The first line is the reason; the others are advice on training sets.
            name = name_of(photo)
            reason = str(problem).partition("\n")[0].removeprefix(f"{name}: ")
            return Unreadable(name, reason.rstrip("."))

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


def _is_one(photos: object) -> bool:
    if isinstance(photos, str | os.PathLike):
        return not os.path.isdir(photos)
    return isinstance(photos, KINDS)


def _listed(photos: Any) -> Iterator[Photo]:
    """The photos, those of a folder in its place. Raises DataError for what holds none."""
    if _is_one(photos):
        yield photos
    elif isinstance(photos, str | os.PathLike):
        listing = find_photos([Path(photos)])
        for file, reason in listing.refused:
            raise DataError(f"{file}: {reason}.")
        yield from listing.photos
    elif isinstance(photos, IOBase):  # its lines would be taken for photos
        raise DataError(
            f"an opened file is no photo; hand over its bytes: .read(). {WANTED}; several are a list of these."
        )
    elif isinstance(photos, Iterable) and not isinstance(photos, Mapping):
        for photo in photos:
            yield from _listed(photo) if isinstance(photo, str | os.PathLike) else [photo]
    else:
        raise DataError(f"{type(photos).__name__} is no photo. {WANTED}; several are a folder, or a list of these.")


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
            **_of(seen, trained),
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
        found.append(_found(seen, trained, here.boxes[order], here.classes[order], here.scores[order]))
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
        found.append(_found(seen, trained, boxes, rows[:, 5].long().numpy(), rows[:, 4].numpy(), drawn))
    return found


def _found(
    seen: Seen,
    trained: Trained,
    boxes: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray,
    masks: tuple[bytes, ...] | None = None,
) -> Found:
    """boxes: (m, 4) left, top, width, height in pixels; classes (m,) 1..K, best first."""
    labels = classes.tolist()
    return Found(
        **_of(seen, trained),
        width=seen.header.width,
        height=seen.header.height,
        boxes=boxes,
        classes=tuple(labels),
        names=tuple(trained.classes[label - 1] for label in labels),
        scores=tuple(scores.tolist()),
        category_ids=tuple(trained.category_ids[label - 1] for label in labels),
        masks=masks,
    )


def _of(seen: Seen, trained: Trained) -> dict[str, Any]:
    """The fields of every result."""
    pixels = partial(whole_photo, seen.photo, trained.recipe.input)
    return {"file": name_of(seen.photo), "pixels": pixels, "orientation": seen.orientation}
