"""What the containers of one split hold, as they list it, before any photo is decoded; and those photos, to be verified.

Letters: N photos, F files that hold them.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline.data.containers.reading import AS_IT_IS, Member
from paceline.data.containers.split_files import ContainerFiles
from paceline.data.formats.annotations import Annotations
from paceline.data.formats.class_folders import find_duplicate
from paceline.data.index.index import pack_names
from paceline.data.index.records import DamagedRecord, RecordLocations, open_records
from paceline.data.prepare.verify_image import ImageInfo, InvalidImage, verify_bytes
from paceline.data.prepare.verify_images import ImagesToVerify, Inspection
from paceline.data.storage.store import FileStatus, get_scheme

RANGES = "ranges"
COLUMNS = ("file", "offsets", "lengths", "stored", "crcs")  # of a Contents, (N,) each


@dataclass(frozen=True)
class ContainerListing:
    """N photos in F files, with their `classes` or `annotations`, or neither where a file beside the containers has them."""

    kind: str  # a word of data/index/records.py's RECORDS
    files: list[bytes]  # F absolute paths, or URLs
    statuses: list[FileStatus]  # F
    names: list[bytes]  # N
    file: np.ndarray  # (N,) int32
    offsets: np.ndarray  # (N,) int64
    lengths: np.ndarray  # (N,) int64
    stored: np.ndarray  # (N,) int64, AS_IT_IS where nothing is packed
    crcs: np.ndarray  # (N,) int64, -1 where there is none
    classes: list[str] | np.ndarray | None = None  # N class names, or (N,) int64 class numbers
    class_names: dict[int, str] | None = None  # names of the numbers, where the containers have them
    annotations: Annotations | None = None
    ignored: int = 0  # members that are no photos
    notes: tuple[str, ...] = ()

    @property
    def first_file(self) -> str:
        """For messages."""
        return os.fsdecode(self.files[0])

    def title(self, i: int) -> str:
        """The file that holds photo i, and the photo's name, for messages."""
        return f"{os.fsdecode(self.files[self.file[i]])}: {os.fsdecode(self.names[i])}"

    def in_folder_order(self) -> ContainerListing:
        """The same folder by folder, in each photo by photo, as class folders are listed."""
        parts = [name.split(b"/") for name in self.names]
        order = sorted(range(len(parts)), key=parts.__getitem__)
        columns = {of: getattr(self, of)[order] for of in COLUMNS}
        classes = self.classes
        if classes is not None:
            classes = [classes[i] for i in order] if isinstance(classes, list) else classes[order]
        return replace(self, names=[self.names[i] for i in order], classes=classes, **columns)


def join_files(kind: str, files: ContainerFiles, photos: Sequence[Sequence[Member]]) -> ContainerListing:
    """The contents of files in order; photos: of each file. Raises DataError where two photos have one name."""
    held = list(chain.from_iterable(photos))
    names = [one.name for one in held]
    if len(set(names)) < len(names):
        twice = find_duplicate(names) or b""
        locations = [os.fsdecode(file) for file, own in zip(files.names, photos) for one in own if one.name == twice][:2]
        raise DataError(
            f"{locations[0]}: two images are named {os.fsdecode(twice)}; the other one is in {locations[1]}. Pass each "
            "file once, and pack the images with unique names."
        )

    columns: dict[str, Any] = {
        name: np.fromiter(map(attrgetter(of), held), np.int64, len(held))
        for name, of in zip(COLUMNS[1:], ("offset", "length", "stored", "crc"))
    }
    file = np.repeat(np.arange(len(photos), dtype=np.int32), list(map(len, photos)))
    return ContainerListing(kind, files.names, files.statuses, names, file, **columns)


def join_splits(parts: Sequence[ContainerListing]) -> ContainerListing:
    """All photos of several splits as one. Raises DataError where their files cannot be read in one way."""
    kinds = {part.kind for part in parts if part.names} - {RANGES}
    schemes = {get_scheme(name) for part in parts for name in part.files}
    if len(kinds) > 1 or len(schemes) > 1:
        mixed = " and ".join(sorted(kinds if len(kinds) > 1 else {scheme or "paths" for scheme in schemes}))
        raise DataError(f"a dataset must not combine {mixed}. Prepare all of its files from one type of source.")
    starts = np.cumsum([0, *(len(part.files) for part in parts)])

    lists: dict[str, Any] = {
        of: [one for part in parts for one in getattr(part, of)] for of in ("files", "statuses", "names")
    }
    columns: dict[str, Any] = {of: np.concatenate([getattr(part, of) for part in parts]) for of in COLUMNS[1:]}
    file = np.concatenate([part.file + start for part, start in zip(parts, starts)]).astype(np.int32)
    return ContainerListing(kinds.pop() if kinds else RANGES, **lists, file=file, **columns)


def folder_names(numbers: np.ndarray, paths: Sequence[bytes]) -> dict[int, str]:
    """Class number -> the folder that all of its photos were packed from; {} where that is not one to one."""
    folders = {(number, os.path.dirname(os.fsdecode(path))) for number, path in zip(numbers.tolist(), paths)}
    names = {number: os.path.basename(folder) for number, folder in folders}
    return names if len(names) == len(folders) == len(set(names.values())) and all(names.values()) else {}


class ContainedImages(ImagesToVerify):
    """Photos in containers, by the names that lists have for them; a name that no container has is a missing photo."""

    def __init__(self, root: Path, names: Sequence[bytes], held: ContainerListing) -> None:
        super().__init__(root, names)
        row = {name: i for i, name in enumerate(held.names)}
        self._rows = np.array([row.get(name, -1) for name in names], np.int64)
        self._held = held
        self._stamps = [container_stamp(name, status) for name, status in zip(held.files, held.statuses)]
        self.kind = held.kind
        locations = RecordLocations(
            root=root,
            files=held.file,
            offsets=held.offsets,
            lengths=held.lengths,
            file_sizes=np.array([status.size for status in held.statuses], np.int64),
            remedy="Run the same command again.",
            stored_lengths=held.stored,
            changed="",
            **_record_names(held.names),
            **pack_names(held.files),
        )
        self._records = open_records(held.kind, locations)
        self.portable = self._records.portable

    def title(self, i: int) -> str:
        """The container, and the photo's name in it."""
        row = int(self._rows[i])
        return os.fsdecode(self.names[i]) if row < 0 else self._records.name(row)

    def stamp(self, i: int) -> tuple[int, int]:
        """The photo's bytes, and the `container_stamp` of its file."""
        row = int(self._rows[i])
        if row < 0:
            raise FileNotFoundError(f"{os.fsdecode(self.names[i])}: not in any of the containers")
        return int(self._held.lengths[row]), self._stamps[self._held.file[row]]

    def read(self, i: int) -> bytes:
        """The photo's bytes. Raises DataError where they cannot be read."""
        return self._records.read(int(self._rows[i]))

    def facts(self, i: int) -> ImageInfo:
        """Verify the bytes in the container, by its own checksum too. Raises DataError where it cannot be read at all."""
        row = int(self._rows[i])
        if row < 0:
            raise InvalidImage("not in any of the containers")
        try:
            data = self._records.read(row)
        except DamagedRecord as error:
            raise InvalidImage(error.reason) from None
        crc = int(self._held.crcs[row])
        if crc >= 0 and zlib.crc32(data) != crc:
            raise InvalidImage("damaged: its CRC differs from the CRC in the archive")
        return verify_bytes(data, self.names[i], self.stamp(i)[1])

    def arrays(
        self, rows: np.ndarray, labels: np.ndarray, result: Inspection, extra: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Arrays of ranges of the files that hold these photos; a file inside the root is named relative to it."""
        at = self._rows[rows]
        used, file = np.unique(self._held.file[at], return_inverse=True)
        stored = self._held.stored[at]
        prefix = os.path.join(os.fsencode(self.root), b"")
        files = [self._held.files[i] for i in used.tolist()]
        return {
            **super().arrays(rows, labels, result, extra),
            "files": file.astype(np.int32).reshape(-1),
            "offsets": self._held.offsets[at],
            "file_sizes": np.array([self._held.statuses[i].size for i in used.tolist()], np.int64),
            **pack_names([name if get_scheme(name) else name.removeprefix(prefix) for name in files]),
            **_record_names([self.names[i] for i in rows.tolist()]),
            **({"stored_lengths": stored} if (stored != AS_IT_IS).any() else {}),
        }


def container_stamp(name: bytes, status: FileStatus) -> int:
    """A number of 63 bits that differs between files: a hash of the file's own name, size, time, and tag."""
    text = f"{status.size} {status.mtime} {status.tag}".encode()
    return int.from_bytes(hashlib.sha256(os.path.basename(name) + b"\0" + text).digest()[:8], "big") >> 1


def _record_names(names: Sequence[bytes]) -> dict[str, np.ndarray]:
    arrays = pack_names(names)
    return {"record_bytes": arrays["name_bytes"], "record_starts": arrays["name_starts"]}
