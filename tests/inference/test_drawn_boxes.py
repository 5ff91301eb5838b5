"""Photos with boxes: frames where the boxes are, a color for each class, names that do not cover each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paceline.data.batch import Objects
from paceline.inference.drawing.boxes import (
    PALETTE,
    SMALLEST_LETTERS,
    Annotation,
    choose_label_layout,
    class_color,
    draw_annotations,
    draw_sample,
    draw_side_by_side,
    place_labels,
)
from paceline.inference.drawing.rendering import load_font

GRAY = (90, 90, 90)


def gray(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), GRAY)


def where(picture: Image.Image, color: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
    """left, top, right, bottom of the pixels that have exactly this color."""
    rows, columns = np.nonzero((np.asarray(picture) == color).all(axis=-1))
    return (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) if len(rows) else None


def test_a_frame_stands_exactly_where_the_box_is():
    picture = draw_annotations(gray(200, 100), [Annotation((40, 20, 100, 60), 3, "")], width=200, height=100)
    assert where(picture, class_color(3)) == (40, 20, 140, 80)
    assert np.asarray(picture)[50, 90].tolist() == list(GRAY)  # a frame, no filling


@pytest.mark.parametrize("width, height, size", [(400, 400, (400, 200)), (100, 100, (100, 50)), (5000, 5000, (800, 400))])
def test_boxes_grow_and_shrink_with_the_photo(width, height, size):
    picture = draw_annotations(gray(200, 100), [Annotation((40, 20, 100, 60), 1, "")], width=width, height=height)
    assert picture.size == size  # whole, and enlarged at most four times
    scale = size[0] / 200
    assert where(picture, class_color(1)) == tuple(scale * edge for edge in (40, 20, 140, 80))


def test_the_photo_itself_is_not_painted_on():
    photo = gray(50, 50)
    draw_annotations(photo, [Annotation((0, 0, 50, 50), 1, "x")], width=50, height=50)
    assert photo.getcolors() == [(2500, GRAY)]


def test_a_dashed_frame_has_gaps_and_the_same_corners():
    solid, dashed = (
        draw_annotations(gray(200, 200), [Annotation((20, 20, 160, 160), 2, "", line)], width=200, height=200)  # type: ignore[arg-type]
        for line in ("solid", "dashed")
    )
    row = [(np.asarray(picture)[20, 20:180] == class_color(2)).all(axis=-1) for picture in (solid, dashed)]
    assert row[0].all() and row[1][0] and 0.3 < row[1].mean() < 0.7
    assert where(dashed, class_color(2)) == where(solid, class_color(2)) == (20, 20, 180, 180)


def test_neighbouring_classes_have_other_colours_and_a_class_has_one_colour_everywhere():
    assert len(set(PALETTE)) == len(PALETTE)
    for label in range(1, 100):
        assert class_color(label) != class_color(label + 1)
        assert class_color(label) == class_color(label + len(PALETTE))


def test_a_box_without_a_name_has_no_label_and_a_name_is_written_on_its_colour():
    bare = np.asarray(draw_annotations(gray(200, 100), [Annotation((40, 40, 100, 40), 5, "")], width=200, height=100))
    named = np.asarray(draw_annotations(gray(200, 100), [Annotation((40, 40, 100, 40), 5, "cat")], width=200, height=100))
    changed = np.nonzero((bare != named).any(axis=-1))
    assert changed[0].max() < 40 and changed[0].min() >= 20  # above the box
    label = named[changed[0].min() : 39, 42:70].reshape(-1, 3).astype(int)
    assert (label == class_color(5)).all(axis=-1).any()
    assert (label.sum(axis=-1) < 120).any()  # dark letters


def test_small_boxes_are_drawn_over_large_ones():
    small, large = Annotation((40, 40, 20, 20), 1, ""), Annotation((40, 40, 100, 100), 2, "")
    for marks in ([small, large], [large, small]):
        picture = np.asarray(draw_annotations(gray(200, 200), marks, width=200, height=200))
        assert picture[40, 50].tolist() == list(class_color(1)) and picture[40, 100].tolist() == list(class_color(2))


@pytest.mark.parametrize(
    "box, seen",
    [
        ((-20, -20, 60, 60), (0, 0, 40, 40)),  # cut at the border
        ((80, 80, 500, 500), (80, 80, 100, 100)),
        ((30, 30, 0, 0), (30, 30, 31, 31)),  # no area: one pixel
        ((30, 30, 1, 50), (30, 30, 31, 80)),
        ((30, 30, 2, 2), (30, 30, 32, 32)),
        ((30, 30, 3, 40), (30, 30, 33, 70)),
        ((99.9, 99.9, 5, 5), (99, 99, 100, 100)),
        ((200, 10, 5, 5), None),  # beyond
        ((10, -50, 5, 20), None),
        ((math.nan, 10, 5, 5), None),
        ((10, 10, math.inf, 5), None),
        ((10, 10, -3, 5), None),
    ],
)
def test_odd_boxes_are_cut_or_left_out(box, seen):
    picture = draw_annotations(gray(100, 100), [Annotation(box, 4, "")], width=100, height=100)
    assert where(picture, class_color(4)) == seen


@pytest.mark.parametrize("size", [(1, 1), (3, 2000), (2000, 3)])
@pytest.mark.parametrize("name", ["", "x" * 300, "two\nlines", "\u4e2d\u6587 \u00e9"])
def test_any_photo_and_any_name_can_be_drawn(size, name):
    picture = draw_annotations(gray(*size), [Annotation((0, 0, *size), 1, name)] * 3, width=300, height=200)
    assert picture.width <= 300 and picture.height <= 200


boxes = st.tuples(st.integers(0, 280), st.integers(0, 180), st.integers(1, 300), st.integers(1, 200)).map(
    lambda box: (box[0], box[1], min(box[0] + box[2], 300), min(box[1] + box[3], 200))
)


@examples(60)
@given(st.lists(st.tuples(boxes, st.sampled_from(["cat", "traffic light 0.93", "", "w" * 90])), max_size=25))
def test_names_lie_in_the_picture_and_never_on_each_other(placed):
    names = place_labels(placed, (300, 200), 12)
    painted = np.zeros((200, 300), int)
    for words, (left, top, right, bottom), _ in names:
        assert left >= 0 and top >= 0 and right <= 300 and bottom <= 200
        assert right - left >= load_font(12).getlength(words)
        painted[top:bottom, left:right] += 1
    assert painted.max(initial=0) <= 1
    first = next((text for _, text in placed if text), None)
    assert (len(names) > 0) == (first is not None)  # the most important name always finds a place


def test_a_name_spares_a_small_box_where_another_place_is_free():
    large, small = (100, 60, 250, 180), (104, 44, 116, 56)  # the small one lies right where the large one's name would
    boxes = [(large, "table"), (small, "")]
    ((_, name, _),) = place_labels(boxes, (300, 200), 12)
    assert name[3] <= small[1] or name[1] >= small[3] or name[0] >= small[2] or name[2] <= small[0]
    ((_, alone, _),) = place_labels(boxes[:1], (300, 200), 12)
    assert alone[:2] == (100, 60 - 15)  # above the box


# Crowds --------------------------------------------------------------------------------------------------------------


def crowd(count: int, classes: int = 2, side: float = 12.0) -> list[Annotation]:
    """Small boxes in rows on a picture of 640 x 480."""
    places = [(20 + 40 * (i % 15), 20 + 40 * (i // 15)) for i in range(count)]
    return [Annotation((x, y, side, side), 1 + i % classes, f"class{i % classes} 0.90") for i, (x, y) in enumerate(places)]


def changed(one: Image.Image, other: Image.Image) -> float:
    """The share of pixels that differ."""
    return float((np.asarray(one) != np.asarray(other)).any(axis=-1).mean())


@pytest.mark.parametrize("count", [1, 12, 60, 165])
def test_names_of_a_crowd_never_hide_more_than_an_eighth_of_the_picture(count):
    marks = crowd(count)
    bare = [replace(mark, text="") for mark in marks]
    named, plain = (draw_annotations(gray(640, 480), part, width=640, height=480) for part in (marks, bare))
    assert 0 < changed(named, plain) < 0.125


def test_letters_are_smaller_where_that_gives_more_names_a_place_and_as_large_as_ever_where_all_have_one():
    def letters(marks: list[Annotation]) -> tuple[int, int]:
        boxes = [((int(x), int(y), int(x + w), int(y + h)), mark.text) for mark in marks for x, y, w, h in [mark.box]]
        names, text = choose_label_layout(boxes, (640, 480), 24)
        assert len(names) >= len(place_labels(boxes, (640, 480), 24))
        return len(names), text

    assert letters(crowd(1)) == (1, 24)
    assert letters(crowd(4)) == (4, 17)
    assert letters(crowd(165))[1] == SMALLEST_LETTERS and 20 < letters(crowd(165))[0] < 165


def test_frames_of_a_crowd_of_small_boxes_leave_their_inside_free():
    picture = draw_annotations(gray(640, 480), [replace(mark, text="") for mark in crowd(60)], width=640, height=480)
    inside = np.asarray(picture)[20 + 2 : 32 - 2, 20 + 2 : 32 - 2]
    assert (inside == GRAY).all()


def test_a_legend_stands_below_the_picture_where_a_name_finds_no_place_and_only_there():
    names = {1: "class0", 2: "class1"}
    few = draw_annotations(gray(640, 480), crowd(3), width=640, height=480, legend=names)
    many = draw_annotations(gray(640, 480), crowd(165), width=640, height=480, legend=names)
    without = draw_annotations(gray(640, 480), crowd(165), width=640, height=480)
    assert few.size == without.size == (640, 480) and many.size == (640, 480 + 30)
    assert changed(many.crop((0, 0, 640, 480)), without) == 0
    strip = many.crop((0, 480, 640, 510))
    first, second = where(strip, class_color(1)), where(strip, class_color(2))
    assert first is not None and second is not None and first[2] < second[0]  # 83 of class 1, 82 of class 2


def test_a_legend_of_many_classes_has_several_rows_and_every_class():
    names = {label: f"a rather long name {label}" for label in range(1, 13)}
    picture = draw_annotations(gray(640, 480), crowd(165, classes=12), width=640, height=480, legend=names)
    assert picture.height > 480 + 60
    strip = picture.crop((0, 480, 640, picture.height))
    assert all(where(strip, class_color(label)) for label in names)


def test_both_sides_show_the_photo_each_with_its_own_boxes():
    picture = draw_side_by_side(
        gray(100, 50), [Annotation((10, 10, 30, 30), 1, "")], [Annotation((50, 10, 30, 30), 2, "")], width=200, height=200
    )
    assert picture.size == (200 + 6 + 200, 100)
    assert where(picture, class_color(1)) == (20, 20, 80, 80)
    assert where(picture, class_color(2)) == (206 + 100, 20, 206 + 160, 80)
    assert np.asarray(picture)[0, 0].tolist() == np.asarray(picture)[0, 399].tolist() == list(GRAY)


def test_a_thin_frame_is_one_pixel_without_a_dark_edge():
    picture = np.asarray(
        draw_annotations(gray(200, 100), [Annotation((40, 20, 100, 60), 3, "", "thin")], width=200, height=100)
    )
    assert where(Image.fromarray(picture), class_color(3)) == (40, 20, 140, 80)
    assert (picture[22:78, 42:138] == GRAY).all() and (picture[:19] == GRAY).all()


def test_objects_in_fractions_stand_where_they_belong():
    objects = Objects(np.array([[0.25, 0.5, 0.75, 1.0]], np.float32), np.array([2]))
    picture, caption = draw_sample(np.full((64, 64, 3), 90, np.uint8), objects, ["a", ""])
    assert picture.size == (256, 256) and caption == "1 object"
    assert where(picture, class_color(2)) == (64, 128, 192, 256)
    none = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    picture, caption = draw_sample(np.full((64, 64, 3), 90, np.uint8), none, [])
    assert picture.getcolors() == [(256 * 256, GRAY)] and caption == "0 objects"
