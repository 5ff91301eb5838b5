"""Photos in archives (tar, tar in tar, zip), in WebDataset's tars, and as a file each -> Contents.

An archive holds class folders, [FOLDER/...][train/|val/]CLASS/photo.jpg, or a tar for each class, CLASS.tar with its photos (as
ILSVRC2012_img_train.tar does); or photos that annotations beside it name (COCO's zips). Records come in the order of class
folders: classes by name, photos by name, whatever their order in the archive.
A WebDataset's tars hold samples, files that stand together and have one key; records keep their order. The key is the path up to
the first dot of the file's name, what follows is the field: train/0001.jpg and train/0001.cls are the fields jpg and cls of
train/0001. Files without a dot, and those of a name that begins with one, belong to no sample. Source: the webdataset package,
tariterators.py (base_plus_ext, group_by_keys).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.names import (
    IMAGE_SUFFIXES,
    OTHER_PICTURES,
    format_suffixes,
    get_suffix,
    in_system_folder,
    is_image_name,
    is_image_path,
    is_system_name,
)
from paceline._utils.text import abbreviate
from paceline.data.containers.box_labels import OBJECTS, sample_annotations
from paceline.data.containers.label_exports import find_export, unpack_first
from paceline.data.containers.listing import RANGES, ContainerListing, folder_names, join_files
from paceline.data.containers.reading import AS_IT_IS, Member, Truncated, format_member, read_at
from paceline.data.containers.split_files import ARCHIVES, ContainerFiles, ContainerRequest
from paceline.data.containers.tar import inner_tars, tar_members
from paceline.data.formats.class_folders import TRAIN_FOLDER, VAL_FOLDERS
from paceline.data.storage.store import get_scheme

SPLITS = {TRAIN_FOLDER: "train", **{name: "val" for name in VAL_FOLDERS}, "test": "test"}


class ArchiveMember(NamedTuple):
    """A member of an archive, at [above/]label/photo.jpg."""

    held: Member
    split: str  # "train", "val", "test" where a folder above the class's is called so; "" where none is
    above: bytes  # the folders above the class's
    label: bytes  # its own folder; empty where it has none
    is_photo: bool  # by its name


def parse_member_path(held: Member, *, is_system: bool = False) -> ArchiveMember:
    """A file in an archive, judged only by the names of its folders; is_system: a part of its own name is a system's."""
    *folders, base = held.name.split(b"/")
    named = [SPLITS.get(os.fsdecode(folder).lower(), "") for folder in folders[:-1]]
    split = next((name for name in reversed(named) if name), "")
    label = folders[-1] if folders else b""
    return ArchiveMember(held, split, b"/".join(folders[:-1]), label, is_image_name(base) and not is_system)


def read_photos(files: ContainerFiles, request: ContainerRequest) -> dict[str, ContainerListing]:
    """Files that are a photo each (a bucket's objects), by the folders that they lie in -> split -> contents."""
    paths = [name.partition(b"://")[2].partition(b"/")[2] if get_scheme(name) else name[1:] for name in files.names]
    if files.listed and len({b"/".join(path.split(b"/")[-2:]) for path in paths}) == len(paths):
        paths = [b"/".join(path.split(b"/")[-2:]) for path in paths]  # as of unpacked COCO, wherever it lies
    entries = [[parse_member_path(Member(path, 0, status.size))] for path, status in zip(paths, files.statuses)]
    if not files.listed:
        photos = [one for one in chain.from_iterable(entries) if one.is_photo]
        _refuse_nested(f"--{files.split}", photos)
    return _archived(files, entries, RANGES, bool(request.devkit))


def read_archive(files: ContainerFiles, request: ContainerRequest) -> dict[str, ContainerListing]:
    """Photos in archives, stored or deflated, by class folders or inner tars -> split -> contents."""
    entries = files.walk(_tar if request.layout == "tar" else partial(_members, ARCHIVES[request.layout]))
    packed = any(one.held.stored != AS_IT_IS for one in chain.from_iterable(entries))
    return _archived(files, entries, "deflate" if packed else RANGES, bool(request.devkit))


def read_webdataset(files: ContainerFiles, _: ContainerRequest) -> dict[str, ContainerListing]:
    """Photos in WebDataset's tars -> split -> contents. Beside each photo is a class number, a class name or {"label": ...}, or
    {"annotations": [...]} with its objects.
    """
    walked = files.walk(_labeled)
    photos = [[one._replace(name=_in_split(files.split, one.name)) for one, _ in pairs] for pairs in walked]
    labels = [label for pairs in walked for _, label in pairs]
    whole = join_files(RANGES, files, _unique_names(files, photos))
    boxed = [label for label in labels if isinstance(label, dict)]
    if boxed and len(boxed) < len(labels):
        raise DataError(f"{files.first}: some samples have a class and others have boxes. Prepare them separately.")
    if boxed:
        annotations, notes = sample_annotations(Path(files.first), whole.names, boxed)
        return {files.split: replace(whole, annotations=annotations, notes=tuple(notes))}
    if all(isinstance(label, int) for label in labels):
        numbers = np.array(labels, np.int64)
        return {files.split: replace(whole, classes=numbers, class_names=folder_names(numbers, whole.names))}
    return {files.split: replace(whole, classes=list(map(str, labels)))}


def is_webdataset(files: ContainerFiles) -> bool:
    """True if the first sample of the first tar is a photo with a label."""
    try:
        with files.store.open(files.names[0]) as file:
            return any(_labeled(file, files.statuses[0].size, files.first))
    except (DataError, OSError):
        return False


def _unique_names(files: ContainerFiles, photos: list[list[Member]]) -> list[list[Member]]:
    """With the shard's name before each photo's where shards repeat their keys."""
    names = [one.name for own in photos for one in own]
    stems = [os.path.splitext(os.path.basename(name))[0] for name in files.names]
    if len(set(names)) == len(names) or len(set(stems)) < len(stems):
        return photos
    start = len(files.split) + 1
    return [
        [one._replace(name=one.name[:start] + stem + b"/" + one.name[start:]) for one in own]
        for own, stem in zip(photos, stems)
    ]


def _tar(file: BinaryIO, size: int, name: str) -> Iterator[ArchiveMember]:
    outer = tar_members(file, size, name)
    before, is_tar = [], False
    for member in outer:
        before.append(member)
        is_tar = member.name.lower().endswith(b".tar") and not in_system_folder(member.name)
        if is_tar or is_image_path(member.name):
            break
    if is_tar:
        # An inner tar stands for the folder that its photos would be unpacked into.
        members = (
            (os.path.splitext(inner)[0] + b"/" + os.path.basename(member.name), member)
            for inner, member in inner_tars(file, size, name)
        )
    else:
        members = ((member.name, member) for member in chain(before, outer))
    for path, member in members:
        yield parse_member_path(member._replace(name=path), is_system=in_system_folder(member.name))


def _members(members: Callable[..., Iterator[Member]], *file: Any) -> Iterator[ArchiveMember]:
    for member in members(*file):
        yield parse_member_path(member, is_system=in_system_folder(member.name))


def _archived(
    files: ContainerFiles, entries: Sequence[Sequence[ArchiveMember]], kind: str, devkit: bool
) -> dict[str, ContainerListing]:
    """The photos among `entries`, by split; one split alone where the archives do not name any.

    devkit  a list knows the classes of photos that lie in no class folders
    """
    photos = [[one for one in members if one.is_photo] for members in entries]
    ignored = sum(map(len, entries)) - sum(map(len, photos))
    if not any(photos):
        raise DataError(f"{files.first}: no images found (.jpg, .png, ...), only {ignored:,} other files. Check the path.")
    bases = [os.path.basename(one.held.name) for one in chain.from_iterable(entries) if not one.is_photo]
    others = Counter(get_suffix(base) for base in bases if not (is_system_name(base) or is_image_name(base)))
    if OTHER_PICTURES & others.keys() or (others and not files.listed):  # annotations beside them name what is used
        files.notes.append(f"{files.first}: ignored {format_suffixes(others)}")
    if files.listed:
        whole = join_files(kind, files, [[one.held for one in members] for members in photos])
        return {files.split: replace(whole, ignored=ignored)}
    _refuse_export(files, entries, photos, devkit)
    named = {one.split for one in chain.from_iterable(photos)} - {""}
    if not named:
        return {files.split: replace(_in_order(files, photos, kind, files.split, devkit), ignored=ignored)}
    splits = {"train": "train", "val": "val"} if {"train", "val"} <= named else _only(files, named)
    result = {}
    for split, folder in splits.items():
        chosen = [[one for one in members if one.split == folder] for members in photos]
        result[split] = replace(_in_order(files, chosen, kind, split), ignored=ignored)
        ignored = 0  # counted once
    left = [one.held.name for one in chain.from_iterable(photos) if one.split not in splits.values()]
    if left:
        files.notes.append(
            f"ignored {len(left):,} images outside the folders in use ({', '.join(splits.values())}); the first is "
            f"{format_member(left[0])}"
        )
    return result


def _refuse_export(
    files: ContainerFiles,
    entries: Sequence[Sequence[ArchiveMember]],
    photos: Sequence[Sequence[ArchiveMember]],
    devkit: bool,
) -> None:
    """Raises DataError where an archive holds annotations of boxes, or its folders are splits: neither are classes."""
    for file, members, pictures in zip(files.names, entries, photos):
        name = os.fsdecode(file)
        export = find_export(os.fsdecode(one.held.name) for one in members)
        if export is not None:
            raise DataError(f"{name}: {unpack_first(name, export)}")
        labels = {os.fsdecode(one.label).lower() for one in pictures}
        if labels and labels <= SPLITS.keys() and not devkit:
            raise DataError(
                f"{name}: its images are in {' and '.join(f'{label}/' for label in sorted(labels))}, which are splits "
                "and not classes. Pass their COCO JSON with --annotations FILE, or pack the images as "
                "train/CLASS/image.jpg."
            )


def _only(files: ContainerFiles, named: set[str]) -> dict[str, str]:
    """The one folder of splits that is meant."""
    if len(named) == 1:
        return {files.split: next(iter(named))}
    if files.split in named:
        return {files.split: files.split}
    raise DataError(
        f"{files.first}: its images are in {' and '.join(f'{name}/' for name in sorted(named))}, so it is unclear which "
        f"of them belong to --{files.split}. Pack this split as a separate archive."
    )


def _in_order(
    files: ContainerFiles, photos: Sequence[Sequence[ArchiveMember]], kind: str, split: str, devkit: bool = False
) -> ContainerListing:
    """By class folder and name; named as class folders of that split would be."""
    for name, members in zip(files.names, photos):
        _refuse_nested(os.fsdecode(name), members)
    classes = [os.fsdecode(one.label) for one in chain.from_iterable(photos)]
    # A list knows the classes of photos that lie in one folder.
    flat = not all(classes) or (devkit and len(set(classes)) == 1)
    parts = 1 if flat else 2
    held = [[one.held for one in members] for members in photos]
    named = [[one._replace(name=_in_split(split, one.name, parts)) for one in members] for members in held]
    return replace(join_files(kind, files, named), classes=None if flat else classes).in_folder_order()


def _refuse_nested(archive: str, members: Sequence[ArchiveMember]) -> None:
    """Raises DataError unless all photos of one archive and split lie in class folders that lie side by side."""
    if not members:
        return
    usual = Counter(one.above for one in members).most_common(1)[0][0]
    odd = next((one.held.name for one in members if one.above != usual), None)
    if odd is not None:
        right = next(one.held.name for one in members if one.above == usual)
        raise DataError(
            f"{archive}: {format_member(odd)} and {format_member(right)} are not in class folders at the same level, so "
            "their classes are unknown. Pack them as CLASS/image.jpg, and under train/ and val/ if there are both splits."
        )


def _in_split(split: str, path: bytes, parts: int = 0) -> bytes:
    """The last `parts` of a path (0: all of it), below the split's name."""
    return b"/".join([split.encode(), *path.split(b"/")[-parts:]])


def _labeled(file: BinaryIO, size: int, name: str) -> Iterator[tuple[Member, int | str | dict[str, Any]]]:
    members = (one for one in tar_members(file, size, name) if not in_system_folder(one.name))
    for sample in group_samples(members, name):
        photo = sample.photo(name)
        field, member = sample.label(name)
        data = read_at(file, member.offset, member.length)
        yield photo, read_label(field, data, f"{name}: sample {format_member(sample.key)}")


_PHOTO_FIELDS = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
# Where a label is looked for, in this order; and, in JSON, under which of these names.
LABEL_FIELDS = (b"cls", b"json", b"txt")
_JSON_NAMES = ("label", "cls", "class", "class_id", "category_id")
# The JSON of a photo with thousands of outlined objects has a few megabytes; of what is longer, nothing is read.
MAX_LABEL_BYTES = 1 << 24


class WebDatasetSample(NamedTuple):
    """One sample: its key, and its files by field, in lower case."""

    key: bytes
    fields: dict[bytes, Member]

    def photo(self, archive: str) -> Member:
        """The photo: of a field such as jpg, or, where there is none, one such as left.jpg. Raises DataError unless it is one."""
        exact = [name for name in self.fields if name in _PHOTO_FIELDS]
        photos = exact or [name for name in self.fields if name.rsplit(b".", 1)[-1] in _PHOTO_FIELDS]
        if len(photos) == 1:
            return self.fields[photos[0]]
        dots = len(photos) > 1 and all(b"." in name for name in photos)
        hint = (
            " A sample's name ends at its first dot. If these are different samples, use names without dots."
            if dots
            else ""
        )
        raise DataError(
            f"{archive}: sample {format_member(self.key)}: expected one image, got {len(photos)}. Its fields are "
            f"{', '.join(map(format_member, self.fields))}.{hint}"
        )

    def label(self, archive: str) -> tuple[str, Member]:
        """The file with the label, and its field: cls, json or txt. Raises DataError where there is none, or it is too long."""
        for name in LABEL_FIELDS:
            if name in self.fields:
                if self.fields[name].length > MAX_LABEL_BYTES:
                    break
                return name.decode(), self.fields[name]
        raise DataError(
            f"{archive}: sample {format_member(self.key)} has no label. Expected .cls, .json, or .txt with at most "
            f"{MAX_LABEL_BYTES:,} bytes. Its fields are {', '.join(map(format_member, self.fields))}."
        )


def group_samples(members: Iterable[Member], archive: str) -> Iterator[WebDatasetSample]:
    """The samples of a tar whose files are `members`, in its order.

    Raises DataError where a sample has a field twice, or its files do not stand together: WebDataset's own readers would make
    several samples of it. Truncated goes through after the last whole sample, and counts samples: the last one is whole where it has
    the fields of the first.
    """
    seen: set[bytes] = set()
    usual: set[bytes] = set()  # the first sample's fields
    key, fields = b"", {}
    try:
        for member in members:
            folder, slash, base = member.name.rpartition(b"/")
            stem, _, field = base.partition(b".")
            if not stem or not field or (stem.startswith(b"__") and base.endswith(b"__")):
                continue
            name = folder + slash + stem
            if name != key:
                if fields:
                    usual = usual or set(fields)
                    yield WebDatasetSample(key, fields)
                if name in seen:
                    raise DataError(
                        f"{archive}: the files of sample {format_member(name)} are not adjacent. Pack the archive again "
                        "with sorted names:  tar --sort=name"
                    )
                seen.add(name)
                key, fields = name, {}
            field = field.lower()
            if field in fields:
                raise DataError(f"{archive}: sample {format_member(key)} has two .{format_member(field)} files.")
            fields[field] = member
    except Truncated as cut:
        # The last sample may have lost a file.
        if fields and usual <= set(fields):
            yield WebDatasetSample(key, fields)
        else:
            seen.discard(key)
        raise Truncated(archive, len(seen), cut.offset, cut.inside) from None
    if fields:
        yield WebDatasetSample(key, fields)


def read_label(field: str, data: bytes, where: str) -> int | str | dict[str, Any]:
    """The label in the bytes of a field: a class number, a class name, or objects. Raises DataError, beginning with `where`.

    cls   a whole number
    txt   a whole number or a name
    json  a whole number or a name, or an object with one of them under label, cls, class, class_id or category_id; or an object
          with a list under annotations, which is given back as it is
    """
    try:
        value = json.loads(data) if field == "json" else data.decode().strip()
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: the .{field} file cannot be read ({abbreviate(str(error))}).") from None
    if isinstance(value, dict):
        if isinstance(value.get(OBJECTS), list):
            return value
        name = next((name for name in _JSON_NAMES if name in value), None)
        if name is None:
            raise DataError(f"{where}: the .json file must have one of {', '.join(_JSON_NAMES)}, or a list of {OBJECTS}.")
        value = value[name]
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 19:
            return int(value)
        if field != "cls" and value.strip():
            return value.strip()
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62:
        return value
    raise DataError(f"{where}: the .{field} file is {abbreviate(value)!r}; expected a class index or a class name.")
