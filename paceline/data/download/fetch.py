"""Download one file from the first of its addresses that gives it: in parallel ranges, resumed, checked, whole or not at all.

    fetch(urls, destination, size=..., sha256=...)
An address is http://, https://, file:// or a path. Under the final name there is nothing, or the expected file.
Until then NAME.part and NAME.part.journal hold what has arrived, and the same call resumes from there after a kill, a cut
or an interrupt. Servers without ranges are read in one stream, from the beginning each time.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from paceline._utils.errors import DataError
from paceline._utils.formatting import format_bytes
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.safe_read import open_plain_sized
from paceline._utils.text import escape_line
from paceline.data.download.check import ExpectedFile, FileMismatch, require_free_space
from paceline.data.download.http import ConnectionLost, DownloadRefused, RemoteFileChanged, get, printable_url, with_retries
from paceline.data.download.part import BLOCK, PartialFile, RemoteVersion, fetch_ranges, write_error

# Bytes that are read at a time.
SLICE = 1 << 18
# Where nobody publishes how long a file is, no more of it is taken: weights of 2 GiB are the largest that are read.
MAX_UNPUBLISHED = 2 << 30
# Files whose comparison takes so long that a line is printed before it.
LARGE = 1 << 30


def fetch(
    urls: Sequence[str],
    destination: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    sha256_prefix: str | None = None,
    md5: str | None = None,
    sha1: str | None = None,
    reporter: Reporter = SILENT,
    called: str = "",
) -> Path:
    """Download the file to `destination`, and return it.

    urls           addresses of the same file, tried in this order
    size           bytes, where they are known; digests are hexadecimal; `sha256_prefix` is a beginning of one
    called         name of the file in the progress, which counts its bytes; "": the destination's
    A file that is there already is checked and kept. Raises DataError, in one line and with the next step, where no address
    gives the file, what arrives is another one, or there is no room; what arrived is kept where that is of use.
    """
    expected = ExpectedFile(size, sha256, sha256_prefix, md5, sha1)
    if os.path.lexists(destination):
        try:
            expected.check(destination)
        except FileMismatch as other:
            raise DataError(f"{other} Move it away, and give the same command again.") from None
        reporter.line(f"{destination.name}: there already{f', {expected.words} as wanted' if expected.words else ''}")
        return destination
    if not urls:
        raise ValueError("no address is given")
    failures: list[tuple[str, str]] = []
    silent: set[str] = set()
    with PartialFile(destination) as part:
        try:
            for url in urls:
                host = urlsplit(url).netloc if url.startswith("http") else ""
                if host and host in silent:
                    failures.append((url, "not asked, because its host did not answer"))
                    continue  # it would be waited for as long
                try:
                    _fetch_checked(url, part, expected, reporter, called or destination.name)
                    part.finish()
                    return destination
                except (DownloadRefused, FileMismatch, ConnectionLost) as failure:
                    failures.append((url, str(failure)))
                    if isinstance(failure, ConnectionLost):
                        silent.add(host)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise write_error(destination, error) from None
            kept = part.bytes_kept()
            again = f"{format_bytes(kept)} are kept: make room, and the same command goes on" if kept else "Make room"
            raise DataError(f"{destination}: the disk is full. {again}, or choose a folder on another disk.") from None
        except KeyboardInterrupt:
            if kept := part.bytes_kept():
                reporter.line(f"{destination.name}: {format_bytes(kept)} are kept; the same command goes on from there")
            raise
        kept = part.bytes_kept()
    reasons = [f"{printable_url(url)}: {reason.rstrip('.')}." for url, reason in failures]
    goes_on = f"{format_bytes(kept)} are kept, and the same command goes on from there" if kept else "Nothing is kept"
    if len(reasons) == 1:
        raise DataError(f"{reasons[0]} {goes_on}; --from names another place.")
    raise DataError(
        f"{destination.name}: no address gives it. {goes_on}; --from names another place.\n  " + "\n  ".join(reasons)
    )


def local_path(url: str) -> Path | None:
    """The file that an address names on this machine; None for one on the network. Raises Refused for other kinds."""
    if "://" not in url:
        return Path(url).expanduser()
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise DownloadRefused(f"this is no address ({error})") from None
    if scheme in ("http", "https"):
        return None
    if scheme == "file":
        return Path(url2pathname(urlsplit(url).path))
    raise DownloadRefused(f"addresses begin with http://, https:// or file://, not with {escape_line(scheme)[:20]}://")


def _fetch_checked(url: str, part: PartialFile, expected: ExpectedFile, reporter: Reporter, called: str) -> None:
    """As `_fetch`, and compared; once more where bytes of several addresses or days may have been mixed."""
    for again in (True, False):
        resumed = part.bytes_kept()
        _fetch(url, part, expected, reporter, called)
        if expected.has_digest and part.path.stat().st_size > LARGE:
            reporter.line(f"{part.destination.name}: all of it is here; comparing {expected.words}")
        try:
            expected.check(part.path)
            return
        except FileMismatch as other:
            part.drop()
            reason = str(other).removeprefix(f"{part.path}: ")
            if not (resumed and again):
                raise FileMismatch(reason) from None
            reporter.line(f"{part.destination.name}: {reason} What had arrived is dropped; from the beginning again")


def _fetch(url: str, part: PartialFile, expected: ExpectedFile, reporter: Reporter, called: str) -> None:
    """All bytes of the file into `part`. Raises Refused, Cut, Mismatch, OSError, DataError."""
    path = local_path(url)
    if path is not None:
        _copy(path, part, expected, reporter, called)
        return

    def probe() -> RemoteVersion | None:
        """What the server has, where it gives ranges of it."""
        with get(url, 0, 0) as answer:
            return RemoteVersion(url, answer.size, answer.validator) if answer.is_range and answer.size else None

    for _ in range(2):
        try:
            version = with_retries(probe, threading.Event(), reporter, first=True)
            if version is None or not (version.validator or expected.has_digest):  # two versions could be mixed
                _stream(url, part, expected, reporter, called)
            else:
                _resume(version, part, expected, reporter, called)
            return
        except RemoteFileChanged:
            part.drop()
            reporter.line(
                f"{part.destination.name}: {printable_url(url)} has another version of it now; from the beginning again"
            )
    raise DownloadRefused("the file there changes while it is read")


def _copy(path: Path, part: PartialFile, expected: ExpectedFile, reporter: Reporter, called: str) -> None:
    try:
        descriptor, size = open_plain_sized(path)
    except OSError as error:
        raise DownloadRefused(f"cannot be read ({error.strerror or error})") from None
    part.drop()
    with open(descriptor, "rb", buffering=0) as source, open(part.writer(), "wb") as target:
        _refuse_size(size, expected)
        require_free_space(part.destination.parent, size, part.destination.name)
        done, buffer = 0, memoryview(bytearray(1 << 20))
        while count := source.readinto(buffer):
            target.write(buffer[:count])
            done += count
            reporter.progress(called, done, size)


def _stream(url: str, part: PartialFile, expected: ExpectedFile, reporter: Reporter, called: str) -> None:
    """One connection, from the beginning at each attempt: this server gives no ranges."""

    def attempt() -> None:
        part.drop()
        with get(url) as answer, open(part.writer(), "wb") as target:
            size = answer.size if answer.size is not None else expected.size
            if answer.size is not None:
                _refuse_size(answer.size, expected)
            elif not answer.is_framed and expected.size is None and not expected.has_digest:
                raise DownloadRefused("the server does not say how long the file is, so a cut would not be noticed")
            require_free_space(part.destination.parent, size or 0, part.destination.name)
            done = 0
            while data := answer.read(SLICE):
                target.write(data)
                done += len(data)
                if size is not None and done > size:
                    raise DownloadRefused(f"the server sends more than the {size:,} bytes of the file")
                if size is None and done > MAX_UNPUBLISHED:
                    _refuse_size(done, expected)
                reporter.progress(called, done, size or 0)
            if size is not None and done < size:
                raise ConnectionLost(f"the connection was cut after {done:,} of {size:,} bytes")

    why = "the server gives no ranges, or no mark of the version"
    reporter.line(f"{part.destination.name}: from {printable_url(url)}, in one stream ({why})")
    with_retries(attempt, threading.Event(), reporter)


def _resume(version: RemoteVersion, part: PartialFile, expected: ExpectedFile, reporter: Reporter, called: str) -> None:
    """What is missing, by ranges over several connections."""
    _refuse_size(version.size, expected)
    there = part.begin(version, same_content=expected.has_digest)
    name, done = part.destination.name, part.bytes_kept()
    require_free_space(part.destination.parent, version.size - done, f"the rest of {name}" if done else name)
    before = f", {format_bytes(done)} of it from before" if done else ""
    reporter.line(f"{name}: {format_bytes(version.size)} from {printable_url(version.url)}{before}")
    reporter.progress(called, done, version.size)

    def came(count: int) -> None:
        nonlocal done
        done += count
        reporter.progress(called, done, version.size)

    missing = [block for block in range(-(-version.size // BLOCK)) if block not in there]
    if cuts := fetch_ranges(version, part, missing, came):
        reporter.line(f"{name}: connections were cut {cuts:,} times on the way")


def _refuse_size(result: int, expected: ExpectedFile) -> None:
    if expected.size is not None and result != expected.size:
        raise DownloadRefused(f"it has {result:,} bytes there, {expected.size:,} are wanted")
    if expected.size is None and result > MAX_UNPUBLISHED:
        most = format_bytes(MAX_UNPUBLISHED)
        raise DownloadRefused(f"it has more than the {most} that are taken of a file whose size nobody published")
