"""Annotations that name photos by their paths on another machine find them here, and nothing outside of the folder of images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from paceline._utils.errors import DataError
from paceline.data.formats.coco import read_coco


def annotated(root: Path, names: list[str]) -> Path:
    images = [{"id": i, "file_name": name, "width": 48, "height": 40} for i, name in enumerate(names)]
    file = root / "my.json"
    file.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "cell"}]}))
    return file


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for name in ("a.jpg", "left/b.jpg", "right/b.jpg", "deep/er/c.jpg", "od\\d.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 40)).save(folder / name)
    Image.new("RGB", (48, 40)).save(tmp_path / "outside.jpg")
    return folder


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/home/ann/set/a.jpg", "a.jpg"),
        ("C:\\Users\\Ann\\set\\a.jpg", "a.jpg"),
        ("C:/Users/Ann/set/left/b.jpg", "left/b.jpg"),
        ("\\\\server\\share\\right\\b.jpg", "right/b.jpg"),
        ("left\\b.jpg", "left/b.jpg"),
        ("../elsewhere/left/b.jpg", "left/b.jpg"),
        ("/data/c.jpg", "deep/er/c.jpg"),  # the only one of that name
        ("od\\d.jpg", "od\\d.jpg"),
    ],
)
def test_a_path_of_another_machine_is_the_file_here_that_ends_like_it(name: str, found: str, photos: Path) -> None:
    read, notes = read_coco(annotated(photos.parent, [name]), photos)
    assert read.file_names == [found]
    assert any("in folder" in note for note in notes) == (found != name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/home/ann/b.jpg", r"left/b\.jpg, right/b\.jpg"),
        ("/etc/passwd", "outside the folder"),
        ("../outside.jpg", "outside the folder"),
        ("..", "outside the folder"),
    ],
)
def test_what_is_not_there_or_could_be_several_is_refused_by_name(name: str, said: str, photos: Path) -> None:
    with pytest.raises(DataError, match=f"image 0 .*{said}"):
        read_coco(annotated(photos.parent, [name]), photos)


def test_two_names_of_one_file_are_refused(photos: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jpg \('/home/ann/a.jpg' also matches\)"):
        read_coco(annotated(photos.parent, ["/home/ann/a.jpg", "/home/bob/a.jpg"]), photos)
