"""A detector's boxes for photos: pixels of each photo, names, order; and what the command prints, draws and writes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from messages import check_text
from PIL import Image
from stand_in_predictors import gray, pixels_of, predictor_of, take_for_a_run_s
from tiny_runs import command, refused
from torch import nn

from paceline._utils.errors import DataError
from paceline.config.recipe import Recipe
from paceline.config.ssd import BoxInput, DetectionFilter, SSDModel, SSDParity
from paceline.inference.drawing.boxes import class_color
from paceline.inference.trained_model import TorchPredictor

# Two boxes and an empty place, as a detector hands them out: ltrb fractions, score, class.
ROWS = [[0.1, 0.25, 0.5, 0.75, 0.4, 2], [0.0, 0.0, 1.1, 0.5, 0.8, 1], [0, 0, 0, 0, 0, 0]]


class Detector(nn.Module):
    """Finds ROWS in every image, the scores scaled by the image's mean so that images can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def predict(self, batch) -> torch.Tensor:
        self.seen.append(batch.images)
        rows = torch.tensor(ROWS).repeat(len(batch.images), 1, 1)
        rows[..., 4] *= batch.images.float().mean(dim=(1, 2, 3))[:, None] / 255
        return rows


def predictor(*, facts=None, plus_one=False, **detect) -> TorchPredictor:
    recipe = Recipe(
        task="detection",
        model=SSDModel(detect=DetectionFilter(**detect), parity=SSDParity(plus_one=plus_one)),
        input=BoxInput(image_size=64),
    )
    return predictor_of(recipe, Detector(), facts=facts)


def test_boxes_come_in_pixels_of_each_photo_best_first_without_the_empty_places(tmp_path):
    wide, tall = gray(tmp_path / "wide.png", (200, 100)), gray(tmp_path / "tall.jpg", (40, 80))
    first, second = predictor().predict([wide, tall])
    assert (first.file, first.width, first.height) == (str(wide), 200, 100)
    assert first.boxes_xywh == pytest.approx(np.array([[0, 0, 220, 50], [20, 25, 80, 50]]), abs=1e-4)
    assert second.boxes_xywh == pytest.approx(np.array([[0, 0, 44, 40], [4, 20, 16, 40]]), abs=1e-4)
    assert (first.class_ids, first.names) == ((0, 1), ("cat", "dog"))
    assert first.scores == pytest.approx((0.8, 0.4))


def test_boxes_that_are_reported_one_pixel_larger_in_evaluation_are_so_here(tmp_path):
    (found,) = predictor(plus_one=True).predict([gray(tmp_path / "x.png", (200, 100))])
    assert found.boxes_xywh[:, 2:] == pytest.approx(np.array([[221, 51], [81, 51]]), abs=1e-4)


def test_photos_keep_their_order_in_any_batch_and_whatever_they_are_given_as(tmp_path):
    shades = (255, 200, 100, 150, 250)
    paths = [gray(tmp_path / f"{shade}.png", (64, 48), shade) for shade in shades]
    photos = [paths[0], str(paths[1]), np.asarray(Image.open(paths[2])), Image.open(paths[3]), paths[4]]
    together, one_by_one = predictor().predict(photos, batch=5), predictor().predict(photos, batch=2)
    for found, alone, shade in zip(together, one_by_one, shades, strict=True):
        assert found.scores == alone.scores and found.scores[0] == pytest.approx(0.8 * shade / 255, abs=0.01)
    assert [found.file for found in together] == [str(paths[0]), str(paths[1]), "", "", str(paths[4])]
    assert predictor().predict([]) == []


def test_the_network_sees_the_whole_photo_squeezed_into_its_input(tmp_path):
    pixels = np.zeros((50, 200, 3), np.uint8)
    pixels[:, 100:] = 255
    Image.fromarray(pixels).save(tmp_path / "half.png")
    one = predictor()
    one.predict([tmp_path / "half.png"])
    (seen,) = one.trained.model.seen
    assert seen.shape == (1, 3, 64, 64) and seen.dtype == torch.uint8
    assert (seen[..., :30] == 0).all() and (seen[..., 34:] == 255).all()


def test_a_photo_that_cannot_be_decoded_is_named(tmp_path):
    (tmp_path / "note.jpg").write_text("not a photo")
    with pytest.raises(DataError, match=r"note\.jpg"):
        predictor().predict([tmp_path / "note.jpg"])


def test_category_ids_are_the_runs_or_the_class_numbers():
    assert predictor().category_ids == (1, 2)
    assert predictor(facts={"data": {"category_ids": [7, 90]}}).category_ids == (7, 90)


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch):
    take_for_a_run_s(monkeypatch, lambda: predictor(facts={"data": {"category_ids": [7, 90]}}))


def test_predict_prints_draws_and_writes_what_was_found(loaded, tmp_path, capsys):
    photos = [gray(tmp_path / "000000000139.png", (800, 400)), gray(tmp_path / "own.jpg", (64, 64))]
    (tmp_path / "run").mkdir()
    said = command(capsys, "predict", tmp_path / "run", *photos, "--output-dir", tmp_path / "out")
    assert said.code == 0 and f"{photos[0]}: cat 0.80  dog 0.40" in said.out and "2 images" in said.out
    facts = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert facts["classes"] == ["cat", "dog"]
    first, second = facts["images"]
    assert (first["file"], first["width"], first["height"]) == (str(photos[0]), 800, 400)
    assert first["detections"] == [
        {"category_id": 7, "name": "cat", "bbox": [0.0, 0.0, 880.0, 200.0], "score": 0.8},
        {"category_id": 90, "name": "dog", "bbox": [80.0, 100.0, 320.0, 200.0], "score": 0.4},
    ]
    assert [(one["file"], one["annotated_image"]) for one in (first, second)] == [
        (str(photos[0]), "000000000139.jpg"),
        (str(photos[1]), "own.jpg"),
    ]
    picture = pixels_of(tmp_path / "out" / "000000000139.jpg")
    assert picture.shape == (400, 800, 3)
    assert np.abs(picture[250, 81] - class_color(2)).sum() < 60  # the dog's left edge
    assert pixels_of(tmp_path / "out" / "own.jpg").shape == (256, 256, 3)  # enlarged, so that names can be read


def test_score_above_decides_what_is_drawn_and_printed_but_not_what_is_written(loaded, tmp_path, capsys):
    photo, out = gray(tmp_path / "x.png", (800, 400)), tmp_path / "out"
    said = command(capsys, "predict", tmp_path, photo, "--output-dir", out, "--score-threshold", 0.5)
    assert "cat 0.80" in said.out and "dog" not in said.out
    assert pixels_of(out / "x.jpg")[250, 81].min() > 230  # white: no dog is drawn
    assert len(json.loads((out / "predictions.json").read_text())["images"][0]["detections"]) == 2
    said = command(capsys, "predict", tmp_path, photo, "--output-dir", out, "--score-threshold", 0.9)
    check_text(said.out, "no detections", "0.9")
    refused(command(capsys, "predict", tmp_path, photo, "--score-threshold", 30), "--score-threshold", "[0, 1]")
