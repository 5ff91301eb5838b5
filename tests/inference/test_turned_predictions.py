"""A photo that is stored turned is answered, drawn and reported as the same photo stored upright, where the run says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from html_pages import picture_in
from messages import check_text
from orientation import encode, stored
from PIL import Image

from paceline.cli.main import main
from paceline.data.index.index import open_split
from paceline.data.prepare.class_source import prepare_folder
from paceline.inference import load
from paceline.tools.report.check.page_parts import make_tile
from paceline.tools.report.classification_results import ImageClassification, add_images
from paceline.tools.report.detection_results import ImageComparison, add_rendered_images

RUNS = ("resnet_run", "ssd_run", "maskrcnn_run")


def _photos(folder: Path) -> tuple[Path, Path]:
    """One picture, upright and turned, without loss."""
    picture = Image.effect_noise((70, 40), 90).convert("RGB")
    picture.paste((255, 0, 0), (0, 0, 30, 12))
    for name, orientation in (("upright", 1), ("turned", 6)):
        (folder / f"{name}.png").write_bytes(encode(stored(picture, orientation), orientation, "PNG"))
    return folder / "upright.png", folder / "turned.png"


def _corner(picture: Image.Image) -> tuple[int, ...]:
    return tuple(np.asarray(picture.convert("RGB"))[3, 3] // 64)


@pytest.mark.parametrize("fixture", RUNS)
def test_answers_are_those_of_the_upright_photo(fixture, request, tmp_path):
    predictor = load(request.getfixturevalue(fixture).folder)
    upright, turned = predictor.predict([*_photos(tmp_path)])
    assert (upright.orientation, turned.orientation) == (1, 6)
    assert (turned.names, turned.scores) == (upright.names, upright.scores)
    if fixture != "resnet_run":
        assert (turned.width, turned.height) == (70, 40)
        np.testing.assert_array_equal(turned.boxes_xywh, upright.boxes_xywh)
    if fixture == "maskrcnn_run":
        assert turned.masks_rle == upright.masks_rle


@pytest.mark.parametrize("fixture", RUNS)
def test_pictures_are_drawn_upright_and_the_number_of_turned_photos_is_said(fixture, request, tmp_path, capsys):
    run = request.getfixturevalue(fixture).folder
    _photos(tmp_path)
    assert main(["predict", str(run), str(tmp_path), "--output-dir", str(tmp_path / "out"), "--score-threshold", "1"]) == 0
    check_text(capsys.readouterr().out, "1 image", "EXIF", "applied")
    with Image.open(tmp_path / "out" / "upright.jpg") as wanted, Image.open(tmp_path / "out" / "turned.jpg") as found:
        assert found.size == wanted.size and _corner(found) == _corner(wanted)
    record = json.loads((tmp_path / "out" / "predictions.json").read_text())["images"]
    assert {
        key: record[0][key] for key in record[0] if key not in ("file", "annotated_image", "orientation", "detections")
    } == {key: record[1][key] for key in record[1] if key not in ("file", "annotated_image", "orientation", "detections")}


def test_a_run_that_ignores_rotations_says_that_it_does(resnet_run, tmp_path, capsys, monkeypatch):
    upright, turned = _photos(tmp_path)
    predictor = load(resnet_run.folder)
    recipe = predictor.trained.recipe
    ignoring = replace(predictor.trained, recipe=replace(recipe, input=replace(recipe.input, exif="ignore")))
    monkeypatch.setattr("paceline.inference.trained_model.open_trained", lambda *_, **__: ignoring)
    assert main(["predict", str(resnet_run.folder), str(upright), str(turned), "--output-dir", str(tmp_path / "out")]) == 0
    check_text(capsys.readouterr().out, "1 image", "EXIF", "not applied")
    with Image.open(tmp_path / "out" / "upright.jpg") as one, Image.open(tmp_path / "out" / "turned.jpg") as other:
        assert one.size != other.size, "drawn as it was answered"


def test_the_report_shows_photos_as_the_run_saw_them(tmp_path):
    upright, turned = map(str, _photos(tmp_path))
    none = np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0)
    shown = {
        exif: [
            *(photo for _, photo in add_images([ImageClassification(file, "a", (("a", 1.0),)) for file in (upright, turned)], exif)),
            *(picture for _, picture in add_rendered_images(
                [ImageComparison(file, 70, 40, *none, none[0], none[1], np.zeros(0, bool)) for file in (upright, turned)], ["a"], exif
            )),
        ]
        for exif in ("apply", "ignore")
    }  # fmt: skip
    for exif, same in (("apply", True), ("ignore", False)):
        for one, other in (shown[exif][:2], shown[exif][2:]):
            assert (one == other) is same


def test_the_check_page_shows_photos_upright(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            _photos(tmp_path / split / name)
    index = open_split(prepare_folder(tmp_path), "train").as_shown()
    index = replace(index, extra={**index.extra, "boxes": np.zeros((0, 4)), "object_starts": np.zeros(5, np.int64)})
    turned, upright = (make_tile(index, image, ["a"], side=100) for image in (0, 1))
    assert Path(turned.file).name == "turned.png"
    assert turned.aspect == upright.aspect and turned.photo == upright.photo
    assert _corner(picture_in(turned.photo))[0] == 3
