"""Write files: one that appears whole or not at all, and one among the user's own files.

A file is written beside its place as `.NAME.TOKEN.part` and renamed. The token is drawn anew, so two writers of one file do not
meet, on one host or on several that share a folder. A kill leaves a part. Its writer locks it for as long as it lives, so that the
next one that writes there can sweep it, and nothing else: no part of a living writer, no link, and nothing whose name is not exactly
of this kind. If a part is swept between its creation and its lock, its writer makes another one. A folder that is filled first and
moved then (`new_folder_part`) is locked and swept in the same way.
Among the user's own files one is written where there is none, or in place of an earlier one of ours, and of nothing else
(`write_user_file`): what a verb writes begins with a mark. A link is never ours: it would lead elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePath
from typing import TypeAlias

from paceline._utils.errors import PacelineError
from paceline._utils.platform import HOLDS, O_BINARY, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, flock
from paceline._utils.safe_read import open_plain

_PART = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part", re.DOTALL)


Content: TypeAlias = str | bytes | Iterable[str | bytes | memoryview]


@contextmanager
def atomic_writer(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """An empty file to write to, which becomes `path` when the block ends; where it raises, nothing is left of it.

    sync   wait until the disk has the bytes, and its folder the name where that can be synced: then a power failure takes neither
    raise OSError   it cannot be written; `path` is what it was
    """
    while True:
        part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
        held = open(part, "xb")  # noqa: SIM115  closed below
        if HOLDS and _locked(part, held.fileno()):
            break
        held.close()
        if not HOLDS:  # Windows renames no open file
            break
    with closing(held):
        try:
            yield part
            if sync:
                with open(part, "rb") as written:
                    os.fsync(written.fileno())
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    if sync:
        # Some file systems cannot sync a folder, and one that may be written to need not be readable: the file is there all the same.
        with suppress(OSError):
            sync_folder(path.parent)


def atomic_write(path: Path, content: Content, *, sync: bool = False) -> None:
    """Write `content`, text as UTF-8, or all its pieces one by one. Raises OSError as `atomic_writer`."""
    pieces = (content,) if isinstance(content, str | bytes) else content
    with atomic_writer(path, sync=sync) as part, open(part, "wb") as file:
        file.writelines(piece.encode() if isinstance(piece, str) else piece for piece in pieces)


@contextmanager
def new_folder_part(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, to be filled and moved from; what is left of it goes when the block ends.

    What killed writers of the same place left goes first. Raises OSError where it cannot be made.
    """
    for left in list_folder_parts(path):
        with suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW)  # refused on Windows: it stays
            try:
                flock(descriptor)
                shutil.rmtree(left)
            finally:
                os.close(descriptor)
    while True:
        part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
        part.mkdir()
        descriptor = None
        if not HOLDS:
            break
        with suppress(FileNotFoundError):  # swept already
            descriptor = os.open(part, os.O_RDONLY | O_DIRECTORY)
            if _locked(part, descriptor):
                break
            os.close(descriptor)
    try:
        yield part
    finally:
        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(part, ignore_errors=True)


def _locked(part: Path, descriptor: int) -> bool:
    """Lock a new part -> False if another writer took it for a killed writer's before: it is gone, or about to go.

    A file system without locks keeps the part: no writer sweeps there.
    """
    try:
        flock(descriptor)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return part.exists()


def list_folder_parts(folder: Path) -> list[Path]:
    """Where `new_folder_part` fills a folder for `folder` now, or was killed at it."""
    with suppress(OSError):
        result = (folder.parent / name for name in os.listdir(folder.parent))
        return [path for path in result if target_of_part(path) == folder and path.is_dir() and not path.is_symlink()]
    return []


def target_of_part(path: PurePath) -> PurePath | None:
    """The file that a part of this name would have become; None for any other name."""
    match = _PART.fullmatch(path.name)
    return path.with_name(match[1]) if match else None


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last through a power failure, where the system opens folders."""
    if HOLDS:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Wait until no other process holds `folder` so, and hold it -> False where that cannot be told (NFS, Windows).

    Raises OSError where there is no such folder, or it cannot be read.
    """
    if not HOLDS:
        os.listdir(folder)
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY | O_DIRECTORY)
    try:
        alone = False
        with suppress(OSError):
            flock(descriptor, waits=True)
            alone = True
        yield alone
    finally:
        os.close(descriptor)


def remove_stale_parts(folder: Path, names: Collection[str] | None = None) -> None:
    """Remove the parts that killed writers of `atomic_writer` left in `folder`; what cannot be removed stays.

    names   of the files whose parts are meant; None: of all
    """
    with suppress(OSError):
        for entry in os.listdir(folder) if HOLDS else ():
            if (match := _PART.fullmatch(entry)) and (names is None or match[1] in names):
                with suppress(OSError):
                    _remove_dead(folder / entry)


def _remove_dead(part: Path) -> None:
    """Raises OSError where it is no plain file, somebody holds it, or it cannot be removed."""
    descriptor = os.open(part, os.O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_BINARY)
    try:
        flock(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            part.unlink()
    finally:
        os.close(descriptor)


# JSON of ours begins with this key, a list of ours with this line; a PNG has it as a text, a JPEG as a comment,
# a file of tensors in its metadata.
KEY, LINE = "paceline", "# paceline: "
IN_ZIP = "model/extra/paceline.json"  # an entry of a .pt2
_MARKS = (
    rb'\A\{\s*"paceline": ',
    rb"\A# paceline: ",
    rb'\A<!doctype html>.*<meta name="generator" content="paceline">',  # tools/report/frame.html.jinja
    rb"\A\x89PNG\r\n\x1a\n.*tEXtpaceline\0",
    rb"\A\xff\xd8.*\xff\xfe..paceline ",
    rb'\A.{8}\{"__metadata__":\{"paceline":',
    rb"\A\x08.\x12\x08paceline",  # an ONNX file's first fields: its version, and who wrote it
    rb'\A<\?xml version="1.0"\?>\s*<net name="paceline"',  # OpenVINO's
)
_MARK = re.compile(b"|".join(_MARKS), re.DOTALL)
_LOOKED_AT = 4096  # bytes


def is_replaceable(path: Path) -> bool:
    """Whether a file of ours may be written at `path`: nothing is there, or a plain file that we wrote."""
    if not os.path.lexists(path):
        return True
    try:
        descriptor = open_plain(path)
    except OSError:
        return False
    try:
        if path.is_symlink():
            return False
        start = os.read(descriptor, _LOOKED_AT)
        return _MARK.match(start) is not None or (start.startswith(b"PK\3\4") and _holds_ours(path))
    finally:
        os.close(descriptor)


def _holds_ours(archive: Path) -> bool:
    try:
        with zipfile.ZipFile(archive) as opened:
            return IN_ZIP in opened.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def check_user_file(out: str | Path, flag: str = "--output") -> None:
    """Raises PacelineError where `flag` names something that is there and is no file of ours; "" names nothing."""
    path = Path(out)
    if str(out) and path.is_dir():
        raise PacelineError(f"{flag} {out}: is a folder, not a file. Choose a file.")
    if str(out) and not is_replaceable(path):
        raise PacelineError(f"{flag} {out}: already exists and was not written by paceline. Choose another file.")


def write_user_file(out: str | Path, content: Content, flag: str = "--output") -> None:
    """Write what `flag` asks for, whole or not at all, in a folder that is made.

    content  begins with one of the marks, or cannot be replaced later
    Raises PacelineError as `check_user_file`, and where the file cannot be written.
    """
    check_user_file(out, flag)
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(path.parent, {path.name})
        atomic_write(path, content)
    except OSError as problem:
        raise PacelineError(f"{flag} {out}: not writable ({problem.strerror}). Choose another file.") from None
