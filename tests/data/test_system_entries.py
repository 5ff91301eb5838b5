"""Files of macOS, Windows, NAS devices and notebooks among the data change nothing: the same photos, classes and objects."""

from __future__ import annotations

import json
import shutil
import tarfile
import unicodedata
import zipfile
from pathlib import Path

import pytest
from coco_sets import make_set
from label_formats import put, voc_xml
from messages import check_text
from photo_folders import make_photos, paint

from paceline.cli.main import main
from paceline.data.formats.layouts import find_coco, read_source
from paceline.data.index.manifest import Manifest
from paceline.inference.image_paths import find_photos


def litter(root: Path) -> Path:
    """Add what systems leave to `root` and to every folder in it."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        for name in ("__MACOSX", "@eaDir/1.jpg", ".ipynb_checkpoints", "lost+found", "#recycle", "$RECYCLE.BIN"):
            paint(folder / name / "1.jpg")
        for name in (
            "._1.jpg",
            ".DS_Store",
            "Thumbs.db",
            "desktop.ini",
            "._data.yaml",
            "._instances_train2017.json",
            "._1.xml",
        ):
            put(folder / name, "\x00\x05\x16\x07")
    return root


def prepared(out: Path, *words: str | Path) -> Manifest:
    assert main(["prepare", *map(str, words), "--output-dir", str(out)]) == 0
    return Manifest.load(out)


@pytest.mark.parametrize("fraction", [(), ("--val-fraction", "0.34")], ids=["splits", "one folder"])
def test_class_folders(tmp_path: Path, fraction: tuple[str, ...]) -> None:
    root = make_photos(tmp_path / "set")
    if fraction:
        shutil.copytree(root / "train", tmp_path / "one")
        root = tmp_path / "one"
    clean = prepared(tmp_path / "clean", "folder", root, *fraction)
    found = prepared(tmp_path / "found", "folder", litter(root), *fraction)
    assert found.classes == ("cat", "dog") and found.content_hash == clean.content_hash


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_of_class_folders(tmp_path: Path, kind: str) -> None:
    root = make_photos(tmp_path / "set")
    hashes = []
    for name in ("clean", "littered"):
        words = []
        for split in ("train", "val"):
            shutil.make_archive(str(tmp_path / f"{name}-{split}"), kind, root / split)
            words += [f"--{split}", tmp_path / f"{name}-{split}.{kind}"]
        manifest = prepared(tmp_path / name, kind, *words)
        assert manifest.classes == ("cat", "dog")
        hashes.append(manifest.content_hash)
        litter(root)
    assert hashes[0] == hashes[1]


def test_shards_of_webdataset(tmp_path: Path) -> None:
    paint(tmp_path / "1.jpg")
    put(tmp_path / "1.cls", "1")
    put(tmp_path / "0.cls", "0")
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for key in range(4):
            for folder in ("", "@eaDir/", "__MACOSX/") if key < 2 else ("",):
                shard.add(tmp_path / "1.jpg", f"{folder}{key}.jpg")
                shard.add(tmp_path / f"{key % 2}.cls", f"{key}.cls") if not folder else None
    # Files of one sample stand together, apart from those of systems.
    with tarfile.open(tmp_path / "a.tar") as shard:
        assert len(shard.getmembers()) == 12
    found = prepared(tmp_path / "out", "webdataset", "--train", tmp_path / "a.tar", "--val", tmp_path / "a.tar")
    assert found.splits["train"].images == 4


def test_photos_that_a_pattern_names(tmp_path: Path) -> None:
    root = litter(make_photos(tmp_path / "set"))
    words = [word for split in ("train", "val") for word in (f"--{split}", f"{root}/{split}/*/*.jpg")]
    found = prepared(tmp_path / "out", "photos", *words)
    assert (found.classes, found.splits["train"].images, found.splits["val"].images) == (("cat", "dog"), 6, 4)


def test_coco_folders(tmp_path: Path) -> None:
    root = make_set(tmp_path / "set")
    pairs, clean = find_coco(root), prepared(tmp_path / "clean", "coco", root)
    assert find_coco(litter(root)) == pairs
    assert prepared(tmp_path / "found", "coco", root).content_hash == clean.content_hash


def test_voc_folders(tmp_path: Path) -> None:
    for stem in ("1", "2"):
        paint(tmp_path / f"JPEGImages/{stem}.jpg")
        put(tmp_path / f"Annotations/{stem}.xml", voc_xml(f"{stem}.jpg", (12, 16), [("cat", (1, 1, 5, 5), 0)]))
    source = read_source(litter(tmp_path))
    assert source.layout == "voc" and source.splits["train"].file_names == ["1.jpg", "2.jpg"]


def test_folders_of_photos_to_predict(tmp_path: Path) -> None:
    root = make_photos(tmp_path / "set")
    before = find_photos([root]).photos
    listing = find_photos([litter(root)])
    assert listing.photos == before and not listing.others and listing.passed["hidden"] > 10
    assert find_photos([root / "train/*/*.jpg"]).photos == [path for path in before if "train" in path.parts]
    assert find_photos([root / "**/*.jpg"]).photos == before


def test_weights_in_a_folder(tmp_path: Path) -> None:
    import numpy as np

    from paceline.models.weights.formats.mxnet import read_npy_folder

    np.save(tmp_path / "a.npy", np.zeros(2, np.float32))
    put(tmp_path / "._a.npy", "\x00\x05\x16\x07")
    assert list(read_npy_folder(tmp_path)) == ["a"]


@pytest.mark.parametrize(
    ("train", "val"), [("Train", "Val"), ("TRAIN", "VALIDATION"), ("training", "validation"), ("train", "Valid")]
)
def test_folders_of_splits_are_known_in_any_case(tmp_path: Path, train: str, val: str) -> None:
    root = make_photos(tmp_path / "set")
    clean = prepared(tmp_path / "clean", "folder", root)
    (root / "train").rename(root / train)
    (root / "val").rename(root / val)
    found = prepared(tmp_path / "out", "folder", root)
    assert found.classes == clean.classes and [split.images for split in found.splits.values()] == [6, 4]
    assert main(["prepare", "folder", str(root), "--output-dir", str(tmp_path / "again")]) == 0


def test_a_class_that_is_called_train_stays_a_class(tmp_path: Path) -> None:
    for label in ("Car", "Train", "training"):
        for number in range(4):
            paint(tmp_path / "set" / label / f"{number}.jpg")
    found = prepared(tmp_path / "out", "folder", tmp_path / "set", "--val-fraction", "0.25")
    assert found.classes == ("Car", "Train", "training")


def test_names_of_classes_that_differ_in_a_space_are_shown_in_quotes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_photos(tmp_path / "set")
    (root / "val/cat").rename(root / "val/cat ")
    assert main(["prepare", "folder", str(root), "--output-dir", str(tmp_path / "out")]) == 2
    check_text(capsys.readouterr().err, "Unicode", "'cat '", "train/: 'cat'")


def test_classes_of_archives_in_two_unicode_forms_are_one(tmp_path: Path) -> None:
    name = "\u00c4pfel"
    for split, form, count in (("train", "NFC", 4), ("val", "NFD", 2)):
        with zipfile.ZipFile(tmp_path / f"{split}.zip", "w") as archive:
            for number in range(count):
                paint(tmp_path / "1.jpg")
                for label in (unicodedata.normalize(form, name), "Birnen"):
                    archive.write(tmp_path / "1.jpg", f"{label}/{number}.jpg")
    found = prepared(tmp_path / "out", "zip", "--train", tmp_path / "train.zip", "--val", tmp_path / "val.zip")
    assert found.classes == ("Birnen", name) and found.splits["val"].per_class == (2, 2)
    classes = put(tmp_path / "classes.txt", f"{unicodedata.normalize('NFD', name)}\nBirnen\n")
    found = prepared(
        tmp_path / "listed",
        "zip",
        "--train",
        tmp_path / "train.zip",
        "--val",
        tmp_path / "val.zip",
        "--class-names-file",
        classes,
    )
    assert found.splits["train"].per_class == (4, 4)
    assert json.loads((tmp_path / "listed/manifest.json").read_text())["classes"][1] == "Birnen"
