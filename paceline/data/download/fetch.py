"""Download one file from the first of its addresses that gives it: in parallel ranges, resumed, checked, whole or not at all.

    fetch(urls, destination, ExpectedFile(size, sha256))
An address is http://, https://, file:// or a path. Under the final name there is nothing, or the expected file.
Until then NAME.part and NAME.part.journal hold what has arrived, and the same call resumes from there after a kill, a cut
or an interrupt. Servers without ranges are read in one stream, from the beginning each time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from paceline._utils.errors import DataError
from paceline._utils.formatting import format_bytes
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.safe_read import open_plain_sized
from paceline._utils.text import escape_line
from paceline._utils.threads import free_bytes
from paceline.data.download.http import ConnectionLost, DownloadRefused, RemoteFileChanged, get, printable_url, with_retries
from paceline.data.download.part import BLOCK, PartialFile, RemoteVersion, fetch_ranges, write_error

# Bytes that are read at a time, from a network and from a disk.
SLICE, CHUNK = 1 << 18, 1 << 20
# Where nobody publishes how long a file is, no more of it is taken: weights of 2 GiB are the largest that are read.
MAX_UNPUBLISHED = 2 << 30
# Files whose comparison takes so long that a line is printed before it.
LARGE = 1 << 30


class FileMismatch(DataError):
    """Another file than the expected one; the message names it and says in what it differs."""


@dataclass(frozen=True)
class ExpectedFile:
    """What is known of a file beforehand; None where it is not. Digests are hexadecimal."""

    size: int | None = None  # bytes
    sha256: str | None = None
    sha256_prefix: str | None = None  # as in the names of torchvision's weights
    md5: str | None = None
    sha1: str | None = None  # of GluonCV's weights

    @property
    def has_digest(self) -> bool:
        """Whether any other content would be noticed."""
        return any(self._digests.values())

    @property
    def words(self) -> str:
        """What is compared, for a line."""
        digest = next((name for name, value in self._digests.items() if value), "")
        digest = f"beginning of {digest}" if digest == "SHA-256" and not self.sha256 else digest
        return " and ".join(word for word in ("size" if self.size is not None else "", digest) if word)

    @property
    def _digests(self) -> dict[str, str | None]:
        return {"SHA-256": self.sha256 or self.sha256_prefix, "MD5": self.md5, "SHA-1": self.sha1}

    def check(self, path: Path, *, progress: Callable[[int], None] = lambda done: None) -> None:
        """Read the file once. Raises Mismatch where it differs, DataError where it cannot be read.

        progress  called with the bytes read so far
        """
        if self.sha256 and self.sha256_prefix and not self.sha256.lower().startswith(self.sha256_prefix.lower()):
            raise ValueError("sha256 and sha256_prefix contradict each other")
        try:
            descriptor, result = open_plain_sized(path)
            with open(descriptor, "rb", buffering=0) as file:
                if self.size is not None and result != self.size:
                    raise FileMismatch(f"{path}: has {result:,} bytes; expected {self.size:,}.")
                wanted = {name: value.lower() for name, value in self._digests.items() if value}
                digests = {name: hashlib.new(name.replace("-", ""), usedforsecurity=False) for name in wanted}
                done, buffer = 0, memoryview(bytearray(CHUNK))
                while digests and (count := file.readinto(buffer)):
                    for digest in digests.values():
                        digest.update(buffer[:count])
                    done += count
                    progress(done)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
        for name, digest in digests.items():
            if not (got := digest.hexdigest()).startswith(want := wanted[name]):
                raise FileMismatch(f"{path}: its {name} is {got[: len(want)]}; expected {want}.")


def fetch(
    urls: Sequence[str],
    destination: Path,
    expected: ExpectedFile = ExpectedFile(),
    *,
    reporter: Reporter = SILENT,
    called: str = "",
) -> Path:
    """Download the file to `destination`, and return it.

    urls           addresses of the same file, tried in this order
    called         name of the file in the progress, which counts its bytes; "": the destination's
    A file that is there already is checked and kept. Raises DataError, in one line and with the next step, where no address
    gives the file, what arrives is another one, or there is no room; what arrived is kept where that is of use.
    """
    if os.path.lexists(destination):
        try:
            expected.check(destination)
        except FileMismatch as other:
            raise DataError(f"{other} Move the file away, and run the same command again.") from None
        reporter.line(f"{destination.name}: already exists{f' ({expected.words} verified)' if expected.words else ''}")
        return destination
    if not urls:
        raise ValueError("no URL is given")
    failures: list[tuple[str, str]] = []
    silent: set[str] = set()
    with PartialFile(destination) as part:
        try:
            for url in urls:
                host = urlsplit(url).netloc if url.startswith("http") else ""
                if host and host in silent:
                    failures.append((url, "not tried, because its host did not respond"))
                    continue  # it would be waited for as long
                try:
                    _Transfer(part, expected, reporter, called or destination.name).fetch_checked(url)
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
            again = (
                f"{format_bytes(kept)} are kept, so free some space and run the same command again to resume"
                if kept
                else "Free some space"
            )
            raise DataError(f"{destination}: the disk is full. {again}, or choose a folder on another disk.") from None
        except KeyboardInterrupt:
            if kept := part.bytes_kept():
                reporter.line(f"{destination.name}: {format_bytes(kept)} are kept; run the same command again to resume")
            raise
        kept = part.bytes_kept()
    reasons = [f"{printable_url(url)}: {reason.rstrip('.')}." for url, reason in failures]
    goes_on = f"{format_bytes(kept)} are kept; run the same command again to resume" if kept else "Nothing is kept"
    if len(reasons) == 1:
        raise DataError(f"{reasons[0]} {goes_on}. To use another location, set --source.")
    raise DataError(
        f"{destination.name}: no URL provides the file. {goes_on}. To use another location, set --source.\n  "
        + "\n  ".join(reasons)
    )


def local_path(url: str) -> Path | None:
    """The file that an address names on this machine; None for one on the network. Raises Refused for other kinds."""
    if "://" not in url:
        return Path(url).expanduser()
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise DownloadRefused(f"this is not a valid URL ({error})") from None
    if scheme in ("http", "https"):
        return None
    if scheme == "file":
        return Path(url2pathname(urlsplit(url).path))
    raise DownloadRefused(f"URLs must start with http://, https://, or file://, not {escape_line(scheme)[:20]}://")


@dataclass(frozen=True)
class _Transfer:
    """One file on its way into its part file."""

    part: PartialFile
    expected: ExpectedFile
    reporter: Reporter
    called: str  # its name in the progress

    def fetch_checked(self, url: str) -> None:
        """As `_fetch`, and compared; once more where bytes of several addresses or days may have been mixed."""
        for again in (True, False):
            resumed = self.part.bytes_kept()
            self._fetch(url)
            if self.expected.has_digest and self.part.path.stat().st_size > LARGE:
                self.reporter.line(f"{self.part.destination.name}: download complete; verifying the {self.expected.words}")
            try:
                self.expected.check(self.part.path)
                return
            except FileMismatch as other:
                self.part.drop()
                reason = str(other).removeprefix(f"{self.part.path}: ")
                if not (resumed and again):
                    raise FileMismatch(reason) from None
                self.reporter.line(f"{self.part.destination.name}: {reason} Restarting the download")

    def _fetch(self, url: str) -> None:
        """All bytes of the file into `part`. Raises Refused, Cut, Mismatch, OSError, DataError."""
        path = local_path(url)
        if path is not None:
            self._copy(path)
            return

        def probe() -> RemoteVersion | None:
            """What the server has, where it gives ranges of it."""
            with get(url, 0, 0) as answer:
                return RemoteVersion(url, answer.size, answer.validator) if answer.is_range and answer.size else None

        for _ in range(2):
            try:
                version = with_retries(probe, threading.Event(), self.reporter, first=True)
                if version is None or not (version.validator or self.expected.has_digest):  # two versions could be mixed
                    self._stream(url)
                else:
                    self._resume(version)
                return
            except RemoteFileChanged:
                self.part.drop()
                self.reporter.line(f"{self.part.destination.name}: the file at {printable_url(url)} changed; restarting")
        raise DownloadRefused("the file on the server changes during the download")

    def _copy(self, path: Path) -> None:
        try:
            descriptor, size = open_plain_sized(path)
        except OSError as error:
            raise DownloadRefused(f"cannot be read ({error.strerror or error})") from None
        self.part.drop()
        with open(descriptor, "rb", buffering=0) as source, open(self.part.writer(), "wb") as target:
            self._refuse_size(size)
            require_free_space(self.part.destination.parent, size, self.part.destination.name)
            done, buffer = 0, memoryview(bytearray(CHUNK))
            while count := source.readinto(buffer):
                target.write(buffer[:count])
                done += count
                self.reporter.progress(self.called, done, size)

    def _stream(self, url: str) -> None:
        """One connection, from the beginning at each attempt: this server gives no ranges."""

        def attempt() -> None:
            self.part.drop()
            with get(url) as answer, open(self.part.writer(), "wb") as target:
                size = answer.size if answer.size is not None else self.expected.size
                if answer.size is not None:
                    self._refuse_size(answer.size)
                elif not answer.is_framed and self.expected.size is None and not self.expected.has_digest:
                    raise DownloadRefused("the server does not report the file size, so truncation would not be detected")
                require_free_space(self.part.destination.parent, size or 0, self.part.destination.name)
                done = 0
                while data := answer.read(SLICE):
                    target.write(data)
                    done += len(data)
                    if size is not None and done > size:
                        raise DownloadRefused(f"the server sends more than {size:,} bytes, the size of the file")
                    if size is None and done > MAX_UNPUBLISHED:
                        self._refuse_size(done)
                    self.reporter.progress(self.called, done, size or 0)
                if size is not None and done < size:
                    raise ConnectionLost(f"the connection was lost after {done:,} of {size:,} bytes")

        why = "the server does not support ranges, or does not identify the file version"
        self.reporter.line(f"{self.part.destination.name}: downloading from {printable_url(url)} in one stream ({why})")
        with_retries(attempt, threading.Event(), self.reporter)

    def _resume(self, version: RemoteVersion) -> None:
        """What is missing, by ranges over several connections."""
        self._refuse_size(version.size)
        there = self.part.begin(version, same_content=self.expected.has_digest)
        name, done = self.part.destination.name, self.part.bytes_kept()
        require_free_space(self.part.destination.parent, version.size - done, f"the rest of {name}" if done else name)
        before = f", {format_bytes(done)} already downloaded" if done else ""
        self.reporter.line(f"{name}: downloading {format_bytes(version.size)} from {printable_url(version.url)}{before}")
        self.reporter.progress(self.called, done, version.size)

        def came(count: int) -> None:
            nonlocal done
            done += count
            self.reporter.progress(self.called, done, version.size)

        missing = [block for block in range(-(-version.size // BLOCK)) if block not in there]
        if cuts := fetch_ranges(version, self.part, missing, came):
            self.reporter.line(f"{name}: the download was resumed after {cuts:,} lost connections")

    def _refuse_size(self, result: int) -> None:
        if self.expected.size is not None and result != self.expected.size:
            raise DownloadRefused(f"the source has {result:,} bytes; expected {self.expected.size:,}")
        if self.expected.size is None and result > MAX_UNPUBLISHED:
            most = format_bytes(MAX_UNPUBLISHED)
            raise DownloadRefused(f"the file is larger than {most}, the limit for files without a published size")


def require_free_space(folder: Path, needed: int, what: str) -> None:
    """Raises DataError where fewer than `needed` bytes are free in the file system of `folder`."""
    free = free_bytes(folder)
    if needed > free:
        raise DataError(
            f"{folder}: {what} requires {format_bytes(needed)}, but only {format_bytes(free)} are free. Free some space, "
            "or choose a folder on another disk."
        )
