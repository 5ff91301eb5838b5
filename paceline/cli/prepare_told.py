"""What `paceline prepare` says of the data set that it found: its splits, what is odd in them, what was left out."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from paceline.cli.voice import say

if TYPE_CHECKING:
    from paceline.data.manifest import Manifest, Split

# One line each in the report; a list of ten says enough of what kind they are.
NAMED_IN_REPORT = 10


def tell(manifest: Manifest) -> int:
    """Say what was found and write the check page."""
    (print_boxes if manifest.kind == "boxes" else _print_classes)(manifest)
    if manifest.again is not None:
        use = "train with: " if "train" in manifest.splits else "score with:  paceline eval RUN"
        say(f"{use} --data {shlex.quote(str(manifest.folder))}")
    _check(manifest)
    return 0


def _print_classes(manifest: Manifest) -> None:
    for name, split in manifest.splits.items():
        say(f"{name}: {split.images:,} photos in {len(manifest.classes):,} classes{_odd_photos(split)}")
        _print_left_out(split)
    _print_part(manifest)
    for note in manifest.notes:
        say(f"note: {note}")
    if rotated := sum(split.rotated for split in manifest.splits.values()):
        say(
            f"note: {rotated:,} photos carry an EXIF rotation: --input.exif apply trains on them upright, as resnet50-tiny does"
        )
    say(f"manifest: {manifest.folder / 'manifest.json'}")


def _check(manifest: Manifest) -> None:
    """Write the check page, and say what it warns of."""
    from paceline.prepare.check.write import write_check_page

    path, page = write_check_page(manifest)
    for notice in page.notices:
        if not notice.noted:
            say(f"{'warning' if notice.colour == 'bad' else 'note'}: {notice.text}")
    verdict = page.verdict[1].lower()
    if path is None:
        page_of_another = manifest.folder / "check.html"
        say(
            f"check:    {verdict}; {page_of_another} does not say that paceline wrote it, so it stays and no page is drawn"
        )
    else:
        say(f"check:    {path} ({verdict})")


def _print_part(manifest: Manifest) -> None:
    if manifest.part_of:
        say(f"this is a part of {manifest.part_of}")


def print_boxes(manifest: Manifest) -> None:
    """What was found in a data set of boxes, nothing left out."""
    from paceline.prepare.formats.coco2017 import WHOLE

    for name, split in manifest.splits.items():
        counts = split.boxes
        if counts is None:
            continue
        say(
            f"{name}: {split.images:,} images{_odd_photos(split)}, {counts.objects:,} objects of "
            f"{sum(map(bool, split.per_class)):,} classes"
        )
        odd = {
            "crowd regions": counts.crowd,
            "images without objects": counts.empty_images,
            "boxes without area, which are not trained on": counts.degenerate,
            "boxes outside their image, which are not trained on": counts.outside,
            "boxes partly outside their image, cut for training": counts.partly_outside,
            "objects that repeat another one (same image, class and box)": counts.duplicates,
            "objects on images that are left out": counts.left_out_objects,
            "mask polygons of less than three points, left out": counts.left_out_polygons,
            "mask polygons with coordinates that are no finite numbers, left out": counts.polygons_not_finite,
            "image files that the annotations do not name": counts.unlisted_images,
        }
        for what, count in odd.items():
            if count:
                say(f"  {what}: {count:,}")
        _print_left_out(split)
    if manifest.expect == "coco2017":
        say(f"this is COCO 2017: {WHOLE}")
    _print_part(manifest)
    for note in manifest.notes:
        say(f"note: {note}")
    say(f"{len(manifest.classes):,} classes: {', '.join(manifest.classes)}")
    say(f"manifest: {manifest.folder / 'manifest.json'}")
    if not (manifest.folder == manifest.root_path or manifest.request is None or not manifest.request["images"]):
        say(f"train with:  --data {shlex.quote(str(manifest.folder))}")


def _odd_photos(split: Split) -> str:
    odd = {
        "unusable and left out": len(split.unreadable),
        "EXIF-rotated": split.rotated,
        "greyscale": split.greyscale,
        "CMYK": split.cmyk,
        "not JPEG": split.not_jpeg,
        "misnamed": split.misnamed,
        "ignored": split.ignored,
    }
    counts = ", ".join(f"{count:,} {what}" for what, count in odd.items() if count)
    return f" ({counts})" if counts else ""


def _print_left_out(split: Split) -> None:
    for broken in split.unreadable[:NAMED_IN_REPORT]:
        say(f"  left out: {broken.path}: {broken.reason}")
    if len(split.unreadable) > NAMED_IN_REPORT:
        say(f"  left out: {len(split.unreadable) - NAMED_IN_REPORT:,} more, all of them in the manifest")
