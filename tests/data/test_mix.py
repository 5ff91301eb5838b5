"""Mixup and CutMix: torchvision's for the same share and rectangle, and the same samples and losses however a batch is cut."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from stand_ins import InMemory
from test_augment import PHOTOS, SIDE
from torchvision.transforms import v2

from paceline.config.resnet import ImageInput, ResNetModel
from paceline.data.batch import Batch, MixedBatch
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import batch_indices, stream_positions
from paceline.data.transforms.augment import MixSpec, sample_mix
from paceline.data.transforms.sample import sample_training_spec
from paceline.models.backbones.resnet import ResNet
from paceline.models.registry import WORKLOADS
from paceline.models.resnet.loss import ClassifierWithLoss, mix_images, mixed_fraction, swap_partners

BOTH = ImageInput(image_size=SIDE, crop_scale=(0.5, 1.0), mixup_alpha=0.4, cutmix_alpha=1.0)
CLASSES = 5


def _batches(settings: ImageInput, *, threads=1, first=0, ranks=1, forwards=1, join=1, least=4) -> dict[int, list[Batch]]:
    """Step -> its batches by rank and forward, of steps `first` to `least` with 16 samples each."""
    found: dict[int, list[Batch]] = {}
    for rank in range(ranks):
        cut = {"rank": rank, "world": ranks, "forwards": forwards, "join": join}

        def schedule(step: int, cut=cut):
            epochs, indices = batch_indices(len(PHOTOS), stream_positions(step=step, global_batch_size=16, **cut), seed=1)
            return list(zip(np.split(epochs, forwards), np.split(indices, forwards)))

        def draw(epoch, index, header, name):
            return sample_training_spec(header, name, index % CLASSES, SampleRng(1, epoch, index), settings)

        with Loader(
            records=InMemory(PHOTOS), draw=draw, schedule=schedule, threads=threads, first_step=first, last_step=least,
            image_shape=(SIDE, SIDE, 3), device=torch.device("cpu"),
        ) as loader:  # fmt: skip
            for step, batches in loader:
                found.setdefault(step, []).extend(batch.to("cpu", copy=True) for batch in batches)
    return found


def _mixed(batch: Batch) -> list[tuple[int, float, int, bytes]]:
    """Of each image: its class, its partner's share and class, its pixels."""
    assert isinstance(batch, MixedBatch)
    images = mix_images(batch.images.double(), batch.boxes, batch.shares)
    shares = mixed_fraction(batch.boxes, batch.shares, SIDE**2).tolist()
    pixels = [image.numpy().tobytes() for image in images]
    return list(zip(batch.labels.tolist(), shares, swap_partners(batch.labels).tolist(), pixels))


def test_the_same_photos_are_mixed_with_each_other_however_a_step_is_cut():
    whole = {step: sorted(_mixed(batch)) for step, (batch,) in _batches(BOTH).items()}
    cuts = [{"threads": 3}, {"forwards": 8}, {"ranks": 2, "forwards": 2}, {"ranks": 4, "join": 2, "forwards": 2}]
    for cut in cuts:
        found = _batches(BOTH, **cut)
        assert whole == {step: sorted(chain.from_iterable(map(_mixed, batches))) for step, batches in found.items()}, cut
    resumed = _batches(BOTH, first=3)
    assert sorted(_mixed(resumed[3][0])) == whole[3]
    assert len({share for _, share, _, _ in whole[0]}) > 10


def test_what_is_off_draws_nothing_and_what_is_on_leaves_all_before_it():
    random = SampleRng(1, 2, 3)
    assert sample_mix(random, ImageInput()) is None and random.bits() == SampleRng(1, 2, 3).bits()
    (plain,), (mixed,) = _batches(replace(BOTH, mixup_alpha=0, cutmix_alpha=0))[0], _batches(BOTH)[0]
    assert type(plain) is Batch and torch.equal(plain.images, mixed.images) and torch.equal(plain.labels, mixed.labels)


def _drawn(settings: ImageInput, count: int) -> list[MixSpec]:
    drawn = [sample_mix(SampleRng(0, 0, key), settings) for key in range(count)]
    return [mix for mix in drawn if mix is not None]


def test_shares_are_beta_and_rectangles_have_their_area_but_for_the_border():
    whole = (0, 0, 40, 40)
    mixup = _drawn(ImageInput(image_size=40, mixup_alpha=0.4), 4000)
    assert all(box == whole and 0 <= share <= 1 for box, share in mixup)
    shares = np.array([share for _, share in mixup])
    assert abs(shares.mean() - 0.5) < 0.02 and abs(shares.var() - 1 / (4 * (2 * 0.4 + 1))) < 0.01
    for (left, top, right, bottom), share in _drawn(ImageInput(image_size=40, cutmix_alpha=1.0), 500):
        assert 0 <= left <= right <= 40 and 0 <= top <= bottom <= 40 and share == 1
    either = _drawn(ImageInput(image_size=40, mixup_alpha=1.0, cutmix_alpha=1.0), 2000)
    assert abs(sum(mix.box == whole for mix in either) - 1000) < 120


@pytest.mark.parametrize("alpha", [1e-4, 0.2, 1.0, 3.0, 1e5])
def test_beta_numbers_have_the_moments_of_their_distribution(alpha):
    random = SampleRng(3, 0, 0)
    drawn = np.array([random.beta(alpha) for _ in range(20_000)])
    assert ((drawn >= 0) & (drawn <= 1)).all() and abs(drawn.mean() - 0.5) < 0.02
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(drawn.var() / variance - 1) < 0.04
    if alpha == 1.0:
        assert np.abs(np.histogram(drawn, 10, (0, 1))[0] - 2000).max() < 200


def test_a_pair_is_mixed_as_by_torchvision(monkeypatch):
    images, labels = torch.rand(2, 3, 20, 30, dtype=torch.float64), torch.tensor([1, 3])

    def theirs(transform: v2.MixUp | v2.CutMix, lam: float, **more):
        params = {"lam": lam, **more}
        monkeypatch.setattr(transform, "make_params", lambda _: params)
        return transform(images, labels)

    # In a batch of two, the batch rolled by one is that of the partners.
    for lam in (0.0, 0.3, 1.0):
        pixels, targets = theirs(v2.MixUp(num_classes=CLASSES), lam)
        boxes, shares = torch.tensor([[0, 0, 30, 20]] * 2), torch.tensor([1 - lam] * 2, dtype=torch.float64)
        _same(images, labels, boxes, shares, pixels, targets)
    for box in ((3, 4, 17, 20), (0, 0, 30, 20), (5, 5, 5, 5)):
        left, top, right, bottom = box
        lam = 1 - (right - left) * (bottom - top) / 600
        pixels, targets = theirs(v2.CutMix(num_classes=CLASSES), lam, box=box, lam_adjusted=lam)
        _same(images, labels, torch.tensor([box] * 2), torch.ones(2, dtype=torch.float64), pixels, targets)


def _same(images, labels, boxes, shares, pixels, targets):
    torch.testing.assert_close(mix_images(images, boxes, shares), pixels, rtol=0, atol=1e-12)
    weight = mixed_fraction(boxes, shares, 600)[:, None]
    one_hot = torch.eye(CLASSES, dtype=torch.float64)[labels]
    torch.testing.assert_close(
        one_hot * (1 - weight) + swap_partners(one_hot) * weight, targets.double(), rtol=0, atol=1e-7
    )


def test_cutmix_rectangles_are_torchvisions_for_the_same_numbers(monkeypatch):
    """Theirs draws its numbers from torch: they are given ours."""
    settings, transform = ImageInput(image_size=40, cutmix_alpha=1.0), v2.CutMix(num_classes=CLASSES)
    for key in range(200):
        random = SampleRng(5, 0, key)
        share, x, y = random.beta(1.0), random.integer(0, 40), random.integer(0, 40)
        numbers = iter((x, y))
        monkeypatch.setattr(torch, "randint", lambda *_, numbers=numbers, **__: torch.tensor([next(numbers)]))
        given = type("Given", (), {"sample": lambda *_, share=share: torch.tensor([1 - share])})()
        monkeypatch.setattr(transform, "_dist", given)
        theirs = transform.make_params([torch.zeros(2, 3, 40, 40)])
        mix = sample_mix(SampleRng(5, 0, key), settings)
        assert mix is not None
        if abs(0.5 * math.sqrt(share) * 40 % 1 - 0.5) < 0.499:  # theirs is float32: a whole half side may round
            assert mix.box == tuple(map(int, theirs["box"])), key


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_to_mixed_and_smoothed_labels_whatever_the_cut(smoothing):
    torch.manual_seed(3)
    trunk = ResNet(10, width=8)
    trunk.add_classes(CLASSES)
    generator = torch.Generator().manual_seed(0)
    trunk.draw("torchvision", generator, zero_init_residual=False)
    model = ClassifierWithLoss(
        trunk, mean=BOTH.mean, std=BOTH.std, settings=ResNetModel(label_smoothing=smoothing)
    ).double()
    model.eval()  # BatchNorm would see the cut, which bn_batch_size is there for
    monkey = model.normalize
    monkey.forward = lambda images: (images.double() - monkey.mean) * monkey.scale  # type: ignore[method-assign]
    (batch,) = _batches(BOTH)[0]
    assert isinstance(batch, MixedBatch)
    images = mix_images(monkey(batch.images), batch.boxes, batch.shares)
    weight = mixed_fraction(batch.boxes, batch.shares, SIDE**2).double()[:, None]
    one_hot = torch.eye(CLASSES, dtype=torch.float64)[batch.labels]
    targets = one_hot * (1 - weight) + swap_partners(one_hot) * weight
    logits = model.network.classify(images)
    expected = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(model(batch)["loss"].double(), expected, rtol=1e-6, atol=0)
    for cut in ({"forwards": 8}, {"ranks": 4, "join": 2, "forwards": 2}):
        parts = [model(part)["loss"] for part in _batches(BOTH, **cut)[0]]
        torch.testing.assert_close(sum(parts), model(batch)["loss"], rtol=1e-6, atol=0)  # type: ignore[arg-type]


def test_images_keep_their_memory_format_and_a_made_up_batch_is_mixed():
    images = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    boxes, shares = torch.tensor([[0, 0, 8, 8]] * 4), torch.full((4,), 0.25)
    assert mix_images(images, boxes, shares).is_contiguous(memory_format=torch.channels_last)
    from paceline.config.recipes import RECIPES

    recipe = RECIPES["classify-demo"]()
    recipe = replace(recipe, input=replace(recipe.input, mixup_alpha=0.2))
    batch = WORKLOADS["classification"].data().dummy_batch(recipe, 4, (8, 8), 0)
    assert isinstance(batch, MixedBatch) and batch.boxes.tolist() == [[0, 0, 8, 8]] * 4
