"""Bytes of strangers are opened as photos or not at all: no other program sees them, and one function opens them."""

from __future__ import annotations

import ast
import io
import os
import shutil
from pathlib import Path

import pytest
from messages import raises
from photo_folders import make_photos
from PIL import EpsImagePlugin, Image
from sources import nodes_of
from tiny_runs import TINY, command

import paceline
from paceline._utils.errors import PacelineError
from paceline._utils.names import FORMATS, PREDICTED_FORMATS
from paceline.data.index.records import record_digest
from paceline.data.prepare import verify_images
from paceline.data.prepare.verify_image import ImageInfo
from paceline.data.transforms.image_io import MAX_PIXELS, ImageTooLarge, open_image

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
PACKAGE = Path(paceline.__file__).parent
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 48 40\n%%EndComments\n(x) print\nshowpage\n%%EOF\n"
# What reads a picture file without asking of which format it is.
OPENERS = {"open": {"Image", "PIL"}, "Parser": {"ImageFile"}}
ANYWHERE = {"imread", "read_image", "decode_image", "decode_gif", "read_file", "pil_loader", "default_loader"}


@pytest.fixture
def called(tmp_path, monkeypatch) -> Path:
    """What a stand-in for Ghostscript was called with, a line a call."""
    folder, log = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    (folder / "gs").write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" = --version ] && echo 10.0\n')
    (folder / "gs").chmod(0o755)
    log.touch()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for it once
    return log


def test_the_stand_in_for_ghostscript_is_what_pillow_calls(called):
    with pytest.raises(Exception), Image.open(io.BytesIO(POSTSCRIPT)) as image:  # noqa: B017
        image.load()
    assert "-dSAFER" in called.read_text()


def test_postscript_that_is_called_a_photo_starts_no_program_in_prediction(resnet_run, tmp_path, capsys, called):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(POSTSCRIPT)
    shutil.copy(next(resnet_run.data.rglob("*.jpg")), folder / "good.jpg")
    said = command(capsys, "predict", resnet_run.folder, folder, "--output-dir", tmp_path / "out")
    assert "photo.jpg" in said.out and "PostScript" in said.out and (tmp_path / "out" / "good.jpg").exists()
    said = command(capsys, "predict", resnet_run.folder, folder / "photo.jpg", "--output-dir", tmp_path / "one")
    assert "PostScript" in said.out + said.err
    predictor = paceline.load(str(resnet_run.folder))
    for photo in (POSTSCRIPT, memoryview(POSTSCRIPT), io.BytesIO(POSTSCRIPT), Image.open(io.BytesIO(POSTSCRIPT))):
        with pytest.raises(PacelineError):
            predictor.predict(photo)
    assert called.read_text() == ""


def test_postscript_in_a_set_that_says_it_is_verified_starts_no_program(tmp_path, capsys, called, monkeypatch):
    data = make_photos(tmp_path / "data")
    liar = data / "train" / "cat" / "0.jpg"
    liar.write_bytes(POSTSCRIPT)
    real = verify_images.verify
    status = liar.stat()
    facts = ImageInfo(status.st_size, status.st_mtime_ns, 40, 48, 0, record_digest(POSTSCRIPT))
    with monkeypatch.context() as forged:  # the manifest and check page of a stranger
        forged.setattr(verify_images, "verify", lambda path: facts if path == os.fsencode(liar) else real(path))
        assert command(capsys, "prepare", "folder", data).code == 0
    train = ["train", "classify-demo", "--data", data, *TINY, "--output-dir", tmp_path / "run", "--max-steps", 4]
    for words in (
        train,
        [*train, "--input.decoder", "pillow"],
        ["preview", "classify-demo", "--data", data, "--output", tmp_path / "preview.png"],
        ["data", "pack", data, "--output-dir", tmp_path / "packed", "--resize-shorter-side", 16],
    ):
        said = command(capsys, *words)
        assert said.code == 2 and str(liar) in said.err, words
    (data / "manifest.json").unlink()
    assert command(capsys, "prepare", "folder", data).code == 2
    assert called.read_text() == ""


def test_a_report_starts_no_program_where_a_photo_became_postscript(resnet_run, tmp_path, capsys, called):
    run, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(resnet_run.data, data)
    assert command(capsys, "train", "classify-demo", "--data", data, *TINY, "--output-dir", run, "--max-steps", 2).code == 0
    for photo in data.rglob("val/*/*.jpg"):
        photo.write_bytes(POSTSCRIPT)
    assert command(capsys, "report", run).code == 0
    assert called.read_text() == ""


def encoded(kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((24, 16), 60).convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF"])
def test_photos_of_the_named_formats_are_opened(kind):
    with open_image(encoded(kind)) as picture:
        assert picture.size == (24, 16)
    assert kind in PREDICTED_FORMATS and (kind in FORMATS) == (kind != "GIF")


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "ICNS", "PCX", "SGI", "TGA", "JPEG2000", "DDS", "SPIDER"])
def test_no_other_format_is_opened_under_any_name(kind):
    data = encoded(kind)
    with pytest.raises(Image.UnidentifiedImageError):
        open_image(data)


def test_more_pixels_than_a_photo_has_are_refused_whatever_pillows_own_limit(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    side = int(MAX_PIXELS**0.5) + 1
    for kind in ("PNG", "GIF", "BMP"):
        data = bytearray(encoded(kind))
        at, width, order = {"PNG": (16, 4, "big"), "GIF": (6, 2, "little"), "BMP": (18, 4, "little")}[kind]
        data[at : at + 2 * width] = side.to_bytes(width, order) * 2
        if kind == "PNG":
            import zlib

            data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
        with raises(ImageTooLarge, "pixels"):
            open_image(bytes(data))


def test_pictures_are_opened_in_one_place():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute):
                owner = node.value
                name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                opens = name in OPENERS.get(node.attr, ()) or node.attr in ANYWHERE
            elif isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
                module = (node.module or "").rpartition(".")[2]
                opens = bool(names & ANYWHERE) or any(module in OPENERS.get(name, ()) for name in names)
                opens |= module == "Image" or any(alias.asname and alias.name == "Image" for alias in node.names)
            else:
                continue
            if opens:
                found.append(f"{path.relative_to(PACKAGE)}:{getattr(node, 'attr', 'import')}")
    # The reader stands alone beside an exported file, and opens photos alone.
    assert found == ["data/transforms/image_io.py:open", "inference/graph/onnx_reader.py:open"]
    assert "Image.open(io.BytesIO(data), formats=FORMATS)" in (PACKAGE / "inference/graph/onnx_reader.py").read_text()
