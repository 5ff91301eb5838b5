"""uint8 to network input, against torchvision's convention."""

from __future__ import annotations

import pytest
import torch

from paceline.models.layers.common import IMAGENET_MEAN, IMAGENET_STD, Normalize


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [3, 4])
def test_every_pixel_value_becomes_its_share_of_255_less_mean_over_std(channels, memory_format):
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)
    images = images.contiguous(memory_format=memory_format)
    found = Normalize(channels=channels)(images)
    expected = (images.double() / 255 - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(
        3, 1, 1
    )
    torch.testing.assert_close(found[:, :3].double(), expected, rtol=1e-5, atol=1e-6)
    assert found.shape == (2, channels, 16, 16)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=memory_format)
    assert not found[:, 3:].any()


def test_its_numbers_are_the_recipes_and_not_the_checkpoints():
    assert not Normalize((0.5, 0.5, 0.5), (0.1, 0.2, 0.3)).state_dict()
