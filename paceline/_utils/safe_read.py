"""Read files that somebody else made: plain files only, at once, no more of one than its reader asks for; and JSON with a checksum.

A named pipe, a device or a socket under the name of a photo would keep a reader waiting for ever, or feed it without end. The
file is opened without waiting and judged by what was opened, so that no other can take its place in between. Links are followed,
but for the entries of a folder that came as a whole: the user who named the folder did not make a link in it (`read_entry`).
A sealed JSON object has a key `sha256` over the content of all the others, not over the bytes: a file that an editor has only
laid out anew still fits.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline._utils.hashing import json_sha256
from paceline._utils.platform import O_BINARY, O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# Neither waits (for a pipe's writer) nor becomes the terminal of this process.
_FLAGS = os.O_RDONLY | O_BINARY | O_NONBLOCK | O_NOCTTY


def open_plain(path: str | bytes | Path) -> int:
    """-> a descriptor of `path`, open for reading; the caller closes it.

    Raises OSError; where it is something else than a plain file, `strerror` says of which kind.
    """
    return open_plain_sized(path)[0]


def open_plain_sized(path: str | bytes | Path, *, links: bool = True) -> tuple[int, int]:
    """-> the descriptor, and the file's bytes as the file system has them. Raises OSError as `open_plain`; also of a link, unless
    `links` are followed."""
    try:
        if not (links or O_NOFOLLOW) and os.path.islink(path):
            raise OSError(errno.ELOOP, "")
        descriptor = os.open(path, _FLAGS if links else _FLAGS | O_NOFOLLOW)
    except OSError as error:
        if not links and os.path.islink(path):
            raise OSError(errno.ELOOP, "a symbolic link, not a regular file", os.fsdecode(path)) from None
        # A socket cannot be opened at all, nor can a folder on Windows.
        if error.errno == errno.ENXIO or (not O_DIRECTORY and os.path.isdir(path)):
            raise _not_plain(os.stat(path).st_mode, path) from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _not_plain(status.st_mode, path)
    return descriptor, status.st_size


def require_plain(path: str | bytes | Path) -> int:
    """-> bytes of a plain file, for readers of other libraries that open it by name. Raises OSError as `open_plain`."""
    descriptor, size = open_plain_sized(path)
    os.close(descriptor)
    return size


def read_entry(path: str | bytes | Path, most: int) -> bytes:
    """As `read_plain`, of a file in a run's folder. Raises OSError for a link too."""
    return read_plain(path, most, links=False)


def read_plain(path: str | bytes | Path, most: int, *, links: bool = True) -> bytes:
    """The whole content of a plain file. Raises OSError as `open_plain`, and where it has more than `most` bytes."""
    descriptor, size = open_plain_sized(path, links=links)
    try:
        if size > most:
            raise _too_large(f"{size:,} bytes", most, path)
        # One byte more than it should hold: the kernel's own files say 0, and others may be growing.
        parts, left = [], most + 1
        while left > 0 and (part := os.read(descriptor, min(left, max(size + 1, 1 << 16)))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    if left <= 0:
        raise _too_large("more bytes than its size", most, path)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_plain_text(path: str | bytes | Path, most: int) -> str:
    """The whole content as text, UTF-8 with or without a mark. Raises OSError as `read_plain`, UnicodeDecodeError."""
    return read_plain(path, most).decode("utf-8-sig")


def describe_read_error(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file cannot be read, in a few words."""
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return f"byte {error.start} is not valid UTF-8. Convert the file, for example with iconv"


def _not_plain(mode: int, path: str | bytes | Path) -> OSError:
    kind = next((name for is_it, name in _KINDS if is_it(mode)), "something else")
    return OSError(errno.EINVAL, f"{kind}, not a regular file", os.fsdecode(path))


def _too_large(result: str, most: int, path: str | bytes | Path) -> OSError:
    return OSError(errno.EFBIG, f"{result}; the limit is {most:,} bytes", os.fsdecode(path))


SEAL = "sha256"


def with_checksum(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` (of what JSON has), with their checksum as the last key."""
    return {**facts, SEAL: json_sha256(json.loads(json.dumps(facts)))}


def has_valid_checksum(facts: Mapping[str, Any]) -> bool:
    """Whether parsed JSON has a checksum, and it is the content's."""
    return facts.get(SEAL) == json_sha256({key: value for key, value in facts.items() if key != SEAL})


def parse_json(content: str | bytes) -> Any:
    """The JSON value that a file holds.

    Raises ValueError for everything that is not one, also for what is nested deeper than Python goes.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deep") from None
