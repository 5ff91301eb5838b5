"""Find the manifest that matches a data set's files where prepare may have written it, or prepare the data set now.

A set that is only scored on is one split of whatever a folder holds, verified and indexed in the cache:
    class folders   ROOT/SPLIT/CLASS/*.jpg, or ROOT/CLASS/*.jpg where ROOT is the split itself
    COCO JSON       ROOT/annotations/instances_SPLIT*.json and its images, ROOT/SPLIT/_annotations.coco.json, or the only JSON
                    of ROOT or of ROOT/annotations
    Pascal VOC      ImageSets/Main/SPLIT.txt, ROOT/SPLIT with XML files, or all of ROOT
    YOLO            SPLIT: of data.yaml
SPLIT is the requested one; else val (valid, validation) where there is one, else test. In the manifest it is "val", and the only
one. The folder itself is never written to.

The readers of boxes are imported where they are used: class folders need no reader of YAML.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.hashing import sha256
from paceline._utils.names import list_folder, list_matching
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import escape_line, format_count, join_names
from paceline.data.containers.label_exports import prepare_first
from paceline.data.formats.class_folders import (
    TRAIN_FOLDER,
    VAL_FOLDERS,
    ClassFolderListing,
    class_names_changed,
    describe_class_folders,
    list_split,
    split_folders,
)
from paceline.data.formats.published_sets import check_flat_val, official_wnids
from paceline.data.index.manifest import (
    Kind,
    Manifest,
    cached_manifest_folder,
    manifest_candidates,
    prepare_command,
    repeat_command,
)
from paceline.data.index.staleness import find_stale_file, refuse_stale_containers, remote_addresses
from paceline.data.prepare.class_source import ClassSource, choose_class_manifest_folder, class_folders
from paceline.data.prepare.pipeline import ListedDataset, write_prepared
from paceline.data.prepare.val_split import ValSplit

if TYPE_CHECKING:
    from paceline.data.formats.layouts import DetectionLayout

# Hosts and buckets that a line names.
MAX_ADDRESSES = 5
Request = TypeVar("Request")
KINDS: dict[Kind, str] = {"class-folder": "class folders", "boxes": "boxes"}


def prepare_if_needed(root: Path, *, kind: Kind = "class-folder", reporter: Reporter = SILENT, small: int = 20_000) -> Path:
    """The folder of a manifest that matches the files of `root`; a small data set is prepared for it, into the cache.

    root      a data set's folder, or one that prepare wrote to
    kind      what is needed: class folders, or boxes
    reporter  gets lines where something is prepared: first that it is, then the findings, warnings and check page
    small     up to so many images are prepared without asking; beyond, DataError with the command to run
    `root` itself is never written to. Raises DataError as `prepare_folder` and `prepare_boxes` do.
    """
    boxes = kind == "boxes"
    why, source_root, outdated = "not prepared yet", Path(os.path.realpath(root)), None
    paths = manifest_candidates(root)
    for path in paths:
        try:
            manifest = Manifest.load(path)
        except DataError as error:
            if not (is_annotated(source_root) if boxes else (root / TRAIN_FOLDER).is_dir()):
                raise  # a folder that prepare wrote to; only its manifest knew where the images are
            why = str(error).partition(". ")[0]  # its fix is what happens now
            continue
        if manifest.kind != kind:
            if not boxes and (manifest.request or {}).get("images_dir"):  # its root is only what lies above the named files
                raise DataError(
                    f"{root}: has boxes, but this recipe requires class folders (train/CLASS/*.jpg). Train a detector on "
                    f"it:\n  paceline train ssd-finetune --data {shlex.quote(str(manifest.called))} --weights resnet34"
                )
            why = f"its manifest is for {KINDS[manifest.kind]}, not for {KINDS[kind]}"
            source_root = source_root if boxes else manifest.root_path
            continue
        if "train" not in manifest.splits:
            raise DataError(f"{manifest.folder}: has only a split for evaluation, and no training images.")
        if "val" not in manifest.splits:
            raise DataError(
                f"{manifest.folder}: validation images are required. Prepare it again with --val FILE..., or use 20% of "
                f"the images for validation:\n  {repeat_command(manifest)} --val-fraction 0.2"
            )
        report_addresses(manifest, root, reporter)
        stale = explain_stale(manifest)
        if stale is None:
            return path.parent
        why, source_root = f"its manifest is out of date: {stale}", manifest.root_path
        refuse_stale_containers(manifest, why)
        outdated = manifest
        if boxes and (manifest.request or {}).get("images_dir"):
            raise DataError(f"{root}: {why}. Prepare it again:\n  {repeat_command(manifest)}")
        # Where `root` is a folder that prepare wrote to, a newer manifest of the same images may lie in the cache.
        paths.extend(other for other in manifest_candidates(source_root) if other not in paths)
    find = _annotated_photos if boxes else _class_photos
    source, folder, command = find(root, source_root, outdated)
    if source.images > small:
        raise DataError(
            f"{source_root}: {format_count(source.images, 'image')}, {why}. Verify them once, before training:\n  {command}"
        )
    return prepare_now(source, folder, f"{source_root}: {why};", "image", reporter)


def prepare_now(source: ListedDataset, path: Path, title: str, noun: str, reporter: Reporter) -> Path:
    """Verify a set, write its manifest and report what was found -> the manifest's folder."""
    reporter.line(f"{title} verifying its {format_count(source.images, noun)} once (stored in {path})")
    manifest = write_prepared(source, path)
    for line in reporter.describe(manifest):
        reporter.line(line)
    return manifest.folder


def _annotated_photos(root: Path, source_root: Path, outdated: Manifest | None) -> tuple[ListedDataset, Path, str]:
    """Photos with boxes -> what to prepare, where to, and the command that does the same."""
    from paceline.data.prepare.box_source import BoxRequest, annotated_boxes

    try:
        source = annotated_boxes(source_root, _recorded_request(BoxRequest, outdated))
    except DataError:
        if is_annotated(source_root) or not describe_class_folders(source_root):
            raise
        raise DataError(
            f"{root}: has class folders without boxes, but this recipe trains on boxes. Train a classifier on it:\n  "
            f"paceline train classify-demo --data {shlex.quote(str(root))}"
        ) from None
    return source, cached_manifest_folder(source_root), source.command


def _class_photos(root: Path, source_root: Path, outdated: Manifest | None) -> tuple[ListedDataset, Path, str]:
    """The same of class folders."""
    try:
        source = class_folders(source_root, val=_recorded_request(ValSplit, outdated))
    except DataError:
        if not is_annotated(source_root):
            raise
        raise DataError(
            f"{root}: has annotated boxes, but this recipe trains on class folders (train/CLASS/*.jpg). Train a detector "
            f"on it:\n  paceline train ssd-finetune --data {shlex.quote(str(root))} --weights resnet34"
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
        reporter.line(f"{root}: its index refers to {named}, from which images are read")


def explain_stale(manifest: Manifest) -> str | None:
    """None where a manifest matches its files and their readable class names, else the reason in one line."""
    return find_stale_file(manifest) or class_names_changed(manifest)


def is_annotated(root: Path) -> bool:
    from paceline.data.formats.layouts import find_layouts

    return bool(find_layouts(root))


def _recorded_request(request: type[Request], manifest: Manifest | None) -> Request:
    """The request that a manifest records. Raises DataError where it was written by a version with other flags."""
    if manifest is None:
        return request()
    try:
        return request(**(manifest.request or {}))
    except TypeError:
        raise DataError(
            f"{manifest.folder}: was prepared by another version of paceline. Delete its manifest.json, and prepare it again."
        ) from None


SplitName = Literal["", "val", "test", "train"]
# Names that a split may have in a data set, in order of preference.
SPLIT_NAMES: dict[SplitName, tuple[str, ...]] = {
    "": (*VAL_FOLDERS, "test"),
    "val": VAL_FOLDERS,
    "test": ("test",),
    "train": (TRAIN_FOLDER,),
}


@dataclass(frozen=True)
class EvalSplit:
    """What to score on: a folder, or a COCO JSON and its photos."""

    data: str = ""
    split: SplitName = ""
    images: str = ""
    annotations: str = ""


def prepare_eval_split(wanted: EvalSplit, kind: Kind, *, reporter: Reporter = SILENT) -> Path:
    """The folder of a manifest of that split which matches its files; it is prepared, into the cache, where there is none.

    kind  what is needed: class folders, or boxes
    The reporter gets a line for hosts that an index names, and where something is prepared: first that it is, then the findings
    Raises PacelineError for flags that contradict each other, DataError for every flaw of layout, annotations or images.
    """
    if wanted.annotations or wanted.images:
        return _named_files(wanted, kind, reporter)
    root = Path(wanted.data).expanduser()
    if not root.is_dir():
        first = prepare_first(wanted.data, scored=True)
        raise PacelineError(f"--data {wanted.data}: {first or 'folder not found.'}")
    source = Path(os.path.realpath(root))
    for path in manifest_candidates(root):
        manifest = Manifest.load(path)
        source = manifest.root_path
        if manifest.kind != kind:
            continue
        if wanted.split in ("", "val"):
            report_addresses(manifest, root, reporter)
            if _is_fresh(manifest):
                return path.parent
            refuse_stale_containers(manifest, find_stale_file(manifest) or "out of date")
        if manifest.again is not None:
            raise DataError(
                f"--split {wanted.split}: {root} is an index of containers, and only its val split can be scored. "
                "Prepare the other images as --val in a separate folder, and pass that folder."
            )
        if wanted.split == "train" and (manifest.request or {}).get("val_fraction"):
            raise PacelineError(
                f"--split train: `prepare` selected the validation images of {wanted.data}, and no folder has only the "
                "others. Remove --split to score the validation images."
            )
    folder = cached_manifest_folder(source) / f"scored-{wanted.split or 'any'}-{_layout(source)}"
    if _is_prepared(folder, kind):
        return folder
    names = SPLIT_NAMES[wanted.split]
    if kind == "boxes":
        from paceline.data.formats.layouts import read_one_split

        return _prepare_scored_boxes(read_one_split(source, names), folder, reporter)
    listed = _class_folders(source, names)
    return prepare_now(ClassSource.of(listed), folder, f"{listed.splits['val'].folder}:", "image", reporter)


def _layout(root: Path) -> str:
    """A name for the folders and lists in `root`: where one comes or goes, another split may be the one that is meant."""
    names = set()
    for folder in (root, *(root / name for name in ("annotations", "images", "ImageSets/Main"))):
        if folder.is_dir():
            lists = (
                path for path in list_matching(folder) if path.is_dir() or path.name.endswith((".json", ".txt", ".yaml"))
            )
            names |= {os.fsencode(os.path.relpath(path, root)) for path in lists}
    names |= {os.fsencode(path.name) for path in list_matching(root) if (path / "_annotations.coco.json").is_file()}
    return sha256(b"\0".join(sorted(names)))[:12]


def _named_files(wanted: EvalSplit, kind: Kind, reporter: Reporter) -> Path:
    if wanted.data or wanted.split or not (wanted.annotations and wanted.images):
        raise PacelineError(
            "--images-dir DIR and --annotations FILE (a COCO JSON) must be set together, without --data and --split."
        )
    if kind != "boxes":
        raise PacelineError("--annotations: not supported by a classifier. Pass images in class folders with --data DIR.")
    images, annotations = (Path(os.path.realpath(os.path.expanduser(p))) for p in (wanted.images, wanted.annotations))
    if not images.is_dir():
        raise PacelineError(f"--images-dir {wanted.images}: folder not found.")
    key = sha256(os.fsencode(f"{images}+{annotations}"))[:12]
    path = cached_manifest_folder(images) / f"scored-{key}"
    if _is_prepared(path, kind):
        return path
    from paceline.data.formats.layouts import read_jsons

    return _prepare_scored_boxes(read_jsons({"val": (annotations, images)}), path, reporter)


def _prepare_scored_boxes(listed: DetectionLayout, path: Path, reporter: Reporter) -> Path:
    """Verify the one split "val", write its manifest -> the manifest's folder."""
    from paceline.data.prepare.box_source import BoxSource

    title = f"{listed.splits['val'].source}:"
    return prepare_now(BoxSource.of(listed, command=""), path, title, "image", reporter)


def _is_prepared(path: Path, kind: Kind) -> bool:
    """Whether a manifest of that kind, and of the files as they are now, lies in `path`."""
    try:
        manifest = Manifest.load(path)
    except DataError:
        return False  # none yet, or of another version: it is made again
    return manifest.kind == kind and _is_fresh(manifest)


def _is_fresh(manifest: Manifest) -> bool:
    return "val" in manifest.splits and explain_stale(manifest) is None


def _class_folders(root: Path, names: tuple[str, ...]) -> ClassFolderListing:
    """The split of `root` that has one of these names, or `root` as the split itself."""
    check_flat_val(root)
    inside = [os.fsdecode(name) for name in list_folder(root).folders]
    here = split_folders(root, inside, names)
    if len({name.lower() for name in here} & set(VAL_FOLDERS)) > 1:
        raise DataError(f"{root}: has both {here[0]}/ and {here[1]}/. Choose one:  --data {root / here[0]}")
    if not here and (any(split_folders(root, inside, (name,)) for name in (TRAIN_FOLDER, "test")) or not inside):
        raise DataError(
            f"{root}: has no {' or '.join(f'{name}/' for name in names)}, only {join_names(inside)}. Expected "
            "ROOT/val/CLASS/*.jpg, ROOT/test/CLASS/*.jpg, or class folders directly in ROOT. Or use --split train."
        )
    folder = root / here[0] if here else root
    # The split's own folder is named in the index, so the root is the one above it.
    return ClassFolderListing(folder.parent, {"val": list_split(folder)})


def prepare_source(folder: str, reporter: Reporter) -> Manifest:
    """The fresh manifest of a data set; a folder that was not prepared yet is prepared first, as training would.

    folder  a data set's root, or a folder that prepare wrote to; it may have one split alone where it was prepared
    The reporter gets lines: for hosts that an index names, and when something is prepared
    Raises PacelineError where there is no such folder, DataError where it cannot be used.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        first = prepare_first(folder)
        raise PacelineError(f"{folder}: {first or 'folder not found. Pass a dataset, or a folder of `paceline prepare`.'}")
    stale = None
    for path in manifest_candidates(root):
        manifest = Manifest.load(path)
        report_addresses(manifest, root, reporter)
        if (why := find_stale_file(manifest)) is None:
            return manifest
        stale = stale or DataError(f"{root}: out of date: {why}. Prepare it again:\n  {repeat_command(manifest)}")
    if stale is not None:
        raise stale
    kind: Kind = "boxes" if is_annotated(root) else "class-folder"
    return Manifest.load(prepare_if_needed(root, kind=kind, reporter=reporter))
