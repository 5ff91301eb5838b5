"""check.html beside a manifest: prepare writes it last, and prints its notices in the terminal too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline._utils.atomic_write import atomic_write, is_replaceable, remove_stale_parts
from paceline._utils.errors import DataError
from paceline.data.checks.suspicious_boxes import mask_notices, open_displayed_splits
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest
from paceline.tools.report.check.box_page import make_box_page
from paceline.tools.report.check.class_page import make_class_page
from paceline.tools.report.check.page_parts import NOT_LINTED, CheckPage, LintSummary

FILE_NAME = "check.html"


def make_check_page(manifest: Manifest, splits: Mapping[str, Index], linted: LintSummary = NOT_LINTED) -> CheckPage:
    """The page of a data set; splits: as `open_displayed_splits`; linted: what stands first."""
    if manifest.kind == "boxes":
        return make_box_page(manifest.called, manifest.classes, splits, mask_notices(manifest), linted)
    return make_class_page(manifest.called, manifest.class_names or manifest.classes, splits, linted)


def write_check_page(manifest: Manifest) -> tuple[Path | None, CheckPage]:
    """Write FOLDER/check.html beside the manifest -> its path, None where another file is in its place, and its content.

    Raises DataError where the index is damaged, or the page cannot be written.
    """
    page = make_check_page(manifest, open_displayed_splits(manifest))
    path = manifest.folder / FILE_NAME
    if not is_replaceable(path):
        return None, page
    try:
        remove_stale_parts(path.parent, {path.name})
        atomic_write(path, page.html.encode("utf-8", "replace"))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}). Make the folder writable.") from error
    return path, page
