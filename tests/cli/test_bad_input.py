"""Bad input: one clear message, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import TINY, make_photos, refused, train, without_report


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    without_report(monkeypatch)
    return make_photos(tmp_path / "photos")


def test_an_empty_data_folder(tmp_path: Path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    refused(train(capsys, tmp_path / "empty", tmp_path / "run"), "empty")
    assert not (tmp_path / "run").exists()


def test_a_truncated_jpeg_is_named(photos: Path, tmp_path: Path, capsys) -> None:
    victim = photos / "train" / "bee" / "1.jpg"
    victim.write_bytes(victim.read_bytes()[:300])
    refused(train(capsys, photos, tmp_path / "run"), "train/bee/1.jpg")
    assert not (tmp_path / "run").exists()


def test_a_text_file_named_jpg_is_named(photos: Path, tmp_path: Path, capsys) -> None:
    (photos / "val" / "cat" / "0.jpg").write_text("not a photo")
    refused(train(capsys, photos, tmp_path / "run"), "val/cat/0.jpg")


def test_one_class_only(photos: Path, tmp_path: Path, capsys) -> None:
    for label in ("bee", "cat"):
        for split in ("train", "val"):
            shutil.rmtree(photos / split / label)
    refused(train(capsys, photos, tmp_path / "run"), "one class", "ant")


def test_val_classes_that_differ_from_trains(photos: Path, tmp_path: Path, capsys) -> None:
    (photos / "val" / "bee").rename(photos / "val" / "wasp")
    refused(train(capsys, photos, tmp_path / "run"), "bee", "wasp")


def test_a_run_folder_that_cannot_be_written(photos: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(train(capsys, photos, tmp_path / "file" / "run"), "--output-dir", "run")
    refused(train(capsys, photos, tmp_path / "file"), "--output-dir", "file")


def test_a_folder_that_holds_something_else_is_left_alone(photos: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    refused(train(capsys, photos, tmp_path / "mine"), "mine")
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="cannot mount a small disk: not root")
def test_a_full_disk_is_refused_before_training(photos: Path, tmp_path: Path, capsys) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        refused(train(capsys, photos, disk / "run"), "run", "free")
        assert not (disk / "run").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_weights_of_another_model(photos: Path, tmp_path: Path, capsys) -> None:
    import torchvision

    file = tmp_path / "resnet34.pth"
    torch.save(torchvision.models.resnet34(weights=None).state_dict(), file)
    refused(train(capsys, photos, tmp_path / "run", "--weights", file), "resnet34.pth", "another model")
    assert not (tmp_path / "run").exists()


def test_a_real_process_shows_one_message_and_no_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "paceline", "train", "classify-demo", "--data", "nowhere", *TINY]
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert ended.returncode == 2 and ended.stderr.startswith("paceline: --data nowhere"), ended
    assert ended.stderr.count("\n") == 1 and ended.stdout == ""
