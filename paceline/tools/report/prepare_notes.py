"""The report of a prepared data set, line by line: its splits, what is odd in them, what was left out, and the check page.

Used by `paceline prepare`, and by a training or an evaluation that prepares a data set itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline._utils.commands import format_command
from paceline._utils.text import format_count
from paceline.data.index.manifest import Manifest, Split
from paceline.tools.report.check.page import write_check_page

# One line each in the report; a list of ten shows what kind they are.
NAMED_IN_REPORT = 10
# What is learned from a set that was checked to be a published one.
PUBLISHED = {"imagenet": "resnet50", "coco2017": "maskrcnn"}


def prepare_lines(manifest: Manifest) -> Iterator[str]:
    """Lines for people; check.html is written beside the manifest before the last ones.

    Raises DataError where the page cannot be written.
    """
    yield from (_of_boxes if manifest.kind == "boxes" else _of_classes)(manifest)
    path, page = write_check_page(manifest)
    for notice in page.notices:
        if not notice.noted:
            yield f"{'warning' if notice.color == 'bad' or notice.warns else 'note'}: {notice.text}"
    verdict = page.verdict[1].lower()
    if path is None:
        theirs = manifest.folder / "check.html"
        yield f"check:    {verdict}; {theirs} was not written by paceline and stays unchanged, so no check page was written"
    else:
        yield f"check:    {path} ({verdict})"


def prepare_record(manifest: Manifest) -> dict[str, Any]:
    """The same for programs, in JSON's types: what --data takes, its manifest, classes, hash, and counts of each split."""
    splits = {
        name: {
            **{"images": split.images, "bytes": split.bytes, "left_out": len(split.unreadable)},
            **({} if split.boxes is None else {"objects": split.boxes.objects}),
            "per_class": dict(zip(manifest.classes, split.per_class)),
        }
        for name, split in manifest.splits.items()
    }
    locations = {"data": str(manifest.called), "manifest": str(manifest.folder / "manifest.json")}
    return {
        **locations,
        "kind": manifest.kind,
        "classes": list(manifest.classes),
        "content": manifest.content_hash,
        "splits": splits,
    }


def next_step(manifest: Manifest) -> str:
    """A line for people: the command that such a set is prepared for."""
    if "train" not in manifest.splits:
        return f"next:     {format_command('eval', 'RUN', '--data', manifest.called)}"
    if recipe := PUBLISHED.get(manifest.expect):
        return f"next:     {format_command('plan', recipe, '--data', manifest.called)}"
    polygons, strings = (manifest.splits["train"].arrays.get(name, [0]) for name in ("polygon_points", "rle_counts"))
    recipe = "classify-finetune"
    if manifest.kind == "boxes":
        recipe = "maskrcnn-finetune" if polygons[-1] or strings[-1] else "fasterrcnn-finetune"
    chosen = format_command("plan", f"{recipe}-cpu", "--data", manifest.called, "--auto-config")
    return f"next (on a GPU, use {recipe}):  {chosen}"


def _of_classes(manifest: Manifest) -> Iterator[str]:
    for name, split in manifest.splits.items():
        yield f"{name}: {format_count(split.images, 'image')} in {format_count(len(manifest.classes), 'class')}{_odd_photos(split)}"
        yield from _left_out(split)
    yield from _noted(manifest)
    if rotated := sum(split.rotated for split in manifest.splits.values()):
        carry = "image has" if rotated == 1 else "images have"
        yield f"note: {rotated:,} {carry} an EXIF rotation. --input.exif apply trains on upright images, as in classify-demo"
    yield f"manifest: {manifest.folder / 'manifest.json'}"


def _of_boxes(manifest: Manifest) -> Iterator[str]:
    from paceline.data.formats.published_sets import COCO2017

    for name, split in manifest.splits.items():
        counts = split.boxes
        if counts is None:
            continue
        objects = f"{format_count(counts.objects, 'object')} of {format_count(sum(map(bool, split.per_class)), 'class')}"
        yield f"{name}: {format_count(split.images, 'image')}{_odd_photos(split)}, {objects}"
        odd = {
            "crowd regions": counts.crowd,
            "images without objects": counts.empty_images,
            "zero-area boxes, ignored in training": counts.degenerate,
            "boxes outside their image, ignored in training": counts.outside,
            "boxes partly outside their image, clipped in training": counts.partly_outside,
            "duplicate objects (same image, class, and box)": counts.duplicates,
            "objects on skipped images": counts.left_out_objects,
            "mask polygons with less than three points, skipped": counts.left_out_polygons,
            "mask polygons with non-finite coordinates, skipped": counts.polygons_not_finite,
            "image files without annotations": counts.unlisted_images,
        }
        yield from (f"  {what}: {count:,}" for what, count in odd.items() if count)
        yield from _left_out(split)
    if manifest.expect == "coco2017":
        yield f"identified as COCO 2017: {COCO2017}"
    yield from _noted(manifest)
    yield f"{format_count(len(manifest.classes), 'class')}: {', '.join(manifest.classes)}"
    yield f"manifest: {manifest.folder / 'manifest.json'}"


def _noted(manifest: Manifest) -> Iterator[str]:
    if manifest.part_of:
        yield f"this is a subset of {manifest.part_of}"
    yield from (f"note: {note}" for note in manifest.notes)


def _odd_photos(split: Split) -> str:
    odd = {
        "unusable, skipped": len(split.unreadable),
        "EXIF-rotated": split.rotated,
        "grayscale": split.grayscale,
        "CMYK": split.cmyk,
        "not JPEG": split.not_jpeg,
        "misnamed": split.misnamed,
        "ignored": split.ignored,
    }
    counts = ", ".join(f"{count:,} {what}" for what, count in odd.items() if count)
    return f" ({counts})" if counts else ""


def _left_out(split: Split) -> Iterator[str]:
    yield from (f"  skipped: {broken.path}: {broken.reason}" for broken in split.unreadable[:NAMED_IN_REPORT])
    if len(split.unreadable) > NAMED_IN_REPORT:
        yield f"  skipped: {len(split.unreadable) - NAMED_IN_REPORT:,} more (see the manifest)"
