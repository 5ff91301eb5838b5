"""A container, or an address, that is named where a prepared data set's folder belongs: what to do with it first."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from paceline.config.errors import DataError
from paceline.store.containers.exports import Export, find_export, unpack_first
from paceline.store.containers.zip import zip_members
from paceline.store.stores import scheme_of

# A file's suffix -> the kind of `paceline prepare` that reads such files.
KINDS = {".tar": "tar", ".zip": "zip", ".rec": "recordio", ".tfrecord": "tfrecord"}


def prepare_first(place: str, *, scored: bool = False) -> str:
    """What is said of such a place, with the command that indexes it; '' of every other one.

    scored  whether it was to be scored on alone, and so has no photos to train on
    """
    kind = KINDS.get(os.path.splitext(place)[1].lower(), "")
    if not scheme_of(place) and not (kind and Path(place).expanduser().is_file()):
        return ""
    if kind == "zip" and not scheme_of(place) and (export := _export_in(place)) is not None:
        return unpack_first(place, export)
    files = place if kind or not scheme_of(place) else f"{place.rstrip('/')}/*.tar"
    what = "an address" if scheme_of(place) else "a file"
    flags = f"--val {shlex.quote(files)}" if scored else f"--train {shlex.quote(files)} --val FILE"
    return (
        f"{what}, not a prepared data set. Index it first (its bytes stay there), and name DIR:  "
        f"paceline prepare {kind or 'tar'} {flags} --out DIR"
    )


def _export_in(place: str) -> Export | None:
    """What a zip holds, where its directory can be read; the command that indexes it says what is wrong with it otherwise."""
    try:
        with Path(place).expanduser().open("rb") as file:
            members = zip_members(file, os.fstat(file.fileno()).st_size, place)
            return find_export(os.fsdecode(member.name) for member in members)
    except (OSError, DataError):
        return None
