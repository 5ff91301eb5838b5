"""Find images for prediction: named files, images in folders and their subfolders, and patterns."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import NamedTuple

from paceline._utils.errors import DataError
from paceline._utils.names import PREDICTED_SUFFIX_FORMATS, format_suffixes, get_suffix, glob_paths, scan_folder

SUFFIXES = tuple(map(os.fsdecode, PREDICTED_SUFFIX_FORMATS))
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".ogv")
_CAMERA = re.compile(r"(?:camera:|/dev/video)(\d{1,3})")
# predictions.json, finished or not, begins so: what follows is the list of answers (outputs/prediction_dir.py).
ANSWERS, PART, OURS = "predictions.json", "predictions.json.part", b'{"paceline": "predictions"'


class FailedImage(NamedTuple):
    """Describe an image that could not be read. `Predictor.predict_iter` yields it instead of a result.

    Attributes:
        file (str): path of the image, or "" if the image was passed as bytes or pixels.
        reason (str): short description of the problem.
    """

    file: str
    reason: str


@dataclass
class ImageListing:
    """List the images in the given paths, and count the files that were skipped."""

    photos: list[Path] = field(default_factory=list)
    places: list[PurePath] = field(default_factory=list)  # of each photo: its path in the named folder, or its name
    refused: list[FailedImage] = field(default_factory=list)  # what would be photos, but cannot be taken
    others: Counter[str] = field(default_factory=Counter)  # files that are left out, by suffix ("" for none)
    passed: Counter[str] = field(default_factory=Counter)  # hidden entries, and folders that were not entered, by why

    def skipped(self) -> str:
        """Describe the skipped entries of the folders on one line. Return "" if nothing was skipped."""
        parts = []
        if left_out := format_suffixes(self.others):
            parts.append(left_out)
        parts += [f"{number} {why}" for why, number in self.passed.items()]
        return "; ".join(parts)


def find_photos(paths: Sequence[Path], *, apart_from: Sequence[Path] = ()) -> ImageListing:
    """List images in the given paths.

    The images of a folder are sorted by name and precede those of its subfolders. A path that does not exist and contains `*`, `?`,
    or `[` is a shell pattern, and `**` matches any number of folders. It is replaced by the images and folders that match, sorted by
    name.

    Hidden files, hidden folders, the folders in `apart_from`, and folders with the results of an earlier prediction are skipped. A
    folder that several links point to is read once, and an image that is given several times is listed once.

    Args:
        paths (Sequence[Path]): files, folders, and patterns.
        apart_from (Sequence[Path]): folders to skip.

    Returns:
        ImageListing: the images, and counts of the skipped entries.

    Raises:
        DataError: if a path does not exist, a pattern matches nothing, or a folder has no images.
    """
    result = ImageListing()
    away = {key for folder in apart_from if (key := _key(folder)) is not None}
    taken: set[tuple[str, str]] = set()
    real = cache(lambda folder: os.path.realpath(str(folder)))

    def take(photo: Path, location: PurePath) -> None:
        key = real(photo.parent), photo.name  # a link beside its photo is a photo of its own
        if key in taken:
            result.passed["given more than once, predicted once"] += 1
            return
        taken.add(key)
        result.photos.append(photo)
        result.places.append(location)

    for path in _spread(paths, result):
        if os.path.isdir(path):
            before, inside = len(result.refused), list(_in_folder(path, result, away))
            for photo in inside:
                take(photo, PurePath(photo.relative_to(path)))
            if not inside and len(result.refused) == before:
                others = f" Skipped: {text}." if (text := result.skipped()) else ""
                raise DataError(f"{path}: no images found in this folder (expected {', '.join(SUFFIXES)}).{others}")
        elif os.path.lexists(path):
            take(path, PurePath(path.name))  # what is no plain file is named when it is opened
        else:
            raise DataError(f"{path}: file or folder not found.")
    return result


def _spread(paths: Sequence[Path], result: ImageListing) -> Iterator[Path]:
    """Yield the paths, with each pattern replaced by its images and folders. Count its other files."""
    answers = cache(is_prediction_dir)
    for path in paths:
        if os.path.lexists(path) or not glob.has_magic(str(path)):
            yield path
            continue
        named = [Path(name) for name in glob_paths(str(path.expanduser()), recursive=True)]
        if "**" in path.parts:  # which has entered the folders itself
            named = [file for file in named if not file.is_dir()]
        ours = {file for file in named if any(answers(folder) for folder in file.parents)}
        others = {f for f in named if not f.is_dir() and f.suffix.lower() not in SUFFIXES} - ours
        if ours:
            result.passed["in folders with results of an earlier prediction"] += len(ours)
        result.others.update(get_suffix(os.fsencode(file.name)) for file in others)
        wanted = [file for file in named if file not in ours and file not in others]
        if not wanted:
            what = f" Skipped: {text}." if (text := result.skipped()) else ""
            raise DataError(f"{path}: no image matches this pattern (expected {', '.join(SUFFIXES)}).{what}")
        yield from wanted


def _in_folder(top: Path, result: ImageListing, away: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the images in `top` and its subfolders. Count the skipped entries in `result`."""
    waiting, entered = [top], set(away)
    while waiting:
        folder = waiting.pop()
        if (why := _not_entered(folder, top, entered, away)) is not None:
            result.passed[why] += 1
            continue
        try:
            entries, hidden = scan_folder(str(folder))
        except OSError as problem:
            result.refused.append(FailedImage(str(folder), f"the folder cannot be read ({problem.strerror})"))
            continue
        below: list[Path] = []
        if hidden:
            result.passed["hidden"] += hidden
        for name in (entry.name for entry in entries):
            path = folder / name
            if "\n" in name:
                result.refused.append(FailedImage(str(path), "the name contains a line break. Rename the file"))
            elif os.path.isdir(path):  # which no path upsets, however long
                below.append(path)
            elif path.suffix.lower() in SUFFIXES:
                yield path
            else:
                result.others[get_suffix(os.fsencode(name))] += 1
        # Folders before links to folders, which may lead to one of them; the last of the list is taken first.
        waiting += sorted(below, key=lambda path: (path.is_symlink(), path.name), reverse=True)


def _not_entered(folder: Path, top: Path, entered: set[tuple[int, int]], away: set[tuple[int, int]]) -> str | None:
    """Return the reason to skip a folder. Return None if the folder must be read, and record it as read."""
    key = _key(folder)
    if folder != top:
        if key in away:
            return "folder of the run or of its predictions"
        if key in entered:
            return "link to a folder that is already read"
        if is_prediction_dir(folder):
            return "folder with results of an earlier prediction"
    if key is not None:
        entered.add(key)
    return None


def is_prediction_dir(folder: Path) -> bool:
    """Return True if a prediction of paceline wrote its results to `folder`, or started to."""
    return any(is_predictions_file(folder / name) for name in (ANSWERS, PART))


def is_predictions_file(file: Path) -> bool:
    """Return True if `file` starts like the predictions.json that paceline writes.

    An empty partial file also counts, because earlier versions created one first.
    """
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(len(OURS)) in (OURS, b"" if file.name == PART else OURS)
    except OSError:
        return False


def _key(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_video(path: Path) -> bool:
    """Return True if a path has the name of a video file or of a camera (camera:0, /dev/video0)."""
    return path.suffix.lower() in VIDEO_SUFFIXES or parse_camera(path) is not None


def parse_camera(path: Path) -> int | None:
    """Return the number of the camera that a path names, or None if it names something else."""
    match = _CAMERA.fullmatch(str(path))
    return int(match[1]) if match else None
