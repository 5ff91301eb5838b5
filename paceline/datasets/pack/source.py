"""What is packed: a prepared data set as it is, or a folder that is prepared first, as training would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.config.errors import DataError, UserError
from paceline.datasets.ensure import ensure_prepared, name_addresses
from paceline.datasets.formats.layouts import detect_layout
from paceline.store.bare_container import prepare_first
from paceline.store.freshness import check_fresh
from paceline.store.manifest import Kind, Manifest, manifest_places, prepare_again


def prepared_source(folder: str, say: Callable[[str], None]) -> Manifest:
    """The manifest of a data set, fresh.

    folder  a data set's root, or a folder that prepare wrote to; it may have one split alone where it was prepared
    say     takes a line: of hosts that an index names, and when something is prepared
    Raises UserError where there is no such folder, DataError where it cannot be used.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        if first := prepare_first(folder):
            raise UserError(f"{folder}: {first}")
        raise UserError(f"{folder}: there is no such folder. Name a data set, or a folder that prepare wrote to.")
    stale = None
    for path in manifest_places(root):
        manifest = Manifest.load(path)
        name_addresses(manifest, root, say)
        if (why := check_fresh(manifest)) is None:
            return manifest
        stale = stale or DataError(f"{root}: out of date: {why}. Prepare it again:\n  {prepare_again(manifest)}")
    if stale is not None:
        raise stale
    kind: Kind = "class-folder" if detect_layout(root) is None else "boxes"
    return Manifest.load(ensure_prepared(root, kind=kind, say=say))
