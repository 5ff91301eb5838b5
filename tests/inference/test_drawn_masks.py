"""Instance masks on a picture: where the mask is and nowhere else, the photo readable below, neighbors told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from paceline.data.batch import InstanceObjects
from paceline.data.rle import mask_pixels
from paceline.inference.drawing.boxes import Annotation, class_color, draw_annotations, draw_sample
from paceline.inference.drawing.masks import FILL, HUES, draw_masks, instance_color, resample_mask

GRAY, RED, BLUE = 90, (220, 30, 30), (30, 30, 220)


def gray(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (GRAY,) * 3)


def block(height: int, width: int, top: int, left: int, rows: int, columns: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    mask[top : top + rows, left : left + columns] = True
    return mask


def encoded(mask: np.ndarray) -> dict:
    runs = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": list(runs["size"]), "counts": runs["counts"].decode()}


def drawn(picture: Image.Image, *masks, line: int = 1) -> np.ndarray:
    return np.asarray(draw_masks(picture, masks, line=line)).astype(int)


def mixed(color: tuple[int, int, int]) -> list[int]:
    return [round(GRAY + FILL * (value - GRAY)) for value in color]


def test_the_fill_is_translucent_and_lies_exactly_where_the_mask_is():
    pixels = drawn(gray(60, 40), (block(40, 60, 10, 20, 15, 25), RED))
    assert pixels[17, 30].tolist() == mixed(RED)
    changed = (pixels != GRAY).any(axis=-1)
    assert changed[9:26, 19:46].sum() == changed.sum()  # one dark pixel around it, nothing beyond
    inside = (pixels[11:24, 21:44] == mixed(RED)).all(axis=-1)
    assert inside.all()


def test_a_contour_of_the_asked_width_parts_object_from_photo():
    for line in (1, 3):
        row = drawn(gray(60, 40), (block(40, 60, 10, 20, 20, 25), RED), line=line)[20]
        bright = (row.sum(axis=-1) > sum(mixed(RED)) + 60).nonzero()[0]
        assert bright.tolist() == [*range(20, 20 + line), *range(45 - line, 45)]
        assert row[19].sum() < 3 * GRAY and row[45].sum() < 3 * GRAY


def test_run_lengths_and_arrays_of_any_kind_and_resolution_give_one_picture():
    mask = block(80, 120, 20, 40, 30, 50)
    pictures = [drawn(gray(60, 40), (kind, RED)) for kind in (mask, mask.astype(np.uint8) * 255, encoded(mask))]
    assert (pictures[0] == pictures[1]).all() and (pictures[0] == pictures[2]).all()
    same = drawn(gray(60, 40), (block(40, 60, 10, 20, 15, 25), RED))
    assert np.abs(pictures[0] - same).max() <= 1


@pytest.mark.parametrize("size", [(1, 1), (5, 3)])
def test_an_object_that_shrinks_below_a_pixel_is_still_seen(size):
    pixels = drawn(gray(50, 50), (block(1000, 1000, 503, 703, *size), RED))
    changed = np.argwhere((pixels != GRAY).any(axis=-1))
    assert len(changed) and np.abs(changed - (25, 35)).max() <= 3
    assert pixels.sum(axis=-1).max() > 3 * GRAY


def test_of_overlapping_instances_the_smaller_lies_on_top_in_any_order():
    large, small = (block(60, 60, 5, 5, 50, 50), RED), (block(60, 60, 20, 20, 15, 15), BLUE)
    pictures = [drawn(gray(60, 60), *masks) for masks in ([large, small], [small, large])]
    assert (pictures[0] == pictures[1]).all()
    assert pictures[0][27, 27].tolist() == mixed(BLUE) and pictures[0][45, 45].tolist() == mixed(RED)


def test_no_contour_runs_along_the_edge_of_the_photo_and_an_empty_mask_draws_nothing():
    full = drawn(gray(30, 20), (np.ones((20, 30), bool), RED))
    assert (full == mixed(RED)).all()
    assert (drawn(gray(30, 20), (np.zeros((20, 30), bool), RED)) == GRAY).all()
    assert (drawn(gray(30, 20), (encoded(np.zeros((7, 9), bool)), RED)) == GRAY).all()
    assert (drawn(gray(30, 20)) == GRAY).all()


masks = st.tuples(st.integers(1, 40), st.integers(1, 40)).flatmap(
    lambda size: st.lists(st.booleans(), min_size=size[0] * size[1], max_size=size[0] * size[1]).map(
        lambda bits: np.array(bits).reshape(size)
    )
)


@examples(40)
@given(masks, st.integers(1, 60), st.integers(1, 60))
def test_any_mask_can_be_drawn_on_any_picture_and_is_seen_where_there_is_one(mask, width, height):
    photo = gray(width, height)
    changed = (drawn(photo, (mask, RED)) != GRAY).any()
    assert changed == mask.any()
    assert photo.getcolors() == [(width * height, (GRAY,) * 3)]  # the photo itself is not painted on


def test_damaged_run_lengths_are_refused():
    with pytest.raises(ValueError, match="RLE"):
        mask_pixels({"size": [4, 4], "counts": "zzzz"})


def test_instances_of_a_class_differ_in_hue_and_the_first_has_the_class_s_colour():
    for label in range(1, 13):
        colours = [instance_color(class_color(label), number) for number in range(len(HUES))]
        assert colours[0] == class_color(label) and len(set(colours)) == len(HUES)
        assert instance_color(class_color(label), len(HUES)) == colours[0]


def test_a_mark_with_a_mask_is_filled_and_two_of_a_class_in_other_hues_unless_told():
    def at(hues):
        marks = [
            Annotation((10 + 50 * place, 10, 40, 40), 1, "", mask=block(60, 120, 10, 10 + 50 * place, 40, 40), hue=hue)
            for place, hue in enumerate(hues)
        ]
        pixels = np.asarray(draw_annotations(gray(120, 60), marks, width=120, height=60)).astype(int)
        return pixels[30, 30].tolist(), pixels[30, 80].tolist()

    first, second = at([None, None])
    assert first == mixed(class_color(1)) and second == mixed(instance_color(class_color(1), 1))
    assert at([1, 1]) == (second, second)


# A stored canvas -----------------------------------------------------------------------------------------------------


@example(side=5, bits=4096, x=0.0, y=0.0, across=1.1, down=1.0)  # 5.5 / 1.1 is 5, and 5.5 // 1.1 is 4
@examples(60)
@given(
    st.integers(1, 6), st.integers(0, 2**36 - 1), st.floats(-4, 9), st.floats(-4, 9), st.floats(0.5, 3), st.floats(0.5, 3)
)
def test_pasting_a_canvas_agrees_with_the_obvious_loop(side, bits, x, y, across, down):
    canvas = np.array([(bits >> place) & 1 for place in range(64)], np.uint8)[: (side + 2) ** 2]
    canvas = np.resize(canvas, (side + 2, side + 2))
    pasted = resample_mask(canvas[1:-1, 1:-1], (x, y, across, down), 8, 11)
    for row in range(8):
        for column in range(11):
            exact = (row + 0.5 - y) / down, (column + 0.5 - x) / across
            if any(abs(value - round(value)) < 1e-9 for value in exact):
                continue  # a center on the border of two canvas pixels: rounding decides
            i, j = (math.floor(value) for value in exact)
            wanted = canvas[i + 1, j + 1] if 0 <= i < side and 0 <= j < side else 0
            assert pasted[row, column] == wanted


def test_a_training_image_shows_each_mask_where_its_frame_says():
    canvas = np.zeros((2, 18, 18), np.uint8)
    canvas[0, 1:9, 1:17] = 1  # the upper half of a 16 x 16 object at (8, 24), a pixel a pixel
    canvas[1, 1:17, 1:17] = 1  # all of a 32 x 32 object at (32, 0), two pixels a canvas pixel
    objects = InstanceObjects(
        boxes=np.array([[8, 24, 24, 40], [32, 0, 64, 32]], np.float32),
        classes=np.array([2, 1]),
        canvases=canvas,
        frames=np.array([[8, 24, 1, 1], [32, 0, 2, 2]], np.float32),
        size=(48, 64),
        key=0,
    )
    picture, _ = draw_sample(np.full((48, 64, 3), GRAY, np.uint8), objects, ["", ""])
    pixels = np.asarray(picture).astype(int)[::4, ::4]
    assert picture.size == (256, 192)
    assert pixels[28, 16].tolist() == mixed(class_color(2)) and pixels[36, 16].tolist() == [GRAY] * 3
    assert pixels[16, 48].tolist() == mixed(class_color(1)) and pixels[40, 48].tolist() == [GRAY] * 3
    none = InstanceObjects(
        np.zeros((0, 4), np.float32), np.zeros(0, np.int64), canvas[:0], np.zeros((0, 4), np.float32), (48, 64), 0
    )
    plain, _ = draw_sample(np.full((48, 64, 3), GRAY, np.uint8), none, [])
    assert plain.getcolors() == [(256 * 192, (GRAY,) * 3)]
