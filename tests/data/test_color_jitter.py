"""What the color jitter keeps, what it draws, and its linear form beside float64."""

from __future__ import annotations

import colorsys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config.ssd import BoxInput, BoxParity
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import (
    adjust_hue,
    apply_color_jitter,
    apply_color_matrix,
    color_matrix,
    sample_color_jitter,
)

NOISE = np.random.default_rng(3).integers(0, 256, (40, 56, 3), dtype=np.uint8)
KINDS = ("hsv", "matrix", "dali", "tensorflow")
STILL = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def _jittered(pixels: np.ndarray, key: int, **fields) -> np.ndarray:
    out = pixels.copy()
    color = sample_color_jitter(SampleRng(0, 0, key), BoxInput(**fields))
    assert color is not None
    apply_color_jitter(out, color)
    return out


@pytest.mark.parametrize("form", ["multiply", "add"])
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_of_zero_leave_every_pixel_as_it_is(kind, form):
    np.testing.assert_array_equal(
        _jittered(NOISE, 5, color_jitter=kind, parity=BoxParity(brightness_mode=form), **STILL), NOISE
    )


def test_none_changes_nothing_and_draws_nothing():
    random, untouched = SampleRng(0, 0, 0), SampleRng(0, 0, 0)
    assert sample_color_jitter(random, BoxInput(color_jitter="none")) is None
    assert random.bits() == untouched.bits()


@pytest.mark.parametrize(
    ("kind", "form", "draws"),
    [
        ("hsv", "multiply", 7),
        ("hsv", "add", 4),
        ("matrix", "multiply", 4),
        ("dali", "multiply", 4),
        ("tensorflow", "add", 4),
        ("tensorflow", "multiply", 4),
    ],
)
def test_so_many_numbers_are_drawn(kind, form, draws):
    random, counted = SampleRng(0, 0, 9), SampleRng(0, 0, 9)
    sample_color_jitter(random, BoxInput(color_jitter=kind, parity=BoxParity(brightness_mode=form)))
    for _ in range(draws):
        counted.bits()
    assert random.bits() == counted.bits()


@pytest.mark.parametrize("kind", KINDS)
def test_a_grey_picture_stays_grey_and_noise_changes(kind):
    gray = np.repeat(NOISE[:, :, :1], 3, axis=2)
    for key in range(10):
        out = _jittered(gray, key, color_jitter=kind).astype(int)
        assert np.ptp(out, axis=2).max() <= 1
        assert not np.array_equal(_jittered(NOISE, key, color_jitter=kind), NOISE)


def test_added_brightness_shifts_by_a_share_of_the_full_scale():
    flat = np.full((8, 8, 3), 100, np.uint8)
    for kind in KINDS:
        fields = {**STILL, "brightness": 0.125, "color_jitter": kind, "parity": BoxParity(brightness_mode="add")}
        shifts = [int(_jittered(flat, key, **fields)[0, 0, 0]) - 100 for key in range(400)]
        assert min(shifts) >= -32 and max(shifts) <= 32 and min(shifts) < -28 and max(shifts) > 28
        assert abs(np.mean(shifts)) < 4


@pytest.mark.parametrize("kind", KINDS)
def test_multiplied_brightness_covers_its_range_of_factors(kind):
    flat = np.full((8, 8, 3), 160, np.uint8)
    fields = {**STILL, "brightness": 0.125, "color_jitter": kind}
    factors = np.array([_jittered(flat, key, **fields)[0, 0, 0] / 160 for key in range(400)])
    assert 0.87 < factors.min() < 0.89 and 1.11 < factors.max() < 1.13
    assert factors.mean() == pytest.approx(1.0, abs=0.02)


def test_contrast_is_around_the_pictures_grey_or_around_mid_grey():
    dark = np.full((8, 8, 3), 50, np.uint8)
    fields = {**STILL, "contrast": 0.5}
    assert all((_jittered(dark, key, color_jitter="hsv", **fields) == 50).all() for key in range(20))
    levels = [int(_jittered(dark, key, color_jitter="matrix", **fields)[0, 0, 0]) for key in range(200)]
    assert min(levels) >= 128 - 1.5 * 78 and max(levels) <= 128 - 0.5 * 78
    assert min(levels) < 20 and max(levels) > 80


@given(
    st.floats(0.5, 1.5), st.floats(-30, 30), st.floats(0.5, 1.5), st.floats(0.5, 1.5), st.floats(-0.5, 0.5),
    st.integers(0, 2**32),
)  # fmt: skip
def test_the_matrix_is_applied_to_every_pixel_rounded_and_cut(factor, shift, contrast, saturation, turns, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    matrix = color_matrix(factor, shift, contrast, saturation, turns)
    exact = np.clip(pixels.astype(np.float64) @ matrix[:, :3].T + matrix[:, 3], 0, 255)
    apply_color_matrix(pixels, matrix)
    assert np.abs(pixels - exact).max() <= 0.5 + 1e-3


def test_the_matrix_turns_red_towards_yellow_and_keeps_luminance():
    gray = np.array([0.299, 0.587, 0.114])
    for turns in (-0.05, 0.05):
        turned = color_matrix(1.0, 0.0, 1.0, 1.0, turns)[:, :3] @ (200.0, 100.0, 100.0)
        assert (turned[1] > turned[2]) == (turns > 0)
        assert turned @ gray == pytest.approx(gray @ (200.0, 100.0, 100.0))
    faded = color_matrix(1.0, 0.0, 1.0, 0.0, 0.0)[:, :3] @ (200.0, 100.0, 50.0)
    np.testing.assert_allclose(faded, gray @ (200.0, 100.0, 50.0))


@pytest.mark.parametrize("turns", [-0.5, -0.31, -1 / 6, -0.05, 0.0, 0.02, 0.05, 1 / 6, 0.2, 0.5])
def test_turning_the_hue_agrees_with_the_standard_librarys_hsv(turns):
    corners = np.array([(r, g, b) for r in (0, 90, 255) for g in (0, 90, 255) for b in (0, 90, 255)], np.float32)
    colours = np.concatenate([corners, NOISE.reshape(-1, 3)[:500].astype(np.float32)])
    planes = colours.T.reshape(3, 1, -1).copy()
    adjust_hue(planes, turns, np.empty((7, 1, len(colours)), np.float32))
    for before, after in zip(colours.tolist(), planes.reshape(3, -1).T):
        hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in before))
        expected = colorsys.hsv_to_rgb((hue + turns) % 1.0, saturation, value)
        np.testing.assert_allclose(after, np.array(expected) * 255, atol=2e-3)


def test_threads_do_not_disturb_each_others_colours():
    pictures = [np.roll(NOISE, i, axis=2)[: 30 + i] for i in range(6)]
    alone = [_jittered(picture, key) for key, picture in enumerate(pictures)]
    wrong: list[int] = []

    def work(first: int) -> None:
        for i in range(120):
            at = (first + i) % 6
            if not np.array_equal(_jittered(pictures[at], at), alone[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_shift_of_brightness_is_added_after_the_factor():
    assert color_matrix(2.0, 10.0, 1.0, 1.0, 0.0) @ (100, 100, 100, 1) == pytest.approx([210, 210, 210])
