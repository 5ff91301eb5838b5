"""The folder that a prediction writes: pictures, predictions.json, coco_results.json where photos have ids, and files of formats.

An earlier prediction there is replaced whole; a folder that holds anything else is refused. The JSON files grow under another
name, one line a photo, and get theirs when all is written, predictions.json last: a folder without it is not finished. A picture
is named there before it is written, and appears whole or not at all, so the next prediction knows what a kill left; so are a
format's files. One of these that is newer than predictions.json has been corrected by somebody, and is never replaced.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, TextIO, cast

from paceline._utils.atomic_write import part_of, write_whole
from paceline._utils.errors import UserError
from paceline._utils.safe_read import read_plain
from paceline.inference.outputs.formats import Files, Format, Place
from paceline.inference.photo_paths import ANSWERS, OURS, PART, Unreadable, begins_as_ours
from paceline.inference.results import Found, Result

COCO = "coco_results.json"
MOST_BYTES = 8 << 30
_LONGEST = 200  # bytes of a picture's name before its suffix; file systems take 255


class Answers:
    """The answers that are being written."""

    def __init__(
        self, folder: Path, files: Mapping[str, TextIO], formats: Sequence[Format], also: Sequence[str] = ()
    ) -> None:
        self._folder, self._files, self._formats, self._also = folder, files, formats, also
        self._begun: set[str] = set()

    def add(
        self, result: Result, shown: Result, place: Place, picture: bytes | None, image_id: int | None, **more: Any
    ) -> dict[str, Any]:
        """One photo's result; its picture, an encoded file, goes where `place` says.

        shown   what of it the formats write
        more    what its record has beside the answer
        return  the record
        Raises UserError where it cannot be written.
        """
        own: Files = {} if picture is None else {place.picture: picture}
        for one in self._formats:
            own |= one.own(cast(Found, shown), place)
        record = {"file": result.file, "picture": place.picture if picture is not None else None, **more, **result.record()}
        if image_id is not None:
            record["image_id"] = image_id
        if names := [name for name in own if name != place.picture]:
            record["files"] = names
        with _as_user_error(self._folder):
            self._append(ANSWERS, record)
            self._files[ANSWERS].flush()
            for name, content in own.items():
                _write(self._folder / name, content)
            for one in self._formats:
                if one.joined:
                    self._files[one.joined].write(one.add(cast(Found, shown), place))
            if COCO in self._files and image_id is not None and isinstance(result, Found):
                for row in result.to_coco(image_id):
                    self._append(COCO, row)
        return record

    def finish(self, without: Sequence[Unreadable]) -> None:
        """Close the lists, the answers' with the photos that have none. Raises UserError where they cannot be written."""
        skipped = json.dumps([photo._asdict() for photo in without])
        ends = {
            COCO: "\n]\n",
            **{one.joined: one.foot() for one in self._formats},
            ANSWERS: f'\n], "skipped": {skipped}}}\n',
        }
        with _as_user_error(self._folder):
            for name in self._also:
                if (self._folder / f"{name}.part").exists():
                    os.replace(self._folder / f"{name}.part", self._folder / name)
            # The answers last: what is newer than they are, somebody has changed.
            for name in sorted(self._files, key=lambda name: name == ANSWERS):
                self._files[name].write(ends[name])
                self._files[name].close()
                os.replace(self._folder / f"{name}.part", self._folder / name)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        self._files[name].write((",\n" if name in self._begun else "\n") + json.dumps(record))
        self._begun.add(name)


@contextmanager
def new_answers(
    folder: Path, head: Mapping[str, Any], *, coco: bool, formats: Sequence[Format] = (), also: Sequence[str] = ()
) -> Iterator[Answers]:
    """Answers in `folder`, in place of an earlier prediction's; call `finish` on them at the end.

    head     facts of the whole for predictions.json: the run, its classes
    coco     write coco_results.json too
    formats  whose files are written too
    also     files that the caller writes there with the suffix .part, which `finish` takes away
    Raises UserError for a folder that cannot be written, or holds anything else.
    """
    check_answers_folder(folder)
    begun = {COCO: "["} if coco else {}
    begun |= {one.joined: one.head() for one in formats if one.joined}
    beside = {name: content for one in formats for name, content in one.beside().items()}
    with ExitStack() as opened:
        with _as_user_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _clear(folder)
            named = [*(name for name in begun if name != COCO), *beside, *also]
            facts = json.dumps({**head, "coco_results": coco, **({"files": named} if named else {})})[1:-1]
            write_whole(folder / PART, f'{OURS.decode()}, {facts}, "images": [')
            files = {ANSWERS: opened.enter_context((folder / PART).open("a"))}
            for name, text in begun.items():
                # A name that is no UTF-8 is written as the bytes that it has.
                part = (folder / f"{name}.part").open("w", encoding="utf-8", errors="surrogateescape", newline="")
                files[name] = opened.enter_context(part)
                files[name].write(text)
            for name, content in beside.items():
                _write(folder / name, content)
        yield Answers(folder, files, formats, also)


def _write(file: Path, content: str | bytes | Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        file.symlink_to(content)
    else:
        write_whole(file, content.encode(errors="surrogateescape") if isinstance(content, str) else content)


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
        if corrected := _corrected(folder, found):
            raise UserError(
                f"--out {folder}: {corrected} is newer than the prediction that wrote it: somebody has corrected it, and it is "
                "not replaced. Name another folder."
            )


def picture_names(places: Sequence[PurePath], formats: Sequence[Format] = ()) -> list[str]:
    """Where each photo's picture goes: as the photo, with the suffix .jpg; photos that differ in their suffix alone keep it.

    places   each photo's path in the named folder: pictures lie in the same folders
    formats  whose files lie there too
    return   a.png -> a.jpg; a.bmp and a.tiff -> a.bmp.jpg and a.tiff.jpg; what is still the same gets numbers: a-2.jpg
    """
    # A folder of the name of one of our own files would be in its way.
    lists = (ANSWERS, COCO, *(one.joined for one in formats))
    own = {*lists, *(f"{name}.part" for name in lists), *(one.top for one in formats)}
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
            pictures, others = _listed(read_plain(folder / name, MOST_BYTES))
            found |= {name, COCO, f"{COCO}.part", *pictures, *others, *(f"{other}.part" for other in others)}
    return found | {file for file in files if (name := part_of(PurePath(file))) is not None and str(name) in found}


def _corrected(folder: Path, files: Set[str]) -> str:
    """A format's file that was changed after the prediction ended; "" for none."""
    if not begins_as_ours(folder / ANSWERS):
        return ""
    ended = (folder / ANSWERS).stat().st_mtime_ns
    _, others = _listed(read_plain(folder / ANSWERS, MOST_BYTES))
    return next((name for name in sorted(others & files) if (folder / name).lstat().st_mtime_ns > ended), "")


def _listed(content: bytes) -> tuple[set[str], set[str]]:
    """The pictures and the formats' files that a predictions.json names, whole or cut off: its first line, and one a photo."""
    pictures, others = set(), set()
    for line in content.split(b"\n"):
        try:
            record = json.loads(line.rstrip(b",\r") + (b"]}" if line.startswith(OURS) else b""))
        except ValueError:
            continue  # the last line, or one that a kill cut
        if isinstance(record, dict):
            named = files if isinstance(files := record.get("files"), list) else ()
            others |= {os.path.normpath(name) for name in named if isinstance(name, str)}
            if isinstance(record.get("picture"), str):
                pictures.add(os.path.normpath(record["picture"]))
    return pictures, others


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
