"""Answer for every photo of a command: print its line, draw its picture beside the next photos' inference, write its record."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline._utils.errors import DataError, UserError
from paceline._utils.safe_read import read_plain
from paceline._utils.text import did_you_mean, some
from paceline.data.transforms.image_header import MOST_BYTES
from paceline.data.transforms.image_io import dropped_notes, dropped_of
from paceline.data.workers.crew import in_order
from paceline.distributed.device.detect import cpu_cores
from paceline.inference.drawing.pictures import jpeg
from paceline.inference.outputs.formats import Coco, Format, Masks, Place, ScoredYolo, Table, Yolo, for_people
from paceline.inference.outputs.label_tools import Cvat, LabelMe, LabelStudio
from paceline.inference.outputs.prediction_dir import Answers, picture_names
from paceline.inference.photo_paths import Listing, Unreadable
from paceline.inference.results import Found, Result

if TYPE_CHECKING:
    from PIL import Image

    from paceline.inference.predictor import PhotoPredictor

EMPTY: Mapping[str, Any] = MappingProxyType({})
FORMATS: Mapping[str, type[Format]] = {
    "coco": Coco,
    "yolo": Yolo,
    "yolo-scores": ScoredYolo,
    "csv": Table,
    "labelme": LabelMe,
    "labelstudio": LabelStudio,
    "cvat": Cvat,
    "masks": Masks,
}
# Pictures that may wait to be drawn while the next photos are answered.
DRAWN_BESIDE = 8


@dataclass(frozen=True)
class Shown:
    """Which objects are printed, drawn and handed to people, and how; classes of whole photos are shown as they are."""

    least: float  # smallest score
    classes: tuple[str, ...] = ()  # these alone; empty = all
    most: int = 0  # the best N of a photo; 0 = all
    labels: bool = True  # with names and scores beside the boxes

    def of(self, result: Result) -> Result:
        """The result with the classes and the number that are shown; of any score, which `line` and `draw` choose by."""
        return result.only(self.classes or None, most=self.most or None) if isinstance(result, Found) else result


@dataclass(frozen=True)
class Printed:
    """What of it goes to stdout."""

    note: Callable[[object], object]  # takes a line for people
    write: Callable[[object], object]  # takes a line of JSON
    quiet: bool = False  # no line a photo
    json: bool = False  # one JSON object a photo, and nothing else

    def answer(self, label: str, line: str) -> None:
        """The line of an answered photo."""
        if not self.quiet and not self.json:
            self.note(f"{label}: {line}")

    def record(self, record: Mapping[str, Any]) -> None:
        """What was written of a photo, or why it has no answer."""
        if self.json:
            self.write(json.dumps(record))


class Asked(NamedTuple):
    """A photo, and what became of it."""

    label: str  # as people know it
    place: Place
    image_id: int | None
    result: Result | Unreadable
    more: Mapping[str, Any] = EMPTY  # what its record has beside the answer


def formats_of(names: Sequence[str], folder: Path, predictor: PhotoPredictor, *, video: bool) -> list[Format]:
    """The named formats, for answers in `folder`. Raises UserError for one that is none, or wants what the run does not find."""
    masks = "mask_ap" in predictor.trained.workload.reporting.measured(predictor.trained.recipe)
    formats = []
    for name in dict.fromkeys(part for word in names for part in word.split(",") if part):
        if name not in FORMATS:
            raise UserError(f"--write {name}: unknown. {did_you_mean(name, FORMATS) or f'Known: {some(FORMATS, 99)}.'}")
        kind = FORMATS[name]
        if kind.of_objects and not predictor.finds_objects:
            raise UserError(f"--write {name}: for objects in photos; this run names whole photos. It can write csv.")
        if kind.of_masks and not masks:
            raise UserError(f"--write {name}: for objects with masks, and this run finds boxes alone. Leave it away.")
        if kind.of_files and video:
            raise UserError(f"--write {name}: its files name photos, and a video's frames are none. Leave it away.")
        formats.append(kind(folder, predictor.classes, predictor.category_ids, masks))
    return formats


def places_of(listing: Listing, ids: Mapping[Path, int], formats: Sequence[Format]) -> tuple[list[Place], str]:
    """A place for each photo; and the folder, absolute, that their file names begin at."""
    photos = [Path(os.path.abspath(photo)) for photo in listing.photos]
    top = os.path.commonpath([photo.parent for photo in photos]) if photos else ""
    known = [ids[photo] for photo in listing.photos if photo in ids]
    numbers = known if len(set(known)) == len(photos) else range(1, len(photos) + 1)
    names = picture_names(listing.places, formats)
    return [Place(name, os.path.relpath(photo, top), photo, n) for name, photo, n in zip(names, photos, numbers)], top


@dataclass
class Count:
    """What was answered so far."""

    answered: int = 0
    turned: int = 0  # of them, photos with an EXIF rotation
    without: list[Unreadable] = field(default_factory=list)


def answer_all(
    asked: Iterator[Asked],
    answers: Answers,
    printed: Printed,
    shown: Shown,
    count: Count,
    *,
    draw: Callable[[Result, Shown], bytes | DataError | Image.Image] | None,
    film: Callable[[Image.Image, Asked], object] | None = None,
) -> None:
    """Print, draw and write every answer, as they come, and count them; `answers` stays to be finished.

    draw  makes the picture, on threads: an encoded JPEG, why there is none, or one for `film`, which takes them in order; None: none
    Raises UserError where the folder cannot be written.
    """

    def answered() -> Iterator[Asked]:
        for one in asked:
            if isinstance(one.result, Unreadable):
                printed.note(f"{one.label}: skipped, {one.result.reason}")
            else:
                printed.answer(one.label, shown.of(one.result).line(shown.least))
            yield one

    def drawn(one: Asked) -> tuple[Asked, bytes | DataError | Image.Image | None]:
        return one, None if isinstance(one.result, Unreadable) or draw is None else draw(one.result, shown)

    for one, picture in in_order(answered(), drawn, size=cpu_cores(), ahead=DRAWN_BESIDE):
        if isinstance(one.result, Unreadable):
            count.without.append(one.result)
            printed.record(one.result._asdict())
            continue
        if isinstance(picture, DataError):  # gone meanwhile, or damaged where the network does not look
            count.without.append(Unreadable(one.result.file, f"no picture: {str(picture).splitlines()[0]}"))
        elif film is not None and picture is not None and not isinstance(picture, bytes):
            film(picture, one)
        handed = for_people(shown.of(one.result), shown.least)
        file = picture if isinstance(picture, bytes) else None
        printed.record(answers.add(one.result, handed, one.place, file, one.image_id, **one.more))
        count.answered += 1
        count.turned += one.result.orientation != 1


def jpeg_of(result: Result, shown: Shown) -> bytes | DataError:
    """An encoded JPEG of the photo with its answer; why there is none."""
    try:
        return jpeg(shown.of(result).draw(shown.least, labels=shown.labels), quality=90)
    except DataError as problem:
        return problem


def notes_on_pixels(photos: Sequence[Path]) -> tuple[str, ...]:
    """Lines for people on what of the photos is not read; JPEGs have nothing of it."""
    dropped = Counter[str]()
    for photo in photos:
        with suppress(OSError):
            if photo.suffix.lower() not in (".jpg", ".jpeg"):
                dropped.update(dropped_of(read_plain(photo, MOST_BYTES)))
    return dropped_notes(dropped)
