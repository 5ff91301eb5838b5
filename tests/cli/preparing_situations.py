"""Situations in which preparing data, or what needs prepared data, refuses with a command of ours, for test_printed_commands.py."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coco_sets import edit, make_set
from tiny_runs import TINY

from paceline.cli.main import main
from paceline.data.index.box_split import open_boxes
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, find_manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed

Words = Callable[[Path, Path], list[object]]
NEW = ("prepare", "folder", "--data", "my photos")
TO_STAGE = ("train", "classify-demo", "--data", "my photos", *TINY, "--max-steps", 1)


@dataclass(frozen=True)
class Situation:
    """One message in earnest.

    places   what prints its commands
    words    of the command that is given; called with the working folder and a set of class folders that stays as it is
    code     how that ends
    follow   exit code of each printed command, in their order
    """

    places: tuple[tuple[str, str, str], ...]
    words: Words
    code: int
    follow: tuple[int, ...]


def _run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0, words


def _photos(here: Path, data: Path, *prepare: object) -> Path:
    """`my photos`: class folders, prepared where the words of a command are given."""
    shutil.copytree(data, here / "my photos", symlinks=True)
    if prepare:
        _run(*prepare)
    return here / "my photos"


def _unsplit(here: Path, data: Path) -> list[object]:
    shutil.rmtree(_photos(here, data) / "val")
    return [*NEW]


def _unreadable(here: Path, data: Path) -> list[object]:
    (_photos(here, data) / "train" / "ant" / "torn.jpg").write_bytes(b"torn")
    return [*NEW]


def _changed(here: Path, data: Path) -> None:
    shutil.copy(data / "train/ant/0.jpg", _photos(here, data, *NEW) / "train/ant/new.jpg")


def _after(change: Callable[[Path, Path], object], *words: object) -> Words:
    """`words`, where `change` was made before."""

    def given(here: Path, data: Path) -> list[object]:
        change(here, data)
        return [*words]

    return given


def _manifest(root: Path) -> Manifest:
    place = find_manifest(root)
    assert place is not None
    return Manifest.load(place)


def _without_array(here: Path, data: Path) -> Manifest:
    manifest = _manifest(_photos(here, data, *NEW))
    (manifest.folder / manifest.index / "train.lengths.npy").unlink()
    return manifest


def _boxes(here: Path, data: Path) -> Path:
    (here / "my boxes").mkdir()
    return make_set(here / "my boxes")


def _changed_boxes(here: Path, data: Path) -> None:
    root = _boxes(here, data)
    _run("prepare", "coco", "--data", root)
    edit(root, lambda record: record["annotations"].pop())


def _named(root: Path) -> list[object]:
    files = {"": "train", "val-": "val"}
    return [
        word
        for prefix, split in files.items()
        for word in (
            f"--{prefix}images-dir", root / f"{split}2017", f"--{prefix}annotations", root / f"annotations/instances_{split}2017.json",
        )
    ]  # fmt: skip


def _changed_named_boxes(here: Path, data: Path) -> None:
    root = _boxes(here, data)
    _run("prepare", "coco", *_named(root), "--output-dir", "my set")
    edit(root, lambda record: record["annotations"].pop())


def _lacking_boxes(here: Path, data: Path) -> Manifest:
    root = _boxes(here, data)
    _run("prepare", "coco", "--data", root)
    manifest = _manifest(root)
    del manifest.splits["train"].arrays["crowd"]
    return manifest


def _torn_boxes(here: Path, data: Path) -> None:
    (_boxes(here, data) / "train2017" / "5.jpg").write_bytes(b"torn")


def _zip(here: Path, data: Path, *, torn: bool = False) -> None:
    """`my train.zip` and `my val.zip`: class folders."""
    for split in ("train", "val"):
        with zipfile.ZipFile(here / f"my {split}.zip", "w") as packed:
            for photo in sorted((data / split).rglob("*.jpg")):
                packed.write(photo, photo.relative_to(data / split))
            if torn and split == "train":
                packed.writestr("ant/torn.jpg", b"torn")


ZIPS = ("prepare", "zip", "--train", "my train.zip", "--val", "my val.zip", "--output-dir", "my set")


def _changed_zips(here: Path, data: Path) -> None:
    _zip(here, data)
    _run(*ZIPS)
    with zipfile.ZipFile(here / "my train.zip", "a") as packed:
        packed.write(data / "train/ant/0.jpg", "ant/new.jpg")


def _half_zips(here: Path, data: Path) -> None:
    _zip(here, data)
    _run("prepare", "zip", "--train", "my train.zip", "--output-dir", "my set")


def _swapped(here: Path, data: Path) -> None:
    """A prepared photo with other bytes, of the same size and time."""
    photo = _photos(here, data, *NEW) / "train/ant/0.jpg"
    stamp, content = photo.stat(), bytearray(photo.read_bytes())
    content[-20] ^= 1
    photo.write_bytes(content)
    os.utime(photo, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def _two_kinds(here: Path, data: Path) -> list[object]:
    (_boxes(here, data) / "data.yaml").write_text("train: images\nnames: [cat]\n")
    return ["prepare", "my boxes", "--output-dir", "my set"]


PREPARING = {
    "a folder of two kinds": Situation((("cli/commands/prepare.py", "_with_kind", "prepare"),), _two_kinds, 2, (0, 2)),
    "class folders of no split": Situation(
        (("data/formats/class_folders.py", "_split_command", "prepare_command"),), _unsplit, 2, (0,)
    ),
    "class folders that are ready": Situation(
        (("tools/report/prepare_notes.py", "next_step", "plan"),), _after(_photos, *NEW), 0, (0,)
    ),
    "a photo that cannot be read": Situation(
        (("data/prepare/class_source.py", "of", "prepare_command"),), _unreadable, 2, (0,)
    ),
    "a share of ImageNet's photos set apart": Situation(
        (("data/prepare/class_source.py", "class_folders", "prepare_command"),),
        _after(_unsplit, "prepare", "imagenet", "--data", "my photos", "--val-fraction", 0.5),
        2,
        (0,),
    ),
    "a set that has changed": Situation(
        (
            ("cli/commands/data.py", "run_info", "repeat_command"),
            ("data/index/manifest.py", "repeat_command", "prepare_command"),
        ),
        _after(_changed, "data", "info", "my photos"),
        2,
        (0,),
    ),
    "a set to pack that has changed": Situation(
        (("data/prepare/auto_prepare.py", "prepare_source", "repeat_command"),),
        _after(_changed, "data", "pack", "my photos", "--format", "webdataset", "--output-dir", "packed"),
        2,
        (0,),
    ),
    "a set whose index has a hole": Situation((), _after(_without_array, "data", "info", "my photos"), 2, (0,)),
    "a set of boxes that has changed": Situation(
        (("data/index/manifest.py", "repeat_command", "box_command"),),
        _after(_changed_boxes, "data", "info", "my boxes"),
        2,
        (0,),
    ),
    "a set of named files that has changed": Situation(
        (("data/prepare/auto_prepare.py", "prepare_if_needed", "repeat_command"),),
        _after(_changed_named_boxes, "train", "ssd-finetune", "--data", "my set", "--weights", "none"),
        2,
        (0,),
    ),
    "an annotated photo that cannot be read": Situation(
        (("data/prepare/box_source.py", "of", "box_command"),),
        _after(_torn_boxes, "prepare", "coco", "--data", "my boxes"),
        2,
        (0,),
    ),
    "a container with a photo that cannot be read": Situation(
        (("data/containers/source.py", "prepare_containers", "container_command"),),
        _after(lambda here, data: _zip(here, data, torn=True), *ZIPS),
        2,
        (0,),
    ),
    "a container that has changed": Situation(
        (("data/index/manifest.py", "again", "container_command"),),
        _after(_changed_zips, "data", "info", "my set"),
        2,
        (0,),
    ),
    "containers without photos to score": Situation(
        (("data/prepare/auto_prepare.py", "prepare_if_needed", "repeat_command"),),
        _after(_half_zips, "train", "classify-demo", "--data", "my set"),
        2,
        (0,),
    ),
    "a photo to stage that has other bytes": Situation(
        (("training/staged_data.py", "open_staged_copy", "repeat_command"),),
        _after(_swapped, *TO_STAGE, "--copy-data-to", "staged"),
        2,
        (0,),
    ),
}

# What no command comes to while the checks before it hold: places, and the call that raises the message.
RAISED: dict[str, tuple[tuple[tuple[str, str, str], ...], Callable[[Path, Path], object]]] = {
    "a folder that was never prepared": (
        (("data/index/manifest.py", "_read", "prepare_command"),),
        lambda here, data: Manifest.load(_photos(here, data)),
    ),
    "an index that lost an array after the check": (
        (("data/index/index.py", "suggested_command", "repeat_command"),),
        lambda here, data: open_split(_without_array(here, data), "train"),
    ),
    "an index of boxes that another version wrote": (
        (("data/index/box_split.py", "open_boxes", "repeat_command"),),
        lambda here, data: open_boxes(_lacking_boxes(here, data), "train"),
    ),
    "a set that is too large to be verified unasked": (
        (("data/prepare/auto_prepare.py", "_class_photos", "prepare_command"),),
        lambda here, data: prepare_if_needed(_photos(here, data), small=9),
    ),
}
