"""The certificate beside Habana's SSD: each planted error is one, weights lie in the original's order, pixels are judged."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.config.recipe import check_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    """-> one of the certificate's modules, by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "certificates"))
    return importlib.import_module


def test_each_planted_error_is_a_recipe_that_can_be_and_another_one(script):
    ours = script("ssd_gaudi_ours")
    for release, errors in ours.PLANTED.items():
        true = ours.our_recipe(release, 2)
        for name, error in errors.items():
            recipe = ours.our_recipe(release, 2, name)
            check_recipe(recipe)
            assert recipe != true or error.shift, name


def test_our_values_are_put_where_the_original_has_them(script, monkeypatch):
    """Each value is its own number; those of trained vectors, running statistics and kernels follow each other."""
    ours = script("ssd_gaudi_ours")
    monkeypatch.setattr(ours, "from_tensorflow", turned)
    first = {"a/beta": np.zeros(3), "a/moving_mean": np.zeros(2), "a/kernel": np.zeros((2, 3))}
    state = turned({"a/beta": [0.0, 1, 2], "a/moving_mean": [3.0, 4], "a/kernel": [[5.0, 6, 7], [8, 9, 10]]}, {}).tensors
    places = ours.Places(first)
    assert places.flat(state, "vectors").tolist() == [0, 1, 2]
    assert places.flat(state, "statistics").tolist() == [3, 4]
    assert places.flat(state, "kernels").tolist() == [5, 6, 7, 8, 9, 10]


class turned:
    """A reader of checkpoints that turns vectors round and kernels over."""

    def __init__(self, saved, _):
        tensors = {name: torch.as_tensor(values) for name, values in saved.items()}
        self.tensors = {name: values.T if values.dim() == 2 else values.flip(0) for name, values in tensors.items()}


def test_pixels_are_the_originals_to_a_level_and_a_turned_hue_is_noticed(script):
    samples, certificate = script("ssd_gaudi_samples"), script("ssd_gaudi")
    photo = samples.our_recipe("1.5.0", 1).input
    theirs = np.random.default_rng(0).uniform((40, 0, 0), (260, 120, 60), (1, 20, 20, 3))
    normalized = (theirs / 255 - photo.mean) / photo.std
    pixels = theirs.round().clip(0, 255).astype(np.uint8)
    found = samples.pixel_difference(pixels, normalized)
    assert 0.2 < found["levels"] < 0.3 and not certificate.pixels_differ(found)
    assert certificate.pixels_differ(samples.pixel_difference(pixels[..., [0, 2, 1]], normalized))
    assert certificate.pixels_differ(samples.pixel_difference(pixels - np.uint8(4), normalized))


def test_a_run_that_fails_leaves_no_result(script, tmp_path):
    once, out = script("ssd_gaudi").once, tmp_path / "a" / "run.npz"

    def fails(part: Path) -> None:
        part.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        once(out, fails)
    assert not out.exists() and once(out, lambda part: part.write_text("whole")).read_text() == "whole"
    assert once(out, fails) == out


@pytest.mark.nightly("a network and twenty million numbers")
def test_first_weights_come_back_in_the_originals_order(script, tmp_path):
    ours = script("ssd_gaudi_ours")
    with np.load(ROOT / "tests" / "oracle" / "recorded" / "ssd_gaudi.npz") as file:
        made = json.loads(str(file["variables"]))
    kind = {"kernel": 2, "moving_mean": 1, "moving_variance": 1}
    made.sort(key=lambda one: (kind.get(one[0].rsplit("/", 1)[1], 0), one[0]))
    random = np.random.default_rng(0)
    first = {name: random.standard_normal(shape, dtype=np.float32) for name, *shape in made}
    np.savez(tmp_path / "first.npz", **first)
    model = ours.build(ours.our_recipe("1.5.0", 2))
    places = ours.load_first(tmp_path / "first.npz", model)
    parts = [places.flat(model.network.state_dict(), kind) for kind in ("vectors", "statistics", "kernels")]
    assert np.array_equal(np.concatenate(parts), np.concatenate([values.ravel() for values in first.values()]))
