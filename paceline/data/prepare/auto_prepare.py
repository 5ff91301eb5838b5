"""Find the manifest that matches a data set's files where prepare may have written it, or prepare the data set now."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from paceline._utils.errors import DataError
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import escape_line, format_count
from paceline.data.formats.class_folders import TRAIN_FOLDER, class_names_changed, list_class_folders
from paceline.data.formats.published_sets import official_wnids
from paceline.data.index.manifest import (
    Kind,
    Manifest,
    cached_manifest_folder,
    manifest_candidates,
    prepare_command,
    repeat_command,
)
from paceline.data.index.staleness import find_stale_file, refuse_stale_containers, remote_addresses
from paceline.data.prepare.class_source import choose_class_manifest_folder, class_folders
from paceline.data.prepare.pipeline import ListedDataset, OnFlaw, write_prepared
from paceline.data.prepare.val_split import ValSplit

# Hosts and buckets that a line names.
MAX_ADDRESSES = 5
Request = TypeVar("Request")
KINDS: dict[Kind, str] = {"class-folder": "class folders", "boxes": "boxes"}


def prepare_if_needed(
    root: Path,
    *,
    kind: Kind = "class-folder",
    reporter: Reporter = SILENT,
    on_missing: OnFlaw = "refuse",
    small: int = 20_000,
) -> Path:
    """The folder of a manifest that matches the files of `root`; a small data set is prepared for it, into the cache.

    root        a data set's folder, or one that prepare wrote to
    kind        what is needed: class folders, or boxes
    reporter    gets lines where something is prepared: first that it is, then the findings, warnings and check page
    on_missing  boxes: "skip" leaves out images that are not on disk, where the set is prepared now
    small       up to so many images are prepared without asking; beyond, DataError with the command to run
    `root` itself is never written to. Raises DataError as `prepare_folder` and `prepare_boxes` do.
    """
    boxes = kind == "boxes"
    why, source_root, outdated = "no manifest yet", Path(os.path.realpath(root)), None
    paths = manifest_candidates(root)
    for path in paths:
        try:
            manifest = Manifest.load(path)
        except DataError as error:
            if not (is_annotated(source_root) if boxes else (root / TRAIN_FOLDER).is_dir()):
                raise  # a folder that prepare wrote to; only its manifest knew where the images are
            why = str(error)
            continue
        if manifest.kind != kind:
            if not boxes and (manifest.request or {}).get("images"):  # its root is only what lies above the named files
                raise DataError(
                    f"{root}: prepared boxes, and class folders are wanted: train/CLASS/*.jpg. Train a detector on it:\n"
                    f"  paceline train ssd-custom --data {shlex.quote(str(manifest.called))} --weights resnet34"
                )
            why = f"its manifest is one of {KINDS[manifest.kind]}, not of {KINDS[kind]}"
            source_root = source_root if boxes else manifest.root_path
            continue
        if "train" not in manifest.splits:
            raise DataError(f"{manifest.folder}: holds a split that is only scored on, nothing to train on.")
        if "val" not in manifest.splits:
            raise DataError(
                f"{manifest.folder}: no validation photos, so nothing to measure on. Prepare it again with --val FILE..., or with "
                f"a fifth of the photos set apart:\n  {repeat_command(manifest)} --val-fraction 0.2"
            )
        report_addresses(manifest, root, reporter)
        stale = explain_stale(manifest)
        if stale is None:
            return path.parent
        why, source_root = f"its manifest is out of date: {stale}", manifest.root_path
        refuse_stale_containers(manifest, why)
        outdated = manifest
        if boxes and (manifest.request or {}).get("images"):
            raise DataError(f"{root}: {why}. Prepare it again:\n  {repeat_command(manifest)}")
        # Where `root` is a folder that prepare wrote to, a newer manifest of the same images may lie in the cache.
        paths.extend(other for other in manifest_candidates(source_root) if other not in paths)
    find = _annotated_photos if boxes else _class_photos
    source, folder, command = find(root, source_root, outdated, on_missing)
    if source.images > small:
        raise DataError(
            f"{source_root}: {format_count(source.images, 'image')}, {why}. Verify them once, before training:\n  {command}"
        )
    return prepare_now(source, folder, f"{source_root}: {why};", "image", reporter)


def prepare_now(source: ListedDataset, path: Path, title: str, noun: str, reporter: Reporter) -> Path:
    """Verify a set, write its manifest and report what was found -> the manifest's folder."""
    reporter.line(f"{title} verifying its {format_count(source.images, noun)} once (kept in {path})")
    manifest = write_prepared(source, path)
    for line in reporter.describe(manifest):
        reporter.line(line)
    return manifest.folder


def _annotated_photos(
    root: Path, source_root: Path, outdated: Manifest | None, on_missing: OnFlaw
) -> tuple[ListedDataset, Path, str]:
    """Photos with boxes -> what to prepare, where to, and the command that does the same."""
    # Here, because class folders need no reader of YAML.
    from paceline.data.prepare.box_source import BoxRequest, annotated_boxes

    request = _recorded_request(BoxRequest, outdated)
    try:
        source = annotated_boxes(source_root, replace(request, on_missing="skip") if on_missing == "skip" else request)
    except DataError:
        if is_annotated(source_root) or not _has_classes(source_root):
            raise
        raise DataError(
            f"{root}: class folders without boxes, and this recipe learns boxes. Train a classifier on it:\n"
            f"  paceline train resnet50-tiny --data {shlex.quote(str(root))}"
        ) from None
    return source, cached_manifest_folder(source_root), source.command


def _class_photos(root: Path, source_root: Path, outdated: Manifest | None, _: OnFlaw) -> tuple[ListedDataset, Path, str]:
    """The same of class folders."""
    try:
        source = class_folders(source_root, val=_recorded_request(ValSplit, outdated))
    except DataError:
        if not is_annotated(source_root):
            raise
        raise DataError(
            f"{root}: boxes are annotated here, and this recipe learns from class folders, train/CLASS/*.jpg. Train a detector "
            f"on it:\n  paceline train ssd-custom --data {shlex.quote(str(root))} --weights resnet34"
        ) from None
    path = choose_class_manifest_folder(source, cached_manifest_folder(source_root))
    official = len(set(official_wnids()) & set(source.listing.splits["train"].classes)) > 900
    command = prepare_command(source_root, "imagenet" if official else "any", source.stored)
    return source, path, command


def report_addresses(manifest: Manifest, root: Path, reporter: Reporter) -> None:
    """Report the hosts and buckets that an index names, before any of them is contacted; nothing for photos on a disk."""
    try:
        named = ", ".join(map(escape_line, remote_addresses(manifest)[:MAX_ADDRESSES]))
    except DataError:  # a damaged index is refused where it is compared
        return
    if named:
        reporter.line(f"{root}: its index names {named}, which is asked for its photos")


def explain_stale(manifest: Manifest) -> str | None:
    """None where a manifest matches its files and their readable class names, else the reason in one line."""
    return find_stale_file(manifest) or class_names_changed(manifest)


def is_annotated(root: Path) -> bool:
    from paceline.data.formats.layouts import detect_layout

    return detect_layout(root) is not None


def _has_classes(root: Path) -> bool:
    try:
        return bool(list_class_folders(root).images)
    except DataError:
        return False


def _recorded_request(request: type[Request], manifest: Manifest | None) -> Request:
    """The request that a manifest records. Raises DataError where it was written by a version with other flags."""
    if manifest is None:
        return request()
    try:
        return request(**(manifest.request or {}))
    except TypeError:
        raise DataError(
            f"{manifest.folder}: prepared by another version of paceline. Delete its manifest.json and prepare it again."
        ) from None
