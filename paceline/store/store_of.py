"""Which store reads a file: this machine's for a path, obstore's for a URL, which is loaded where one is met."""

from __future__ import annotations

import os

from paceline.config.errors import DataError
from paceline.store.stores import LocalFiles, Store, scheme_of

REMOTE = ("s3", "gs", "az", "http", "https")  # schemes of URLs


def store_of(name: bytes | str) -> Store:
    """A store that reads this file and others with its scheme. Raises DataError where there is none."""
    scheme = scheme_of(name)
    if not scheme:
        return LocalFiles()
    if scheme not in REMOTE:
        known = ", ".join(f"{known}://" for known in REMOTE)
        raise DataError(f"{os.fsdecode(name)}: nothing here reads {scheme}:// (known: paths, {known}).")
    from paceline.store.object_store import ObjectStore

    return ObjectStore()
