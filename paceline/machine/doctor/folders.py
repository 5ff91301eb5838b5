"""Whether a run could write and read where it will: a probe of a megabyte, as large files find a full disk that small ones do not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from paceline.config.printable import short

MIB = 1 << 20
# A checkpoint of a full-size recipe is some 0.3 GB; elsewhere there are small files, indexes and sockets.
LEAST_RUN_MIB, LEAST_MIB = 1024, 100


def folder_troubles(run: Path, written: Iterable[tuple[str, Path]], read: Iterable[tuple[str, Path]]) -> list[str]:
    """What is wrong, a sentence each.

    run      the run's folder
    written  (what it is for, folder) of others that a run writes into
    read     (what it is for, file or folder) of what it only reads
    """
    found = [_full("run", run, LEAST_RUN_MIB), *(_full(what, folder, LEAST_MIB) for what, folder in written)]
    for what, path in read:
        if not path.exists():
            found.append(f"{what} {short(str(path), 200)}: is not there")
        elif not os.access(path, os.R_OK):
            found.append(f"{what} {short(str(path), 200)}: cannot be read")
    return [text for text in found if text]


def _full(what: str, folder: Path, least: int) -> str:
    there = next(path for path in (folder, *folder.parents) if path.exists())  # what is not there yet is made below it
    name = f"{what} folder {short(str(folder), 200)}"
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(bytes(MIB))
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(there).free / MIB
    except OSError as problem:
        return f"{name}: {problem.strerror}"
    return "" if free >= least else f"{name}: {free:.0f} MiB free, at least {least} are wanted"
