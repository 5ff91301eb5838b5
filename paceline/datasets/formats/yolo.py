"""YOLO text labels with a data.yaml -> `Annotations` of each split.

    data.yaml      names: [cat, dog] or {0: cat, 1: dog};  train: and val: a folder of images, a list of folders, or a .txt
                   file of image paths;  path: what these are relative to (default: the folder of data.yaml);  nc: optional
    labels         the image's path with its last images/ replaced by labels/ and the suffix .txt; beside the image where
                   no folder is called images. No file, or an empty one: an image without objects
    a line         class cx cy w h    or    class x1 y1 x2 y2 x3 y3 ...   (polygon), as fractions of the image
A polygon becomes one polygon in pixels, and the object's box its bounds. Classes are numbered from 0, as in the file.
Fractions are of the stored image, so every image's header is read here. An image that is missing or has no readable header
stays in the list with size 0 and without objects: the verification that follows names it.
Source: the format's description at docs.ultralytics.com/datasets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from paceline.config.errors import DataError
from paceline.config.names import is_image_name
from paceline.config.plain_file import open_plain, read_plain_text
from paceline.config.printable import short, some
from paceline.datasets.formats.annotations import Annotations, PhotoLabels, as_annotations, read_list, refuse_broken
from paceline.datasets.formats.class_folders import VAL_FOLDERS, first_twice, tidy_class_name
from paceline.store.class_folder import one_line_name
from paceline.store.header import MOST_BYTES, read_header

MOST_YAML_BYTES = 1 << 20
MOST_LABEL_BYTES = 64 << 20
MOST_LIST_BYTES = 512 << 20  # paths of ten million images
MOST_CLASS = 2**31 - 1
# Enough for the header of nearly every JPEG, EXIF thumbnail included; where it is not, the whole file is read.
HEADER_BYTES = 1 << 17
# Rounding in exporters leaves fractions a little outside 0..1; anything further is pixels, or another format.
SLACK = 0.01


def is_yolo(path: Path) -> bool:
    """Whether `path` is a YAML file, or a folder with one, that has class names."""
    try:
        return "names" in _load_yaml(_yaml_file(path))
    except DataError:
        return False


def read_yolo(path: Path, only: str = "") -> tuple[dict[str, Annotations], list[str]]:
    """-> the splits ("train", and "val" where data.yaml names one), and notes on what was decided, for people.

    path  data.yaml, or the folder that holds it
    only  a key of data.yaml: what it names is read as "val", and nothing else
    Raises DataError, with file and line, where data.yaml or a label is wrong, or a split has no image or no label file.
    """
    file = _yaml_file(path)
    record = _load_yaml(file)
    names = _names(file, record)
    notes: list[str] = []
    splits: dict[str, Annotations] = {}
    both = (("train", "train"), ("val", next((key for key in VAL_FOLDERS if key in record), "val")))
    for split, key in (("val", only),) if only else both:
        if key not in record and split == "val":
            continue
        source, images = _images(file, record, key)
        photos, without = _read_photos(file, split, images, names)
        if without:
            notes.append(f"{split}: {without:,} of {len(images):,} images have no label file: images without objects")
        folder = Path(os.path.commonpath([os.path.dirname(image) for image in images]))
        for photo, image in zip(photos, images):
            photo.file_name = os.path.relpath(image, folder)
        splits[split] = as_annotations(source, folder, photos, names, after=splits.get("train"))
    return splits, notes


def yolo_splits(path: Path) -> list[str]:
    """The splits that data.yaml names. Raises DataError where it cannot be read."""
    record = _load_yaml(_yaml_file(path))
    return [key for key in ("train", *VAL_FOLDERS, "test") if record.get(key)]


def read_label_file(path: Path, photo: PhotoLabels, names: dict[int, str]) -> list[str]:
    """Add the objects of one label file to `photo`, whose size must be known. -> what is wrong, "file:line: reason"."""
    try:
        lines = read_plain_text(path, MOST_LABEL_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [f"{path}: cannot be read ({error.strerror if isinstance(error, OSError) else error})"]
    problems = []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        if reason := _add_object(fields, photo, names):
            problems.append(f"{path}:{number}: {reason}")
    return problems


def _add_object(fields: list[str], photo: PhotoLabels, names: dict[int, str]) -> str:
    """Add one line's object to `photo`; -> "" or why it cannot be read."""
    count = len(fields)
    if count != 5 and (count < 7 or count % 2 == 0):
        return f"{count} numbers, where class cx cy w h or class x1 y1 x2 y2 x3 y3 ... is wanted"
    try:
        category, *fractions = map(float, fields)
    except ValueError:
        return f"not numbers: {' '.join(fields)[:60]!r}"
    if category not in names:
        holes = len(names) < max(names) - min(names) + 1
        known = some(map(str, names), most=20) if holes else f"{min(names)} to {max(names)}"
        return f"class {fields[0][:40]}, where data.yaml names {known}"
    outside = [value for value in fractions if not -SLACK <= value <= 1 + SLACK]
    if outside:
        return f"{outside[0]:g} is no fraction of the image; coordinates lie between 0 and 1, not in pixels"
    if count == 5:
        cx, cy, w, h = fractions
        if w < 0 or h < 0:
            return f"a width or height below 0 ({w:g}, {h:g})"
        box = ((cx - w / 2) * photo.width, (cy - h / 2) * photo.height, w * photo.width, h * photo.height)
        photo.add(int(category), box)
        return ""
    polygon = [value * (photo.height if place % 2 else photo.width) for place, value in enumerate(fractions)]
    x, y = polygon[0::2], polygon[1::2]
    photo.add(int(category), (min(x), min(y), max(x) - min(x), max(y) - min(y)), polygon=polygon)
    return ""


def _yaml_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder. Name the data.yaml, or the folder that holds it.")
    if (path / "data.yaml").is_file():
        return path / "data.yaml"
    files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
    if len(files) != 1:
        which = f"several YAML files ({some(file.name for file in files)}); name one" if files else "no data.yaml"
        raise DataError(f"{path}: {which}. It lists train:, val: and names:, the classes in order.")
    return files[0]


class _PlainLoader(yaml.BaseLoader):
    """Makes strings, lists and dicts alone: nothing is constructed, and a class called `no` stays one.

    Aliases are refused: ten lists that name each other ten times are 10^10 entries.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "an alias (*name) repeats another part; write it out", mark)
        return super().compose_node(parent, index)


def _load_yaml(file: Path) -> dict[str, Any]:
    try:
        record = yaml.load(read_plain_text(file, MOST_YAML_BYTES), Loader=_PlainLoader)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}). It must be a description of a data set.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: cannot be read ({error}).") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{file}{line}: not YAML ({error.problem or error.context}). Correct it.") from None
    except RecursionError:
        raise DataError(f"{file}: nested too deeply, this is no description of a data set.") from None
    except yaml.YAMLError as error:
        raise DataError(f"{file}: not YAML ({type(error).__name__}). Correct it.") from None
    if not isinstance(record, dict):
        raise DataError(f"{file}: holds no keys. Wanted: train:, val: and names:.")
    return record


def _names(file: Path, record: dict[str, Any]) -> dict[int, str]:
    listed = record.get("names")
    if not listed or not isinstance(listed, list | dict):
        raise DataError(f"{file}: no class names. Add  names: [first, second, ...]  in the order of the class numbers.")
    try:
        pairs = listed.items() if isinstance(listed, dict) else enumerate(listed)
        names = {int(key): name for key, name in pairs}
    except (TypeError, ValueError):
        raise DataError(f"{file}: the keys of names: must be class numbers, 0, 1, 2, ... Correct them.") from None
    wrong = [key for key in names if not 0 <= key <= MOST_CLASS]
    if wrong:
        raise DataError(f"{file}: class {short(wrong[0], 40)} of names: is no class number from 0 on. Correct it.")
    for key, name in names.items():
        names[key] = tidy_class_name(name, f"{file}: class {key} of names:", ". Correct it.")
    if (twice := first_twice(names.values())) is not None:
        raise DataError(f"{file}: two classes are called {twice[:60]!r}. Give each a name of its own.")
    count = record.get("nc")
    if count is not None and count != str(len(names)):
        raise DataError(f"{file}: nc: is {short(count, 20)}, but names: has {len(names):,}. Correct one of them.")
    return dict(sorted(names.items()))


def _images(file: Path, record: dict[str, Any], key: str) -> tuple[Path, list[str]]:
    """-> what was read (folder or list), and the paths of the split's images, sorted within each entry, each once."""
    entries = record.get(key)
    entries = [entries] if isinstance(entries, str) else entries
    if not entries or not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        raise DataError(f"{file}: {key}: must be a folder of images, a list of folders, or a .txt file of image paths.")
    images: dict[str, None] = {}
    places = [_existing(file, record, key, entry) for entry in entries]
    for place in places:
        images.update(dict.fromkeys(_listed(place) if place.is_file() else _walked(place)))
    if not images:
        raise DataError(f"{file}: {key}: no image in {some(map(str, places))}. Check the path.")
    return places[0] if len(places) == 1 else file, list(images)


def _existing(file: Path, record: dict[str, Any], key: str, entry: str) -> Path:
    """The first that exists: relative to `path:`, to data.yaml, and to data.yaml without the ../ that Roboflow writes."""
    if "\0" in entry or "\n" in entry or any("\ud800" <= character <= "\udfff" for character in entry):
        raise DataError(f"{file}: {key}: {short(entry, 200)!r} is no path. Correct it.")
    here = Path(os.path.abspath(file)).parent
    base = record.get("path")
    tried = [here / base / entry] if isinstance(base, str) and "\0" not in base else []
    tried = [Path(os.path.normpath(place)) for place in (*tried, here / entry, here / entry.removeprefix("../"))]
    for place in tried:
        if place.exists():
            return place
    looked = some(map(str, dict.fromkeys(tried)))
    raise DataError(f"{file}: {key}: {short(entry, 200)} is not there (looked for {short(looked, 900)}). Correct it.")


def _walked(folder: Path) -> list[str]:
    paths = []
    for place, _, names in os.walk(folder):
        images = [name for name in names if is_image_name(os.fsencode(name))]
        for name in images:
            one_line_name(place, os.fsencode(os.path.join(os.path.relpath(place, folder), name)))
        paths += [os.path.join(place, name) for name in images]
    return sorted(paths)


def _listed(file: Path) -> list[str]:
    lines = read_list(file, MOST_LIST_BYTES, "Wanted: a text file with one image path a line.")
    return [os.path.normpath(os.path.join(file.parent, line)) for line in lines]


def _label_path(image: str) -> str:
    folder, name = os.path.split(image)
    parts = folder.split(os.sep)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"  # the last one
    return os.path.join(os.sep.join(parts), os.path.splitext(name)[0] + ".txt")


def _read_photos(file: Path, split: str, images: list[str], names: dict[int, str]) -> tuple[list[PhotoLabels], int]:
    """-> a PhotoLabels for each image, and how many have no label file."""
    photos, problems, without = [], [], 0
    for image in images:
        height, width = _size(image)
        photo = PhotoLabels(image, height, width)
        photos.append(photo)
        label = _label_path(image)
        if not os.path.lexists(label):
            without += 1
        elif height:
            problems += read_label_file(Path(label), photo, names)
    refuse_broken(problems)
    if without == len(images):
        raise DataError(
            f"{file}: {split}: none of its {len(images):,} images has a label file; the first was looked for at "
            f"{_label_path(images[0])}. Put the labels there."
        )
    return photos, without


def _size(image: str) -> tuple[int, int]:
    """-> height, width; 0, 0 where the file is gone or no image."""
    try:
        with os.fdopen(open_plain(image), "rb") as file:
            data = file.read(HEADER_BYTES)
            try:
                header = read_header(data, image)
            except DataError:
                header = read_header(data + file.read(MOST_BYTES), image)
    except (OSError, DataError):
        return 0, 0
    return header.height, header.width
