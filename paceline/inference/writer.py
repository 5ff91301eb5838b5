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

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.platform import count_cpus
from paceline._utils.safe_read import read_plain
from paceline._utils.text import join_names, suggest_name
from paceline.data.transforms.image_io import MAX_BYTES, find_dropped_channels, format_dropped_notes
from paceline.data.workers.crew import map_ordered
from paceline.inference.drawing.rendering import encode_jpeg
from paceline.inference.image_paths import FailedImage, ImageListing
from paceline.inference.outputs.formats import (
    AnswersCsv,
    CocoJson,
    CvatXml,
    LabelMe,
    LabelStudio,
    MaskPngs,
    OutputFormat,
    ResultLocation,
    ScoredYoloFolder,
    YoloFolder,
    select_displayed,
)
from paceline.inference.outputs.prediction_dir import PredictionDir, name_rendered_images
from paceline.inference.results import DetectionResult, PredictionResult

if TYPE_CHECKING:
    from PIL import Image

    from paceline.inference.predictor import Predictor

EMPTY: Mapping[str, Any] = MappingProxyType({})
FORMATS: Mapping[str, type[OutputFormat]] = {
    "coco": CocoJson,
    "yolo": YoloFolder,
    "yolo-scores": ScoredYoloFolder,
    "csv": AnswersCsv,
    "labelme": LabelMe,
    "labelstudio": LabelStudio,
    "cvat": CvatXml,
    "masks": MaskPngs,
}
# Pictures that may wait to be drawn while the next photos are answered.
DRAWN_BESIDE = 8


@dataclass(frozen=True)
class DisplayOptions:
    """Which objects are printed, drawn and handed to people, and how; classes of whole photos are shown as they are."""

    least: float  # smallest score
    classes: tuple[str, ...] = ()  # these alone; empty = all
    most: int = 0  # the best N of a photo; 0 = all
    labels: bool = True  # with names and scores beside the boxes

    def of(self, result: PredictionResult) -> PredictionResult:
        """The result with the classes and the number that are shown; of any score, which `summary` and `draw` choose by."""
        if not isinstance(result, DetectionResult):
            return result
        return result.filter(self.classes or None, max_detections=self.most or None)


@dataclass(frozen=True)
class StdoutWriter:
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


class ImageOutcome(NamedTuple):
    """A photo, and what became of it."""

    label: str  # as people know it
    place: ResultLocation
    image_id: int | None
    result: PredictionResult | FailedImage
    more: Mapping[str, Any] = EMPTY  # what its record has beside the answer


def choose_output_formats(names: Sequence[str], folder: Path, predictor: Predictor, *, video: bool) -> list[OutputFormat]:
    """The named formats, for answers in `folder`. Raises PacelineError for one that is none, or wants what the run does not find."""
    masks = "mask_ap" in predictor.trained.workload.reporting.measured(predictor.trained.recipe)
    formats = []
    for name in dict.fromkeys(part for word in names for part in word.split(",") if part):
        if name not in FORMATS:
            raise PacelineError(
                f"--save-formats {name}: not found. {suggest_name(name, FORMATS) or f'Choose from {join_names(FORMATS, 99)}.'}"
            )
        kind = FORMATS[name]
        if kind.of_objects and not predictor.finds_objects:
            raise PacelineError(f"--save-formats {name}: only applies to detectors, and this run is a classifier. Use csv.")
        if kind.of_masks and not masks:
            raise PacelineError(f"--save-formats {name}: requires masks, and this run only predicts boxes. Remove {name}.")
        if kind.of_files and video:
            raise PacelineError(f"--save-formats {name}: not supported for frames of a video. Remove {name}.")
        formats.append(kind(folder, predictor.classes, predictor.category_ids, masks))
    return formats


def locate_results(
    listing: ImageListing, ids: Mapping[Path, int], formats: Sequence[OutputFormat]
) -> tuple[list[ResultLocation], str]:
    """A place for each photo; and the folder, absolute, that their file names begin at."""
    photos = [Path(os.path.abspath(photo)) for photo in listing.photos]
    top = os.path.commonpath([photo.parent for photo in photos]) if photos else ""
    known = [ids[photo] for photo in listing.photos if photo in ids]
    numbers = known if len(set(known)) == len(photos) else range(1, len(photos) + 1)
    names = name_rendered_images(listing.places, formats)
    return [
        ResultLocation(name, os.path.relpath(photo, top), photo, n) for name, photo, n in zip(names, photos, numbers)
    ], top


@dataclass
class PredictionCounts:
    """What was answered so far."""

    answered: int = 0
    turned: int = 0  # of them, photos with an EXIF rotation
    without: list[FailedImage] = field(default_factory=list)


def write_all_predictions(
    requested: Iterator[ImageOutcome],
    answers: PredictionDir,
    printed: StdoutWriter,
    shown: DisplayOptions,
    count: PredictionCounts,
    *,
    draw: Callable[[PredictionResult, DisplayOptions], bytes | DataError | Image.Image] | None,
    film: Callable[[Image.Image, ImageOutcome], object] | None = None,
) -> None:
    """Print, draw and write every answer, as they come, and count them; `answers` stays to be finished.

    draw  makes the picture, on threads: an encoded JPEG, why there is none, or one for `film`, which takes them in order; None: none
    Raises PacelineError where the folder cannot be written.
    """

    def answered() -> Iterator[ImageOutcome]:
        for one in requested:
            if isinstance(one.result, FailedImage):
                printed.note(f"{one.label}: skipped, {one.result.reason}")
            else:
                printed.answer(one.label, shown.of(one.result).summary(shown.least))
            yield one

    def drawn(one: ImageOutcome) -> tuple[ImageOutcome, bytes | DataError | Image.Image | None]:
        return one, None if isinstance(one.result, FailedImage) or draw is None else draw(one.result, shown)

    for one, picture in map_ordered(answered(), drawn, size=count_cpus(), ahead=DRAWN_BESIDE):
        if isinstance(one.result, FailedImage):
            count.without.append(one.result)
            printed.record(one.result._asdict())
            continue
        if isinstance(picture, DataError):  # gone meanwhile, or damaged where the network does not look
            count.without.append(FailedImage(one.result.file, f"no rendered image: {str(picture).splitlines()[0]}"))
        elif film is not None and picture is not None and not isinstance(picture, bytes):
            film(picture, one)
        handed = select_displayed(shown.of(one.result), shown.least)
        file = picture if isinstance(picture, bytes) else None
        printed.record(answers.add(one.result, handed, one.place, file, one.image_id, **one.more))
        count.answered += 1
        count.turned += one.result.orientation != 1


def draw_jpeg(result: PredictionResult, shown: DisplayOptions) -> bytes | DataError:
    """An encoded JPEG of the photo with its answer; why there is none."""
    try:
        return encode_jpeg(shown.of(result).draw(shown.least, labels=shown.labels), quality=90)
    except DataError as problem:
        return problem


def note_dropped_pixels(photos: Sequence[Path]) -> tuple[str, ...]:
    """Lines for people on what of the photos is not read; JPEGs have nothing of it."""
    dropped = Counter[str]()
    for photo in photos:
        with suppress(OSError):
            if photo.suffix.lower() not in (".jpg", ".jpeg"):
                dropped.update(find_dropped_channels(read_plain(photo, MAX_BYTES)))
    return format_dropped_notes(dropped)
