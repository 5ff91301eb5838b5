"""Names in other people's files are shown, and none of them is obeyed by the terminal or makes a line of its own."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from coco_sets import edit, make_set
from tiny_runs import Said, command, make_photos, refused, train, without_report

from paceline.training.logging.console import Console

NAME = "ant\x1b]0;owned\x07\u202e\x9b2J"
SHOWN = r"ant\x1b]0;owned\x07\u202e\x9b2J"


def harmless(said: Said) -> None:
    assert not set(said.out + said.err) & set("\x1b\x07\u202e\x9b"), said


def test_prepare_train_and_predict_show_class_names_escaped(tmp_path: Path, capsys, monkeypatch) -> None:
    without_report(monkeypatch)
    photos = make_photos(tmp_path / "photos", (NAME, "bee"))
    said = command(capsys, "prepare", "folder", photos)
    assert said.code == 0, said
    harmless(said)
    said = train(capsys, photos, tmp_path / "run")
    assert said.code == 0, said
    harmless(said)
    photo = photos / "val" / "bee" / "0.jpg"
    odd = photo.rename(photo.with_name(f"{NAME}.jpg"))
    said = command(capsys, "predict", tmp_path / "run", odd, "--output-dir", tmp_path / "found", "--no-save-images")
    assert said.code == 0 and said.out.count(SHOWN) == 2 and len(said.out.splitlines()) == 2, said
    harmless(said)


def test_names_in_notes_tables_and_refusals_are_escaped(tmp_path: Path, capsys) -> None:
    photos = make_photos(tmp_path / "photos", (NAME, "bee"), train=1, val=1)
    (photos / "train" / NAME / "0.jpg").write_bytes(b"")
    said = command(capsys, "prepare", "folder", photos)
    refused(said, SHOWN, "empty file", lines=6)
    harmless(said)
    boxes = make_set(tmp_path / "boxes")
    for split in ("train", "val"):
        edit(boxes, lambda record: record["categories"][0].update(name=f"{NAME}\nforged"), split)
    said = command(capsys, "prepare", "coco", boxes)
    assert said.code == 0 and f"2 classes: dog, {SHOWN} forged" in said.out, said
    harmless(said)


def test_the_console_of_a_run_escapes_what_it_is_given_and_keeps_its_own_lines() -> None:
    for terminal in (False, True):
        out = io.StringIO()
        console = Console(10, target="", terminal=terminal, out=out)
        console.line(f"weights {NAME}\n  second line")
        console.close()
        assert SHOWN in out.getvalue() and "\n  second line" in out.getvalue() and NAME not in out.getvalue()


def test_a_file_name_that_is_no_text_can_be_shown(tmp_path: Path, capsys) -> None:
    photos = make_photos(tmp_path / "photos", train=1, val=1)
    broken = os.path.join(os.fsencode(photos), b"train", b"bee", b"\xff.jpg")
    with open(broken, "wb"):
        pass
    refused(command(capsys, "prepare", "folder", photos), r"\udcff.jpg: empty file", lines=6)


@pytest.mark.parametrize("needed", [0, 5 << 10, 5 << 20, 5 << 30])
def test_room_that_is_missing_is_said_in_a_unit_that_shows_it(needed: int) -> None:
    from paceline._utils.formatting import format_bytes

    assert format_bytes(needed).split()[0] in ("0", "5", "5.0")
    assert format_bytes(needed).split()[1] == {0: "bytes", 5 << 10: "KiB", 5 << 20: "MiB", 5 << 30: "GiB"}[needed]
