"""Files in buckets and on web servers, by range of bytes: s3://BUCKET/KEY, gs://, az://CONTAINER/KEY, http(s)://HOST/PATH.

A bucket's key is taken as it is; the path of an http URL is what a browser takes, with %20 for a space.
Requests are obstore's, which signs them, keeps connections and tries again: refused, reset, cut and late connections, 5xx and 429,
with growing pauses; a body that broke off goes on from where it stopped (tests/data/test_object_store.py holds it to that).
What is wrong for good (403, 404) fails at once.
A folder of a bucket may be written to: an object appears whole or not at all; large ones travel in parts, which nobody sees before the
last.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from paceline._utils.commands import install_command
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.names import is_system_name
from paceline._utils.threads import BackgroundThreads
from paceline.data.storage.credentials import explain_store_error, open_bucket, patience_seconds
from paceline.data.storage.store import ByteRange, ByteStore, FileStatus, LocalFiles, RangeError, StoreError, get_scheme

REMOTE = ("s3", "gs", "az", "http", "https")  # schemes of URLs
# Requests under way at once, of all threads that ask one store.
MAX_REQUESTS = 256
_WILD = "*?["
# Of a stream: long enough that a request's delay is nothing beside its bytes.
BLOCK_BYTES = 4 << 20
# Requests of one stream that are under way at once. A single one rarely fills a line.
BLOCKS_AHEAD = 3
# The process of the first request: obstore's threads are gone in a forked one, and a request there would hang.
_FIRST_PROCESS = 0


class ObjectStore(ByteStore):
    """Files of any number of buckets and servers. A file that changed since it was first looked at is an error."""

    is_remote = True
    # One thread that asks for so many has them under way at once; a batch of a few hundred is some chunks of this.
    at_once = 16

    def __init__(self) -> None:
        try:
            import obstore
        except ImportError:
            raise DataError(f"Buckets and web servers require obstore:  {install_command('remote')}") from None
        self._obstore = obstore
        self._patience = patience_seconds()
        self._lock = threading.Lock()
        self._places: dict[tuple[str, str], Any] = {}
        self._seen: dict[bytes, FileStatus] = {}
        self._threads = BackgroundThreads(MAX_REQUESTS, "store")

    def status(self, name: bytes) -> FileStatus:
        """Requested anew each time; later reads are compared with it."""
        location, key = self._where(name)
        began = time.monotonic()
        try:
            result = _status(name, self._obstore.head(location, key))
        except Exception as error:
            raise explain_store_error(error, name, time.monotonic() - began) from None
        self._seen[name] = result
        return result

    def read(self, wanted: ByteRange) -> bytes:
        """By one request. Raises OSError also where the file changed since it was read before."""
        if wanted.length <= 0:
            return b""
        location, key = self._where(wanted.name)
        began = time.monotonic()
        try:
            answer = self._obstore.get(location, key, options={"range": (wanted.offset, wanted.offset + wanted.length)})
            result = _status(wanted.name, answer.meta)
            data = bytes(answer.bytes())
        except Exception as error:
            if "416 Range Not Satisfiable" in str(error):  # all of it lies behind the end
                before = self._seen.get(wanted.name)
                if before is None or wanted.offset >= before.size:
                    return b""
                raise _changed(wanted.name, before, "shorter") from None
            raise explain_store_error(error, wanted.name, time.monotonic() - began) from None
        before = self._seen.setdefault(wanted.name, result)
        if (before.size, before.tag) != (result.size, result.tag):
            raise _changed(wanted.name, before, f"{result.size:,}")
        there = max(0, min(wanted.length, result.size - wanted.offset))
        if len(data) != there:
            raise OSError(errno.EIO, f"the server sent {len(data):,} bytes instead of {there:,}", wanted.name)
        return data

    def read_many(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        """All at once, each by a request of its own: photos in random order have no neighbors to be read together."""
        if len(wanted) == 1:
            return [self.read(wanted[0])]
        results: list[bytes] = []
        under_way = [self._threads.submit(self.read, one) for one in wanted]
        try:
            for number, one in enumerate(under_way):
                try:
                    results.append(one.result())
                except OSError as error:
                    raise RangeError(error, number) from None
        finally:
            for one in under_way:
                one.cancel()
        return results

    def open(self, name: bytes) -> BinaryIO:
        """Read in blocks of some MiB, of which the next ones are under way."""
        return io.BufferedReader(_Blocks(self, name, self.status(name).size), 1 << 16)

    def find(self, pattern: str) -> list[bytes]:
        """As of local paths: * and ? stop at a slash. Only folders that the pattern leads to are listed."""
        is_web = get_scheme(pattern) in ("http", "https")
        if is_web and any(sign in pattern for sign in "*["):
            text = "a web server does not list its files. Pass each file, or number them {000..009}"
            raise OSError(errno.EINVAL, text, pattern)
        if is_web or not any(sign in pattern for sign in _WILD):
            try:
                self.status(os.fsencode(pattern))
            except FileNotFoundError:
                return []
            return [os.fsencode(pattern)]
        location, key = self._where(os.fsencode(pattern))
        head = pattern[: len(pattern) - len(key)]
        *folders, last = key.split("/")
        began = time.monotonic()
        try:
            within = [""]
            for folder in folders:
                within = [below for prefix in within for below in self._below(location, prefix, folder)]
            results = [
                entry["path"]
                for prefix in within
                for entry in self._obstore.list_with_delimiter(location, prefix or None)["objects"]
                if _matches(entry["path"], prefix, last)
            ]
        except Exception as error:
            raise explain_store_error(error, os.fsencode(pattern), time.monotonic() - began) from None
        return sorted(os.fsencode(head + path) for path in results)

    def _below(self, location: Any, prefix: str, folder: str) -> list[str]:
        """Folders of one level that a part of a pattern matches."""
        if not any(sign in folder for sign in _WILD):
            return [f"{prefix}/{folder}" if prefix else folder]
        listed = self._obstore.list_with_delimiter(location, prefix or None)["common_prefixes"]
        return [below.rstrip("/") for below in listed if _matches(below.rstrip("/"), prefix, folder)]

    def _where(self, name: bytes) -> tuple[Any, str]:
        """obstore's store of a file, and its key there."""
        global _FIRST_PROCESS
        if os.getpid() != _FIRST_PROCESS:
            if _FIRST_PROCESS:
                raise StoreError(
                    errno.ENOTSUP, "buckets cannot be read in a process that was forked after a bucket was read"
                )
            _FIRST_PROCESS = os.getpid()
        scheme, host, key = _parts(os.fsdecode(name))
        with self._lock:
            location = self._places.get((scheme, host))
            if location is None:
                location = self._places[scheme, host] = open_bucket(scheme, host, self._patience)
        return location, key


def open_store(name: bytes | str) -> ByteStore:
    """A store that reads this file and others with its scheme. Raises DataError where there is none."""
    scheme = get_scheme(name)
    if not scheme:
        return LocalFiles()
    if scheme not in REMOTE:
        known = ", ".join(f"{known}://" for known in REMOTE)
        raise DataError(f"{os.fsdecode(name)}: {scheme}:// is not supported. Supported are paths and {known}.")
    return ObjectStore()


def _parts(name: str) -> tuple[str, str, str]:
    """'s3', 'bucket', 'a/b.tar' of a URL. Raises OSError where it names no file."""
    scheme, _, rest = name.partition("://")
    scheme = scheme.lower()
    host, _, key = rest.partition("/")
    if scheme in ("http", "https"):
        url = urlsplit(name)
        if url.query or url.fragment or "@" in url.netloc:
            raise OSError(
                errno.EINVAL, "only plain URLs are supported, without query (?), fragment (#), or password (@)", name
            )
        host, key = url.netloc, unquote(url.path).removeprefix("/")
    if not host or not key or key.endswith("/"):
        raise OSError(errno.EINVAL, "this URL has no file name", name)
    return scheme, host, key


def _status(name: bytes, meta: Any) -> FileStatus:
    """Web servers that share a load may each have an ETag of their own: there time counts, where they have it."""
    modified: datetime = meta["last_modified"]
    mtime = max(0, int(modified.timestamp())) * 10**9
    tag = meta["e_tag"] or ""
    if mtime and name[:4].lower() == b"http":
        tag = str(mtime)
    return FileStatus(meta["size"], mtime, tag)


def _changed(name: bytes, before: FileStatus, now: str) -> OSError:
    return OSError(errno.ESTALE, f"it changed during use: {before.size:,} bytes before, {now} now", name)


def _matches(path: str, prefix: str, pattern: str) -> bool:
    """Whether a file directly in a folder matches; a hidden name only if the pattern begins with a dot."""
    if prefix and not path.startswith(f"{prefix}/"):
        return False
    own = path[len(prefix) + 1 :] if prefix else path
    return fnmatchcase(own, pattern) and (not is_system_name(own) or pattern.startswith(".") or pattern == own)


class _Blocks(io.RawIOBase):
    """A file of `size` bytes in blocks: the one in use and those fetched ahead. Nothing is fetched ahead before a second block follows
    a first one: whoever reads a header, or a table at the end, pays for one block."""

    def __init__(self, store: ByteStore, name: bytes, size: int) -> None:
        self._store, self._name, self._size = store, name, size
        self._at = 0
        self._last = -1
        self._coming: dict[int, Future[bytes]] = {}
        self._threads = BackgroundThreads(1 + BLOCKS_AHEAD, "read-ahead")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, into: Any, /) -> int:
        """At most to the end of the block. Raises OSError as `ByteStore.read`, and where the file ends too early."""
        number, first = divmod(self._at, BLOCK_BYTES)
        if self._at >= self._size:
            return 0
        data = memoryview(self._block(number))[first : first + len(into)]
        into[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            for block in self._coming.values():
                block.cancel()
            self._coming.clear()
            self._threads.close()
        super().close()

    def _block(self, number: int) -> bytes:
        ahead = BLOCKS_AHEAD if number in (self._last, self._last + 1) and number else 0
        last = (self._size - 1) // BLOCK_BYTES
        wanted = range(number, min(number + ahead, last) + 1)
        for gone in [old for old in self._coming if old not in wanted]:
            self._coming.pop(gone).cancel()
        for block in wanted:
            if block not in self._coming:
                self._coming[block] = self._threads.submit(self._fetch, block)
        self._last = number
        return self._coming[number].result()

    def _fetch(self, block: int) -> bytes:
        start = block * BLOCK_BYTES
        length = min(BLOCK_BYTES, self._size - start)
        data = self._store.read(ByteRange(self._name, start, length))
        if len(data) != length:
            raise OSError(errno.EIO, f"it ends after {start + len(data):,} bytes instead of {self._size:,}", self._name)
        return data


# Parts of one object under way at once, of 5 MiB each: what is in flight is memory of a process that trains.
PARTS = 4


class BucketFolder:
    """The objects below one URL, by their names from there. Every method raises OSError, whose strerror has the reason.

    url   s3://BUCKET/PREFIX, gs://, az://CONTAINER/PREFIX, or file:///PATH for a mounted disk; without a slash at its end
    Raises PacelineError where obstore is not installed, OSError where credentials or settings are missing.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
        except ImportError:
            raise PacelineError(f"Writing to buckets requires obstore:  {install_command('remote')}") from None
        self.url = url.rstrip("/")
        self._obstore = obstore
        scheme, rest = get_scheme(self.url), self.url.partition("://")[2]
        location, _, self._prefix = rest.partition("/")
        self._place: Any
        if scheme == "file":
            from obstore.store import LocalStore

            self._root, self._place = f"/{self._prefix}", LocalStore("/")
        else:
            self._root, self._place = self.url, open_bucket(scheme, location, patience_seconds())
        self._store = open_store(self._root)

    def names(self) -> list[str]:
        """Names of all objects, sorted."""
        with self._explained_errors(""):
            results = [entry["path"] for some in self._obstore.list(self._place, prefix=self._prefix) for entry in some]
        return sorted(name.removeprefix(f"{self._prefix}/") for name in results)

    def read(self, name: str) -> bytes | None:
        """A small object; None where there is none."""
        try:
            with self._explained_errors(name):
                return bytes(self._obstore.get(self._place, self._key(name)).bytes())
        except FileNotFoundError as problem:
            if "bucket" in (problem.strerror or ""):
                raise
            return None

    def download(self, name: str, path: Path) -> None:
        """Copy an object of any size into a new file."""
        with self._store.open(os.fsencode(f"{self._root}/{name}")) as source, open(path, "xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())

    def write(self, name: str, content: bytes | BinaryIO, *, new: bool = False) -> bool:
        """Make an object, or another in its place; new: only where there is none -> False where there is one."""
        mode = "create" if new else "overwrite"
        with self._explained_errors(name, "write"):
            try:
                self._obstore.put(self._place, self._key(name), content, mode=mode, max_concurrency=PARTS)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, one after the other; it is no error where one is gone already."""
        for name in names:
            with suppress(FileNotFoundError), self._explained_errors(name, "delete"):
                self._obstore.delete(self._place, self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    @contextmanager
    def _explained_errors(self, name: str, does: str = "read") -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except PermissionError as problem:  # of a mounted disk
            raise OSError(errno.EACCES, "no permission", f"{self.url}/{name}") from problem
        except Exception as problem:  # obstore has its own kinds, which begin at Exception
            raise explain_store_error(
                problem, os.fsencode(f"{self.url}/{name}"), time.monotonic() - began, does=does
            ) from None
