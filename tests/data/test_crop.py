"""Crop geometry beside torchvision's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from PIL import Image
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from paceline._utils.errors import RecipeError
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.crop import CropWindow, random_resized_crop, resize_and_center_crop, resized_shape

SIDES = st.integers(1, 3000)


class _Scripted(SampleRng):
    """Gives back prepared fractions, so that torchvision can be given the same ones."""

    __slots__ = ("fractions",)

    def __init__(self, fractions: list[float]) -> None:
        super().__init__(0, 0, 0)
        self.fractions = list(fractions)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * self.fractions.pop(0)

    def integer(self, low: int, high: int) -> int:
        return low + int(self.fractions.pop(0) * (high - low))


@given(height=SIDES, width=SIDES, fractions=st.lists(st.floats(0, 1, exclude_max=True, width=32), min_size=22, max_size=22))
def test_the_random_crop_is_torchvisions_from_the_same_fractions(height, width, fractions):
    ours = random_resized_crop(height, width, 224, _Scripted(fractions))

    left = list(fractions)
    real_uniform, real_randint = torch.Tensor.uniform_, torch.randint

    def uniform_(tensor, low=0.0, high=1.0):
        return tensor.double().fill_(float(low) + (float(high) - float(low)) * left.pop(0))

    def randint(low, high, size):
        return torch.full(size, low + int(left.pop(0) * (high - low)))

    torch.Tensor.uniform_, torch.randint = uniform_, randint
    try:
        from torchvision.transforms import RandomResizedCrop

        shape = torch.empty(1).expand(3, height, width)
        theirs = RandomResizedCrop.get_params(shape, [0.08, 1.0], [3 / 4, 4 / 3])
    finally:
        torch.Tensor.uniform_, torch.randint = real_uniform, real_randint
    # torchvision takes the logarithm in float32: a length that lies within 1e-6 of a half may round the other way.
    assert np.abs(np.array(ours[:4]) - np.array(theirs)).max() <= 1


@given(height=SIDES, width=SIDES, index=st.integers(0, 10**6), size=st.integers(1, 300))
def test_the_random_crop_lies_in_the_image_and_is_never_empty(height, width, index, size):
    window = random_resized_crop(height, width, size, SampleRng(0, 0, index))
    assert 0 <= window.top <= window.top + window.height <= height
    assert 0 <= window.left <= window.left + window.width <= width
    assert window.height > 0
    assert window.width > 0
    assert window[4:] == (size, size, 0, 0)


def test_area_and_aspect_have_the_distribution_that_was_asked_for():
    windows = [random_resized_crop(1000, 1000, 224, SampleRng(0, 0, i), area=(0.2, 0.5)) for i in range(3000)]
    area = np.array([w.height * w.width / 1e6 for w in windows])
    aspect = np.array([math.log(w.width / w.height) for w in windows])
    assert area.min() > 0.199
    assert area.max() < 0.501
    assert abs(area.mean() - 0.35) < 5 * 0.3 / math.sqrt(12 * 3000)
    assert np.abs(aspect).max() < math.log(4 / 3) + 0.01
    assert abs(aspect.mean()) < 5 * 2 * math.log(4 / 3) / math.sqrt(12 * 3000)
    assert len({(w.top, w.left) for w in windows}) > 2900


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 500), (500, 1)])
def test_an_image_too_long_for_any_try_gives_its_largest_centred_crop(height, width):
    window = random_resized_crop(height, width, 224, SampleRng(0, 0, 1), area=(1.0, 1.0))
    short = min(height, width)
    assert min(window.height, window.width) == short
    assert max(window.height, window.width) == max(1, round(short * 4 / 3))
    assert abs((height - window.height) / 2 - window.top) <= 0.5
    assert abs((width - window.width) / 2 - window.left) <= 0.5


def test_after_ten_tries_that_do_not_fit_the_largest_centred_crop_is_taken():
    fails, fits = [0.99, 0.5], [0.0, 0.5, 0.25, 0.25]  # 55 pixels square of 30 x 100; then 15, and where it lies
    tenth = random_resized_crop(30, 100, 224, _Scripted(fails * 9 + fits))
    assert (tenth.height, tenth.width) == (15, 15)
    assert random_resized_crop(30, 100, 224, _Scripted(fails * 10 + fits))[:4] == (0, 30, 30, 40)


def test_a_crop_is_a_function_of_its_key():
    key = (1, 2, 3)
    assert random_resized_crop(480, 640, 224, SampleRng(*key)) == random_resized_crop(480, 640, 224, SampleRng(*key))
    assert random_resized_crop(480, 640, 224, SampleRng(*key)) != random_resized_crop(480, 640, 224, SampleRng(1, 3, 3))


@given(height=st.integers(1, 700), width=st.integers(1, 700), short=st.integers(1, 40))
def test_the_resized_shape_is_torchvisions(height, width, short):
    if max(height, width) / min(height, width) > 20:
        return  # torchvision makes a real picture here
    picture = Image.new("L", (width, height))
    resized = v2.functional.resize(picture, [short], interpolation=v2.InterpolationMode.NEAREST)
    assert resized_shape(height, width, short) == (resized.height, resized.width)


@given(height=st.integers(8, 60), width=st.integers(8, 60), size=st.integers(1, 30), more=st.integers(0, 9))
def test_the_centre_crop_is_torchvisions(height, width, size, more):
    window = resize_and_center_crop(height, width, size + more, size)
    rows = torch.arange(window.resized_height)[:, None].expand(-1, window.resized_width)
    columns = torch.arange(window.resized_width).expand(window.resized_height, -1)
    cropped = F.center_crop(torch.stack([rows, columns]), [size, size])
    assert cropped[:, 0, 0].tolist() == [window.skip_top, window.skip_left]
    assert window[:4] == (0, 0, height, width)


def test_resize_256_crop_224_of_a_640_by_480_photo():
    assert resize_and_center_crop(480, 640, 256, 224) == CropWindow(0, 0, 480, 640, 256, 341, 16, 58)


def test_a_crop_larger_than_the_resized_image_is_refused():
    with raises(RecipeError, "224 px"):
        resize_and_center_crop(480, 640, 200, 224)
