"""manifest.json: what is saved is loaded, damage is named, and a set that changed on disk is noticed."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from messages import check_text, raises
from PIL import Image

import paceline.data.index.staleness as freshness
from paceline._utils.errors import DataError
from paceline.data.index.manifest import Manifest, cached_manifest_folder, class_order_hash, find_manifest, prepare_command
from paceline.data.index.staleness import find_stale_file
from paceline.data.prepare.class_source import prepare_folder


def paint(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((16, 12), 40 + seed).convert("RGB").save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """train/{cat,dog} with 3 photos each, val with 2; prepared in place."""
    root = tmp_path / "photos"
    for split, number in (("train", 3), ("val", 2)):
        for label in ("cat", "dog"):
            for i in range(number):
                paint(root / split / label / f"{i}.jpg", i)
    prepare_folder(root)
    return root


def test_what_is_saved_is_loaded(photos):
    manifest = Manifest.load(photos / "manifest.json")
    manifest.save()
    assert Manifest.load(photos) == manifest
    assert manifest.classes == ("cat", "dog") and manifest.splits["train"].per_class == (3, 3)
    assert manifest.folder == photos and manifest.root == "." and manifest.root_path == photos


def test_hashes_follow_content_and_not_the_place(photos, tmp_path):
    before = Manifest.load(photos)
    shutil.copytree(photos, tmp_path / "moved")
    moved = prepare_folder(tmp_path / "moved")
    assert moved.content_hash == before.content_hash
    photo = tmp_path / "moved" / "train" / "cat" / "0.jpg"
    data = bytearray(photo.read_bytes())
    data[12] ^= 1  # a density in the header: the same size, the same pixels, other bytes
    photo.write_bytes(data)
    changed = prepare_folder(tmp_path / "moved")
    assert changed.splits["train"].content_hash != before.splits["train"].content_hash
    assert changed.splits["val"].content_hash == before.splits["val"].content_hash
    assert changed.content_hash != before.content_hash


def test_class_order_has_its_own_hash():
    assert class_order_hash(["a", "b"]) != class_order_hash(["b", "a"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: text.replace('"cat"', '"cow"'), "classes"),
        (lambda text: text.replace('"paceline_manifest": 1', '"paceline_manifest": 99'), "format 99"),
        (lambda text: text.replace('"index": ', '"somewhere": '), "damaged ... index"),
        (lambda text: "[]", "format None"),
    ],
)
def test_a_damaged_manifest_is_named(photos, damage, message):
    path = photos / "manifest.json"
    path.write_text(damage(path.read_text()))
    with raises(DataError, message):
        Manifest.load(path)


def test_no_manifest_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match="paceline prepare folder --data"):
        Manifest.load(tmp_path)


def test_a_save_that_fails_leaves_the_old_manifest_whole(photos, monkeypatch):
    manifest = Manifest.load(photos)

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace(manifest, made_by="other").save()
    monkeypatch.undo()
    assert Manifest.load(photos) == manifest
    assert sorted(entry.name for entry in photos.iterdir()) == ["index", "manifest.json", "train", "val"]


def test_a_manifest_is_found_in_the_root_then_in_the_cache(photos, tmp_path):
    assert find_manifest(photos) == photos / "manifest.json"
    (photos / "manifest.json").unlink()
    assert find_manifest(photos) is None
    prepare_folder(photos, out=cached_manifest_folder(photos))
    assert find_manifest(photos) == cached_manifest_folder(photos) / "manifest.json"
    link = tmp_path / "link"
    link.symlink_to(photos)
    assert find_manifest(link) == cached_manifest_folder(photos) / "manifest.json"


def test_a_place_in_the_cache_is_called_after_the_folder_and_told_apart_by_its_path(tmp_path):
    one, other = (cached_manifest_folder(tmp_path / above / "my photos") for above in ("a", "b"))
    assert one.parent == other.parent and one != other
    assert re.fullmatch(r"my_photos-[0-9a-f]{12}", one.name) and re.fullmatch(r"my_photos-[0-9a-f]{12}", other.name)
    assert re.fullmatch(r"root-[0-9a-f]{12}", cached_manifest_folder(Path("/")).name)


def test_a_manifest_of_another_tool_is_not_taken_for_ours(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    assert find_manifest(tmp_path) is None


def test_a_command_can_be_pasted_whatever_the_folder_is_called():
    assert prepare_command(Path("/my data/x")) == "paceline prepare folder --data '/my data/x'"
    assert prepare_command(Path("/x"), "imagenet") == "paceline prepare imagenet --data /x"


def add(root: Path) -> None:
    paint(root / "train" / "cat" / "new.jpg")


def remove(root: Path) -> None:
    (root / "val" / "dog" / "1.jpg").unlink()


def rename(root: Path) -> None:
    (root / "train" / "dog" / "0.jpg").rename(root / "train" / "dog" / "00.jpg")


def grow(root: Path) -> None:
    with open(root / "train" / "dog" / "2.jpg", "ab") as file:
        file.write(b"more")


def add_class(root: Path) -> None:
    paint(root / "train" / "cow" / "0.jpg")


def remove_val(root: Path) -> None:
    shutil.rmtree(root / "val")


def lose_index(root: Path) -> None:
    shutil.rmtree(root / "index")


CHANGES = [
    (add, r"train/cat/new\.jpg is new"),
    (remove, r"val/dog/1\.jpg was removed"),
    (rename, r"train/dog/0\.jpg was removed"),
    (grow, r"train/dog/2\.jpg: .* bytes, .* when it was prepared"),
    (add_class, "3 class folders, but 2 when prepared .cow differs"),
    (remove_val, "val: folder not found"),
    (lose_index, "missing or damaged"),
]


@pytest.mark.parametrize("every_file", [True, False], ids=["small", "large"])
@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_set_that_changed_is_noticed_and_the_change_named(photos, monkeypatch, change, reason, every_file):
    monkeypatch.setattr(freshness, "CHECK_EVERY_FILE_UP_TO", 50_000 if every_file else 0)
    manifest = Manifest.load(photos)
    assert find_stale_file(manifest) is None
    change(photos)
    found = find_stale_file(manifest)
    assert found is not None and re.search(reason, found), found


def test_in_a_small_set_a_change_is_noticed_whatever_the_folders_time_says(photos):
    manifest = Manifest.load(photos)
    add(photos)
    os.utime(photos / "train" / "cat", ns=(0, manifest.splits["train"].directory_mtimes[0]))
    assert "new.jpg is new" in str(find_stale_file(manifest))


def test_a_large_set_with_new_folder_times_is_listed_again_and_still_fresh(photos, monkeypatch):
    monkeypatch.setattr(freshness, "CHECK_EVERY_FILE_UP_TO", 0)
    manifest = Manifest.load(photos)
    listed = []
    real = freshness.list_folder
    monkeypatch.setattr(freshness, "list_folder", lambda folder: listed.append(folder.name) or real(folder))
    assert find_stale_file(manifest) is None and listed == ["train", "val"]
    listed.clear()
    os.utime(photos / "train" / "dog", ns=(1, 1))
    assert find_stale_file(manifest) is None and listed == ["train", "dog", "val"]


def test_a_large_set_looks_at_evenly_spaced_files_only(photos, monkeypatch):
    monkeypatch.setattr(freshness, "CHECK_EVERY_FILE_UP_TO", 0)
    monkeypatch.setattr(freshness, "SAMPLED_FILES", 2)
    looked_at = []
    real = freshness._size
    monkeypatch.setattr(freshness, "_size", lambda path: looked_at.append(Path(path).name) or real(path))
    assert find_stale_file(Manifest.load(photos)) is None
    assert looked_at == ["0.jpg", "2.jpg", "0.jpg", "1.jpg"]


def test_a_moved_set_with_its_manifest_inside_stays_fresh(photos, tmp_path):
    photos.rename(tmp_path / "elsewhere")
    assert find_stale_file(Manifest.load(tmp_path / "elsewhere")) is None


def test_a_file_left_out_counts_as_known_until_it_changes(photos):
    bad = photos / "train" / "cat" / "bad.jpg"
    bad.write_bytes(b"text")
    manifest = prepare_folder(photos, on_unreadable="skip")
    assert find_stale_file(manifest) is None
    paint(bad)
    check_text(str(find_stale_file(manifest)), "bad.jpg", "unreadable", "changed")
