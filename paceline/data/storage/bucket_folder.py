"""A folder of a bucket to write to: s3://BUCKET/PREFIX, gs://, az://CONTAINER/PREFIX, and file:///PATH for a mounted disk.

An object appears whole or not at all: large ones travel in parts, which nobody sees before the last. Requests, credentials and
patience are those of object_store.py.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from paceline._utils.commands import install_command
from paceline._utils.errors import PacelineError
from paceline.data.storage.credentials import explain_store_error, open_bucket, patience_seconds
from paceline.data.storage.object_store import open_store
from paceline.data.storage.store import get_scheme

# Parts of one object under way at once, of 5 MiB each: what is in flight is memory of a process that trains.
PARTS = 4


class BucketFolder:
    """The objects below one URL, by their names from there. Every method raises OSError, whose strerror has the reason.

    url   as above; without a slash at its end
    Raises PacelineError where obstore is not installed, OSError where credentials or settings are missing.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
        except ImportError:
            raise PacelineError(f"Writing to buckets needs obstore:  {install_command('remote')}") from None
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
