"""Around GluonCV's net, recorded from its code, beside ours: sizes and pixels of photos, SGD, learning rates, pasted masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gluoncv_recorded import Recorded, reader
from step_rates import take
from torch import nn

from paceline.config.recipes.maskrcnn import gluoncv, gluoncv_192
from paceline.config.schedule import learning_rate
from paceline.data.rle import decode_mask
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.resample import resample_torch
from paceline.models.batch_shapes import resized_size, resized_sizes
from paceline.models.ops import paste_masks
from paceline.training.optim.base import list_named_parameters
from paceline.training.optim.sgd import SGD


@pytest.fixture
def recorded() -> Recorded:
    return reader()


def test_sizes_of_photos(recorded: Recorded) -> None:
    theirs, photo = recorded("resizing"), gluoncv().input
    for (height, width), size in zip(theirs["sizes"].tolist(), theirs["resized"].tolist()):
        assert resized_size(height, width, *photo.min_size, photo.max_size, photo.parity.side_rounding) == tuple(size)
    assert np.array_equal(
        resized_sizes(*theirs["sizes"].T, *photo.min_size, photo.max_size, photo.parity.side_rounding), theirs["resized"]
    )


@pytest.mark.parametrize("name", ["smaller", "larger"])
def test_pixels_of_photos(recorded: Recorded, name: str) -> None:
    """OpenCV's 11-bit weights beside torch's: one level of 255."""
    theirs = recorded("resizing")
    photo, expected = theirs[f"{name}_photo"], theirs[name]
    made = np.empty_like(expected)
    window = CropWindow(0, 0, *photo.shape[:2], *expected.shape[:2])
    resample_torch(np.ascontiguousarray(photo), window, made, flip=False, law=gluoncv().input.resize)
    assert np.abs(made.astype(int) - expected.astype(int)).max() <= 1


def test_sgd_with_its_clip_and_its_decay(recorded: Recorded) -> None:
    theirs, optim = recorded("steps"), gluoncv().optim
    model = nn.Module()
    model.conv = nn.Conv2d(1, 40, 1)
    model.conv.weight.data = torch.from_numpy(theirs["start"][0]).view(40, 1, 1, 1)
    model.conv.bias.data = torch.from_numpy(theirs["start"][1])
    parameters = list_named_parameters(model, optim.no_decay, bias_lr_factor=optim.bias_lr_factor)
    optimizer = SGD(parameters, optim)
    assert np.abs(theirs["gradients"]).max() > optim.clip_value
    for rate, gradients, after in zip(theirs["rates"].tolist(), theirs["gradients"], theirs["after"]):
        model.conv.weight.grad = torch.from_numpy(gradients[0].copy()).view(40, 1, 1, 1)
        model.conv.bias.grad = torch.from_numpy(gradients[1].copy())
        take(optimizer, rate)
        assert np.allclose(model.conv.weight.detach().flatten(), after[0], rtol=0, atol=5e-7)
        assert np.allclose(model.conv.bias.detach(), after[1], rtol=0, atol=5e-7)


@pytest.mark.parametrize(("name", "recipe"), [("16", gluoncv()), ("192", gluoncv_192())], ids=["16", "192"])
def test_learning_rates_of_its_loop(recorded: Recorded, name: str, recipe) -> None:
    """Its own loop with 7 iterations an epoch, and our law with that many steps."""
    theirs, schedule = recorded("schedule"), recipe.schedule
    peak, factor, warmup, per_epoch, *boundaries = theirs[f"facts_{name}"].tolist()
    assert (recipe.optim.lr, schedule.warmup_start_factor, schedule.milestones) == (peak, factor, tuple(boundaries))
    rates = theirs[f"rates_{name}"]
    assert len(rates) == recipe.epochs * per_epoch
    ours = [
        learning_rate(
            schedule,
            step,
            peak=peak,
            warmup_steps=warmup,
            total_steps=len(rates),
            boundaries=tuple(epoch * per_epoch for epoch in boundaries),
        )
        for step in range(len(rates))
    ]
    assert ours == pytest.approx(rates.tolist(), rel=1e-12)


@pytest.mark.parametrize("together", [False, True], ids=["cpu", "accelerator"])
def test_pasted_masks(recorded: Recorded, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pixels; by the form for accelerators those whose probability is not a rounding from a half."""
    theirs, parity = recorded("pasting"), gluoncv().model.parity
    if together:
        monkeypatch.setattr(paste_masks, "rle_changes_cpu", paste_masks.rle_changes_batched)
    height, width = theirs["size"].tolist()
    count = len(theirs["boxes"])
    expected = np.unpackbits(theirs["bitmaps"])[: count * height * width].reshape(count, height, width)
    masks, boxes = torch.from_numpy(theirs["masks"]), torch.from_numpy(theirs["boxes"])
    ours = np.stack(
        [
            decode_mask(run, height, width)
            for run in paste_masks.paste_to_rle(masks, boxes, height, width, law=parity.mask_paste)
        ]
    )
    assert (ours != expected).sum() <= (2 if together else 0)
    cut = np.stack([decode_mask(run, height, width) for run in paste_masks.paste_to_rle(masks, boxes, height, width)])
    assert (cut != expected).sum() > 100
