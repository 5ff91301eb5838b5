"""manifest.json: a prepared data set, and where its index lies.

    FOLDER/manifest.json     a few kB per thousand classes; the last thing that prepare writes
    FOLDER/index/<hash>/     memory-mapped arrays, named by their content (paceline/data/index/index.py)
    FOLDER is the data set's root, a folder in the cache, or that of `--output-dir`.

Two kinds: "class-folder" (one class an image) and "boxes" (objects with a place and a class; data/index/box_split.py opens them).

Hashes. A split's `content_hash` is SHA-256 over one line a record, in record order: path relative to the root, NUL,
size in bytes, NUL, the first 8 bytes of the SHA-256 of the file's bytes, in hex; for boxes, the bytes of every array of
annotations follow. It covers names, order, sizes and bytes, not times or places. `Manifest.content_hash` is
SHA-256 over the class order and the splits' hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline._utils.atomic_write import atomic_write
from paceline._utils.cache import cache_folder
from paceline._utils.errors import DataError
from paceline._utils.safe_read import has_valid_checksum, open_plain, parse_json, read_plain, with_checksum

if TYPE_CHECKING:
    from paceline.data.index.splits import Fold

FILE_NAME = "manifest.json"
_AGAIN = "Delete it and run `paceline prepare` again."
FORMAT = 1
# A few kB per thousand classes, and a line for each file that was left out.
MAX_BYTES = 1 << 30

Expect = Literal["any", "imagenet", "coco2017"]
Kind = Literal["class-folder", "boxes"]
FILES = "files"  # the records of a split where its manifest has no kind of them: each a file of its own
# Fields of a request for containers that are files; they lie in the manifest's folder where they are named without another.
CONTAINER_FILES = ("train", "val", "annotations", "val_annotations", "devkit", "class_names_file")
# Of class folders written only where there is something to say, so that older manifests stay what they are.
OPTIONAL_FIELDS = ("request", "notes", "part_of")


@dataclass(frozen=True)
class ExcludedFile:
    """A file with an image's name that could not be decoded, and was left out because the user asked for that."""

    path: str  # relative to the root
    size: int  # bytes; -1 where even that could not be read
    reason: str


@dataclass(frozen=True)
class BoxCounts:
    """One split's annotations in numbers, and the files they were read from."""

    objects: int  # all that are in the index, crowd regions and unusable boxes too
    crowd: int
    degenerate: int  # width or height not above 0, or not finite: in the index, not usable for training
    outside: int  # no part of it inside the image: likewise
    partly_outside: int  # cut at the border for training, left as annotated for scoring
    duplicates: int  # same image, class and box as an earlier one; kept
    empty_images: int  # images without any object
    left_out_objects: int  # objects of images that were left out
    left_out_polygons: int  # fewer than three points, or half a point
    unlisted_images: int  # image files beside the others without any annotation
    files: tuple[str, ...]  # of annotations: glob patterns relative to the root, or absolute
    stamp: str  # SHA-256 over their names, sizes and times: equal means unchanged
    digest: str  # SHA-256 over their names and bytes, compared where the stamp differs
    polygons_not_finite: int = 0  # left out too; manifests of older versions counted them as left_out_polygons
    masks_without_pixel: int = 0  # though the box has some: taken as no mask, as are
    masks_beside_box: int = 0  # masks that lie off their object's box
    without_mask: int = 0  # objects, crowds apart, that the annotations give none, among others that have one
    # Which reading of rotated photos ("apply", "ignore") the annotations' sizes fit; "": either.
    exif: str = ""


@dataclass(frozen=True)
class Split:
    """One split (train or val) in numbers. `arrays` lists the index's arrays: name -> [dtype, *shape]."""

    folder: str  # relative to the root: "train", "val", "validation", ...
    images: int
    bytes: int
    per_class: tuple[int, ...]  # images (kind "boxes": objects, without crowds) of each class, in class order
    content_hash: str
    unreadable: tuple[ExcludedFile, ...]
    rotated: int  # EXIF asks for a rotation or mirroring; recipes ignore or apply it
    grayscale: int
    cmyk: int
    not_jpeg: int
    misnamed: int  # content is of another format than the suffix; decoded by content
    ignored: int  # entries that are no images, or hidden
    directory_mtimes: tuple[int, ...]  # nanoseconds, of each class folder: an untouched one need not be listed again
    arrays: dict[str, list[Any]]
    boxes: BoxCounts | None = None  # kind "boxes"
    records: str = FILES  # the kind of each record: a word of data/index/records.py's RECORDS


@dataclass(frozen=True)
class Manifest:
    """A prepared data set. `folder` is where manifest.json lies and is not part of the file."""

    kind: Kind
    expect: Expect  # what prepare checked it against
    root: str  # absolute, or "." where the manifest lies in the root itself (so the whole can be moved)
    # Folder names in sort order: the position is the label. Kind "boxes": class k, 1..K, is classes[k-1].
    classes: tuple[str, ...]
    class_names: tuple[str, ...] | None  # readable names, where the data set brings them
    index: str  # folder of the arrays, relative to the manifest's
    splits: dict[str, Split]
    made_by: str  # versions that decoded every file
    folder: Path = field(compare=False)
    # What prepare was called with, to do it again; of class folders, how a validation split was set apart, or None.
    request: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()  # for people
    part_of: str = ""  # the published set that this is a part of, with counts, for people; "": of none that we know
    # Kind "boxes":
    category_ids: tuple[int, ...] | None = None  # the annotations' ids in class order
    # Not part of the file either: class -> its number in the run that is scored on this data, 0.. (-1: has no objects).
    relabel: tuple[int, ...] | None = None
    # Nor this: "val" is a part of the training photos (data/prepare/val_split.py).
    fold: Fold | None = field(default=None, compare=False)
    # Nor this: the half of "val" that is evaluated (data/index/splits.py).
    half: str = field(default="", compare=False)

    @property
    def learnt(self) -> str:
        """The split that training reads. A set that is only scored on has none; its own stands in, and no run begins on it."""
        return "train" if "train" in self.splits else "val"

    @property
    def in_containers(self) -> bool:
        """Whether photos are no files of their own."""
        return any(split.records != FILES for split in self.splits.values())

    @property
    def again(self) -> str | None:
        """The command that prepares the same containers again; None where something else than prepare wrote this."""
        if self.in_containers and "train" in (self.request or {}):
            return container_command(self.request or {}, self.folder)
        return None

    @property
    def root_path(self) -> Path:
        """The folder that holds train/ and val/."""
        return Path(os.path.normpath(self.folder / self.root))

    @property
    def called(self) -> Path:
        """The folder that a user names for it: prepare's --output-dir, or the data's own where the manifest lies in the cache.

        Where photos and annotations were named one by one, `root_path` is only what lies above them all.
        """
        cached = self.folder.is_relative_to(cached_manifest_folder(self.root_path))
        return self.root_path if cached and not (self.request or {}).get("images_dir") else self.folder

    @property
    def class_order_hash(self) -> str:
        return class_order_hash(self.classes)

    @property
    def content_hash(self) -> str:
        """64 hex digits: equal exactly where classes, their order, file names, sizes and bytes are equal."""
        parts = [self.class_order_hash]
        parts += [f"{name} {split.content_hash}" for name, split in sorted(self.splits.items())]
        if self.category_ids is not None:
            parts.append(" ".join(map(str, self.category_ids)))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def save(self) -> Path:
        """Write `folder`/manifest.json, whole or not at all. Raises OSError."""
        record = {"paceline_manifest": FORMAT, **asdict(self), "class_order_hash": self.class_order_hash}
        del record["folder"], record["relabel"], record["fold"], record["half"]
        for split in record["splits"].values():
            if split["records"] == FILES:  # so that older manifests stay what they are
                del split["records"]
        if self.kind == "class-folder":
            del record["category_ids"]
            for name in OPTIONAL_FIELDS:
                if not record[name]:
                    del record[name]
            for split in record["splits"].values():
                del split["boxes"]
        path = self.folder / FILE_NAME
        atomic_write(path, json.dumps(with_checksum(record), indent=1) + "\n", sync=True)
        return path

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest.json, or the one in the folder `path`. Raises DataError where it is missing or damaged."""
        if path.is_dir():
            path = path / FILE_NAME
        record = _read(path)
        if record.get("paceline_manifest") != FORMAT:
            raise DataError(
                f"{path}: has format {record.get('paceline_manifest')}, but this version of paceline reads format "
                f"{FORMAT}. Run `paceline prepare` again with this version, or install the version that wrote it."
            )
        try:
            manifest = _from_record(record, path.parent)
            intact = record["class_order_hash"] == manifest.class_order_hash
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DataError(f"{path}: damaged ({error!r}). {_AGAIN}") from None
        if not intact:
            raise DataError(f"{path}: its classes were changed manually. {_AGAIN}")
        if not has_valid_checksum(record):
            raise DataError(f"{path}: checksum mismatch; the file was changed after it was written. {_AGAIN}")
        return manifest


def class_order_hash(classes: Sequence[str]) -> str:
    """SHA-256 over the class folder names, one a line, in label order: 64 hex digits."""
    return hashlib.sha256("\n".join(classes).encode("utf-8", "surrogateescape")).hexdigest()


def cached_manifest_folder(root: Path) -> Path:
    """Where the manifest of a root goes that must stay untouched: one folder in the cache for each real path."""
    real = os.path.realpath(root)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(real)) or "root"
    return cache_folder() / "index" / f"{name}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:12]}"


def manifest_candidates(root: Path) -> list[Path]:
    """Every manifest.json of ours for `root`, in the order of search: in `root` itself, in the cache.

    A manifest.json that another tool wrote is passed over.
    """
    return [
        folder / FILE_NAME for folder in (root, cached_manifest_folder(root)) if is_paceline_manifest(folder / FILE_NAME)
    ]


def find_manifest(root: Path) -> Path | None:
    """The manifest.json of `root` (a data set's root, or the folder that prepare wrote to), or None."""
    return next(iter(manifest_candidates(root)), None)


def is_paceline_manifest(path: Path) -> bool:
    """Whether `path` is a paceline manifest by its own beginning, of whatever format, damaged or not."""
    try:
        with open(open_plain(path), "rb", buffering=0) as file:
            return b'"paceline_manifest"' in file.read(200)
    except OSError:
        return False


def prepare_command(
    root: Path, expect: Expect = "any", request: Mapping[str, Any] | None = None, out: Path | None = None
) -> str:
    """The command that prepares the class folders `root`, to be pasted.

    request  how a validation split is set apart (data/prepare/val_split.py ValSplit)
    """
    return _command("imagenet" if expect == "imagenet" else "folder", root, request or {}, out)


def box_command(root: Path, request: Mapping[str, Any], out: Path | None = None) -> str:
    """The command that prepares boxes as `request` asks (data/prepare/box_source.py BoxRequest), to be pasted."""
    return _command(request["layout"], None if request["images_dir"] else root, request, out)


def _command(verb: str, root: Path | None, request: Mapping[str, Any], out: Path | None) -> str:
    """With the flags that differ from their defaults."""
    flags = {"data": root or "", **request, "output_dir": out or "", "layout": ""}
    words = [f"{_flag(name)} {shlex.quote(str(value))}" for name, value in flags.items() if value not in ("", 0, "error")]
    return " ".join(["paceline prepare", shlex.quote(verb), *words])


def container_command(request: Mapping[str, Any], out: Path) -> str:
    """The command that prepares containers as `request` asks (data/containers/source.py ContainerRequest), to be pasted.

    Files that it names without a folder or scheme lie in `out`.
    """

    def place(name: str, one: Any) -> str:
        inside = name in CONTAINER_FILES and "://" not in one
        return os.path.join(out, one) if inside else str(one)

    words = ["paceline prepare", shlex.quote(request["layout"])]
    for name, value in request.items():
        # A class may be number 0; a share of 0, and its seed, are nothing.
        nothing = value in ("", -1, "error", "any", (), []) or (value == 0 and name != "label_offset")
        if name != "layout" and not nothing:
            values = value if isinstance(value, (list, tuple)) else [value]
            words += [_flag(name), *(shlex.quote(place(name, one)) for one in values)]
    return " ".join([*words, "--output-dir", shlex.quote(str(out))])


def _flag(name: str) -> str:
    return shlex.quote(f"--{name.replace('_', '-')}")


def repeat_command(manifest: Manifest) -> str:
    """The command that made `manifest`, to be pasted."""
    root = manifest.root_path
    if manifest.again is not None:
        return manifest.again
    out = None if manifest.folder in (root, cached_manifest_folder(root)) else manifest.folder
    if manifest.kind == "class-folder":
        return prepare_command(root, manifest.expect, manifest.request, out if manifest.request else None)
    return box_command(root, manifest.request or {}, out)


def _read(path: Path) -> dict[str, Any]:
    try:
        record = parse_json(read_plain(path, MAX_BYTES))
    except FileNotFoundError:
        raise DataError(f"{path}: file not found. Create it with  {prepare_command(path.parent)}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from None
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}). {_AGAIN}") from None
    return record if isinstance(record, dict) else {}


def _from_record(record: dict[str, Any], folder: Path) -> Manifest:
    names = record["class_names"]
    return Manifest(
        kind=record["kind"],
        expect=record["expect"],
        root=record["root"],
        classes=tuple(record["classes"]),
        class_names=None if names is None else tuple(names),
        index=record["index"],
        splits={name: _split(split) for name, split in record["splits"].items()},
        made_by=record["made_by"],
        folder=folder.absolute(),
        category_ids=tuple(record["category_ids"]) if "category_ids" in record else None,
        request=_request(record.get("request")),
        notes=tuple(record.get("notes", ())),
        part_of=str(record.get("part_of", "")),
    )


def _request(record: Any) -> dict[str, Any] | None:
    """The flags of the command that is printed to be pasted. Raises ValueError for anything but flags and their values."""
    if record is None:
        return None
    values = [one for value in record.values() for one in (value if isinstance(value, list) else [value])]
    if not all(isinstance(one, str | int | float) for one in values) or not all(map(str.isidentifier, record)):
        raise ValueError("an invalid request")
    if not isinstance(record.get("layout", ""), str):
        raise ValueError("a layout that is not a string")
    return record


def _split(record: dict[str, Any]) -> Split:
    unreadable = tuple(ExcludedFile(**entry) for entry in record["unreadable"])
    lists = {key: tuple(record[key]) for key in ("per_class", "directory_mtimes")}
    boxes = record.get("boxes")
    counts = None if boxes is None else BoxCounts(**{**boxes, "files": tuple(boxes["files"])})
    records = str(record.get("records", FILES))
    return Split(**{**record, **lists, "unreadable": unreadable, "boxes": counts, "records": records})
