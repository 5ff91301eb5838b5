"""Photos and class folders of strangers: refused in one sentence that names the file, or taken; nothing beside them is touched."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hostile import judge, parameters
from hostile_images import IMAGES, scans
from messages import raises
from PIL import Image

from paceline._utils.errors import DataError
from paceline.data.index.index import Index
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.transforms.image_io import find_endless_jpeg, read_header
from paceline.inference.image_input import encode_photo as photo_of
from paceline.inference.image_paths import find_photos


@parameters(IMAGES)
def test_a_strangers_photo_is_refused_or_taken_and_no_link_leads_out(name: str, tmp_path: Path) -> None:
    judge(IMAGES, name, tmp_path / "set")
    precious = tmp_path / "precious"
    assert not precious.exists() or precious.read_text() == "precious"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 5, "restart_marker_blocks": 1}])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_ordinary_photos_of_every_kind_are_not_called_endless(mode: str, options: dict) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((200, 150), 90).convert(mode).save(buffer, "JPEG", **options)
    assert find_endless_jpeg(buffer.getvalue()) == "" and read_header(buffer.getvalue(), "x").width == 200
    # A thumbnail, and anything behind the picture.
    whole = buffer.getvalue()
    assert find_endless_jpeg(whole[:2] + b"\xff\xe1\x40\x02" + b"\xff\xda" * 0x2000 + whole[2:] + b"\xff\xda" * 500) == ""


def test_a_photo_in_one_scan_is_not_judged_by_what_its_picture_holds_of_scan_markers() -> None:
    """A decoder is done with such a photo where its one scan is, whatever noise lies before its end."""
    buffer = io.BytesIO()
    Image.effect_noise((200, 150), 90).convert("RGB").save(buffer, "JPEG")
    noisy = buffer.getvalue()[:-2] + b"\xff\xda" * 200 + b"\xff\xd9"
    assert find_endless_jpeg(noisy) == ""


def test_a_marker_that_stands_alone_hides_no_scans() -> None:
    for marker in (b"\xff\x01", b"\xff\xd0"):
        for count, said in ((0, ""), (200, "more than 100 scans")):
            data = scans(count, (8, 8))
            assert len(data) < 1 << 15, "a marker that were a segment's would end the walk behind the file"
            assert find_endless_jpeg(data[:2] + marker + data[2:])[: len(said) or None] == said


def test_a_photo_that_became_a_pipe_or_endless_is_named_at_once_in_training_and_prediction(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    IMAGES.good(folder)
    index = Index.open(prepare_folder(folder, workers=1).folder, "train")
    photo = folder / "train/cat/0.jpg"
    for change, says in (IMAGES.cases["named pipe"], IMAGES.cases["endless zeros"], IMAGES.cases["socket"]):
        change(folder)
        with pytest.raises(DataError, match=rf"train/cat/0\.jpg: .*\({says}"):
            index.read(0)
        (found,) = find_photos([photo]).photos
        with pytest.raises(DataError, match=rf"train/cat/0\.jpg: .*\({says}"):
            photo_of(found)
    photo.unlink()
    photo.write_bytes(scans(200))
    with pytest.raises(DataError, match="more than 100 scans"):
        photo_of(photo)
    os.rename(photo, photo.with_name("a\nforged.jpg"))
    ((named, why),) = find_photos([photo.parent]).refused
    assert "a\nforged.jpg" in named and "line break" in why


def test_a_photo_of_another_length_is_named_with_both_lengths(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    IMAGES.good(folder)
    index = Index.open(prepare_folder(folder, workers=1).folder, "train")
    photo = folder / "train/cat/0.jpg"
    whole = photo.read_bytes()
    assert index.read(0) == whole
    for content in (whole + b"x", whole[:-1], b""):
        photo.write_bytes(content)
        with raises(DataError, f"{len(content):,} bytes", f"{len(whole):,}"):
            index.read(0)
