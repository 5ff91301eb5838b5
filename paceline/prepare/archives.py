"""Photos in archives (tar, tar in tar, zip) and in WebDataset's tars -> Contents.

An archive holds class folders, [FOLDER/...][train/|val/]CLASS/photo.jpg, or a tar for each class, CLASS.tar with its photos (as
ILSVRC2012_img_train.tar does); or photos of which a list beside it speaks (COCO's zips). Records come in the order of class
folders: classes by name, photos by name, whatever their order in the archive.
A WebDataset's tars hold files that share the name up to the first dot, KEY.jpg with KEY.cls or KEY.json; records keep their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from paceline.config.errors import DataError
from paceline.containers.member import Member, shown
from paceline.containers.reading import read_at
from paceline.containers.tar import inner_tars, tar_members
from paceline.containers.webdataset import read_label, samples
from paceline.containers.zip import zip_members
from paceline.data.class_folder import is_image_name
from paceline.prepare.container_files import ContainerFiles
from paceline.prepare.contents import AS_IT_IS, RANGES, Contents, Held, contents, folder_names
from paceline.prepare.listing import TRAIN_FOLDER, VAL_FOLDERS
from paceline.prepare.sample_boxes import sample_annotations

if TYPE_CHECKING:
    from paceline.prepare.containers import ContainerRequest


class Found(NamedTuple):
    """A member of an archive: its path in it, and where it lies."""

    path: bytes
    held: Held


def read_tar(files: ContainerFiles, _: ContainerRequest) -> dict[str, Contents]:
    """Photos in tars, by class folders or inner tars -> split -> contents."""
    return _archived(files, files.walk(_tar), RANGES)


def read_zip(files: ContainerFiles, _: ContainerRequest) -> dict[str, Contents]:
    """Photos in zips, stored or deflated -> split -> contents."""
    found = files.walk(_zip)
    packed = any(one.held.stored != AS_IT_IS for one in chain.from_iterable(found))
    return _archived(files, found, "deflate" if packed else RANGES)


def read_webdataset(files: ContainerFiles, _: ContainerRequest) -> dict[str, Contents]:
    """Photos in WebDataset's tars -> split -> contents. Beside each photo is a class number, a class name or {"label": ...}, or
    {"annotations": [...]} with its objects.
    """
    held, labels = [], []
    for name, status, pairs in zip(files.names, files.statuses, files.walk(_labelled)):
        held.append((name, status, [replace(one, name=_in_split(files.split, one.name)) for one, _ in pairs]))
        labels += [label for _, label in pairs]
    whole = contents(RANGES, held)
    boxed = [label for label in labels if isinstance(label, dict)]
    if boxed and len(boxed) < len(labels):
        raise DataError(
            f"{os.fsdecode(files.names[0])}: some of its photos have a class and some have objects. Prepare them apart."
        )
    if boxed:
        annotations, notes = sample_annotations(Path(os.fsdecode(files.names[0])), whole.names, boxed)
        return {files.split: replace(whole, annotations=annotations, notes=tuple(notes))}
    if all(isinstance(label, int) for label in labels):
        numbers = np.array(labels, np.int64)
        return {files.split: replace(whole, classes=numbers, class_names=folder_names(numbers, whole.names))}
    return {files.split: replace(whole, classes=list(map(str, labels)))}


def _tar(file: BinaryIO, size: int, name: str) -> Iterator[Found]:
    outer = tar_members(file, size, name)
    first = next(outer, None)
    if first is not None and first.name.endswith(b".tar"):
        for inner, member in inner_tars(file, size, name):
            # The inner tar stands for the folder that its photos would be unpacked into.
            yield _found(os.path.splitext(inner)[0] + b"/" + os.path.basename(member.name), member)
        return
    for member in chain([] if first is None else [first], outer):
        yield _found(member.name, member)


def _found(path: bytes, member: Member) -> Found:
    return Found(path, Held(path, member.offset, member.length))


def _zip(file: BinaryIO, size: int, name: str) -> Iterator[Found]:
    for member in zip_members(file, size, name):
        stored = member.stored_length if member.deflated else AS_IT_IS
        yield Found(member.name, Held(member.name, member.offset, member.length, stored, member.crc))


def _archived(files: ContainerFiles, found: Sequence[Sequence[Found]], kind: str) -> dict[str, Contents]:
    """The photos among `found`, by split; one split alone where the archives do not tell."""
    photos = [[one for one in members if is_image_name(os.path.basename(one.path))] for members in found]
    ignored = sum(map(len, found)) - sum(map(len, photos))
    if not any(photos):
        names = os.fsdecode(files.names[0])
        raise DataError(f"{names}: no photo in it (.jpg, .jpeg, .png, ...), {ignored:,} other files. Check the path.")
    if files.listed:
        held = [
            (name, status, [one.held for one in members])
            for name, status, members in zip(files.names, files.statuses, photos)
        ]
        return {files.split: replace(contents(kind, held), ignored=ignored)}
    tops = {_split_of(one.path) for one in chain.from_iterable(photos)}
    splits = ["train", "val"] if tops == {"train", "val"} else [files.split]
    result = {}
    for split in splits:
        chosen = [[one for one in members if len(splits) == 1 or _split_of(one.path) == split] for members in photos]
        result[split] = replace(_in_order(files, chosen, kind, split), ignored=ignored)
        ignored = 0  # counted once
    return result


def _split_of(path: bytes) -> str | None:
    """ "train" or "val" where the folder above the class's is called so."""
    folders = path.split(b"/")[:-2]
    above = os.fsdecode(folders[-1]) if folders else ""
    return TRAIN_FOLDER if above == TRAIN_FOLDER else "val" if above in VAL_FOLDERS else None


def _in_order(files: ContainerFiles, photos: Sequence[Sequence[Found]], kind: str, split: str) -> Contents:
    """By class folder and name; as class folders of that split would name them."""
    classes = [os.fsdecode(os.path.basename(os.path.dirname(one.path))) for one in chain.from_iterable(photos)]
    flat = not all(classes)
    named = [
        (name, status, [replace(one.held, name=_in_split(split, one.path, 1 if flat else 2)) for one in members])
        for name, status, members in zip(files.names, files.statuses, photos)
    ]
    whole = contents(kind, named)
    return sorted_contents(replace(whole, classes=None if flat else classes))


def sorted_contents(held: Contents) -> Contents:
    """Folder by folder, in each photo by photo, as class folders are listed."""
    parts = [name.split(b"/") for name in held.names]
    return held.chosen(np.array(sorted(range(len(parts)), key=parts.__getitem__), np.int64))


def _in_split(split: str, path: bytes, parts: int = 0) -> bytes:
    """The last `parts` of a path (0: all of it), below the split's name."""
    return b"/".join([split.encode(), *path.split(b"/")[-parts:]])


def _labelled(file: BinaryIO, size: int, name: str) -> Iterator[tuple[Held, int | str | dict[str, Any]]]:
    for sample in samples(tar_members(file, size, name), name):
        photo = sample.photo(name)
        field, member = sample.label(name)
        label = read_label(field, read_at(file, member.offset, member.length), f"{name}: sample {shown(sample.key)}")
        yield Held(photo.name, photo.offset, photo.length), label
