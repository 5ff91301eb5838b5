"""The decoder nvjpeg on a GPU. On the simulated device torchvision's CPU decoder stands in its place: nvJPEG needs a driver."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from device_photos import decoded_on_a_cpu, draws_of, odd_photos, photo, rendered_alone
from stand_ins import InMemory

from paceline.data.loader.gpu_decode import GpuDecoder, get_gpu_decoder
from paceline.data.loader.loader import Loader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA, SHAPE = torch.device("cuda", 0), (48, 64)
PHOTOS = [photo(90, 130, 0), photo(200, 70, 1)]


@pytest.mark.parametrize("law", ["bilinear-antialias", "bilinear"])
def test_resized_and_turned_on_the_device_they_are_within_one_level(law: str) -> None:
    data, draws = draws_of([*PHOTOS, *odd_photos()], law)
    found = GpuDecoder(CUDA, decoded_on_a_cpu(CUDA))(data, draws, SHAPE)
    assert found.device == CUDA
    away = np.abs(found.permute(0, 2, 3, 1).cpu().numpy().astype(int) - rendered_alone(data, draws, SHAPE))
    assert away.max() <= 1


def values() -> AbstractContextManager:
    """On the simulated device the operations of a thread have values where the thread asks for them."""
    if os.environ.get("SIMULATED_VALUES") != "1":
        return nullcontext()
    from values import Values

    return Values()


def test_a_loaders_batches_are_those_of_its_threads() -> None:
    data, draws = draws_of(PHOTOS)
    on_cuda = GpuDecoder(CUDA, decoded_on_a_cpu(CUDA))

    def render_batch(encoded, drawn, shape):
        with values():
            return on_cuda(encoded, drawn, shape)

    options = {
        "records": InMemory(data), "schedule": lambda step: [(np.zeros(4, int), np.arange(4) + 4 * step)], "last_step": 16,
        "draw": lambda epoch, index, header, name: draws[index], "render_batch": render_batch,
        "threads": 3, "prefetch": 2, "image_shape": (*SHAPE, 3), "device": CUDA,
    }  # fmt: skip
    expected, steps = rendered_alone(data, draws, SHAPE).astype(int), 0
    with Loader(**options) as loader:
        for step, (batch,) in loader:
            found = batch.images.permute(0, 2, 3, 1).cpu().numpy()
            assert np.abs(found - expected[4 * step : 4 * step + 4]).max() <= 1
            steps += 1
    assert steps == 16


@pytest.mark.skipif("SIMULATED_VALUES" in os.environ, reason="nvJPEG needs a real driver")
def test_nvjpegs_pixels_are_within_the_stated_bound_of_the_cpus() -> None:
    """Half a level on average, and eight levels in 999 of 1,000 values: another inverse DCT and another interpolation of color."""
    data, draws = draws_of(PHOTOS)
    found = get_gpu_decoder(CUDA)(data, draws, SHAPE).permute(0, 2, 3, 1).cpu().numpy().astype(int)
    away = np.abs(found - rendered_alone(data, draws, SHAPE))
    assert away.mean() <= 0.5 and np.quantile(away, 0.999) <= 8
