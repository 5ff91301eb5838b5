"""A set that is only scored on: one split alone of whatever a folder holds, verified and indexed in the cache.

    class folders   ROOT/SPLIT/CLASS/*.jpg, or ROOT/CLASS/*.jpg where ROOT is the split itself
    COCO JSON       ROOT/annotations/instances_SPLIT*.json and its images, ROOT/SPLIT/_annotations.coco.json, or the only JSON
                    of ROOT or of ROOT/annotations
    Pascal VOC      ImageSets/Main/SPLIT.txt, ROOT/SPLIT with XML files, or all of ROOT
    YOLO            SPLIT: of data.yaml
SPLIT is the requested one; else val (valid, validation) where there is one, else test. In the manifest it is "val", and the only
one. The folder itself is never written to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.hashing import sha256
from paceline._utils.names import list_matching
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import join_names
from paceline.data.containers.label_exports import prepare_first
from paceline.data.formats.class_folders import TRAIN_FOLDER, VAL_FOLDERS, ClassFolderListing, list_split, split_folders
from paceline.data.formats.layouts import DetectionLayout, read_jsons, read_one_split
from paceline.data.formats.published_sets import check_flat_val
from paceline.data.index.class_folder import list_folder
from paceline.data.index.manifest import Kind, Manifest, cached_manifest_folder, manifest_candidates
from paceline.data.index.staleness import find_stale_file, refuse_stale_containers
from paceline.data.prepare.auto_prepare import explain_stale, prepare_now, report_addresses
from paceline.data.prepare.box_source import BoxSource
from paceline.data.prepare.class_source import ClassSource

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
        raise PacelineError(f"--data {wanted.data}: {first or 'there is no such folder.'}")
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
                f"--split {wanted.split}: {root} indexes containers, of which val is scored. Prepare the others as --val, in a "
                "folder of their own, and name that."
            )
        if wanted.split == "train" and (manifest.request or {}).get("val_fraction"):
            raise PacelineError(
                f"--split train: the validation photos of {wanted.data} were set apart by prepare, and no folder holds "
                "the others alone. Leave --split away to score them."
            )
    folder = cached_manifest_folder(source) / f"scored-{wanted.split or 'any'}-{_layout(source)}"
    if _is_prepared(folder, kind):
        return folder
    names = SPLIT_NAMES[wanted.split]
    if kind == "boxes":
        return _prepared(read_one_split(source, names), folder, reporter)
    return _prepared(_class_folders(source, names), folder, reporter)


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
            "--images DIR and --annotations FILE belong together (the photos and their COCO JSON), without --data and --split."
        )
    if kind != "boxes":
        raise PacelineError("--annotations: this run classifies; name its photos in class folders with --data DIR.")
    images, annotations = (Path(os.path.realpath(os.path.expanduser(p))) for p in (wanted.images, wanted.annotations))
    if not images.is_dir():
        raise PacelineError(f"--images {wanted.images}: there is no such folder.")
    key = sha256(os.fsencode(f"{images}+{annotations}"))[:12]
    path = cached_manifest_folder(images) / f"scored-{key}"
    return path if _is_prepared(path, kind) else _prepared(read_jsons({"val": (annotations, images)}), path, reporter)


def _prepared(listed: DetectionLayout | ClassFolderListing, path: Path, reporter: Reporter) -> Path:
    """Verify the one split "val", write its manifest -> the manifest's folder."""
    if isinstance(listed, DetectionLayout):
        source, title, noun = BoxSource.of(listed, command=""), listed.splits["val"].source, "image"
    else:
        source, title, noun = ClassSource.of(listed), listed.splits["val"].folder, "photo"
    return prepare_now(source, path, f"{title}:", noun, reporter)


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
        raise DataError(
            f"{root}: both {here[0]}/ and {here[1]}/ are there; which one is meant? Name it:  --data {root / here[0]}"
        )
    if not here and (any(split_folders(root, inside, (name,)) for name in (TRAIN_FOLDER, "test")) or not inside):
        raise DataError(
            f"{root}: no {' nor '.join(f'{name}/' for name in names)} in it, only {join_names(inside)}. Wanted: "
            "ROOT/val/CLASS/*.jpg or ROOT/test/CLASS/*.jpg, or class folders directly in ROOT; "
            "--split train scores the training photos."
        )
    folder = root / here[0] if here else root
    # The split's own folder is named in the index, so the root is the one above it.
    return ClassFolderListing(folder.parent, {"val": list_split(folder)})
