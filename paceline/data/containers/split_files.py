"""The container files of one split: what was requested, found by name or pattern, unpacked if need be, walked in parallel.

    --train photos.tar shards-*.tar 'shard-{000..127}.tar' s3://bucket/shards/*.tar https://host/val.tar
A file that was compressed as a whole (photos.tar.gz, .tar.zst, TFRecords of TensorFlow's GZIP option) has no positions to read
photos from. It is unpacked once into the cache, under its path, size and time. On a network it is refused: unpacking would
download it whole.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from paceline._utils.atomic_write import atomic_writer
from paceline._utils.cache import cache_folder
from paceline._utils.commands import install_command
from paceline._utils.errors import DataError
from paceline._utils.hashing import sha256
from paceline._utils.platform import count_cpus
from paceline.data.containers.reading import Member, Truncated, compression
from paceline.data.containers.tar import tar_members
from paceline.data.containers.zip import zip_members
from paceline.data.index.manifest import Expect
from paceline.data.storage.object_store import open_store
from paceline.data.storage.store import ByteStore, FileStatus, StoreError, get_scheme

Entry = TypeVar("Entry")
# Archives by the kind of `paceline prepare`, which is also the suffix of their files -> what lists the files in one.
ARCHIVES: dict[str, Callable[[BinaryIO, int, str], Iterator[Member]]] = {"tar": tar_members, "zip": zip_members}

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
# ImageNet has 1.3 million photos; a pattern of more files than this is a typing error.
MAX_FILES = 3_000_000
_CHUNK = 1 << 20
_UNPACKERS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "xz": lzma.LZMAFile,
    "bzip2": bz2.BZ2File,
}
# Photos hardly shrink: what grows more than this is no container of photos.
MAX_GROWTH, SMALL = 100, 1 << 30
# Left free on the disk: the index is written there too.
SPARE_BYTES = 256 << 20


@dataclass(frozen=True)
class ContainerRequest:
    """What to prepare. The fields are the command's flags."""

    layout: str  # a kind of `paceline prepare`: a key of READERS in source.py
    train: tuple[str, ...] = ()  # files, patterns, URLs
    val: tuple[str, ...] = ()
    annotations: str = ""  # COCO JSON of the training photos, or the zip that holds it
    val_annotations: str = ""
    class_names_file: str = ""  # names of the classes, one a line or as JSON
    num_classes: int = 0  # how many there are, called by number; 0: as many as the photos have
    label_offset: int = -1  # number of the first class in the files; -1: as the format's original scripts count
    label_column: int = -1  # which number of a label of several is the class
    devkit: str = ""  # ImageNet's devkit, which knows the classes of the validation photos
    expect: Expect = "any"
    val_fraction: float = 0.0
    split_seed: int = 0
    group_by: str = ""
    on_truncated: Literal["error", "skip"] = "error"
    on_unreadable: Literal["error", "skip"] = "error"
    on_missing: Literal["error", "skip"] = "error"
    on_class_mismatch: Literal["error", "warn"] = "error"


@dataclass(frozen=True)
class ContainerFiles:
    """One split's files, in the order of the command; those of one pattern by name."""

    split: str  # "train" or "val"
    names: list[bytes]  # absolute paths, or URLs
    store: ByteStore
    statuses: list[FileStatus]
    listed: bool = False  # annotations beside them name their photos, by the paths that these have
    skip_truncated: bool = False
    workers: int | None = None
    notes: list[str] = field(default_factory=list)  # for people; grows while files are walked
    progress: Callable[[int, int], None] | None = None  # called with (files walked, files in all)

    @property
    def first(self) -> str:
        """The first file, for messages."""
        return os.fsdecode(self.names[0])

    def walk(self, reader: Callable[[BinaryIO, int, str], Iterator[Entry]]) -> list[list[Entry]]:
        """The entries that `reader` (file, its size, its name -> entries) yields of each file, several files at once.

        Raises DataError where a file cannot be read or is of another kind, and where one is cut off unless that was allowed.
        """

        def one(number: int) -> list[Entry]:
            name, entries = os.fsdecode(self.names[number]), []
            try:
                with self.store.open(self.names[number]) as file:
                    for entry in reader(file, self.statuses[number].size, name):
                        entries.append(entry)
            except Truncated as cut:
                if not self.skip_truncated:
                    raise
                self.notes.append(
                    f"{name}: truncated at byte {cut.offset:,}. Its {cut.records:,} complete records are used"
                )
            except OSError as error:
                trouble = isinstance(error, StoreError)
                remedy = "Run the same command again." if trouble else "Check the file and its disk."
                raise DataError(f"{name}: cannot be read ({error.strerror or error}). {remedy}") from None
            return entries

        walked = []
        with ThreadPoolExecutor(self.workers or count_cpus(), thread_name_prefix="walk") as pool:
            for number, entries in enumerate(pool.map(one, range(len(self.names))), 1):
                walked.append(entries)
                if self.progress is not None:
                    self.progress(number, len(self.names))
        return walked


def find_files(split: str, sources: Sequence[str], **options: Any) -> ContainerFiles:
    """The files that a command names.

    sources  paths, URLs, with *, ? and [...], and with {000..127} for numbers
    Raises DataError where one does not exist, is a folder, or is of another kind of store than the first.
    """
    wanted = list(chain.from_iterable([one] if _exists(one) else _numbered(one) for one in sources))
    store = open_store(wanted[0])
    flag = f"--{split}"
    names: list[bytes] = []
    for source in wanted:
        if get_scheme(source) != get_scheme(wanted[0]):
            raise DataError(f"{flag} {source}: not in the same type of location as {wanted[0]}. Prepare them separately.")
        path = absolute_source(source)
        try:
            matches = store.find(path) if glob.has_magic(path) and not _exists(path) else [os.fsencode(path)]
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{flag} {source}: cannot be listed ({reason}). Check the address.") from None
        if not matches:
            raise DataError(f"{flag} {source}: no file matches. Check the path.")
        names += matches
    if len(names) > MAX_FILES:
        raise DataError(f"{flag}: {len(names):,} files; at most {MAX_FILES:,} are supported.")
    return ContainerFiles(split, names, store, _statuses(flag, names, store), **options)


def absolute_source(source: str) -> str:
    """The same file from whatever folder it is named: an absolute path whose folders are no links, or the URL."""
    if get_scheme(source):
        return source
    path = os.path.abspath(os.path.expanduser(source))
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _exists(source: str) -> bool:
    return not get_scheme(source) and os.path.exists(os.path.expanduser(source))


def _numbered(source: str) -> Iterator[str]:
    """'a-{000..002}' -> a-000, a-001, a-002; any other text as it is."""
    match = _RANGE.search(source)
    if match is None:
        yield source
        return
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MAX_FILES:
        raise DataError(f"{source}: {{{match[1]}..{match[2]}}} is not a valid range. Write {{FIRST..LAST}}.")
    for number in range(first, last + 1):
        yield from _numbered(f"{source[: match.start()]}{number:0{len(match[1])}d}{source[match.end() :]}")


def _statuses(flag: str, names: Sequence[bytes], store: ByteStore) -> list[FileStatus]:
    def one(name: bytes) -> FileStatus:
        path = os.fsdecode(name)
        source = f"{flag} {path}"
        try:
            if not get_scheme(name) and os.path.isdir(name):
                raise DataError(f"{source}: this is a folder. Pass its files, for example {path}/*")
            return store.status(name)
        except FileNotFoundError:
            raise DataError(f"{source}: file not found. Check the path.") from None
        except OSError as error:
            raise DataError(f"{source}: cannot be read ({error.strerror or error}). Check the address.") from None

    with ThreadPoolExecutor(max(count_cpus(), min(16, store.at_once)), thread_name_prefix="status") as pool:
        return list(pool.map(one, names))


def unpack_compressed(files: ContainerFiles) -> ContainerFiles:
    """The same files, those that were compressed as a whole replaced by unpacked copies in the cache.

    Raises DataError where one is damaged or cut off, its unpacked size is no container's, or the disk has no room.
    """
    if get_scheme(files.names[0]):
        return files

    def one(name: bytes, status: FileStatus) -> tuple[bytes, FileStatus]:
        with files.store.open(name) as file:
            kind = compression(file.read(8))
        if kind == "zstd" and find_spec("zstandard") is None:
            raise DataError(
                f"{os.fsdecode(name)}: the whole file is compressed (zstd). To decompress it automatically into "
                f"{_place()}, run  {install_command('zstd')}  or decompress it yourself:  zstd -d FILE -o UNPACKED"
            )
        if kind != "zstd" and kind not in _UNPACKERS:  # its reader refuses it, with the command that unpacks it
            return name, status
        path = os.fsencode(_unpacked(Path(os.fsdecode(name)), status, kind))
        return path, files.store.status(path)

    with ThreadPoolExecutor(files.workers or count_cpus(), thread_name_prefix="unpack") as pool:
        unpacked = list(pool.map(one, files.names, files.statuses))
    new = [(status.size, old) for (name, status), old in zip(unpacked, files.names) if name != old]
    notes = list(files.notes)
    if new:
        first = f"{os.fsdecode(new[0][1])}{f' and {len(new) - 1:,} more' if len(new) > 1 else ''}"
        size = sum(size for size, _ in new)
        notes.append(f"{first}: unpacked into {_place()} ({size:,} bytes). Training reads the unpacked files, so keep them")
    names, statuses = map(list, zip(*unpacked))
    return replace(files, names=names, statuses=statuses, notes=notes)


def _place() -> Path:
    return cache_folder() / "unpacked"


def _unpacked(path: Path, status: FileStatus, kind: str) -> Path:
    digest = sha256(repr((str(path), status)).encode("utf-8", "surrogateescape"))[:12]
    out = _place() / f"{path.stem}-{digest}{Path(path.stem).suffix}"
    if out.exists():  # it appears when it is whole
        return out
    most, written = MAX_GROWTH * status.size + SMALL, 0
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "rb") as packed, atomic_writer(out, sync=True) as part, open(part, "wb") as file:
            chunks = _zstd_chunks(packed) if kind == "zstd" else iter(partial(_UNPACKERS[kind](packed).read, _CHUNK), b"")
            for chunk in chunks:
                written += len(chunk)
                if written > most:
                    raise DataError(f"{path}: unpacks to more than {most:,} bytes, which is too much for packed images.")
                if shutil.disk_usage(out.parent).free < SPARE_BYTES + len(chunk):
                    raise DataError(
                        f"{path}: the disk of {out.parent} is full after {written:,} unpacked bytes. Free some space, or "
                        "choose another disk:  PACELINE_CACHE=DIR"
                    )
                file.write(chunk)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}). Copy or download it again. Nothing is kept.") from None
    return out


def _zstd_chunks(file: BinaryIO) -> Iterator[bytes]:
    import zstandard  # of an extra

    frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
    for chunk in iter(partial(file.read, _CHUNK), b""):
        while chunk:
            try:
                yield frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            begun, chunk = not frame.eof, frame.unused_data
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if begun:
        raise EOFError("its last frame is truncated")
