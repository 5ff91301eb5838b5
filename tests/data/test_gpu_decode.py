"""A forward's photos rendered as on a device, with torchvision's CPU decoder in nvJPEG's place, beside each photo's own rendering.

The bound: one level of 255, since a region is resized in float32 there and in 8-bit fixed point here. On a device the same is in
tests/gpu/test_decode_on_cuda.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_photos import decoded_on_a_cpu, draws_of, odd_photos, photo, rendered_alone
from messages import check_text, raises

from paceline._utils.errors import DataError, RecipeError
from paceline.config.plan import make_plan
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.data.loader import gpu_decode
from paceline.data.loader.gpu_decode import GpuDecoder, choose_gpu_decoder, get_gpu_decoder
from paceline.data.transforms.decode import require_decoder

CPU, SHAPE = torch.device("cpu"), (48, 64)


@pytest.fixture
def renderer() -> GpuDecoder:
    return GpuDecoder(CPU, decoded_on_a_cpu(CPU))


def gap(found: torch.Tensor, expected: np.ndarray) -> int:
    return int(np.abs(found.permute(0, 2, 3, 1).numpy().astype(int) - expected).max())


@pytest.mark.parametrize("law", ["bilinear-antialias", "bilinear"])
def test_a_forward_is_within_one_level_of_its_photos_alone(renderer, law):
    data, draws = draws_of([photo(height, width, seed) for seed, (height, width) in enumerate([(90, 130), (200, 70)])], law)
    assert len(draws) == 2 * 8 * 4 and {draw.header.orientation for draw in draws} == set(range(1, 9))
    found = renderer(data, draws, SHAPE)
    assert found.shape == (64, 3, *SHAPE) and found.is_contiguous(memory_format=torch.channels_last)
    assert gap(found, rendered_alone(data, draws, SHAPE)) <= 1


def test_real_photos_are_within_one_level_at_any_scale(renderer, shared_data):
    files = sorted((shared_data / "coco_mini" / "train2017").glob("*.jpg"))[:3]
    data, draws = draws_of([file.read_bytes() for file in files])
    assert gap(renderer(data, draws, SHAPE), rendered_alone(data, draws, SHAPE)) <= 1


def test_what_a_device_does_not_decode_is_rendered_on_the_cpu_bit_for_bit(renderer, monkeypatch):
    """Other formats and colors, bytes behind the end; a photo that the device gives back."""
    data, draws = draws_of(odd_photos())
    np.testing.assert_array_equal(renderer(data, draws, SHAPE).permute(0, 2, 3, 1), rendered_alone(data, draws, SHAPE))
    refusing = GpuDecoder(CPU, lambda photos: [None] * len(photos))
    data, draws = draws_of([photo(90, 130, 0)])
    np.testing.assert_array_equal(refusing(data, draws, SHAPE).permute(0, 2, 3, 1), rendered_alone(data, draws, SHAPE))
    assert renderer.decodes() and not refusing.decodes()
    with raises(DataError, "decoded"):
        renderer([data[0][:-300]], draws[:1], SHAPE)


def test_no_more_pixels_are_decoded_at_once_than_the_bound(monkeypatch):
    groups, decode = [], decoded_on_a_cpu(CPU)
    counting = GpuDecoder(CPU, lambda photos: groups.append(photos) or decode(photos))
    data, draws = draws_of([photo(90, 130, 0)])
    whole = counting(data, draws, SHAPE)
    assert len(groups) == 1
    monkeypatch.setattr(gpu_decode, "MAX_PIXELS", 5 * 90 * 130)
    assert torch.equal(counting(data, draws, SHAPE), whole)
    assert [len(group) for group in groups[1:]] == [5] * 6 + [2]
    assert counting([], [], SHAPE).shape == (0, 3, *SHAPE)


def test_a_cpu_has_no_renderer_and_where_nothing_is_decoded_it_is_refused(monkeypatch):
    recipe = RECIPES["resnet50"]()
    assert choose_gpu_decoder(recipe.input, torch.device("cuda")) is None
    assert choose_gpu_decoder(with_decoder("resnet50").input, CPU) is None
    for device in (torch.device("xpu"), torch.device("cuda", 0)):
        get_gpu_decoder.cache_clear()
        monkeypatch.setattr(gpu_decode, "load_nvjpeg", lambda device: lambda photos: [None])
        with raises(RecipeError, "nvjpeg", "NVIDIA GPU", "--input.decoder simplejpeg"):
            get_gpu_decoder(device)
    require_decoder("nvjpeg")


def test_memory_that_runs_out_is_no_photo_that_cannot_be_decoded(monkeypatch):
    import torchvision.io

    def short(*_, **__):
        raise torch.OutOfMemoryError("short")

    decode = gpu_decode.load_nvjpeg(CPU)
    assert [None if one is None else one.shape for one in decode([photo(8, 8, 0), b"no"])] == [(3, 8, 8), None]
    monkeypatch.setattr(torchvision.io, "decode_jpeg", short)
    with pytest.raises(torch.OutOfMemoryError):
        gpu_decode.load_nvjpeg(CPU)([photo(8, 8, 0)])


def with_decoder(name: str, **more):
    from dataclasses import replace

    recipe = RECIPES[name]()
    return replace(recipe, input=replace(recipe.input, decoder="nvjpeg", **more))


@pytest.mark.parametrize(
    ("name", "more", "wanted"),
    [
        (
            "resnet50",
            {"auto_augment": "trivialaugment", "random_erase": 0.5},
            "--input.auto-augment trivialaugment ... --input.random-erase 0.5 ... CPU",
        ),
        ("ssd", {}, "--input.color-jitter hsv ... CPU ... simplejpeg"),
        ("maskrcnn", {"copy_paste_prob": 0.5}, "--input.copy-paste-prob 0.5 ... CPU"),
        ("ssd-gaudi", {"color_jitter": "none"}, "--input.resize tensorflow ... CPU"),
    ],
)
def test_what_follows_decoding_on_the_cpu_is_refused_by_its_flag(name, more, wanted):
    from paceline.models.registry import WORKLOADS

    recipe = with_decoder(name, **more)
    with pytest.raises(RecipeError, match=r"--input\.decoder nvjpeg: ") as caught:
        WORKLOADS[recipe.task].network.check(recipe)
    assert check_text(str(caught.value), wanted)


def test_a_run_that_computes_elsewhere_is_refused_from_the_command_alone():
    from paceline.models.registry import WORKLOADS

    recipe, counts = with_decoder("resnet50"), {"world": 1, "most": 4096, "train_images": 100_000, "val_images": 100}
    WORKLOADS[recipe.task].network.check(recipe)
    make_plan(recipe, System("cuda"), **counts)
    with raises(RecipeError, "cuda", "cpu", "--input.decoder simplejpeg"):
        make_plan(recipe, System("cpu"), **counts)
