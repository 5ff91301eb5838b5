"""Answer for every photo of a command: print its line, draw its picture beside the next photos' inference, write its record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.command.printing import say
from paceline.config.errors import DataError
from paceline.pages.pictures import jpeg
from paceline.predict.answers import Answers
from paceline.predict.folders import Unreadable
from paceline.predict.predictor import in_order
from paceline.predict.results import Found, Result

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

    tell: Callable[[object], object]  # takes a line for people
    quiet: bool = False  # no line a photo
    json: bool = False  # one JSON object a photo, and nothing else

    def answer(self, label: str, line: str) -> None:
        """The line of an answered photo."""
        if not self.quiet and not self.json:
            self.tell(f"{label}: {line}")

    def record(self, record: Mapping[str, Any]) -> None:
        """What was written of a photo, or why it has no answer."""
        if self.json:
            say(json.dumps(record))


class Asked(NamedTuple):
    """A photo, and what became of it."""

    label: str  # as people know it
    name: str  # of its picture, below the folder
    image_id: int | None
    result: Result | Unreadable
    more: Mapping[str, Any]  # what its record has beside the answer


class Count(NamedTuple):
    """What was answered."""

    answered: int
    turned: int  # of them, photos with an EXIF rotation
    without: list[Unreadable]


def answer_all(asked: Iterator[Asked], answers: Answers, shown: Shown, printed: Printed, *, pictures: bool) -> Count:
    """Print, draw and write every answer, as they come; `answers` stays to be finished.

    pictures  draw them
    Raises UserError where the folder cannot be written.
    """

    def told() -> Iterator[Asked]:
        for one in asked:
            if isinstance(one.result, Unreadable):
                printed.tell(f"{one.label}: skipped, {one.result.reason}")
            else:
                printed.answer(one.label, shown.of(one.result).line(shown.least))
            yield one

    def drawn(one: Asked) -> tuple[Asked, bytes | DataError | None]:
        return one, None if isinstance(one.result, Unreadable) or not pictures else picture_of(one.result, shown)

    answered, turned, without = 0, 0, []
    for one, picture in in_order(told(), drawn, ahead=DRAWN_BESIDE):
        if isinstance(one.result, Unreadable):
            without.append(one.result)
            printed.record(one.result._asdict())
            continue
        if isinstance(picture, DataError):  # gone meanwhile, or damaged where the network does not look
            without.append(Unreadable(one.result.file, f"no picture: {str(picture).splitlines()[0]}"))
            picture = None
        printed.record(answers.add(one.result, one.name, picture, one.image_id, one.more))
        answered += 1
        turned += one.result.orientation != 1
    return Count(answered, turned, without)


def picture_of(result: Result, shown: Shown) -> bytes | DataError:
    """An encoded JPEG of the photo with its answer; why there is none."""
    try:
        return jpeg(shown.of(result).draw(shown.least, labels=shown.labels), quality=90)
    except DataError as problem:
        return problem
