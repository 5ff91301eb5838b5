"""check.html beside a manifest: prepare writes it last, and prints its notices in the terminal too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline._utils.atomic_write import replaceable, sweep, write_whole
from paceline._utils.errors import DataError
from paceline.data.checks.notices import shown_splits
from paceline.data.checks.suspicious_boxes import mask_notices
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest
from paceline.tools.report.check.box_page import box_page
from paceline.tools.report.check.class_page import class_page
from paceline.tools.report.check.parts import NOT_LINTED, Linted, Page

FILE_NAME = "check.html"


def check_page(manifest: Manifest, splits: Mapping[str, Index], linted: Linted = NOT_LINTED) -> Page:
    """The page of a data set; splits: as `shown_splits`; linted: what stands first."""
    if manifest.kind == "boxes":
        return box_page(manifest.called, manifest.classes, splits, mask_notices(manifest), linted)
    return class_page(manifest.called, manifest.class_names or manifest.classes, splits, linted)


def write_check_page(manifest: Manifest) -> tuple[Path | None, Page]:
    """Write FOLDER/check.html beside the manifest -> its path, None where another file is in its place, and its content.

    Raises DataError where the index is damaged, or the page cannot be written.
    """
    page = check_page(manifest, shown_splits(manifest))
    path = manifest.folder / FILE_NAME
    if not replaceable(path):
        return None, page
    try:
        sweep(path.parent, {path.name})
        write_whole(path, page.html.encode("utf-8", "replace"))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}). Make the folder writable.") from error
    return path, page
