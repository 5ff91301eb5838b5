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

from paceline._utils.atomic_write import atomic_write, target_of_part
from paceline._utils.errors import PacelineError
from paceline._utils.safe_read import read_plain
from paceline.inference.image_paths import ANSWERS, OURS, PART, FailedImage, is_predictions_file
from paceline.inference.outputs.formats import Files, OutputFormat, ResultLocation
from paceline.inference.results import DetectionResult, PredictionResult

COCO = "coco_results.json"
MAX_BYTES = 8 << 30
_LONGEST = 200  # bytes of a picture's name before its suffix; file systems take 255


class PredictionDir:
    """The answers that are being written."""

    def __init__(
        self, folder: Path, files: Mapping[str, TextIO], formats: Sequence[OutputFormat], also: Sequence[str] = ()
    ) -> None:
        self._folder, self._files, self._formats, self._also = folder, files, formats, also
        self._begun: set[str] = set()

    def add(
        self,
        result: PredictionResult,
        shown: PredictionResult,
        location: ResultLocation,
        picture: bytes | None,
        image_id: int | None,
        **more: Any,
    ) -> dict[str, Any]:
        """One photo's result; its picture, an encoded file, goes where `location` says.

        shown   what of it the formats write
        more    what its record has beside the answer
        return  the record
        Raises PacelineError where it cannot be written.
        """
        own: Files = {} if picture is None else {location.picture: picture}
        for one in self._formats:
            own |= one.own(cast(DetectionResult, shown), location)
        record = {
            "file": result.file,
            "annotated_image": location.picture if picture is not None else None,
            **more,
            **result.to_dict(),
        }
        if image_id is not None:
            record["image_id"] = image_id
        if names := [name for name in own if name != location.picture]:
            record["files"] = names
        with _as_user_error(self._folder):
            self._append(ANSWERS, record)
            self._files[ANSWERS].flush()
            for name, content in own.items():
                _write(self._folder / name, content)
            for one in self._formats:
                if one.joined:
                    self._files[one.joined].write(one.add(cast(DetectionResult, shown), location))
            if COCO in self._files and image_id is not None and isinstance(result, DetectionResult):
                for row in result.to_coco(image_id):
                    self._append(COCO, row)
        return record

    def finish(self, without: Sequence[FailedImage]) -> None:
        """Close the lists, the answers' with the photos that have none. Raises PacelineError where they cannot be written."""
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
def open_prediction_dir(
    folder: Path, head: Mapping[str, Any], *, coco: bool, formats: Sequence[OutputFormat] = (), also: Sequence[str] = ()
) -> Iterator[PredictionDir]:
    """Answers in `folder`, in place of an earlier prediction's; call `finish` on them at the end.

    head     facts of the whole for predictions.json: the run, its classes
    coco     write coco_results.json too
    formats  whose files are written too
    also     files that the caller writes there with the suffix .part, which `finish` takes away
    Raises PacelineError for a folder that cannot be written, or holds anything else.
    """
    check_prediction_dir(folder)
    begun = {COCO: "["} if coco else {}
    begun |= {one.joined: one.head() for one in formats if one.joined}
    beside = {name: content for one in formats for name, content in one.beside().items()}
    with ExitStack() as opened:
        with _as_user_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _clear(folder)
            named = [*(name for name in begun if name != COCO), *beside, *also]
            facts = json.dumps({**head, "coco_results": coco, **({"files": named} if named else {})})[1:-1]
            atomic_write(folder / PART, f'{OURS.decode()}, {facts}, "images": [')
            files = {ANSWERS: opened.enter_context((folder / PART).open("a"))}
            for name, text in begun.items():
                # A name that is no UTF-8 is written as the bytes that it has.
                part = (folder / f"{name}.part").open("w", encoding="utf-8", errors="surrogateescape", newline="")
                files[name] = opened.enter_context(part)
                files[name].write(text)
            for name, content in beside.items():
                _write(folder / name, content)
        yield PredictionDir(folder, files, formats, also)


def _write(file: Path, content: str | bytes | Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        file.symlink_to(content)
    else:
        atomic_write(file, content.encode(errors="surrogateescape") if isinstance(content, str) else content)


def check_prediction_dir(folder: Path) -> None:
    """Raises PacelineError where `folder` holds anything but the answers of an earlier prediction, or is no folder."""
    with _as_user_error(folder):
        if not folder.exists() and not folder.is_symlink():
            return
        if not folder.is_dir():
            raise PacelineError(f"--output-dir {folder}: this is a file. Pass a folder for the predictions.")
        results = _files(folder)
        strange = sorted(results - _ours(folder, results))
        if strange:
            more = f" and {len(strange) - 2:,} more" if len(strange) > 2 else ""
            raise PacelineError(
                f"--output-dir {folder}: the folder contains files that are not results of an earlier prediction: "
                f"{', '.join(strange[:2])}{more}. Choose another folder."
            )
        if corrected := _corrected(folder, results):
            raise PacelineError(
                f"--output-dir {folder}: {corrected} was edited after the prediction and is not overwritten. "
                "Choose another folder."
            )


def name_rendered_images(paths: Sequence[PurePath], formats: Sequence[OutputFormat] = ()) -> list[str]:
    """Where each photo's picture goes: as the photo, with the suffix .jpg; photos that differ in their suffix alone keep it.

    paths    each photo's path in the named folder: pictures lie in the same folders
    formats  whose files lie there too
    return   a.png -> a.jpg; a.bmp and a.tiff -> a.bmp.jpg and a.tiff.jpg; what is still the same gets numbers: a-2.jpg
    """
    # A folder of the name of one of our own files would be in its way.
    lists = (ANSWERS, COCO, *(one.joined for one in formats))
    own = {*lists, *(f"{name}.part" for name in lists), *(one.top for one in formats)}
    inside = [PurePath(*location.parts[1:]) if location.parts[0] in own else location for location in paths]
    stems = [location.with_name(_short(location.stem)) for location in inside]
    shared = Counter(str(stem).casefold() for stem in stems)
    names, taken = [], set()
    for location, stem in zip(inside, stems):
        base = location.with_name(_short(location.name)) if shared[str(stem).casefold()] > 1 else stem
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
    results = set()
    for where, below, files in os.walk(folder):
        links = [name for name in below if os.path.islink(os.path.join(where, name))]
        results |= {os.path.relpath(os.path.join(where, name), folder) for name in (*files, *links)}
    return results


def _ours(folder: Path, files: Set[str]) -> set[str]:
    """Files that an earlier prediction lists as its own, relative; of `files`, also parts of such a file."""
    results: set[str] = {PART} - files
    for name in (ANSWERS, PART):
        if is_predictions_file(folder / name):
            pictures, others = _listed(read_plain(folder / name, MAX_BYTES))
            results |= {name, COCO, f"{COCO}.part", *pictures, *others, *(f"{other}.part" for other in others)}
    return results | {
        file for file in files if (name := target_of_part(PurePath(file))) is not None and str(name) in results
    }


def _corrected(folder: Path, files: Set[str]) -> str:
    """A format's file that was changed after the prediction ended; "" for none."""
    if not is_predictions_file(folder / ANSWERS):
        return ""
    ended = (folder / ANSWERS).stat().st_mtime_ns
    _, others = _listed(read_plain(folder / ANSWERS, MAX_BYTES))
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
            if isinstance(record.get("annotated_image"), str):
                pictures.add(os.path.normpath(record["annotated_image"]))
    return pictures, others


def _clear(folder: Path) -> None:
    """Take away an earlier prediction: first its claim to be finished, then its pictures, last the list of them."""
    results = _files(folder)
    ours = results & _ours(folder, results)
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
        path = Path(os.fsdecode(problem.filename or folder))
        reason = f"{target_of_part(path) or path}: cannot be written ({problem.strerror})"
        raise PacelineError(f"--output-dir {folder}: {reason}. Choose another folder.") from None
