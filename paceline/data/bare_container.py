"""A container, or an address, that is named where a prepared data set's folder belongs: what to do with it first."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from paceline.data.stores import scheme_of

# A file's suffix -> the kind of `paceline prepare` that reads such files.
KINDS = {".tar": "tar", ".zip": "zip", ".rec": "recordio", ".tfrecord": "tfrecord"}


def prepare_first(place: str) -> str:
    """What is said of such a place, with the command that indexes it; '' of every other one."""
    kind = KINDS.get(os.path.splitext(place)[1].lower(), "")
    if not scheme_of(place) and not (kind and Path(place).expanduser().is_file()):
        return ""
    files = place if kind or not scheme_of(place) else f"{place.rstrip('/')}/*.tar"
    what = "an address" if scheme_of(place) else "a file"
    return (
        f"{what}, not a prepared data set. Index it first (its bytes stay there), and name DIR:  "
        f"paceline prepare {kind or 'tar'} --train {shlex.quote(files)} --val FILE --out DIR"
    )
