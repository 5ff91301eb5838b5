"""A file that appears whole or not at all: the one way to write one that may be there already, or that a kill may cut off.

It is written beside its place as `.NAME.TOKEN.part` and renamed. The token is drawn anew, so two writers of one file do not
meet, on one host or on several that share a folder. A kill leaves a part: whoever holds the folder sweeps it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTS = ".*.part"


@contextmanager
def whole(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """A place to write a file to, which becomes `path` when the block ends; where it raises, nothing is left of it.

    sync   wait until the disk has the bytes, and its folder the name where that can be synced: then a power failure takes neither
    raise OSError   it cannot be written; `path` is what it was
    """
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
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


def write_whole(path: Path, content: str | bytes | Iterable[str | bytes], *, sync: bool = False) -> None:
    """Write `content`, text as UTF-8, or all its pieces one by one. Raises OSError as `whole`."""
    pieces = (content,) if isinstance(content, str | bytes) else content
    with whole(path, sync=sync) as part, open(part, "wb") as file:
        file.writelines(piece.encode() if isinstance(piece, str) else piece for piece in pieces)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what killed writers left in `folder`, for who holds it alone; what cannot be removed stays."""
    for part in folder.glob(PARTS):
        with suppress(OSError):
            part.unlink()
