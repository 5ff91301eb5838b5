"""Match the names that annotations give files to the files that are there: one function for all readers of box annotations.

A name is a path below a folder. If no file has exactly this path, the file is searched whose path differs only in (in this order):
    the Unicode form, or the kind or number of spaces    Kaefer with one code point or with two for its a-umlaut
    upper and lower case                                 IMG_01.JPG, IMG_01.jpg
    the suffix                                           01.png, 01.jpg
each of them also decoded from a URL (Foto%20A.jpg), and by the end of its path: of a path of another machine (/home/ann/set/a.jpg,
C:\\set\\a.jpg, ../set/a.jpg) or one folder too many (train/a.jpg if the folder is train itself) the longest end that is a file here.
Such a path is never followed out of the folder. Every match that is not exact is counted in a note. An ambiguous one is rejected.

NearNames does the same for folders of YOLO labels, whose paths lead anywhere: `fold_name` gives one text to names that differ only in
case or in Unicode form (a macOS disk stores a decomposed form); `fold_name_loosely` also ignores URL encoding, and reads underscores
and runs of spaces as one space.

LabelFiles finds the label file of each YOLO image, and the label files without an image. A label lies in the image's folder with its
last `images` replaced by `labels`, or in the image's own folder if no part is called `images`; it has the image's name with the suffix
.txt. If it is not there, the folders around the image are searched for the only file that differs in case, Unicode form, spaces, URL
encoding, or suffix (a.TXT, a.jpg.txt).
"""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from paceline._utils.errors import DataError
from paceline._utils.names import IMAGE_SUFFIXES, OTHER_PICTURES, get_suffix, is_image_name, list_matching, walk_visible
from paceline._utils.safe_read import open_plain
from paceline._utils.text import abbreviate, escape_line, format_count, join_names

SPLITS = ("train", "training", "val", "valid", "validation", "test")
IMAGE_FOLDERS = ("images", "image", "imgs", "img")
# Captions, lists and read-me files lie next to labels, too. A wrong label may lack a number.
MIN_NUMBERS, BEGINNING = 4, 1 << 12
_DRIVE = re.compile(r"[A-Za-z]:[/\\]|\\\\")
_SPLIT = re.compile(r"(train|val|test)(ing|id|idation)?[-_]?\d*")
_SUFFIXES = OTHER_PICTURES | {os.fsdecode(suffix) for suffix in IMAGE_SUFFIXES} | {".xml", ".txt", ".json"}


def is_foreign_path(name: str) -> bool:
    """True if a name is not a path below a folder: it is absolute, of Windows, or has  ..  in it."""
    return os.path.isabs(name) or _DRIVE.match(name) is not None or ".." in re.split(r"[/\\]", name) or "\\" in name


def normalize_name(name: str) -> str:
    """A name in one Unicode form, with single spaces."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def fold_name(name: str) -> str:
    """`name` in lower case and in the composed Unicode form."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def fold_name_loosely(name: str) -> str:
    """`fold_name` of a decoded URL, with one space for underscores and spaces."""
    return re.sub(r"[\s_]+", " ", fold_name(unquote(name))).strip()


def group_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The second of each pair by the first."""
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups


def _folded(path: str) -> str:
    return normalize_name(path).casefold()


def _without_suffix(path: str) -> str:
    stem, suffix = os.path.splitext(_folded(path))
    return stem if suffix in _SUFFIXES else stem + suffix


LEVELS: dict[str, Callable[[str], str]] = {
    "": str,
    "Unicode form or spaces": normalize_name,
    "case": _folded,
    "suffix": _without_suffix,
}


class Files:
    """Files of one folder, found by names that are written in another way.

    place  the folder, for messages
    paths  of its files, below it, with "/"
    named  paths that names match exactly; no other name can mean them
    """

    def __init__(self, folder: Path, paths: Iterable[str], named: Collection[str] = ()) -> None:
        self.place, self.named = folder, set(named)
        self.paths = [path for path in paths if path not in self.named]
        self._folders = {path.split("/")[0] for path in (*self.paths, *self.named) if "/" in path}
        self._keys: dict[tuple[str, bool], dict[str, list[str]]] = {}
        self._owners: dict[str, str] = {}
        self._matches: dict[str, list[str]] = {}  # how -> the matches, for people

    def find(self, name: str, title: str) -> str | None:
        """The path of the file that `name` means, which is not in `named`; None if no file fits.

        title  of the entry that names it, for messages
        Raises DataError if several files fit, or the file fits another name too.
        """
        split, above = _split_of(re.split(r"[/\\]", name)[:-1]), [self.place.parent.name, self.place.name]
        for how, paths in self._candidates(name):
            fitting = sorted(path for path in paths if split in ("", _split_of([*above, *path.split("/")[:-1]]) or split))
            if not fitting:
                continue
            other = self._owners.setdefault(fitting[0], name)
            if len(fitting) > 1 or other != name:
                too = f" ({abbreviate(other, 120)!r} also matches)" if other != name else ""
                raise DataError(
                    f"{title}: {abbreviate(name, 120)!r} is not the path of a file, but it matches multiple files of "
                    f"{self.place}: {join_names(fitting)}{too}. Correct the name."
                )
            self._matches.setdefault(how, []).append(f"{abbreviate(name, 120)!r} matches {abbreviate(fitting[0], 120)!r}")
            return fitting[0]
        return None

    def notes(self, source: Path) -> list[str]:
        """A line for each kind of difference. source: what names the files."""
        return [
            (
                f"{source}: {len(pairs):,} name{'s differ' if len(pairs) > 1 else ' differs'} in {how} from the file that "
                f"is read in {self.place} ({pairs[0]})"
            )
            for how, pairs in self._matches.items()
        ]

    def _candidates(self, name: str) -> Iterator[tuple[str, list[str]]]:
        """(what differs, paths that fit), the nearest first."""
        foreign, own = is_foreign_path(name), _parts(name)
        forms = {"": own} if (decoded := _parts(unquote(name))) == own else {"": own, "URL encoding": decoded}
        for level in LEVELS:
            for form, parts in forms.items():
                differs = ", ".join(filter(None, (level, form)))
                at_folder = ", ".join(filter(None, (differs, "folder")))
                longest = self._with_key(level, "/".join(parts))
                yield differs if not foreign else at_folder, longest
                if not parts or (parts[0] in self._folders and not foreign):
                    continue  # its folder is there
                for at in range(1, len(parts)):
                    yield at_folder, self._with_key(level, "/".join(parts[at:]))
                # Deeper in the folder: if other names are exact, a file that is not at its path is missing.
                if level != "suffix" and (foreign or not self.named):
                    yield at_folder, self._with_key(level, parts[-1], last=True)

    def _with_key(self, level: str, path: str, last: bool = False) -> list[str]:
        """Paths that equal `path` in the form of a level; last: only their last part does."""
        key_of = LEVELS[level]
        if (level, last) not in self._keys:
            self._keys[level, last] = group_pairs(
                (key_of(os.path.basename(own) if last else own), own) for own in self.paths
            )
        return self._keys[level, last].get(key_of(path), [])


def match_names(
    names: Sequence[str], folder: Path, source: Path, title: Callable[[int], str], paths: Collection[str] | None = None
) -> tuple[list[str], list[str]]:
    """-> for each name the path of its file below `folder`, and notes. A missing file keeps its name.

    source  the file of annotations
    title   number of a name -> its entry, for messages
    paths   of the files; None: those on disk
    Raises DataError as Files.find does, and for a path out of the folder whose end names no file here.
    """
    is_there = (lambda path: os.path.lexists(folder / path)) if paths is None else set(paths).__contains__
    results = [path if (path := _plain_path(name)) and is_there(path) else "" for name in names]
    missing = [i for i, path in enumerate(results) if not path]
    if not missing:
        return results, []
    if paths is None:
        paths = [
            os.path.relpath(os.path.join(location, one), folder)
            for location, _, files in walk_visible(folder)
            for one in files
        ]
    files = Files(folder, paths, set(filter(None, results)))
    for i in missing:
        path = files.find(names[i], title(i))
        if path is None and is_foreign_path(names[i]):
            raise DataError(
                f"{title(i)}: its file_name is outside the folder of images, and no file in {folder} has this name. Write "
                "it relative to that folder and without  .. , or pass the right folder (--images-dir)."
            )
        results[i] = path or os.path.normpath(names[i])
    return results, files.notes(source)


def _plain_path(name: str) -> str:
    """A path below a folder in its shortest form; "" for one that leads out of it."""
    parts = re.split(r"[/\\]", name)
    return "" if os.path.isabs(name) or _DRIVE.match(name) or ".." in parts else os.path.normpath(name)


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[/\\]", _DRIVE.sub("", name)) if part not in ("", ".", "..")]


def _split_of(folders: Sequence[str]) -> str:
    """train, val or test of the last folder that is called so; "" for none."""
    matches = (_SPLIT.fullmatch(folder.lower()) for folder in reversed(folders))
    return next((match[1] for match in matches if match), "")


class NearNames:
    """The names in folders, each folder listed once."""

    def __init__(self) -> None:
        self.names: Callable[[str], list[str]] = cache(lambda folder: [path.name for path in list_matching(folder)])
        self.path: Callable[[str], str] = cache(self._path)
        self._forms = cache(lambda folder: group_pairs((fold_name(name), name) for name in self.names(folder)))

    def _path(self, path: str) -> str:
        """The path that exists and differs from `path` at most in case and Unicode form; "" for none or several."""
        if os.path.lexists(path):
            return path
        above, name = os.path.split(path)
        folder = self.path(above) if name and above else ""
        same = self.below(folder, name) if folder else []
        return same[0] if len(same) == 1 else ""

    def below(self, folder: str, *names: str) -> list[str]:
        """The paths below `folder` whose parts differ from `names` at most in case and Unicode form."""
        results = [folder]
        for name in map(fold_name, names):
            results = [os.path.join(location, one) for location in results for one in self._forms(location).get(name, ())]
        return results

    def other_machines(self, path: str, folders: Sequence[str]) -> str:
        """The file or folder that the longest end of `path`, a path of another machine, names in `folders`; "" for none.

        An end of a single part is used only for a path that leads out of every folder (absolute, of Windows, with `..`), and no
        end lacks the name of a split that `path` has.
        """
        parts = re.split(r"[/\\]", re.sub(r"^[A-Za-z]:", "", path))
        shortest = 1 if os.path.isabs(path) or ".." in parts or re.match(r"[A-Za-z]:|.*\\", path) else 2
        parts = [part for part in parts if part not in ("", ".", "..")]
        last = max((at for at, part in enumerate(parts) if part.lower() in SPLITS), default=len(parts))
        ends = [os.sep.join(parts[at:]) for at in range(min(last, len(parts) - shortest) + 1)]
        tried = (self.path(os.path.join(folder, end)) for end in ends for folder in folders)
        return next((location for location in tried if location), "")


def label_path(image: str) -> str:
    """Where the label of `image` is expected."""
    folder, name = os.path.split(image)
    parts = folder.split(os.sep)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"  # the last one
    return os.path.join(os.sep.join(parts), f"{_stem(name)}.txt")


class LabelFiles:
    """The label files of the images of all splits of a data set.

    Args:
        images (Iterable[str]): paths of the images.
    """

    def __init__(self, images: Iterable[str]) -> None:
        self._images = dict.fromkeys(images)
        self._near = NearNames()
        self._folders, self._by_form = cache(self._near_folders), cache(self._labels_by_form)
        self._names = cache(lambda folder: {one for name in self._pictures(folder) for one in (name, _stem(name))})
        # paths: the label of each image; near: of those, the labels that were found under another name.
        self.paths = {image: path for image in self._images if os.path.lexists(path := label_path(image))}
        used = set(self.paths.values())
        lacking = (image for image in self._images if image not in self.paths)
        self.near = {image: path for image in lacking if (path := self._search(image, used))}
        self.paths |= self.near

    def notes(self, split: str, images: Sequence[str], folder: str) -> list[str]:
        """Lines on labels that were found under another name, and on images without one."""
        near = [image for image in images if image in self.near]
        without = sum(image not in self.paths for image in images)
        notes = []
        if near:
            first = f"{format_relative(self.near[near[0]], folder)} for {format_relative(near[0], folder)}"
            notes.append(f"{split}: {format_count(len(near), 'label file')} matched by another name or path, first {first}")
        if without:
            notes.append(f"{split}: {without:,} of {len(images):,} images have no label file, so they have no objects")
        return notes

    def shared(self, with_objects: Iterable[str]) -> list[str]:
        """A line per label file that is the label of two or more images with objects."""
        owners = group_pairs((self.paths[image], image) for image in dict.fromkeys(with_objects))
        return [
            (
                f"{label}: this label file matches {len(images)} images ({join_names(images)}). Keep one of the images, or "
                "give each image a unique name and a label file"
            )
            for label, images in owners.items()
            if len(images) > 1
        ]

    def unused(self) -> list[str]:
        """The label files with objects, in the folders of the labels and below, that belong to no image."""
        used, others = set(self.paths.values()), dict[str, set[str]]()
        pairs = ((image, self.paths.get(image) or label_path(image)) for image in self._images)
        for folder, labels in dict.fromkeys(tuple(map(os.path.dirname, pair)) for pair in pairs):
            for location in [labels] if labels == folder else [location for location, _, _ in walk_visible(labels)]:
                images = os.path.normpath(os.path.join(folder, os.path.relpath(location, labels)))
                # Labels of images that no split lists are not missed.
                names = (name for name in self._pictures(images) if os.path.join(images, name) not in self._images)
                others.setdefault(location, set()).update(fold_name(_stem(name)) for name in names)
        files = [
            (stems, os.path.join(location, name))
            for location, stems in others.items()
            for name in self._near.names(location)
        ]
        files = [(stems, path) for stems, path in files if path not in used]
        return sorted(
            path for stems, path in files if (own := _stems_of(path)) and stems.isdisjoint(own) and _is_label(path)
        )

    def _pictures(self, folder: str) -> list[str]:
        names = ((name, os.fsencode(name)) for name in self._near.names(folder))
        return [name for name, raw in names if is_image_name(raw) or get_suffix(raw) in OTHER_PICTURES]

    def _search(self, image: str, used: set[str]) -> str:
        """The only label around `image` that its name fits; "" for none or several."""
        folder, name = os.path.split(image)
        own = (name, _stem(name))
        for form, wanted in itertools.product((fold_name, fold_name_loosely), own):
            for location in self._folders(folder):
                names = self._by_form(location, form).get(form(wanted), ())
                names = [label for label in names if _stem(label) in own or _stem(label) not in self._names(folder)]
                paths = [path for one in names if (path := os.path.join(location, one)) not in used and _is_label(path)]
                if paths:
                    return paths[0] if len(paths) == 1 else ""
        return ""

    def _labels_by_form(self, folder: str, form: Callable[[str], str]) -> dict[str, list[str]]:
        """The .txt files of a folder by the forms of the stems of the images that they may belong to."""
        return group_pairs((stem, name) for name in self._near.names(folder) for stem in _stems_of(name, form))

    def _near_folders(self, folder: str) -> list[str]:
        """Where the labels of the images in `folder` may lie, the usual folder first."""
        parts = folder.split(os.sep)
        above, own = os.path.split(folder)
        tried: list[tuple[str, ...]] = []
        for at in range(len(parts) - 1, 0, -1):
            if parts[at].lower() in IMAGE_FOLDERS:
                labels = (os.sep.join(parts[:at]) or os.sep, "labels")
                tried += [(*labels, *parts[at + 1 :]), labels]
        tried += [(folder,), (folder, "labels"), (above, "labels", own), (above, "labels")]
        usual = os.path.dirname(label_path(os.path.join(folder, "x")))
        return list(dict.fromkeys([usual, *(location for way in tried for location in self._near.below(*way))]))


def format_relative(path: str, folder: str) -> str:
    """`path` for a message, relative to `folder`."""
    return escape_line(os.path.relpath(path, folder))


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _stems_of(label: str, form: Callable[[str], str] = fold_name) -> list[str]:
    """Forms of what the images are called that a label file may belong to: a for a.txt, a.jpg and a for a.jpg.txt."""
    stem = _stem(os.path.basename(label))
    twice = stem.lower().endswith(".txt") or is_image_name(os.fsencode(stem))
    return [form(one) for one in ([stem, _stem(stem)] if twice else [stem])] if label.lower().endswith(".txt") else []


def _is_label(path: str) -> bool:
    """True if the first line of a .txt file holds the numbers of an object."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            words = re.split(rb"[\s,;]+", file.read(BEGINNING).lstrip().partition(b"\n")[0].strip())
        return len([float(word) for word in words]) >= MIN_NUMBERS
    except (OSError, ValueError):
        return False
