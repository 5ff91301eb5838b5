"""YOLO text labels with a data.yaml -> `Annotations` of each split.

    data.yaml      names: [cat, dog] or {0: cat, 1: dog};  train: and val: a folder of images, a list of folders, or a .txt
                   file of image paths;  path: what these are relative to (default: the folder of data.yaml);  nc: optional
    labels         the image's path with its last images/ replaced by labels/ and the suffix .txt, or a file near it
                   (file_matching.py). No file, or an empty one: an image without objects
    a line         class cx cy w h    or    class x1 y1 x2 y2 x3 y3 ...   (polygon), as fractions of the image; if data.yaml
                   has kpt_shape: [n, d], a box and n x d numbers of key points, of which the box is read
A polygon becomes one polygon in pixels, and the object's box its bounds. Classes are numbered from 0, as in the file.
Fractions are of the stored image, so every image's header is read here. An image that is missing or has no readable header
stays in the list with size 0 and without objects: the verification that follows names it.
Source: the format's description at docs.ultralytics.com/datasets.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from yaml.composer import ComposerError

from paceline._utils.errors import DataError
from paceline._utils.names import is_image_name, list_matching, require_one_line, walk_visible
from paceline._utils.safe_read import describe_read_error, open_plain, read_plain_text
from paceline._utils.text import abbreviate, format_count, join_names
from paceline.data.formats.annotations import Annotations, ImageLabels, make_annotations, raise_problems, read_list
from paceline.data.formats.class_folders import VAL_FOLDERS, find_duplicate, tidy_class_name
from paceline.data.formats.file_matching import LabelFiles, NearNames, format_relative, label_path
from paceline.data.transforms.image_io import MAX_BYTES, read_header

MAX_YAML_BYTES = 1 << 20
MAX_LABEL_BYTES = 64 << 20
MAX_LIST_BYTES = 512 << 20  # paths of ten million images
MAX_CLASS = 2**31 - 1
# Enough for the header of nearly every JPEG, EXIF thumbnail included; where it is not, the whole file is read.
HEADER_BYTES = 1 << 17
# Rounding in exporters leaves fractions a little outside 0..1; anything further is pixels, or another format.
SLACK = 0.01
_NO_PATH = re.compile("[\0\n\ud800-\udfff]")


def find_yolo(path: Path) -> str:
    """Return the name of the YAML file with class names that `path` is or holds; "" if there is none."""
    try:
        file = _yaml_file(path)
        return file.name if "names" in _load_yaml(file) else ""
    except DataError:
        return ""


def read_yolo(path: Path, only: str = "") -> tuple[dict[str, Annotations], list[str]]:
    """-> the splits ("train", and "val" where data.yaml names one), and notes on what was decided, for people.

    path  data.yaml, or the folder that holds it
    only  a key of data.yaml: what it names is read as "val", and nothing else
    Raises DataError, with file and line, where data.yaml or a label is wrong, or a split has no image or no label file.
    """
    file = _yaml_file(path)
    record = _load_yaml(file)
    names, points = _names(file, record), _key_points(file, record)
    notes: list[str] = []
    both = (("train", "train"), ("val", next((key for key in VAL_FOLDERS if key in record), "val")))
    wanted = [("val", only)] if only else [(split, key) for split, key in both if key in record or split == "train"]
    result = {split: _images(file, record, key, notes) for split, key in wanted}
    labels = LabelFiles(image for _, images in result.values() for image in images)
    read = {split: _read_photos(file, split, images, labels, names, points) for split, (_, images) in result.items()}
    raise_problems(labels.shared(photo.file_name for photos in read.values() for photo in photos if photo.boxes))
    splits: dict[str, Annotations] = {}
    for split, photos in read.items():
        source, images = result[split]
        folder = Path(os.path.commonpath([os.path.dirname(image) for image in images]))
        notes += labels.notes(split, images, str(file.parent))
        if points:
            objects = sum(len(photo.boxes) for photo in photos)
            notes.append(f"{split}: key points (kpt_shape) are ignored; only the boxes of {objects:,} objects are read")
        for photo, image in zip(photos, images):
            photo.file_name = os.path.relpath(image, folder)
        splits[split] = make_annotations(source, folder, photos, names, after=splits.get("train"))
    if unused := [format_relative(path, str(file.parent)) for path in labels.unused()]:
        notes.append(f"ignored {format_count(len(unused), 'label file')} without an image: {join_names(unused)}")
    return splits, notes


def yolo_splits(path: Path) -> list[str]:
    """The splits that data.yaml names. Raises DataError where it cannot be read."""
    record = _load_yaml(_yaml_file(path))
    return [key for key in ("train", *VAL_FOLDERS, "test") if record.get(key)]


def read_label_file(path: Path, photo: ImageLabels, names: dict[int, str], points: int = 0) -> list[str]:
    """Add the objects of one label file to `photo`, whose size must be known.

    Args:
        points (int): count of the numbers of an object's key points, after its box. They are not read.

    Returns:
        list[str]: what is wrong, "file:line: reason".
    """
    try:
        lines = read_plain_text(path, MAX_LABEL_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [f"{path}: cannot be read ({describe_read_error(error)})"]
    problems = []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) == 5 + points:
            fields = fields[:5]
        if reason := _count_problem(fields, points) or _add_object(fields, photo, names):
            problems.append(f"{path}:{number}: {reason}")
    return problems


def _count_problem(fields: list[str], points: int) -> str:
    """Why this number of fields is not an object; "" if it is."""
    count = len(fields)
    if count == 5 or (not points and count >= 7 and count % 2):
        return ""
    form = (
        f"class cx cy w h and the {points} numbers of kpt_shape"
        if points
        else "class cx cy w h or class x1 y1 x2 y2 x3 y3 ..."
    )
    text = f"{format_count(count, 'number')}, expected {form}"
    if count == 1 and (signs := re.findall("[,;]", fields[0])):
        return f"{text}; the fields are separated by {signs[0]!r}, which must be spaces"
    if hint := _key_point_hint(fields):
        return text + hint
    if count == 6:
        return f"{text}; the sixth is usually the score or track id of a prediction. Remove it:  cut -d' ' -f1-5"
    return text


def _key_point_hint(fields: list[str]) -> str:
    """What to add to data.yaml if every third number after a box may be the visibility of a key point."""
    count, rest = divmod(len(fields) - 5, 3)
    seen = all(re.fullmatch(r"[012](\.0*)?", one) for one in fields[7::3])
    return (
        f"; if these are key points, add kpt_shape: [{count}, 3] to the YAML file"
        if seen and count > 0 and not rest
        else ""
    )


def _add_object(fields: list[str], photo: ImageLabels, names: dict[int, str]) -> str:
    """Add one line's object to `photo`; -> "" or why it cannot be read."""
    try:
        category, *fractions = map(float, fields)
    except ValueError:
        return f"not numbers: {' '.join(fields)[:60]!r}"
    if category not in names:
        holes = len(names) < max(names) - min(names) + 1
        known = join_names(map(str, names), most=20) if holes else f"{min(names)} to {max(names)}"
        return f"class {fields[0][:40]}, expected a class of data.yaml ({known})"
    if len(fields) == 5 and min(fractions[2:]) < 0:
        return f"a negative width or height ({fractions[2]:g}, {fractions[3]:g})"
    outside = [value for value in fractions if not -SLACK <= value <= 1 + SLACK]
    if outside:
        text = f"{outside[0]:g} is not a fraction of the image; coordinates must be between 0 and 1, not in pixels"
        return text + _key_point_hint(fields)
    if len(fields) == 5:
        cx, cy, w, h = fractions
        box = ((cx - w / 2) * photo.width, (cy - h / 2) * photo.height, w * photo.width, h * photo.height)
        photo.add(int(category), box)
        return ""
    polygon = [value * (photo.height if index % 2 else photo.width) for index, value in enumerate(fractions)]
    x, y = polygon[0::2], polygon[1::2]
    photo.add(int(category), (min(x), min(y), max(x) - min(x), max(y) - min(y)), polygon=polygon)
    return ""


def _yaml_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{path}: file or folder not found. Pass the data.yaml, or its folder.")
    if (path / "data.yaml").is_file():
        return path / "data.yaml"
    files = list_matching(path, "*.yaml", "*.yml")
    if len(files) != 1:
        which = (
            f"multiple YAML files found ({join_names(file.name for file in files)}), so one must be passed"
            if files
            else "data.yaml not found"
        )
        raise DataError(f"{path}: {which}. It must have the keys train:, val:, and names: (the classes in order).")
    return files[0]


class _PlainLoader(yaml.BaseLoader):
    """Makes strings, lists and dicts alone: nothing is constructed, and a class called `no` stays one.

    Aliases are refused: ten lists that name each other ten times are 10^10 entries.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "aliases (*name) are not supported; write the content out", mark)
        return super().compose_node(parent, index)


def _load_yaml(file: Path) -> dict[str, Any]:
    try:
        record = yaml.load(read_plain_text(file, MAX_YAML_BYTES), Loader=_PlainLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({describe_read_error(error)}). Expected a dataset description.") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{file}{line}: not valid YAML ({error.problem or error.context}). Correct it.") from None
    except RecursionError:
        raise DataError(f"{file}: nested too deeply for a dataset description.") from None
    except yaml.YAMLError as error:
        raise DataError(f"{file}: not valid YAML ({type(error).__name__}). Correct it.") from None
    if not isinstance(record, dict):
        raise DataError(f"{file}: no keys found. Expected train:, val:, and names:.")
    return record


def _names(file: Path, record: dict[str, Any]) -> dict[int, str]:
    listed = record.get("names")
    if isinstance(listed, str) and listed:
        raise DataError(
            f"{file}: names: is the text {abbreviate(listed)!r}, expected a list. Use  names: [first, second, ...]"
        )
    if not listed or not isinstance(listed, list | dict):
        raise DataError(f"{file}: class names are required. Add  names: [first, second, ...]  in the order of indices.")
    try:
        pairs = listed.items() if isinstance(listed, dict) else enumerate(listed)
        names = {int(key): name for key, name in pairs}
    except (TypeError, ValueError):
        raise DataError(f"{file}: the keys of names: must be class indices (0, 1, 2, ...). Correct them.") from None
    wrong = [key for key in names if not 0 <= key <= MAX_CLASS]
    if wrong:
        raise DataError(f"{file}: class {abbreviate(wrong[0], 40)} of names: must be an index (0 or more). Correct it.")
    for key, name in names.items():
        if isinstance(name, dict):
            text = abbreviate(": ".join(map(str, next(iter(name.items()), ()))))
            raise DataError(
                f'{file}: class {key} of names: has a colon, which YAML reads as a mapping. Quote it:  "{text}"'
            )
        names[key] = tidy_class_name(name, f"{file}: class {key} of names:", ". Correct it.")
    if (twice := find_duplicate(names.values())) is not None:
        raise DataError(f"{file}: two classes are named {twice[:60]!r}. Give them unique names.")
    count = record.get("nc")
    if count is not None and count != str(len(names)):
        raise DataError(f"{file}: nc: is {abbreviate(count, 20)}, but names: has {len(names):,} classes. Correct one.")
    return dict(sorted(names.items()))


def _key_points(file: Path, record: dict[str, Any]) -> int:
    """The count of numbers after an object's box: n x d of kpt_shape: [n, d]; 0 without it."""
    shape = record.get("kpt_shape")
    if shape is None:
        return 0
    text = " ".join(map(str, shape)) if isinstance(shape, list) else ""
    if not re.fullmatch("[1-9][0-9]{0,3} [23]", text):
        raise DataError(f"{file}: kpt_shape: is {abbreviate(shape)}, expected [number of key points, 2 or 3]. Correct it.")
    return int(text[:-1]) * int(text[-1])


def _images(file: Path, record: dict[str, Any], key: str, notes: list[str]) -> tuple[Path, list[str]]:
    """-> what was read (folder or list), and the paths of the split's images, sorted within each entry, each once."""
    entries = record.get(key)
    entries = [entries] if isinstance(entries, str) else entries
    if not entries or not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
        raise DataError(f"{file}: {key}: must be a folder of images, a list of folders, or a .txt file of image paths.")
    images: dict[str, None] = {}
    folders = _folders(file, record)
    paths = [_existing(file, folders, key, entry, notes) for entry in entries]
    for path in paths:
        images.update(dict.fromkeys(_listed(path, folders, notes) if path.is_file() else _walked(path)))
    if not images:
        raise DataError(f"{file}: {key}: no images in {join_names(map(str, paths))}. Check the path.")
    return paths[0] if len(paths) == 1 else file, list(images)


def _folders(file: Path, record: dict[str, Any]) -> list[str]:
    """The folders that paths may be relative to: `path:`, and the folder of the YAML file."""
    here, base = os.path.dirname(os.path.abspath(file)), record.get("path")
    return (
        [os.path.normpath(os.path.join(here, base)), here]
        if isinstance(base, str) and not _NO_PATH.search(base)
        else [here]
    )


def _existing(file: Path, folders: list[str], key: str, entry: str, notes: list[str]) -> Path:
    """The first that exists: relative to `path:`, to data.yaml, and to data.yaml without the ../ that Roboflow writes."""
    if _NO_PATH.search(entry):
        raise DataError(f"{file}: {key}: {abbreviate(entry, 200)!r} is not a valid path. Correct it.")
    tried = [os.path.join(location, entry) for location in folders] + [os.path.join(folders[-1], entry.removeprefix("../"))]
    tried = [os.path.normpath(location) for location in tried]
    near = NearNames()
    for location in (next(filter(os.path.exists, tried), ""), *map(near.path, tried), near.other_machines(entry, folders)):
        if os.path.exists(location):
            if location not in tried:
                notes.append(f"{file}: {key}: {abbreviate(entry, 200)} not found; using {abbreviate(location, 900)}")
            return Path(location)
    looked = join_names(dict.fromkeys(tried))
    raise DataError(f"{file}: {key}: {abbreviate(entry, 200)} not found (searched {abbreviate(looked, 900)}). Correct it.")


def _walked(folder: Path) -> list[str]:
    paths = []
    for location, _, names in walk_visible(folder):
        images = [name for name in names if is_image_name(os.fsencode(name))]
        for name in images:
            require_one_line(location, os.fsencode(os.path.join(os.path.relpath(location, folder), name)))
        paths += [os.path.join(location, name) for name in images]
    return sorted(paths)


def _listed(file: Path, folders: list[str], notes: list[str]) -> list[str]:
    """The images that a list names. A path that does not exist is matched by case, then as one of another machine."""
    near, images, results = NearNames(), [], []
    folders = list(dict.fromkeys((str(file.parent), *folders)))
    for line in read_list(file, MAX_LIST_BYTES, "Expected a text file with one image path per line."):
        path = os.path.normpath(os.path.join(file.parent, line))
        if not os.path.lexists(path):
            ways = (near.path(path), *(near.other_machines(one, folders) for one in (line, unquote(line))))
            if location := next(filter(None, ways), ""):
                results.append(f"{abbreviate(line, 120)} as {abbreviate(location, 300)}")
            path = location or path
        images.append(path)
    if results:
        notes.append(f"{file}: {len(results):,} of its paths were not found and are read from elsewhere ({results[0]})")
    if images and not any(map(os.path.lexists, images)):
        raise DataError(
            f"{file}: none of its {len(images):,} images was found; the first is {abbreviate(images[0], 300)}. Correct the "
            f"paths. They must be absolute or relative to {file.parent}."
        )
    return images


def _read_photos(
    file: Path, split: str, images: list[str], labels: LabelFiles, names: dict[int, str], points: int
) -> list[ImageLabels]:
    """The ImageLabels of each image; its file_name is the image's path. Raises DataError as `read_yolo`."""
    photos, problems = [], []
    for image in images:
        photo = ImageLabels(image, *_size(image))
        photos.append(photo)
        if photo.height and image in labels.paths:
            problems += read_label_file(Path(labels.paths[image]), photo, names, points)
    raise_problems(problems)
    if not any(image in labels.paths for image in images):
        raise DataError(
            f"{file}: {split}: none of its {len(images):,} images has a label file. The first was expected at "
            f"{label_path(images[0])}, or with a similar name near the image. Put the labels there."
        )
    return photos


def _size(image: str) -> tuple[int, int]:
    """-> height, width; 0, 0 where the file is gone or no image."""
    try:
        with os.fdopen(open_plain(image), "rb") as file:
            data = file.read(HEADER_BYTES)
            try:
                header = read_header(data, image)
            except DataError:
                header = read_header(data + file.read(MAX_BYTES), image)
    except (OSError, DataError):
        return 0, 0
    return header.height, header.width
