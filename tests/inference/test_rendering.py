"""Annotated photos and mosaics: right sizes, whole photos, legible and safe text."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from paceline.inference.drawing.rendering import BACKGROUND, BAR, draw_mosaic_page, draw_top5, to_pil


def photo(height: int, width: int, color=(200, 10, 20)) -> np.ndarray:
    return np.full((height, width, 3), color, np.uint8)


def colours(picture: Image.Image) -> set[tuple[int, int, int]]:
    return {color for _, color in picture.getcolors(maxcolors=1 << 20)}


def test_the_photo_stands_on_top_unchanged_and_a_bar_below_for_each_answer():
    image = np.random.default_rng(0).integers(0, 256, (90, 480, 3), np.uint8)
    one = draw_top5(image, ["cat"], [0.5])
    five = draw_top5(image, list("abcde"), [0.5, 0.2, 0.1, 0.1, 0.1])
    assert one.width == five.width == 480
    assert np.array_equal(np.asarray(five)[:90], image)
    assert five.height - one.height == 4 * 30


def test_a_bar_is_as_long_as_its_score():
    def length(score: float) -> int:
        row = np.asarray(draw_top5(photo(50, 480), ["a"], [score]))[50 + 14 + 10]
        return int((row == BAR).all(axis=-1).sum())

    assert length(0.0) == 0
    assert length(1.0) == pytest.approx(2 * length(0.5), abs=3)


@pytest.mark.parametrize("height, width", [(1, 1), (3, 2000), (2000, 3), (224, 224)])
def test_photos_of_any_shape_are_drawn(height, width):
    assert draw_top5(photo(height, width), ["x"], [1.0]).width == 480
    assert draw_mosaic_page([photo(height, width)], ["x"], 4).size == (224 + 16, 224 + 24 + 16)


@pytest.mark.parametrize("name", ["", "x" * 500, "two\nlines", "\u4e2d\u6587 \u00e9"])
def test_any_class_name_can_be_written(name):
    draw_top5(photo(50, 50), [name], [0.5])
    draw_mosaic_page([photo(50, 50)], [name], 1)


def test_a_mosaic_has_every_photo_whole_and_in_order():
    shades = [(40 * number, 255 - 40 * number, 7) for number in range(5)]
    picture = np.asarray(draw_mosaic_page([photo(100, 50, shade) for shade in shades], [""] * 5, 3, tile=100))
    assert picture.shape == (8 + 2 * 132, 8 + 3 * 108, 3)
    for number, shade in enumerate(shades):
        top, left = 8 + number // 3 * 132, 8 + number % 3 * 108
        tile = picture[top : top + 100, left : left + 100]
        assert (tile[:, 25:75] == shade).all() and (tile[:, :25] == BACKGROUND).all()


def test_no_photos_make_an_empty_strip():
    assert colours(draw_mosaic_page([], [], 4)) == {BACKGROUND}


@pytest.mark.parametrize("photos, captions, columns", [(1, 2, 1), (1, 1, 0)])
def test_a_mosaic_refuses_what_does_not_fit_together(photos, captions, columns):
    with pytest.raises(ValueError):
        draw_mosaic_page([photo(5, 5)] * photos, ["x"] * captions, columns)


def test_only_uint8_rgb_arrays_are_photos():
    assert to_pil(Image.new("CMYK", (4, 4))).mode == "RGB"
    for wrong in (np.zeros((3, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8)):
        with pytest.raises(ValueError, match="uint8"):
            to_pil(wrong)
