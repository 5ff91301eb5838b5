"""Containers that were compressed as a whole (photos.tar.gz, .tar.zst, TFRecords of TensorFlow's GZIP option), unpacked once.

Photos are read by their position, which such a file does not have. The unpacked one lies in the cache, named by the file's path,
size and time; a note says where and how large it is. Files on a network stay refused: unpacking would download them whole.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from paceline.config.cache import cache_folder
from paceline.config.commands import to_install
from paceline.config.errors import DataError
from paceline.config.whole import whole
from paceline.datasets.containers.files import ContainerFiles
from paceline.machine.detect import cpu_cores
from paceline.store.containers.reading import compression
from paceline.store.stores import Status, scheme_of

_CHUNK = 1 << 20
_STANDARD: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "xz": lzma.LZMAFile,
    "bzip2": bz2.BZ2File,
}
# Photos hardly shrink: what grows more than this is no container of photos.
MOST_GROWTH, SMALL = 100, 1 << 30
# Left free on the disk: the index is written there too.
SPARE_BYTES = 256 << 20


def unpack_compressed(files: ContainerFiles) -> ContainerFiles:
    """The same, with the unpacked ones for those that were compressed as a whole.

    Raises DataError where one is damaged or cut off, its unpacked size is no container's, or the disk has no room.
    """
    if scheme_of(files.names[0]):
        return files

    def one(name: bytes, status: Status) -> tuple[bytes, Status]:
        with files.store.open(name) as file:
            kind = compression(file.read(8))
        if kind == "zstd" and find_spec("zstandard") is None:
            raise DataError(
                f"{os.fsdecode(name)}: compressed as a whole (zstd). {to_install('zstd')}, and it is unpacked once into "
                f"{_place()}; or do it:  zstd -d FILE -o UNPACKED"
            )
        if kind != "zstd" and kind not in _STANDARD:  # its reader refuses it, with the command that unpacks it
            return name, status
        path = os.fsencode(_unpacked(Path(os.fsdecode(name)), status, kind))
        return path, files.store.status(path)

    with ThreadPoolExecutor(files.workers or cpu_cores(), thread_name_prefix="unpack") as pool:
        found = list(pool.map(one, files.names, files.statuses))
    new = [(status.size, old) for (name, status), old in zip(found, files.names) if name != old]
    notes = []
    if new:
        first = f"{os.fsdecode(new[0][1])}{f' and {len(new) - 1:,} more' if len(new) > 1 else ''}"
        notes = [
            f"{first}: unpacked into {_place()}, {sum(size for size, _ in new):,} bytes that training reads; keep them"
        ]
    return replace(files, names=[name for name, _ in found], statuses=[s for _, s in found], notes=files.notes + notes)


def _place() -> Path:
    return cache_folder() / "unpacked"


def _pieces(kind: str, file: BinaryIO) -> Iterator[bytes]:
    """The unpacked bytes. Raises OSError, EOFError, zlib.error or lzma.LZMAError where they are damaged or cut off."""
    if kind == "zstd":
        yield from _zstd_pieces(file)
        return
    plain = _STANDARD[kind](file)
    while chunk := plain.read(_CHUNK):
        yield chunk


def _zstd_pieces(file: BinaryIO) -> Iterator[bytes]:
    import zstandard  # of an extra

    frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
    while chunk := file.read(_CHUNK):
        while chunk:
            try:
                yield frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            begun, chunk = not frame.eof, frame.unused_data
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if begun:
        raise EOFError("its last frame is cut off")


def _unpacked(path: Path, status: Status, kind: str) -> Path:
    digest = hashlib.sha256(repr((str(path), status)).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    out = _place() / f"{path.stem}-{digest}{Path(path.stem).suffix}"
    if out.exists():  # it appears when it is whole
        return out
    most, there = MOST_GROWTH * status.size + SMALL, 0
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "rb") as packed, whole(out, sync=True) as part, open(part, "wb") as file:
            for chunk in _pieces(kind, packed):
                there += len(chunk)
                if there > most:
                    raise DataError(f"{path}: unpacks to more than {most:,} bytes; photos are not packed so small.")
                if shutil.disk_usage(out.parent).free < SPARE_BYTES + len(chunk):
                    raise DataError(
                        f"{path}: unpacked it does not fit on the disk of {out.parent} ({there:,} bytes did). Free some space, "
                        "or choose another disk:  PACELINE_CACHE=DIR"
                    )
                file.write(chunk)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}). Copy or download it again. Nothing is kept.") from None
    return out
