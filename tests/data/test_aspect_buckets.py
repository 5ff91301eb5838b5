"""Shapes of network inputs: resized as torchvision resizes, padded little, and few."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models.detection.transform import _resize_image_and_masks

from paceline.config.maskrcnn import InstanceInput
from paceline.models.batch_shapes import (
    MAX,
    aspect_groups,
    choose_bucket,
    choose_short_side,
    make_buckets,
    padded_shape,
    resized_size,
    resized_sizes,
)

# Others may share the machine: no deadline.
FEW = examples(40)
SIDE = st.integers(1, 3000)


@FEW
@given(height=st.integers(1, 700), width=st.integers(1, 700), case=st.sampled_from([(8, 13), (12, 20), (16, 16)]))
def test_sizes_are_torchvisions(height, width, case):
    short, long = case
    if max(height, width) > min(height, width) * long:  # torch refuses a side of 0, which is 1 here
        assert min(resized_size(height, width, short, long)) == 1
        return
    found = _resize_image_and_masks(torch.zeros(1, height, width), short, long)[0].shape[1:]
    assert resized_size(height, width, short, long) == tuple(found)


@pytest.mark.parametrize("photo", [(480, 640), (427, 640), (640, 426), (500, 333), (612, 612), (201, 799), (375, 500)])
def test_the_published_sizes_are_torchvisions(photo):
    for short in (640, 800):
        found = _resize_image_and_masks(torch.zeros(1, *photo), short, 1333)[0].shape[1:]
        assert resized_size(*photo, short, 1333) == tuple(found)


@FEW
@given(st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=20), st.sampled_from([(800, 1333), (192, 320), (576, 576)]))
def test_all_at_once_is_one_by_one(photos, case):
    found = resized_sizes(*np.array(photos).T, *case)
    assert [tuple(row) for row in found.tolist()] == [resized_size(h, w, *case) for h, w in photos]


@FEW
@given(
    short=st.integers(32, 1200),
    stretch=st.floats(1, 3),
    multiple=st.sampled_from([32, 64, 128]),
    photos=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=4),
)
def test_a_ladder_is_short_and_holds_every_batch_in_the_smallest_shape_that_can(short, stretch, multiple, photos):
    long = int(short * stretch)
    shapes = make_buckets(short, long, multiple)
    assert 1 <= len(shapes) == len(set(shapes)) <= MAX
    assert all(side % multiple == 0 for shape in shapes for side in shape)
    assert {shape[::-1] for shape in shapes} == set(shapes)
    sizes = [resized_size(h, w, short, long) for h, w in photos]
    needs = tuple(max(side) for side in zip(*sizes))
    found = choose_bucket(*needs, shapes)
    assert found[0] >= needs[0] and found[1] >= needs[1]
    assert all(found[0] * found[1] <= h * w for h, w in shapes if h >= needs[0] and w >= needs[1])


def test_the_published_ladder_never_changes():
    assert make_buckets(800, 1333, 32) == (
        (800, 800), (832, 832), (800, 1088), (1088, 800), (800, 1216), (1216, 800), (800, 1344), (1344, 800),
        (1088, 1088), (1344, 1344),
    )  # fmt: skip
    assert make_buckets(192, 320, 32)[0] == (192, 192) and len(make_buckets(192, 320, 32)) == 10
    assert make_buckets(576, 576, 32) == ((576, 576),)


def test_what_no_shape_holds_is_refused_with_the_sizes():
    with pytest.raises(ValueError, match="900 x 10 pixels"):
        choose_bucket(900, 10, ((800, 800),))


@pytest.mark.parametrize(("short", "long"), [(800, 1333), (640, 1333), (192, 320)])
def test_photos_of_coco_are_padded_by_less_than_a_tenth(shared_data, short, long):
    record = json.loads((shared_data / "coco_mini" / "annotations" / "instances_train2017.json").read_text())
    photos = np.array([(image["height"], image["width"]) for image in record["images"]])
    photo = InstanceInput(min_size=(short,), max_size=long)
    sizes = resized_sizes(*photos.T, short, long)
    shapes = np.array([padded_shape(h, w, photo, short) for h, w in sizes.tolist()])
    assert 1 - sizes.prod(axis=1).sum() / shapes.prod(axis=1).sum() < 0.1


def test_padding_to_a_multiple_rounds_each_side_up():
    photo = InstanceInput(padding_mode="multiple", size_divisor=64)
    assert padded_shape(800, 1066, photo, 800) == (832, 1088)
    assert padded_shape(64, 1, photo, 800) == (64, 64)


@FEW
@given(st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=30))
def test_groups_go_from_tall_to_wide_and_neighbours_on_the_axis_never_need_the_largest_square(photos):
    photo = InstanceInput()
    heights, widths = np.array(photos).T
    groups = aspect_groups(heights, widths, photo)
    assert sorted(set(groups.tolist())) == list(range(groups.max() + 1))
    for group in range(groups.max()):
        assert (widths / heights)[groups == group].max() <= (widths / heights)[groups == group + 1].min() * 1.01
    sizes = resized_sizes(heights, widths, 800, 1333)
    for group in range(groups.max() + 1):
        mine = sizes[groups == group]
        shapes = {padded_shape(*size, photo, 800) for size in mine.tolist()}
        assert len(shapes) == 1 and padded_shape(*mine.max(axis=0).tolist(), photo, 800) in shapes


def test_the_short_side_of_a_step_depends_on_seed_and_step_and_takes_every_choice():
    choices = (640, 672, 704)
    taken = [choose_short_side(3, step, choices) for step in range(300)]
    assert taken == [choose_short_side(3, step, choices) for step in range(300)]
    assert taken != [choose_short_side(4, step, choices) for step in range(300)]
    assert min(taken.count(choice) for choice in choices) > 60
    assert {choose_short_side(0, step, (800,)) for step in range(5)} == {800}
