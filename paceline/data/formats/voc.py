"""Pascal VOC: one XML file an image -> `Annotations` of each split.

Layouts, found by themselves (names of folders in either case):
    ROOT/{Annotations/*.xml, JPEGImages/*, ImageSets/Main/{train,val,trainval,test}.txt}     the official one
    ROOT/{annotations/*.xml, images/*}                                                       without sets
    ROOT/*.xml beside the images, or so in ROOT/train and ROOT/{val,valid,validation}        flat
An XML file belongs to the image of the same stem; its <filename> decides only between several or none, by its last part alone,
so it cannot lead out of the folder. A line of a set is a stem; the name or path of the image or of the XML file is read too, and names
that differ in Unicode form, case or suffix are matched, with a note (file_matching.py). Images without an XML file were never
annotated: they are left out and counted.

Pixels. VOC counts from 1 and xmin, xmax are the first and last column inside: x = xmin - 1, width = xmax - xmin + 1. Many
exporters count from 0 with xmax beside the last column. A data set in which any xmin or ymin is below 1 cannot be of the first
kind, so it is read as x = xmin, width = xmax - xmin throughout, with a note.
VOC scores objects marked <difficult> neither as found nor as missed: they become crowd regions, which COCO scoring treats so.
Classes are numbered from 1 in the order of their names.
Source: Everingham et al. 2010, and the VOC2012 development kit, section "Annotation".
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from paceline._utils.errors import DataError
from paceline._utils.names import is_image_name, list_folder, list_matching, require_one_line
from paceline._utils.safe_read import read_plain
from paceline._utils.text import abbreviate
from paceline.data.formats.annotations import Annotations, ImageLabels, make_annotations, raise_problems, read_list
from paceline.data.formats.class_folders import TRAIN_FOLDER, VAL_FOLDERS, tidy_class_name
from paceline.data.formats.file_matching import Files
from paceline.data.formats.label_tools import CVAT
from paceline.data.transforms.image_io import MAX_PIXELS

# The longest real ones are a few dozen kB.
MAX_BYTES = 8 << 20
MAX_SET_BYTES = 512 << 20
_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
IMAGE_FOLDERS = ("jpegimages", "images")
XML_FOLDER = "annotations"


@dataclass(frozen=True)
class VocObject:
    """One <object> as written: its edges xmin, ymin, xmax, ymax are not yet set to one convention."""

    name: str
    edges: tuple[float, float, float, float]
    difficult: bool


@dataclass(frozen=True)
class VocFile:
    """One XML file."""

    file_name: str
    height: int  # pixels; 0 where it names none
    width: int
    objects: list[VocObject]


@dataclass(frozen=True)
class _Place:
    """Where one split lies."""

    split: str
    xml_folder: Path
    images: Path
    names: list[str] | None = None  # the set's XML files; None where all of the folder belong to it
    notes: tuple[str, ...] = ()  # on the lines of the set


def find_voc(root: Path) -> str:
    """Return the pattern of the XML files that `root` has in one of the layouts above, relative to it; "" if it has none."""
    try:
        folders = [location.xml_folder for location in _places(_devkit(root)) if _has_xml(location.xml_folder)]
    except DataError:
        return ""
    return os.path.relpath(folders[0] / "*.xml", root) if folders else ""


def read_voc(root: Path, only: Sequence[str] = ()) -> tuple[dict[str, Annotations], list[str]]:
    """-> the splits ("train", and "val" where there is one), and notes on what was decided, for people.

    only  names of one split, the first that is there is read as "val"; where none is, all of `root` is that split
    Raises DataError naming the files where there is no XML file, one cannot be read, or the sets name what is not there.
    """
    root = _devkit(root)
    locations = [_one_place(root, only)] if only else _places(root)
    if not any(_has_xml(location.xml_folder) for location in locations):
        raise DataError(f"{root}: no XML file of Pascal VOC found. Expected ROOT/Annotations/*.xml with ROOT/JPEGImages.")
    notes: list[str] = []
    files: dict[str, list[VocFile]] = {}
    for location in locations:
        images = [os.fsdecode(name) for name in list_folder(location.images).images]
        files[location.split], more = _read_files(location, images)
        notes += [*location.notes, *more]
        left_out = len(images) - len({file.file_name for file in files[location.split]})
        if location.names is None and left_out > 0:
            notes.append(f"{location.images}: ignored {left_out:,} images without an XML file")
    everything = [entry for group in files.values() for file in group for entry in file.objects]
    if not everything:
        raise DataError(f"{root}: no XML file has an <object>. Annotate some images, or check the folder.")
    # Number of the first pixel, and what xmax has to grow by.
    first = 0 if any(min(entry.edges[:2]) < 1 for entry in everything) else 1
    if first == 0:
        notes.append("some boxes start at pixel 0, so pixels are counted from 0, with exclusive xmax and ymax")
    if difficult := sum(entry.difficult for entry in everything):
        notes.append(f"{difficult:,} objects marked as difficult are kept as crowd regions, which metrics ignore")
    ids = {name: k for k, name in enumerate(sorted({entry.name for entry in everything}), start=1)}
    names = {k: name for name, k in ids.items()}
    splits: dict[str, Annotations] = {}
    for location in locations:
        photos = []
        for file in files[location.split]:
            photo = ImageLabels(file.file_name, file.height, file.width)
            for entry in file.objects:
                left, top, right, bottom = entry.edges
                box = (left - first, top - first, right - left + first, bottom - top + first)
                photo.add(ids[entry.name], box, crowd=entry.difficult)
            photos.append(photo)
        splits[location.split] = make_annotations(
            location.xml_folder, location.images, photos, names, after=splits.get("train")
        )
    return splits, notes


def read_voc_file(path: Path) -> VocFile:
    """One XML file; `file_name` is the last part of its <filename>, "" where it has none.

    Raises DataError where it is no VOC annotation, or declares a document type or entities.
    """
    try:
        root = ElementTree.fromstring(_text(path, read_plain(path, MAX_BYTES)))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Expected the annotation of one image.") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{path}: not valid XML ({error}).") from None
    if root.tag == "annotations":
        raise DataError(f"{path}: this is {CVAT[0]}. {CVAT[1]}")
    if root.tag != "annotation":
        raise DataError(f"{path}: not a Pascal VOC annotation: its root is <{abbreviate(root.tag, 40)}>, not <annotation>.")
    last_part = re.split(r"[/\\]", (root.findtext("filename") or "").strip())[-1]
    return VocFile(
        file_name="" if last_part in (".", "..") or not last_part.isprintable() else last_part,
        height=_pixels(path, root, "height"),
        width=_pixels(path, root, "width"),
        objects=[_object(path, index, entry) for index, entry in enumerate(root.findall("object"), start=1)],
    )


def _text(path: Path, data: bytes) -> str:
    """The file as text, so that the search for a DTD sees what the parser sees, whatever the encoding."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    elif data[:4] in (b"<\0?\0", b"<\0a\0", b"\0<\0?", b"\0<\0a"):  # without its mark
        encoding = "utf-16-le" if data[:1] == b"<" else "utf-16-be"
    else:
        named = _ENCODING.search(data[:200])
        encoding = named.group(1).decode() if named else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise DataError(
            f"{path}: its bytes are not {encoding.removesuffix('-sig')} text. Save it as UTF-8, or set its encoding in the "
            'first line:  <?xml version="1.0" encoding="ISO-8859-1"?>'
        ) from None
    if "\0" in text:
        # Another encoding than was assumed: the parser might detect it and read what was not searched.
        raise DataError(f"{path}: contains NUL characters. Save it as UTF-8.")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        # Entities can expand to gigabytes, or to other files. No tool that writes VOC writes them.
        raise DataError(f"{path}: declares a document type or entities, which are not supported. Remove the declaration.")
    return text


def _pixels(path: Path, root: ElementTree.Element, side: str) -> int:
    text = (root.findtext(f"size/{side}") or "0").strip()
    value = _number(text)
    if not 0 <= value <= MAX_PIXELS:
        raise DataError(f"{path}: the {side} of the image is {text[:40]!r}, not a number of pixels.")
    return int(value)


def _number(text: str | None) -> float:
    """nan for anything that is no number."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _object(path: Path, index: int, entry: ElementTree.Element) -> VocObject:
    title = f"{path}: object {index}"
    name = tidy_class_name(entry.findtext("name"), title, tag="<name>")
    if entry.find("bndbox") is None and entry.find("robndbox") is not None:
        raise DataError(f"{title} ({name}): <robndbox> is a rotated box, which is not supported. Export <bndbox>.")
    edges = []
    for edge in ("xmin", "ymin", "xmax", "ymax"):
        text = entry.findtext(f"bndbox/{edge}")
        value = _number(text)
        if not math.isfinite(value):
            what = "is missing" if text is None else f"is {text[:40]!r}, not a number"
            raise DataError(f"{title} ({name}): <{edge}> {what}.")
        edges.append(value)
    difficult = (entry.findtext("difficult") or "0").strip().lower() in ("1", "true")
    return VocObject(name, (edges[0], edges[1], edges[2], edges[3]), difficult)


def _devkit(root: Path) -> Path:
    """`root`, or the one year inside VOCdevkit/ (or in `root`, where that is the development kit itself)."""
    kit = root / "VOCdevkit" if (root / "VOCdevkit").is_dir() else root
    years = [folder for folder in list_matching(kit, "VOC2*") if (folder / "Annotations").is_dir()]
    if len(years) > 1:
        names = ", ".join(year.name for year in years)
        raise DataError(f"{kit}: multiple years found ({names}). Use one of them:  {years[0]}")
    return years[0] if years else root


def _places(root: Path) -> list[_Place]:
    folders = {os.fsdecode(name).lower(): root / os.fsdecode(name) for name in list_folder(root).folders}
    if XML_FOLDER in folders:
        images = next((folders[name] for name in IMAGE_FOLDERS if name in folders), None)
        if images is None:
            raise DataError(f"{root}: has {folders[XML_FOLDER].name}/ but no JPEGImages/ (or images/). Copy the images.")
        return _sets(folders[XML_FOLDER], images, root / "ImageSets" / "Main")
    split_folders = {TRAIN_FOLDER: "train", **dict.fromkeys(VAL_FOLDERS, "val")}
    flat = [_Place(split, folders[name], folders[name]) for name, split in split_folders.items() if name in folders]
    if flat and flat[0].split == "train":
        if len(flat) > 2:
            raise DataError(f"{root}: multiple validation folders found ({', '.join(VAL_FOLDERS)}). Keep one.")
        return flat
    return [_Place("train", root, root)]


def _one_place(root: Path, names: Sequence[str]) -> _Place:
    """The first of `names` that is a set or a folder of its own; else all of `root`, as one split."""
    for name in names:
        if (root / name).is_dir() and _has_xml(root / name):
            return _Place("val", root / name, root / name)
    everything = replace(_places(root)[0], split="val", names=None, notes=())
    for name in names:
        if (named := root / "ImageSets" / "Main" / f"{name}.txt").is_file():
            return _of_set("val", everything.xml_folder, everything.images, named)
    return everything


def _sets(xml_folder: Path, images: Path, sets: Path) -> list[_Place]:
    """train.txt and val.txt, else trainval.txt and test.txt (as VOC2007 is used), else one split of everything."""
    for train, val in (("train", "val"), ("trainval", "test")):
        if (sets / f"{train}.txt").is_file():
            pairs = (("train", sets / f"{train}.txt"), ("val", sets / f"{val}.txt"))
            return [_of_set(split, xml_folder, images, path) for split, path in pairs if path.is_file()]
    return [_Place("train", xml_folder, images)]


def _of_set(split: str, xml_folder: Path, images: Path, path: Path) -> _Place:
    """The images that a set names: a line is a stem, or a stem and 1, 0 or -1 as in the sets of one class."""
    there = {file.name for file in list_matching(xml_folder, "*.[xX][mM][lL]")}
    lines = read_list(path, MAX_SET_BYTES, "Correct it, or delete it to use all XML files.")
    tries = [(line, re.sub(r"\s+-?[01]$", "", line), line.split()[0]) for line in lines]
    exact = [next((f"{one}.xml" for one in ways if f"{one}.xml" in there), "") for ways in tries]
    files, names, missing = Files(xml_folder, there, set(exact)), [], []
    for number, (ways, name) in enumerate(zip(tries, exact), start=1):
        result = name or next(filter(None, (files.find(one, f"{path}:{number}") for one in ways[:2])), "")
        (names if result else missing).append(result or ways[0])
    if missing or not names:
        reason = "empty"
        if missing:
            reason = f"{len(missing):,} lines do not match an XML file of {xml_folder}; the first is {missing[0][:80]!r}"
        raise DataError(
            f"{path}: {reason}. A line must be the stem of an XML file, its path, or the path of its image. Copy the "
            "missing files, or delete this file to use all XML files."
        )
    return _Place(split, xml_folder, images, list(dict.fromkeys(names)), tuple(files.notes(path)))


def _has_xml(folder: Path) -> bool:
    return bool(list_matching(folder, "*.[xX][mM][lL]"))


def _read_files(location: _Place, images: list[str]) -> tuple[list[VocFile], list[str]]:
    """-> a VocFile of each XML file, which names its image, and notes on names."""
    by_stem: dict[str, list[str]] = {}
    for name in images:
        by_stem.setdefault(os.path.splitext(name)[0], []).append(name)
    names = location.names
    if names is None:
        names = [file.name for file in list_matching(location.xml_folder, "*.[xX][mM][lL]")]
    for name in names:
        require_one_line(location.xml_folder, os.fsencode(name))
    known = set(images)
    files, problems, paths = [], [], []
    for name in names:
        path = location.xml_folder / name
        try:
            file = read_voc_file(path)
        except DataError as error:
            problems.append(str(error))
            continue
        files.append(replace(file, file_name=_image_of(path.stem, file.file_name, by_stem.get(path.stem, []), known)))
        paths.append(path)
    raise_problems(problems)
    others = Files(location.images, images, {file.file_name for file in files} & known)
    owner: dict[str, Path] = {}
    for at, (file, path) in enumerate(zip(files, paths)):
        image = file.file_name
        if image not in known:
            near = (others.find(name, str(path)) for name in (f"{path.stem}.jpg", image))
            image = next(filter(None, near), image)
        files[at] = replace(file, file_name=image)
        if owner.setdefault(image, path) != path:
            problems.append(f"{path}: describes {image}, which {owner[image].name} also describes.")
    raise_problems(problems)
    return files, others.notes(location.xml_folder)


def _image_of(stem: str, named: str, same_stem: list[str], known: set[str]) -> str:
    """The image of an XML file. A missing one keeps the name that it should have, to be named as missing.

    named  the <filename>
    """
    if named in known and len(same_stem) != 1:
        return named
    return same_stem[0] if same_stem else named if is_image_name(os.fsencode(named)) else f"{stem}.jpg"
