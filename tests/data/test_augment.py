"""Augmentation of photos of a class: pure functions of the sample's key; nothing is drawn or changed where it is off."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from stand_ins import InMemory

from paceline.config.resnet import ImageInput
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import batch_indices, stream_positions
from paceline.data.transforms.augment import apply_augmentation, one_thread, sample_augmentation
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform, sample_training_spec

SIDE = 40
ALL = ImageInput(image_size=SIDE, crop_scale=(0.5, 1.0), vflip=0.5, auto_augment="randaugment", random_erase=0.5)


def _jpeg(key: int) -> bytes:
    file, random = io.BytesIO(), np.random.default_rng(key)
    pixels = random.integers(0, 256, (6, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((70, 60)).save(file, "JPEG")
    return file.getvalue()


PHOTOS = [_jpeg(key) for key in range(6)]


def _batches(settings: ImageInput, *, threads: int, first: int = 0, ranks: int = 1) -> dict[tuple[int, int], torch.Tensor]:
    """(step, number in its batch) -> the pixels, of steps `first` to 4 with 8 samples each, loaded as so many ranks would."""
    found = {}
    for rank in range(ranks):

        def schedule(step: int, rank: int = rank):
            epochs, indices = batch_indices(len(PHOTOS), stream_positions(step=step, global_batch_size=8), seed=1)
            mine = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
            return [(epochs[mine], indices[mine])]

        def draw(epoch, index, header, name):
            return sample_training_spec(header, name, 0, SampleRng(1, epoch, index), settings)

        with Loader(
            records=InMemory(PHOTOS), draw=draw, schedule=schedule, threads=threads, first_step=first, last_step=4,
            image_shape=(SIDE, SIDE, 3), device=torch.device("cpu"),
        ) as loader:  # fmt: skip
            for step, (batch,) in loader:
                for at, image in enumerate(batch.images.clone()):
                    found[step, rank * 8 // ranks + at] = image
    return found


@pytest.mark.parametrize("kind", ["trivialaugment", "randaugment"])
def test_pixels_depend_on_seed_epoch_and_photo_alone(kind):
    settings = replace(ALL, auto_augment=kind)
    torch.manual_seed(1)
    once = _batches(settings, threads=1)
    torch.manual_seed(2)
    for other in (_batches(settings, threads=3), _batches(settings, threads=2, ranks=4)):
        assert once.keys() == other.keys() and all(torch.equal(once[key], other[key]) for key in once)
    resumed = _batches(settings, threads=2, first=2)
    assert len(resumed) == 16 and all(torch.equal(once[key], resumed[key]) for key in resumed)
    plain = _batches(replace(settings, vflip=0.0, auto_augment="none", random_erase=0.0), threads=1)
    assert sum(not torch.equal(once[key], plain[key]) for key in once) > 24  # of 32


def test_what_is_off_draws_nothing_and_what_is_on_leaves_crop_and_flip():
    header = read_header(PHOTOS[0], "it")
    random = SampleRng(1, 2, 3)
    assert sample_augmentation(random, ImageInput()) is None and random.bits() == SampleRng(1, 2, 3).bits()
    for key in range(20):
        plain = sample_training_spec(
            header, "it", 0, SampleRng(0, 0, key), replace(ALL, vflip=0, auto_augment="none", random_erase=0)
        )
        changed = sample_training_spec(header, "it", 0, SampleRng(0, 0, key), ALL)
        assert plain.augmentation is None and changed.augmentation is not None
        assert plain == changed._replace(augmentation=None)


def test_a_vertical_flip_turns_the_picture_upside_down():
    header, settings = read_header(PHOTOS[0], "it"), ImageInput(image_size=SIDE)
    pixels = [np.empty((SIDE, SIDE, 3), np.uint8) for _ in range(2)]
    for out, vflip in zip(pixels, (0.0, 1.0)):
        random = SampleRng(0, 0, 5)
        decode_and_transform(PHOTOS[0], sample_training_spec(header, "it", 0, random, replace(settings, vflip=vflip)), out)
    np.testing.assert_array_equal(pixels[1], pixels[0][::-1])
    turned = [sample_augmentation(SampleRng(0, 0, key), replace(settings, vflip=0.25)) for key in range(2000)]
    assert abs(sum(found is not None and found.upside_down for found in turned) - 500) < 100


def test_an_erased_rectangle_is_the_mean_and_the_rest_stays():
    settings = ImageInput(image_size=SIDE, random_erase=0.25)
    drawn = [sample_augmentation(SampleRng(0, 0, key), settings) for key in range(2000)]
    erased = [found for found in drawn if found is not None and found.erased is not None]
    assert abs(len(erased) - 500) < 100
    for found in erased[:50]:
        assert found.erased is not None
        top, left, height, width = found.erased
        assert 0.015 < height * width / SIDE**2 < 0.35
        out = np.full((SIDE, SIDE, 3), 7, np.uint8)
        apply_augmentation(out, found)
        inside = out[top : top + height, left : left + width]
        assert (out == 7).all(axis=2).sum() == SIDE**2 - height * width
        # Zero once normalized, to half a level.
        assert (np.abs(inside / 255 - settings.mean) <= 0.5 / 255).all()


def test_operations_start_no_threads_and_leave_the_number_of_them():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
