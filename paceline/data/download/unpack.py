"""Unpack a zip or tar that a stranger may have made: all of it under its folder, or none of it.

Files are written to FOLDER/.NAME.TOKEN.part, checked (names, sizes, CRCs), and moved to their places when the last one is on
the disk. Members are judged by name, kind and size before a byte of them is written. Refused are names that leave the folder, links,
devices, encrypted or otherwise compressed members, two members of one name, archives that are cut off, and those that unpack to
far more than they are (bombs).
"""

from __future__ import annotations

import filecmp
import gzip
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_IFDIR, S_IFMT, S_IFREG
from typing import IO, BinaryIO, NamedTuple, cast

from paceline._utils.atomic_write import list_folder_parts, new_folder_part
from paceline._utils.errors import DataError
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.safe_read import open_plain
from paceline._utils.text import abbreviate
from paceline.data.download.fetch import require_free_space

SLICE = 1 << 20
# Raised by Python's readers for damaged bytes.
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, struct.error),
    *(EOFError, ValueError, OverflowError, RuntimeError),
)
# ImageNet has 1.3 million files; a zip's directory of more than that is not read.
MAX_MEMBERS = 3_000_000
# Photos hardly shrink, annotations to a tenth. What is small may unpack to as much as it likes.
MAX_GROWTH, SMALL = 100, 1 << 30
# Of a name's parts, on all file systems that matter.
MAX_NAME = 255
# tarfile reads the description of a member in one piece; one of this size is none.
MAX_DESCRIPTION = 1 << 20
MAX_PADDING = 64 << 20
# Of the record that ends a zip, before its comment; the number of members stands at its byte 10.
_END_BYTES = 22


def is_unfinished(archive: str, folder: Path) -> bool:
    """Whether an archive of this name is being unpacked there, or was when its process was killed."""
    return bool(list_folder_parts(folder / archive))


def unpack(archive: Path, folder: Path, reporter: Reporter = SILENT) -> int:
    """Unpack `archive` into `folder` -> how many files it holds.

    The progress counts bytes written, of all; of a tar: of the archive.
    What an earlier attempt left is dropped. A file that is there already with the same bytes stays; with others, nothing is
    moved. Raises DataError for every flaw of the archive, naming the member; then nothing of it is in `folder`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_folder_part(folder / archive.name) as part:
            count = _write_members(archive, part, folder, reporter)
            os.sync()  # a power cut must not leave empty files under final names
            _refuse_conflicts(archive, part, folder)
            _move(part, folder)
    except OSError as error:
        raise DataError(
            f"{folder}: {archive.name} cannot be unpacked ({error.strerror or error}). Free some space or choose another "
            "folder, and run the same command again to restart unpacking."
        ) from None
    return count


def _write_members(archive: Path, part: Path, folder: Path, reporter: Reporter) -> int:
    with open(open_plain(archive), "rb") as file:
        try:
            zipped = file.read(2) == b"PK"
            file.seek(0)
            total, members = (_zip_members if zipped else _tar_members)(file, archive)
            require_free_space(folder, total, f"the content of {archive.name}")
            return _write_all(archive, members, part, total, reporter)
        except DAMAGED as error:
            raise DataError(f"{archive}: damaged or cut off ({abbreviate(str(error), 200)}). Download it again.") from None


def _write_all(archive: Path, members: Iterator[UnpackedMember], part: Path, total: int, reporter: Reporter) -> int:
    seen: set[tuple[str, ...]] = set()
    folders: set[tuple[str, ...]] = {()}
    count = done = 0
    for member in members:
        inside = member.parts if member.is_folder else member.parts[:-1]
        for depth in range(1, len(inside) + 1):
            if inside[:depth] not in folders:
                if inside[:depth] in seen:
                    raise DataError(f"{archive}: {abbreviate(member.name)} is a file and a folder. Nothing is unpacked.")
                (part / Path(*inside[:depth])).mkdir()
                folders.add(inside[:depth])
        if member.is_folder:
            continue
        if member.parts in seen or member.parts in folders:
            raise DataError(f"{archive}: {abbreviate(member.name)} is listed twice. Nothing is unpacked.")
        seen.add(member.parts)
        written = 0
        with member.open() as source, open(part / Path(*member.parts), "xb") as target:
            while data := source.read(SLICE):
                written += len(data)
                if written > member.size:
                    break
                target.write(data)
        if written != member.size:
            raise DataError(
                f"{archive}: {abbreviate(member.name)} does not have the {member.size:,} bytes that the archive lists. "
                "Nothing is unpacked. Download it again."
            )
        count, done = count + 1, done + written
        reporter.progress(f"unpacking {archive.name}", done, total)
    if not count:
        raise DataError(f"{archive}: no files in the archive.")
    return count


def _refuse_conflicts(archive: Path, part: Path, folder: Path) -> None:
    """Raises DataError where a file would take the place of another one."""
    for location, names, files in os.walk(part):
        target = folder / Path(location).relative_to(part)
        for name in files:
            old = target / name
            plain = old.is_file() and not old.is_symlink()
            if os.path.lexists(old) and not (plain and filecmp.cmp(Path(location) / name, old, shallow=False)):
                raise DataError(f"{old}: exists and differs from {archive.name}. Move it away, or choose an empty folder.")
        for name in names:
            if os.path.lexists(target / name) and ((target / name).is_symlink() or not (target / name).is_dir()):
                raise DataError(f"{target / name}: exists and is not a folder. Move it away, or choose an empty folder.")
        names[:] = [name for name in names if os.path.lexists(target / name)]  # the others move as they are


def _move(part: Path, folder: Path) -> None:
    for entry in sorted(part.iterdir()):
        target = folder / entry.name
        if entry.is_dir() and target.is_dir():
            _move(entry, target)
        else:
            os.replace(entry, target)


class UnpackedMember(NamedTuple):
    """One file or folder; `open` gives its bytes, once and in the archive's order."""

    name: str  # as the archive has it
    parts: tuple[str, ...]  # the path under the folder
    is_folder: bool
    size: int  # bytes, from the archive
    open: Callable[[], IO[bytes]]


def safe_parts(name: str, archive: Path) -> tuple[str, ...]:
    """The path that a member's name means. Raises DataError where that is not under the folder it is unpacked to."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or "\\" in name or (len(name) > 1 and name[1] == ":"):
        raise _refused(archive, name, "an absolute path")
    if ".." in parts:
        raise _refused(archive, name, "a path outside the folder")
    if not all(part.isprintable() and len(os.fsencode(part)) <= MAX_NAME for part in parts):
        raise _refused(archive, name, "a name with control characters, or a name that is too long")
    return parts


def _zip_members(file: BinaryIO, archive: Path) -> tuple[int, Iterator[UnpackedMember]]:
    """-> bytes of all members, and the members. Raises DataError, zipfile.BadZipFile."""
    size = os.fstat(file.fileno()).st_size
    book = zipfile.ZipFile(file)
    infos = book.infolist()
    # A comment with too great a length hides the entries behind it; zipfile does not compare their number.
    file.seek(size - _END_BYTES - len(book.comment) + 10)
    if int.from_bytes(file.read(2), "little") != min(len(infos), 0xFFFF):
        raise zipfile.BadZipFile(f"its directory lists {len(infos):,} members, but its end record has another count")
    total = sum(info.file_size for info in infos)
    _refuse_bomb(archive, len(infos), total, size)
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise _refused(archive, info.orig_filename, "bytes that belong to another member")
        end = info.header_offset + 30 + info.compress_size
        if info.flag_bits & 0x1:
            raise _refused(archive, info.orig_filename, "encryption")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _refused(archive, info.orig_filename, f"compression method {info.compress_type}, which is not supported")
        kind = S_IFMT(info.external_attr >> 16)
        if kind not in (0, S_IFREG, S_IFDIR):
            raise _refused(archive, info.orig_filename, "the type of a link or a device")

    named = ((info, info.orig_filename) for info in infos)
    return total, (
        UnpackedMember(name, safe_parts(name, archive), info.is_dir(), info.file_size, lambda info=info: book.open(info))
        for info, name in named
    )


def _tar_members(file: BinaryIO, archive: Path) -> tuple[int, Iterator[UnpackedMember]]:
    """-> bytes of the archive (its members are known only as they are read), and the members.

    The members raise DataError and tarfile.TarError as they are read.
    """
    size = os.fstat(file.fileno()).st_size
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    plain: BinaryIO = gzip.GzipFile(fileobj=file) if packed else file  # pyright: ignore[reportAssignmentType]
    return size, _read_tar(plain, archive, size)


def _read_tar(plain: BinaryIO, archive: Path, size: int) -> Iterator[UnpackedMember]:
    careful = BoundedReader(plain)
    try:
        book = tarfile.TarFile(fileobj=careful)  # pyright: ignore[reportArgumentType]
    except tarfile.ReadError:
        raise DataError(f"{archive}: not a zip or tar file, or truncated. Check that this is the right file.") from None
    count, total, last = 0, 0, -1
    while (info := book.next()) is not None:
        book.members = []  # pyright: ignore[reportAttributeAccessIssue]  # a million of them would stay in memory
        if info.size < 0 or info.offset <= last:
            raise _refused(archive, info.name, "an invalid size")
        count, total, last = count + 1, total + info.size, info.offset
        _refuse_bomb(archive, count, total, size)
        if info.issparse() or not (info.isdir() or info.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)):
            raise _refused(archive, info.name, "the type of a link or a device")
        parts = safe_parts(info.name, archive)
        yield UnpackedMember(
            info.name, parts, info.isdir(), info.size, lambda info=info: cast("IO[bytes]", book.extractfile(info))
        )
    # tarfile takes a torn header for the end.
    careful.seek(book.offset)
    if careful.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise DataError(f"{archive}: truncated or damaged after byte {book.offset:,} of the tar. Download it again.")
    if isinstance(plain, gzip.GzipFile):
        # Its sum comes last, after the padding.
        for _ in range(MAX_PADDING // MAX_DESCRIPTION):
            if not careful.read(MAX_DESCRIPTION):
                return
        raise DataError(f"{archive}: more data follows the end of its tar. Nothing is unpacked. Download it again.")


class BoundedReader:
    """A file for tarfile, which trusts the sizes that it reads and would take gigabytes of names into memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, count: int = -1) -> bytes:
        if not 0 <= count <= MAX_DESCRIPTION:
            raise tarfile.ReadError("an invalid size")
        return self._file.read(count)

    def seek(self, at: int, whence: int = 0) -> int:
        if at < 0:
            raise tarfile.ReadError("an invalid size")
        return self._file.seek(at, whence)

    def tell(self) -> int:
        return self._file.tell()


def _refuse_bomb(archive: Path, count: int, total: int, size: int) -> None:
    if count > MAX_MEMBERS:
        raise DataError(f"{archive}: more than {MAX_MEMBERS:,} members are not supported. Nothing is unpacked.")
    if total > max(SMALL, MAX_GROWTH * size):
        growth = f"{size:,} bytes would unpack to at least {total:,} bytes"
        raise DataError(f"{archive}: {growth}, which is not plausible for a dataset. Nothing is unpacked.")


def _refused(archive: Path, name: str, what: str) -> DataError:
    return DataError(f"{archive}: {abbreviate(name)} has {what}. Nothing is unpacked. Download it from its publisher.")
