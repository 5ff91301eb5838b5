"""A file inside an archive: its name, checked, and where its bytes lie."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from paceline.config.errors import DataError
from paceline.config.printable import one_line

# Linux's longest path; nobody's photo has a longer name.
MOST_NAME_BYTES = 4096

_PLAIN = re.compile(rb"[^/\0\n\r]+(?:/[^/\0\n\r]+)*")
_DOTS = re.compile(rb"(?:^|/)\.\.?(?:/|$)")


class Member(NamedTuple):
    """A plain file of a tar.

    name    as in the archive, "./" and doubled slashes left out: no absolute one, no "..", no line break
    offset  first byte of its data in the outermost file
    length  bytes of the data
    """

    name: bytes
    offset: int
    length: int


def shown(name: bytes) -> str:
    """A member's name for a message."""
    return one_line(os.fsdecode(name[:300]))


def checked_name(name: bytes, archive: str) -> bytes:
    """`name` with its "./", doubled and last slashes left out; empty where nothing else was in it.

    Raises DataError where it would leave the folder that it is unpacked in, or would forge lines of messages and lists.
    """
    if _PLAIN.fullmatch(name) and not _DOTS.search(name) and len(name) <= MOST_NAME_BYTES:
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/"):
        why = "an absolute path"
    elif b".." in parts:
        why = 'a path with ".."'
    elif b"\0" in name or b"\n" in name or b"\r" in name:
        why = "a line break or a zero byte"
    elif len(name) > MOST_NAME_BYTES:
        why = f"more than {MOST_NAME_BYTES:,} bytes"
    else:
        return b"/".join(parts)
    raise DataError(f"{archive}: the name of {shown(name)} is {why}: not an archive of photos. Nothing of it is used.")
