"""`paceline prepare imagenet|folder|shapes ...`: verify every file once, write manifest and index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.cli.flags import parse
from paceline.config.errors import UserError

KINDS = """usage: paceline prepare KIND ...

  folder DIR     class folders: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg
  imagenet DIR   the same, checked to be ImageNet-1k: 1000 wnid folders, 1,281,167 and 50,000 photos
  shapes         the built-in data set, rendered into the cache

Each answers --help."""


OnUnreadable = Literal["refuse", "skip"]


@dataclass(frozen=True)
class FolderFlags:
    """What to verify."""

    data: str = ""  # the folder that holds train/ and val/; the flag's name may be left out
    out: str = ""  # where manifest and index go; empty = into the folder itself, or the cache when it is read-only
    workers: int = 0  # threads that decode; 0 = one a core
    on_unreadable: OnUnreadable = "refuse"  # a file that does not decode: stop, or leave it out and count it


@dataclass(frozen=True)
class ShapesFlags:
    """What to render."""

    kind: Literal["classes", "boxes"] = "classes"  # class folders, or pictures with COCO annotations


def run(arguments: Sequence[str]) -> int:
    """Prepare one data set."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(KINDS)
        return 0 if arguments else 2
    kind, rest = arguments[0], arguments[1:]
    if kind == "shapes":
        return _shapes(rest)
    if kind in ("folder", "imagenet"):
        return _folder(kind, rest)
    raise UserError(f"prepare {kind!r}: there is no such kind. Known: folder, imagenet, shapes.")


def _folder(kind: str, arguments: Sequence[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--data", *arguments]
    flags = parse(arguments, FolderFlags(), prog=f"prepare {kind}", description="Verify class folders and index them.")
    if not flags.data:
        raise UserError(f"name the folder that holds train/ and val/: paceline prepare {kind} --data DIR")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from paceline.prepare.folder import prepare_folder

    with Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        job = bar.add_task("verifying", total=None)
        manifest = prepare_folder(
            Path(flags.data),
            out=Path(flags.out) if flags.out else None,
            expect="imagenet" if kind == "imagenet" else "any",
            workers=flags.workers or None,
            on_unreadable=flags.on_unreadable,
            progress=lambda done, total: bar.update(job, completed=done, total=total),
        )
    for name, split in manifest.splits.items():
        odd = {
            "unreadable": len(split.unreadable),
            "EXIF-rotated (rotation is ignored)": split.rotated,
            "greyscale": split.greyscale,
            "CMYK": split.cmyk,
            "not JPEG": split.not_jpeg,
            "misnamed": split.misnamed,
            "ignored": split.ignored,
        }
        counts = ", ".join(f"{count:,} {what}" for what, count in odd.items() if count)
        print(
            f"{name}: {split.images:,} photos in {len(manifest.classes):,} classes" + (f" ({counts})" if counts else "")
        )
        for broken in split.unreadable[:10]:
            print(f"  left out: {broken.path}: {broken.reason}")
    print(f"manifest: {manifest.folder / 'manifest.json'}")
    return 0


def _shapes(arguments: Sequence[str]) -> int:
    flags = parse(arguments, ShapesFlags(), prog="prepare shapes", description="Render the built-in data set.")
    from paceline.prepare.shapes import shapes_folder

    print(shapes_folder(flags.kind))
    return 0
