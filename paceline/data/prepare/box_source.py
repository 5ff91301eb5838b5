"""Annotated boxes as a source, of any layout, in folders or in containers, and their manifest.

    annotations + images   ->   a `BoxSource`, which data/prepare/pipeline.py writes

Letters: N images of one split, M objects, K classes 1..K.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.hashing import sha256
from paceline.data.formats.annotations import Annotations
from paceline.data.formats.layouts import DetectionLayout, Layout, read_jsons, read_source
from paceline.data.formats.published_sets import check_coco2017, part_of_coco2017
from paceline.data.index.box_split import make_class_table
from paceline.data.index.manifest import BoxCounts, Manifest, box_command, cached_manifest_folder
from paceline.data.index.staleness import annotation_digest, annotation_files, annotation_stamp, is_inside
from paceline.data.prepare.box_arrays import box_arrays
from paceline.data.prepare.box_checks import (
    check_sizes,
    check_splits,
    class_names,
    count_unlisted,
    detect_rotation_handling,
    frame_sizes,
    notes_on_rotation,
)
from paceline.data.prepare.pipeline import (
    NAMED_IN_ERROR,
    Arrays,
    ListedDataset,
    choose_manifest_folder,
    describe_split,
    suggest_other_folder,
    write_prepared,
)
from paceline.data.prepare.val_split import ValSplit, split_by_patterns
from paceline.data.prepare.verify_images import ImagesToVerify, Inspection

# What a command for boxes and one for containers have in common.
SHARED = ("val_fraction", "split_seed", "group_by", "on_missing", "on_unreadable", "on_class_mismatch")


@dataclass(frozen=True)
class BoxRequest:
    """What to prepare: a folder whose layout is known, or files one by one. The fields are the command's flags."""

    layout: Layout | Literal[""] = ""  # "" = whichever the folder has
    images_dir: str = ""  # folder of the training images; with it, the folder's layout does not matter
    annotations: str = ""  # COCO JSON of the training images
    val_images_dir: str = ""  # "" = `images`
    val_annotations: str = ""
    val_fraction: float = 0.0  # share of the training images that becomes val, where the source has none
    split_seed: int = 0
    group_by: str = ""  # photos whose paths match with the same captured text stay together
    on_missing: Literal["error", "skip"] = "error"
    on_unreadable: Literal["error", "skip"] = "error"
    on_class_mismatch: Literal["error", "warn"] = "error"
    expect: Literal["", "coco2017"] = ""  # the published set that this has to be, the whole of it

    @classmethod
    def of(cls, flags: object, *named: Any) -> BoxRequest:
        """The request of a command's flags; `named`: the first fields, where it names files or a layout."""
        shared = {name: getattr(flags, name) for name in SHARED}
        return cls(*named, **shared, expect="coco2017" if getattr(flags, "expect", "") == "coco2017" else "")


@dataclass(frozen=True, kw_only=True)
class BoxSource(ListedDataset):
    """Photos with annotated objects."""

    annotated: DetectionLayout
    request: BoxRequest
    held: Callable[[Path, list[bytes]], ImagesToVerify] = ImagesToVerify  # (root, names as lists have them) -> the photos

    @classmethod
    def of(
        cls, annotated: DetectionLayout, request: BoxRequest = BoxRequest(), out: Path | None = None, **others: Any
    ) -> BoxSource:
        """out: where its manifest goes, if the command names it; others: fields that do not follow from `request`."""
        request = replace(request, layout=annotated.layout)
        fields = {
            "command": box_command(annotated.root, asdict(request), out),
            "on_unreadable": request.on_unreadable,
            "on_missing": request.on_missing,
            "stored": {**asdict(request), **_real_paths(request)},
            "remedy": suggest_other_folder(box_command(annotated.root, asdict(request))) if out is not None else "",
            **others,
        }
        return cls(root=annotated.root, annotated=annotated, request=request, **fields)

    @property
    def images(self) -> int:
        return sum(len(split.file_names) for split in self.annotated.splits.values())

    def photos(self) -> ImagesToVerify:
        """Raises DataError where classes contradict each other, or a photo is missing and that was not allowed."""
        class_names(self.annotated, self.request, self.command)
        splits = self.annotated.splits.values()
        for split in splits:
            if split.orphans and self.on_missing == "error":
                skip = f", or skip these annotations:\n  {self.command} --on-missing skip" if self.command else "."
                raise DataError(f"{split.source}: {split.orphans}. Correct the file{skip}")
        photos = self.held(self.root, list(dict.fromkeys(name for split in splits for name in self._names(split))))
        missing = [i for i in range(len(photos.names)) if photos.size(i) < 0]
        if missing and (self.on_missing == "error" or len(missing) == len(photos.names)):
            raise _missing_error(photos, missing, self.command)
        return photos

    def manifest(self, photos: ImagesToVerify, result: Inspection) -> tuple[dict[str, Any], dict[str, Arrays]]:
        """Raises DataError where a split has no image or no object left, or sizes are not those of the annotations."""
        row = {name: i for i, name in enumerate(photos.names)}
        names, notes = class_names(self.annotated, self.request, self.command), []

        def rows_of(split: Annotations) -> np.ndarray:
            """(N,) the photo of each image."""
            return np.array([row[name] for name in self._names(split)], np.int64)

        usable: dict[str, Annotations] = {}
        lost: dict[str, tuple[np.ndarray, int]] = {}  # photos, and how many objects were on them
        for key, split in self.annotated.splits.items():
            usable[key], lost[key] = _usable_images(split, rows_of(split), result)
        if self.request.expect:
            check_coco2017(self.root, usable)
        part_of = part_of_coco2017(usable)
        if self.request.val_fraction:
            notes += self._set_apart(usable, result.digests[rows_of(usable["train"])])
        category_ids, classes = make_class_table(names)
        unlisted, left_out_pictures = count_unlisted(self.annotated)
        notes += left_out_pictures
        notes += [f"{split.source}: ignored: {split.orphans}" for split in self.annotated.splits.values() if split.orphans]
        with_rows = {key: (kept, rows_of(kept)) for key, kept in usable.items()}
        reading = detect_rotation_handling(self.annotated.layout, with_rows, result)
        splits, arrays = {}, {}
        for key, (kept, rows) in with_rows.items():
            boxes, numbers = box_arrays(kept, category_ids, *frame_sizes(rows, result, reading))
            if not boxes["usable"].any():
                raise DataError(
                    f"{kept.source}: its {len(rows):,} images of {key} have no usable object ({numbers['objects']:,} "
                    f"objects in total). {self._way_on(key, usable)}"
                )
            left_out, objects = lost.get(key, (np.zeros(0, np.int64), 0))
            plain = boxes["classes"][boxes["crowd"] == 0]
            split, arrays[key] = describe_split(
                photos,
                result,
                rows,
                np.zeros(len(rows), np.int32),
                folder=kept.images_folder,
                per_class=np.bincount(plain, minlength=len(category_ids) + 1)[1:],
                left_out=left_out,
                extra=boxes,
            )
            patterns = self.annotated.files[key if key in self.annotated.files else "train"]
            label_files = annotation_files(self.root, patterns)
            counts = BoxCounts(
                **numbers,
                left_out_objects=objects,
                unlisted_images=unlisted.get(key, 0),
                files=patterns,
                stamp=annotation_stamp(self.root, label_files),
                digest=annotation_digest(self.root, label_files),
                exif=reading,
            )
            splits[key] = replace(split, boxes=counts)
        notes += [*notes_on_rotation(self.annotated.layout, with_rows, result, reading), *_in_both(with_rows, result)]
        fields = dict(
            kind="boxes",
            expect=self.request.expect or "any",
            classes=classes,
            class_names=None,
            splits=splits,
            category_ids=tuple(category_ids.tolist()),
            notes=(*self.annotated.notes, *notes),
            part_of=part_of,
        )
        return fields, arrays

    def _way_on(self, key: str, usable: dict[str, Annotations]) -> str:
        """What to do if no object of the split `key` is usable."""
        if self.request.val_fraction and any(len(split.object_rows) for split in usable.values()):
            command = re.sub(r" --split-seed \d+", "", self.command)
            again = f"{command} --split-seed {self.request.split_seed + 1}"
            return f"The images were selected at random. Select others, or annotate more images:\n  {again}"
        other = ", or remove the split and use a part of the training images for validation (--val-fraction 0.2)"
        return f"Annotate some of them{other if key == 'val' and 'train' in self.annotated.splits else ''}."

    def _set_apart(self, usable: dict[str, Annotations], digests: np.ndarray) -> list[str]:
        """Draw the validation photos out of the training photos in `usable`; -> notes."""
        val = ValSplit(self.request.val_fraction, self.request.split_seed, self.request.group_by)
        usable["train"], usable["val"], alone = split_by_patterns(usable["train"], val, digests=digests)
        # Each photo is drawn by itself, so the number scatters: a fifth is a fifth only about.
        drawn, whole = (len(usable["val"].file_names), sum(len(usable[key].file_names) for key in ("train", "val")))
        how = "by group" if val.group_by else "by image"
        notes = [f"selected {drawn:,} of {whole:,} images for val {how}; --split-seed {val.split_seed + 1} selects others"]
        if alone:
            notes.append(f"{alone:,} images do not match --group-by and form their own groups in the validation split")
        return notes

    def _names(self, split: Annotations) -> list[bytes]:
        """N file names as the index stores them: relative to the root where they lie in it, else absolute."""
        folder = split.images_folder
        prefix = os.path.relpath(folder, self.root) if is_inside(folder, self.root) else str(folder)
        return [os.fsencode(os.path.normpath(os.path.join(prefix, name))) for name in split.file_names]


def prepare_boxes(
    root: Path | None,
    request: BoxRequest = BoxRequest(),
    *,
    out: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Read the annotations, verify every image that they name, write manifest and index.

    root      the data set's folder; None where `request` names files
    out       None: `root` itself, or a folder in the cache (see choose_place), as where files are named
    workers   threads; None: one for each usable core
    progress  called with (files done, files in all)
    Raises DataError for every flaw of annotations or images; then no manifest is written.
    """
    source = annotated_boxes(root, request, out)
    if root is None and out is None:
        files = (request.images_dir, request.annotations, request.val_annotations)
        key = sha256(os.fsencode("+".join(os.path.realpath(path) for path in files)))
        out = cached_manifest_folder(source.root) / key[:12]
    return write_prepared(source, choose_manifest_folder(source.root, out), workers, progress)


def annotated_boxes(root: Path | None, request: BoxRequest, out: Path | None = None) -> BoxSource:
    """The annotated set in `root`, or of the files that `request` names, as `prepare_boxes` takes them.

    Raises DataError where annotations contradict themselves, or a split is missing.
    """
    source = BoxSource.of(_read(root, request), request, out)
    check_splits(source.annotated, source.request, source.command)
    if request.expect:
        check_coco2017(source.root, source.annotated.splits)  # before a photo is opened
    return source


def _read(root: Path | None, request: BoxRequest) -> DetectionLayout:
    if not request.images_dir and not request.annotations:
        if root is None:
            raise DataError("a dataset is required. Use  paceline prepare coco DIR  or --images-dir DIR --annotations FILE")
        return read_source(Path(os.path.realpath(root)), request.layout or None)
    if not request.images_dir or not request.annotations:
        raise DataError("--images-dir and --annotations must be set together (the image folder and its COCO JSON).")
    if request.val_images_dir and not request.val_annotations:
        raise DataError("--val-images-dir: requires --val-annotations, the COCO JSON of the validation images.")
    paths = {name: Path(path) for name, path in _real_paths(request).items() if path}
    pairs = {"train": (paths["annotations"], paths["images_dir"])}
    if request.val_annotations:
        pairs["val"] = (paths["val_annotations"], paths.get("val_images_dir", paths["images_dir"]))
    for _, folder in pairs.values():
        if not folder.is_dir():
            what = "this is a file, but a folder of images is required" if folder.exists() else "folder not found"
            raise DataError(f"{folder}: {what}. Check the path (--images-dir, --val-images-dir).")
    return read_jsons(pairs)


def _usable_images(split: Annotations, rows: np.ndarray, result: Inspection) -> tuple[Annotations, tuple[np.ndarray, int]]:
    """The images that can be used; the photos of the others, and how many objects were on them."""
    is_bad = np.isin(rows, list(result.reasons))
    kept = split.chosen(np.flatnonzero(~is_bad))
    if not len(kept.file_names):
        raise DataError(f"{split.source}: none of its {len(rows):,} images can be used.")
    check_sizes(kept, rows[~is_bad], result)
    return kept, (rows[is_bad], len(split.object_rows) - len(kept.object_rows))


def _missing_error(photos: ImagesToVerify, missing: list[int], command: str) -> DataError:
    number = len(photos.names)
    first = [photos.title(i) for i in missing[:NAMED_IN_ERROR]]
    if len(missing) == number:
        return DataError(
            f"{first[0]}: not found, and neither is any other of the {number:,} images in the annotations. Check the "
            "folder of the images (--images-dir), and that file_name in the annotations is relative to it."
        )
    others = f"\nAlso missing, {len(missing) - 1:,} of {number:,}: {', '.join(first[1:])}" if first[1:] else ""
    remedy = "remove them from the annotations. Metrics on a subset would not be comparable."
    if command:
        remedy = f"continue without them:\n  {command} --on-missing skip"
    return DataError(f"{first[0]}: not found, but the annotations list it.{others}\nCopy the missing images, or {remedy}")


def _real_paths(request: BoxRequest) -> dict[str, str]:
    """The request's files and folders as they are named from anywhere; "" for none."""
    paths = {name: getattr(request, name) for name in ("images_dir", "annotations", "val_images_dir", "val_annotations")}
    return {name: os.path.realpath(os.path.expanduser(path)) if path else "" for name, path in paths.items()}


def _in_both(splits: dict[str, tuple[Annotations, np.ndarray]], result: Inspection) -> list[str]:
    """A note where val holds pictures of train."""
    if not {"train", "val"} <= splits.keys():
        return []
    val, rows = splits["val"]
    shared = np.flatnonzero(np.isin(result.digests[rows], result.digests[splits["train"][1]]))
    if not len(shared):
        return []
    are = "image of val is also an image" if len(shared) == 1 else "images of val are also images"
    first = val.file_names[shared[0]]
    return [f"{len(shared):,} {are} of train (identical bytes; the first is {first}), so scores will be too high"]
