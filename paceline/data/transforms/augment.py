"""Augmentation of a photo of a class after its crop: vertical flip, TrivialAugment or RandAugment, erasing, mixing.

Rules, names, ranges and kernels are torchvision's: TrivialAugmentWide; RandAugment with two operations of magnitude 9 of 31; nearest
pixels and black beside the picture, as these classes have them by default; RandomErasing in the color of the mean. torchvision erases
after normalization, in zeros: here on levels, so that 0 is met to half a level.

Numbers drawn, of what is on alone: vertical flip; of each operation its place in OPERATIONS, its magnitude (trivial), its sign (where
it has one); whether to erase, then area and aspect until they fit, top, left; of mixing its share or rectangle.

Mixup and CutMix: what a photo takes of its partner is drawn here, the pixels are mixed by models/resnet/loss.py. A sample's
partner is its neighbor in the stream: samples 2i and 2i + 1 mix with each other, each with a share and a rectangle of its own
random numbers. A step begins at an even place of the stream, and each forward of each rank has an even number of places (odd is
refused), so partners meet in one forward however the batch is cut. A partner from anywhere in the data would cost a second decoding
for each sample. torchvision's and timm's scripts mix a whole batch with one share; the rules for one sample are torchvision's.

Sources: Zhang et al. 2018 (mixup); Yun et al. 2019 (CutMix); torchvision.transforms.v2.MixUp and CutMix.
Letters: S side of the picture, pixels.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.config.resnet import ImageInput
from paceline.data.loader.sample_rng import SampleRng

# Either sign; what lies at the last magnitude: of trivial, of rand (of translations there: a share of the side).
SIGNED = {
    "ShearX": (0.99, 0.3), "ShearY": (0.99, 0.3), "TranslateX": (32.0, 150 / 331), "TranslateY": (32.0, 150 / 331),
    "Rotate": (135.0, 30.0), "Brightness": (0.99, 0.9), "Color": (0.99, 0.9), "Contrast": (0.99, 0.9), "Sharpness": (0.99, 0.9),
}  # fmt: skip
OPERATIONS = ("Identity", *SIGNED, "Posterize", "Solarize", "AutoContrast", "Equalize")
LAST = 30  # of the magnitudes 0, 1, ...
RAND_OPERATIONS, RAND_MAGNITUDE = 2, 9
ERASED_AREA, ERASED_ASPECT, ERASE_ATTEMPTS = (0.02, 0.33), (0.3, 3.3), 10


class ImageOp(NamedTuple):
    """One operation, as drawn."""

    operation: str  # of OPERATIONS
    magnitude: float  # in the operation's own unit, signed; 0 where it has none


class Augmentation(NamedTuple):
    """What is done to one sample's pixels, in this order."""

    upside_down: bool
    changes: tuple[ImageOp, ...]
    erased: tuple[int, int, int, int] | None  # top, left, height, width
    mean: tuple[int, int, int]  # levels of RGB that it is erased with


def sample_augmentation(random: SampleRng, settings: ImageInput) -> Augmentation | None:
    """Draw by the settings' fields `vflip`, `auto_augment` and `random_erase`; None, and nothing drawn, where all are off."""
    if not settings.vflip and settings.auto_augment == "none" and not settings.random_erase:
        return None
    upside_down = settings.vflip > 0 and random.coin(settings.vflip)
    count = {"none": 0, "trivialaugment": 1, "randaugment": RAND_OPERATIONS}[settings.auto_augment]
    changes = tuple(
        _draw_change(random, settings.image_size, wide=settings.auto_augment == "trivialaugment") for _ in range(count)
    )
    erased = (
        _draw_erased(random, settings.image_size) if settings.random_erase and random.coin(settings.random_erase) else None
    )
    return Augmentation(upside_down, changes, erased, mean_levels(settings.mean))


def mean_levels(mean: tuple[float, float, float]) -> tuple[int, int, int]:
    """RGB in 0..255 of what the network subtracts, to half a level."""
    red, green, blue = (min(255, max(0, round(255 * share))) for share in mean)
    return red, green, blue


def _draw_change(random: SampleRng, side: int, *, wide: bool) -> ImageOp:
    """wide  the ranges of TrivialAugmentWide, else RandAugment's."""
    operation = OPERATIONS[random.integer(0, len(OPERATIONS))]
    if operation in ("Identity", "AutoContrast", "Equalize"):
        return ImageOp(operation, 0.0)
    step = random.integer(0, LAST + 1) if wide else RAND_MAGNITUDE
    if operation == "Posterize":
        return ImageOp(operation, 8 - round(step / (LAST / (6 if wide else 4))))
    if operation == "Solarize":
        return ImageOp(operation, 255 * (LAST - step) / LAST)
    reach = SIGNED[operation][0 if wide else 1] * (side if operation.startswith("Translate") and not wide else 1)
    return ImageOp(operation, (-1 if random.coin() else 1) * reach * step / LAST)


def _draw_erased(random: SampleRng, side: int) -> tuple[int, int, int, int] | None:
    """None where no attempt fits, which then leaves the picture as it is."""
    narrow, wide = map(math.log, ERASED_ASPECT)
    for _ in range(ERASE_ATTEMPTS):
        area, aspect = side * side * random.uniform(*ERASED_AREA), math.exp(random.uniform(narrow, wide))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height < side and width < side:
            return random.integer(0, side - height + 1), random.integer(0, side - width + 1), height, width
    return None


def apply_augmentation(pixels: np.ndarray, augmentation: Augmentation) -> None:
    """Change (S, S, 3) uint8 RGB pixels in place."""
    if augmentation.upside_down:
        pixels[...] = pixels[::-1].copy()
    if any(change.operation != "Identity" for change in augmentation.changes):
        image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        with one_thread():
            for change in augmentation.changes:
                image = apply_change(image, *change)
        pixels[...] = image.permute(1, 2, 0).numpy()
    if augmentation.erased is not None:
        top, left, height, width = augmentation.erased
        pixels[top : top + height, left : left + width] = augmentation.mean


def apply_change(image: Tensor, operation: str, magnitude: float) -> Tensor:
    """(3, S, S) uint8 -> the same, changed."""
    from torchvision.transforms.v2 import functional as F

    affine = partial(F.affine, image, angle=0.0, scale=1.0)
    shear = partial(affine, translate=[0, 0], center=[0, 0])
    degrees = math.degrees(math.atan(magnitude))
    changes: dict[str, Callable[[], Tensor]] = {
        "Identity": lambda: image,
        "ShearX": lambda: shear(shear=[degrees, 0.0]),
        "ShearY": lambda: shear(shear=[0.0, degrees]),
        "TranslateX": lambda: affine(translate=[int(magnitude), 0], shear=[0.0, 0.0]),
        "TranslateY": lambda: affine(translate=[0, int(magnitude)], shear=[0.0, 0.0]),
        "Rotate": lambda: F.rotate(image, angle=magnitude),
        "Brightness": lambda: F.adjust_brightness(image, 1.0 + magnitude),
        "Color": lambda: F.adjust_saturation(image, 1.0 + magnitude),
        "Contrast": lambda: F.adjust_contrast(image, 1.0 + magnitude),
        "Sharpness": lambda: F.adjust_sharpness(image, 1.0 + magnitude),
        "Posterize": lambda: F.posterize(image, int(magnitude)),
        "Solarize": lambda: F.solarize(image, magnitude),
        "AutoContrast": lambda: F.autocontrast(image),
        "Equalize": lambda: F.equalize(image),
    }
    return changes[operation]()


class MixSpec(NamedTuple):
    """In `box` a sample has this share of its partner's pixels."""

    box: tuple[int, int, int, int]  # left, top, right, bottom, pixels
    share: float  # in [0, 1]


def sample_mix(random: SampleRng, settings: ImageInput) -> MixSpec | None:
    """Draw by the settings' fields `mixup` and `cutmix`, with both on by one of them; None, and nothing drawn, where both are off."""
    if not settings.mixup_alpha and not settings.cutmix_alpha:
        return None
    side, whole = settings.image_size, (0, 0, settings.image_size, settings.image_size)
    if not settings.cutmix_alpha or (settings.mixup_alpha and random.coin()):
        return MixSpec(whole, random.beta(settings.mixup_alpha))
    half = int(0.5 * math.sqrt(random.beta(settings.cutmix_alpha)) * side)
    x, y = random.integer(0, side), random.integer(0, side)
    return MixSpec((max(x - half, 0), max(y - half, 0), min(x + half, side), min(y + half, side)), 1.0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch's operations of this thread alone start no others: loader threads share the cores, and sums keep their order.

    `torch.set_num_threads` would be meant for all threads. OpenMP's own number is each thread's; torch takes it from there.
    """
    if (limit := _openmp()) is None:
        yield
        return
    before = torch.get_num_threads()  # also torch's first look at this thread, which sets the number
    limit(1)
    try:
        yield
    finally:
        limit(before)


@cache
def _openmp() -> Any:
    """OpenMP's `omp_set_num_threads`, as torch has loaded it; None in a build without."""
    try:
        return ctypes.CDLL(torch._C.__file__).omp_set_num_threads
    except (AttributeError, OSError):
        return None
