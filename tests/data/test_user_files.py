"""What somebody keeps in the folder of a data set stays: prepare replaces and deletes what it wrote itself, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from messages import check_text, raises
from photo_folders import make_photos, paint
from tiny_runs import command

from paceline._utils.errors import DataError
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.pipeline import KEEP_OLD_INDEX_SECONDS
from paceline.data.prepare.val_split import ValSplit

LONG_AGO = KEEP_OLD_INDEX_SECONDS + 60
ARRAYS = ["files", "offsets", "lengths", "labels", "heights", "widths", "name_bytes", "name_starts"]


def age(path: Path) -> None:
    os.utime(path, (0, path.stat().st_mtime - LONG_AGO))


def held_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folders_of_the_users_in_index_stay_however_old(photos):
    index = photos / "index"
    for file in (
        "features-2025/all.npy",
        "0123456789abcdef/notes.txt",
        "0123456789abcde0/train.features.npy",
        "0123456789abcde1/train.labels.npy/deep",
        ".0123456789abcdef.01234567.part/thesis.tex",
        "0123456789abcde2x/train.labels.npy",
        "a file",
    ):
        (index / file).parent.mkdir(parents=True, exist_ok=True)
        (index / file).write_text("mine")
    (index / "0123456789abcde3").mkdir()
    for name in ARRAYS:
        (index / "0123456789abcde2x" / f"train.{name}.npy").write_text("mine")
    (photos / "elsewhere").mkdir()
    for name in ARRAYS:
        (photos / "elsewhere" / f"train.{name}.npy").write_text("mine")
    (index / "0123456789abcde4").symlink_to("../elsewhere")
    for entry in (*index.iterdir(), photos / "elsewhere"):
        age(entry)
    before, names = held_in(photos), set(os.listdir(index))
    manifest = prepare_folder(photos)
    after = held_in(photos)
    assert {name: after.get(name) for name in before} == before
    assert set(os.listdir(index)) == names | {Path(manifest.index).name}


def test_an_old_index_goes_and_so_does_at_once_what_a_kill_left_of_one(photos):
    old = photos / prepare_folder(photos).index
    paint(photos / "train/cat/more.jpg")
    prepare_folder(photos)  # keeps the one before
    age(old)
    part = photos / "index" / f".{'0' * 16}.{'1' * 8}.part"
    part.mkdir()
    (part / "train.labels.npy").write_bytes(b"half")
    for name in (".manifest.json.01234567.part", ".check.html.01234567.part"):
        (photos / name).write_text("half")
    theirs = [".manifest.json.part", ".mine.01234567.part"]
    for name in theirs:
        (photos / name).write_text("mine")
    paint(photos / "train/cat/still more.jpg")
    assert subprocess.run([sys.executable, "-m", "paceline", "prepare", "folder", photos], check=False).returncode == 0
    assert len(os.listdir(photos / "index")) == 2 and not old.exists() and not part.exists()
    assert sorted(name for name in os.listdir(photos) if name.startswith(".")) == theirs


def test_a_linked_index_is_refused_with_a_way_out(photos, tmp_path, capsys):
    home = tmp_path / "home"
    (home / "thesis").mkdir(parents=True)
    (home / "thesis" / "chapter1.tex").write_text("mine")
    age(home / "thesis")
    (photos / "index").symlink_to(home)
    said = command(capsys, "prepare", "folder", photos)
    assert said.code == 2 and check_text(said.err, "index", "link")
    assert held_in(home) == {"thesis/chapter1.tex": b"mine"} and not (photos / "manifest.json").exists()
    assert command(capsys, "prepare", "folder", photos, "--output-dir", tmp_path / "out").code == 0


def test_pages_and_lists_that_are_not_ours_stay_and_that_is_told(photos, capsys):
    for name in ("check.html", "unreadable.txt"):
        (photos / name).write_text("<!doctype html> mine" if name == "check.html" else "photos/a.jpg: blurred\n")
    before = {name: (photos / name).read_bytes() for name in ("check.html", "unreadable.txt")}
    said = command(capsys, "prepare", "folder", photos)
    assert said.code == 0 and check_text(said.out, "check.html", "stays")
    for number in range(10):
        (photos / "train/cat" / f"x{number}.jpg").write_bytes(b"")
    said = command(capsys, "prepare", "folder", photos)
    assert said.code == 2 and check_text(said.err, "unreadable.txt", "is kept")
    assert {name: (photos / name).read_bytes() for name in before} == before
    (photos / "prepare.journal").write_text("what we prepared\n")
    said = command(capsys, "prepare", "folder", photos, "--on-unreadable", "skip")
    assert said.code == 0, said.err
    assert (photos / "prepare.journal").read_text() == "what we prepared\n"


def test_our_own_pages_and_lists_are_replaced(photos, capsys):
    first = "# paceline: images that cannot be used\n"
    (photos / "unreadable.txt").write_text(f"{first}/photos/train/cat/x.jpg: empty file (0 bytes)\n")
    marked = '<meta name="generator" content="paceline">'
    (photos / "check.html").write_text(f'<!doctype html>\n<html lang="en">\n{marked}')
    said = command(capsys, "prepare", "folder", photos)
    assert said.code == 0 and f"check:    {photos / 'check.html'} (" in said.out
    assert not (photos / "unreadable.txt").exists()
    page = (photos / "check.html").read_text()
    assert marked in page and "</html>" in page


def test_of_two_prepares_at_once_with_other_flags_the_second_to_end_says_so_and_changes_nothing(tmp_path):
    photos = make_photos(tmp_path / "photos") / "train"
    out = tmp_path / "out"

    def meanwhile(done: int, total: int) -> None:
        if done == 0:
            prepare_folder(photos, out=out, val=ValSplit(0.34))

    with raises(DataError, "manifest.json", "another `prepare`") as refused:
        prepare_folder(photos, out=out, val=ValSplit(0.67), progress=meanwhile)
    assert "--output-dir" in str(refused.value)
    assert (Manifest.load(out).request or {})["val_fraction"] == 0.34
    assert prepare_folder(photos, out=out, val=ValSplit(0.67)).request == {
        "val_fraction": 0.67,
        "split_seed": 0,
        "group_by": "",
    }


def test_of_two_prepares_at_once_with_the_same_flags_both_are_right(photos):
    prepare_folder(photos, progress=lambda done, total: None if done else prepare_folder(photos) and None)
    assert sorted(os.listdir(photos)) == ["index", "manifest.json", "train", "val"]
