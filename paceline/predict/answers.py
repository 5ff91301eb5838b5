"""The folder that a prediction writes: pictures, predictions.json, and coco_results.json where photos have ids.

An earlier prediction there is replaced whole; a folder that holds anything else is refused. The JSON files grow under another
name, one line a photo, and get theirs when all is written, predictions.json last: a folder without it is not finished. A picture
is named there before it is written, and appears whole or not at all, so the next prediction knows what a kill left.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, TextIO

from paceline.config.errors import UserError
from paceline.config.plain_file import read_plain
from paceline.config.whole import part_of, write_whole
from paceline.predict.folders import ANSWERS, OURS, PART, Unreadable, begins_as_ours
from paceline.predict.results import Found, Result

COCO, COCO_PART = "coco_results.json", "coco_results.json.part"
MOST_BYTES = 8 << 30
EMPTY: Mapping[str, Any] = MappingProxyType({})
_LONGEST = 200  # bytes of a picture's name before its suffix; file systems take 255


class Answers:
    """The answers that are being written."""

    def __init__(self, folder: Path, answers: TextIO, coco: TextIO | None) -> None:
        self._folder, self._answers, self._coco = folder, answers, coco
        self._first = {id(answers): True, id(coco): True}

    def add(
        self, result: Result, name: str, picture: bytes | None, image_id: int | None, more: Mapping[str, Any] = EMPTY
    ) -> dict[str, Any]:
        """One photo's result; its picture, an encoded file, goes to `name` below the folder, where there is one.

        more    what its record has beside the answer
        return  the record
        Raises UserError where it cannot be written.
        """
        where = None if picture is None else name
        record = {"file": result.file, "picture": where, "image_id": image_id, **more, **result.record()}
        if image_id is None:
            del record["image_id"]
        with _as_user_error(self._folder):
            self._append(self._answers, record)
            self._answers.flush()
            if picture is not None and where is not None:
                file = self._folder / where
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, picture)
            if self._coco is not None and image_id is not None and isinstance(result, Found):
                for row in result.to_coco(image_id):
                    self._append(self._coco, row)
        return record

    def finish(self, without: Sequence[Unreadable]) -> None:
        """Close the lists, the answers' with the photos that have none. Raises UserError where they cannot be written."""
        skipped = json.dumps([photo._asdict() for photo in without])
        with _as_user_error(self._folder):
            self._answers.write(f'\n], "skipped": {skipped}}}\n')
            self._answers.close()
            if self._coco is not None:
                self._coco.write("\n]\n")
                self._coco.close()
                os.replace(self._folder / COCO_PART, self._folder / COCO)
            os.replace(self._folder / PART, self._folder / ANSWERS)

    def _append(self, file: TextIO, record: Mapping[str, Any]) -> None:
        file.write(("\n" if self._first[id(file)] else ",\n") + json.dumps(record))
        self._first[id(file)] = False


@contextmanager
def new_answers(folder: Path, head: Mapping[str, Any], *, coco: bool) -> Iterator[Answers]:
    """Answers in `folder`, in place of an earlier prediction's; call `finish` on them at the end.

    head  facts of the whole for predictions.json: the run, its classes
    coco  write coco_results.json too
    Raises UserError for a folder that cannot be written, or holds anything else.
    """
    check_answers_folder(folder)
    with ExitStack() as files:
        with _as_user_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _clear(folder)
            facts = json.dumps({**head, "coco_results": coco})[1:-1]
            write_whole(folder / PART, f'{OURS.decode()}, {facts}, "images": [')
            answers = files.enter_context((folder / PART).open("a"))
            rows = files.enter_context((folder / COCO_PART).open("w")) if coco else None
            if rows is not None:
                rows.write("[")
        yield Answers(folder, answers, rows)


def check_answers_folder(folder: Path) -> None:
    """Raises UserError where `folder` holds anything but the answers of an earlier prediction, or is no folder."""
    with _as_user_error(folder):
        if not folder.exists() and not folder.is_symlink():
            return
        if not folder.is_dir():
            raise UserError(f"--out {folder}: this is a file. Name a folder for the answers.")
        found = _files(folder)
        strange = sorted(found - _ours(folder, found))
        if strange:
            more = f" and {len(strange) - 2:,} more" if len(strange) > 2 else ""
            raise UserError(
                f"--out {folder}: this folder holds other files than the answers of an earlier prediction: "
                f"{', '.join(strange[:2])}{more}. Name another folder, or an empty one."
            )


def picture_names(places: Sequence[PurePath]) -> list[str]:
    """Where each photo's picture goes: as the photo, with the suffix .jpg; photos that differ in their suffix alone keep it.

    places   each photo's path in the named folder: pictures lie in the same folders
    return   a.png -> a.jpg; a.bmp and a.tiff -> a.bmp.jpg and a.tiff.jpg; what is still the same gets numbers: a-2.jpg
    """
    # A folder of the name of one of our own files would be in its way.
    own = (ANSWERS, PART, COCO, COCO_PART)
    inside = [PurePath(*place.parts[1:]) if place.parts[0] in own else place for place in places]
    stems = [place.with_name(_short(place.stem)) for place in inside]
    shared = Counter(str(stem).casefold() for stem in stems)
    names, taken = [], set()
    for place, stem in zip(inside, stems):
        base = place.with_name(_short(place.name)) if shared[str(stem).casefold()] > 1 else stem
        name, number = f"{base}.jpg", 1
        while name.casefold() in taken:
            number += 1
            name = f"{base}-{number}.jpg"
        taken.add(name.casefold())
        names.append(name)
    return names


def _short(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_LONGEST])


def _files(folder: Path) -> set[str]:
    """Files in the folder and its folders, relative; a link to a folder counts as a file."""
    found = set()
    for where, below, files in os.walk(folder):
        links = [name for name in below if os.path.islink(os.path.join(where, name))]
        found |= {os.path.relpath(os.path.join(where, name), folder) for name in (*files, *links)}
    return found


def _ours(folder: Path, files: Set[str]) -> set[str]:
    """Files that an earlier prediction lists as its own, relative; of `files`, also parts of such a file."""
    found: set[str] = {PART} - files
    for name in (ANSWERS, PART):
        if begins_as_ours(folder / name):
            found |= {name, COCO, COCO_PART, *_pictures(read_plain(folder / name, MOST_BYTES))}
    return found | {file for file in files if (name := part_of(PurePath(file))) is not None and str(name) in found}


def _pictures(content: bytes) -> Iterator[str]:
    """The pictures that a predictions.json names, whole or cut off: each photo is a line of its own."""
    for line in content.split(b"\n"):
        try:
            record = json.loads(line.rstrip(b",\r"))
        except ValueError:
            continue  # the first line, the last, or one that a kill cut
        if isinstance(record, dict) and isinstance(record.get("picture"), str):
            yield os.path.normpath(record["picture"])


def _clear(folder: Path) -> None:
    """Take away an earlier prediction: first its claim to be finished, then its pictures, last the list of them."""
    found = _files(folder)
    ours = found & _ours(folder, found)
    if ANSWERS in ours:
        os.replace(folder / ANSWERS, folder / PART)
    for name in sorted(ours - {ANSWERS, PART}):
        (folder / name).unlink()
    for where, _, _ in os.walk(folder, topdown=False):
        if where != str(folder) and not os.listdir(where):
            os.rmdir(where)


@contextmanager
def _as_user_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        place = Path(os.fsdecode(problem.filename or folder))
        reason = f"{part_of(place) or place}: cannot be written ({problem.strerror})"
        raise UserError(f"--out {folder}: {reason}. Name a folder that can be written.") from None
