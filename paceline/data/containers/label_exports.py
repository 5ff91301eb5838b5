"""What to do first with an archive or address that cannot be used as it is: a labeling tool's export with boxes, or a container
that is named where a prepared data set's folder belongs."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from paceline._utils.errors import DataError
from paceline._utils.names import in_system_folder, is_image_name
from paceline.data.containers.split_files import ARCHIVES
from paceline.data.containers.zip import zip_members
from paceline.data.storage.store import get_scheme

# A file's suffix -> the kind of `paceline prepare` that reads such files.
KINDS = {**{f".{kind}": kind for kind in ARCHIVES}, ".tgz": "tar", ".rec": "recordio", ".tfrecord": "tfrecord"}


class Export(NamedTuple):
    """What an archive holds beside photos."""

    layout: str  # the kind of `paceline prepare` that reads it unpacked
    found: str  # the member by which it is known
    root: str  # folder in the archive that is the data set's; "" for all of it


def container_kind(name: str) -> str:
    """Return the kind of `paceline prepare` that reads files of this name, compressed as a whole or not; "" for other names."""
    stem, suffix = os.path.splitext(re.sub(r"\.(gz|bz2|xz|zst)$", "", name.lower()))
    return KINDS.get(suffix, "tfrecord" if re.search(r"-\d{5}-of-\d{5}$", stem) else "")


def find_export(names: Iterable[str]) -> Export | None:
    """The export whose members have these names; None where they are no boxes that a folder could be prepared with."""
    bases = {name: posixpath.basename(name) for name in sorted(names) if not (name.endswith("/") or in_system_folder(name))}
    for name, base in bases.items():
        if base == "_annotations.coco.json" or (base.startswith("instances_") and base.endswith(".json")):
            return Export("coco", name, posixpath.dirname(posixpath.dirname(name)))
    stems = {posixpath.splitext(base)[0] for base in bases.values() if is_image_name(os.fsencode(base))}

    def beside_photos(suffix: str) -> str:
        return next((n for n, b in bases.items() if b.endswith(suffix) and posixpath.splitext(b)[0] in stems), "")

    yaml = next((name for name, base in bases.items() if base in ("data.yaml", "data.yml")), "")
    if yaml and beside_photos(".txt"):
        return Export("yolo", yaml, posixpath.dirname(yaml))
    if name := beside_photos(".xml"):
        folder = posixpath.dirname(name)
        above = posixpath.basename(folder) in ("Annotations", "train", "valid", "val", "test")
        return Export("voc", name, posixpath.dirname(folder) if above else folder)
    return None


def unpack_first(archive: str, export: Export) -> str:
    """The message for such an archive, with the commands that unpack and prepare it."""
    folder = os.path.splitext(archive)[0]
    module = "zipfile" if archive.lower().endswith(".zip") else "tarfile"
    root = os.path.join(folder, export.root) if export.root else folder
    archive, folder, root = map(shlex.quote, (archive, folder, root))
    return (
        f"images with boxes ({export.found}) are supported only in folders. Unpack and prepare the folder:\n  python3 "
        f"-m {module} -e {archive} {folder} && paceline prepare {export.layout} --data {root}"
    )


def prepare_first(location: str, *, scored: bool = False) -> str:
    """The message for a container or an address in place of a data set's folder, with the command that indexes it; '' for others.

    scored  whether it was to be scored on alone, and so has no photos to train on
    """
    kind, is_address = container_kind(location), bool(get_scheme(location))
    if not is_address and not (kind and Path(location).expanduser().is_file()):
        return ""
    if kind == "zip" and not is_address:
        try:
            with Path(location).expanduser().open("rb") as file:
                members = zip_members(file, os.fstat(file.fileno()).st_size, location)
                export = find_export(os.fsdecode(member.name) for member in members)
        except (OSError, DataError):  # the command that indexes it names what is wrong with it
            export = None
        if export is not None:
            return unpack_first(location, export)
    files = location if kind or not is_address else f"{location.rstrip('/')}/*.tar"
    flags = f"--val {shlex.quote(files)}" if scored else f"--train {shlex.quote(files)} --val FILE"
    return (
        f"expected a prepared dataset, got {'a URL' if is_address else 'a file'}. Index it first (the data is "
        f"not copied), and pass DIR:  paceline prepare {kind or 'tar'} {flags} --output-dir DIR"
    )
