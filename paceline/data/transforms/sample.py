"""From an encoded photo to pixels in two parts: a Draw, decided from its header alone, and the rendering of that.

A Draw is which part of a photo is used, mirrored or not, in which colors, with which labels. It is decided by the header and the
sample's key (here for photos of a class, the transforms of SSD and Mask R-CNN) before a pixel is read, so every way to render it, one
photo on a CPU thread here or a batch on a device, gives the same samples. The random numbers of a photo of a class are drawn in a
fixed order: turn, crop, flip, augmentation, mixing.

A turn by a quarter, and a vertical flip of a photo with objects, are done as EXIF's are: the header is turned, all that follows sees a
photo of that height and width, and its region's pixels are turned as they are decoded, so nothing is resampled for it.

Letters: H, W the network's input; h, w the part of it that the photo fills. All in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from paceline._utils.errors import DataError
from paceline._utils.text import join_names
from paceline.config.resnet import Exif, ImageInput
from paceline.data.batch import MixedClass
from paceline.data.index.records import RecordReader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.augment import apply_augmentation, sample_augmentation, sample_mix
from paceline.data.transforms.color_jitter import apply_color_jitter
from paceline.data.transforms.crop import random_resized_crop, resize_and_center_crop
from paceline.data.transforms.decode import SampleSpec, decode_crop
from paceline.data.transforms.exif import QUARTERS, UPRIGHT, UPSIDE_DOWN, compose_orientations
from paceline.data.transforms.image_io import Header, read_header

# Photos that a message about several names.
NAMED = 3


# (epoch, index, header, name) -> Draw. Called by several threads at once; must depend on these alone.
DrawSample = Callable[[int, int, Header, str], SampleSpec]
# (encoded photo, its Draw, out (H, W, 3) uint8): writes every pixel of `out`. Called by several threads at once.
Render = Callable[[bytes, SampleSpec, np.ndarray], None]
# (n encoded photos, their Draws, (H, W)) -> (n, 3, H, W) uint8 on the batch's device, as n calls of a Render would write;
# n may be 0.
RenderBatch = Callable[[Sequence[bytes], Sequence[SampleSpec], tuple[int, int]], Tensor]


def decode_and_transform(data: bytes, draw: SampleSpec, out: np.ndarray) -> None:
    """Decode the window and write it, with its colors and augmentation, to its place in `out`, then the other photos.

    draw  its others have been read, see `with_partners`
    out   (H, W, 3) uint8, RGB
    Raises DataError for a broken image; RecipeError where the decoder is not installed.
    """
    window = draw.window
    h, w = window.resized_height - window.skip_top, window.resized_width - window.skip_left
    top, left = draw.place
    out[:top] = out[top + h :] = draw.around
    out[top : top + h, :left] = out[top : top + h, left + w :] = draw.around
    _render_photo(data, draw, out[top : top + h, left : left + w])
    for _, other, read, mask in draw.others:
        top, left = other.place
        h, w = other.window.resized_height, other.window.resized_width
        part = out[top : top + h, left : left + w]
        if mask is None:
            _render_photo(read, other, part)
        else:
            picture = np.empty((h, w, 3), np.uint8)
            _render_photo(read, other, picture)
            np.copyto(part, picture, where=mask[..., None])


def _render_photo(data: bytes, draw: SampleSpec, part: np.ndarray) -> None:
    decode_crop(data, draw, part)
    if draw.color is not None:
        apply_color_jitter(part, draw.color)
    if draw.augmentation is not None:
        apply_augmentation(part, draw.augmentation)


def with_partners(draw: SampleSpec, read: Callable[[Sequence[int]], Sequence[bytes]], exif: Exif) -> SampleSpec:
    """The draw with the bytes of its other photos. Raises DataError where one has another size than when the data was prepared."""
    results, wanted = [], list(dict.fromkeys(other.number for other in draw.others))  # a photo may come twice
    photos = dict(zip(wanted, read(wanted), strict=True)) if wanted else {}
    for other in draw.others:
        data, name, expected = photos[other.number], other.draw.name, other.draw.header
        header = read_header(data, name, exif).turned(expected.orientation)
        if header[:2] != expected[:2]:
            raise DataError(f"{name}: its size has changed since the data was prepared.\nPrepare the dataset again.")
        results.append(other._replace(draw=other.draw._replace(header=header), data=data))
    return draw._replace(others=tuple(results))


def sample_spec(data: bytes, records: RecordReader, draw: DrawSample, epoch: int, index: int, exif: Exif) -> SampleSpec:
    """Decide a sample from its bytes, and read its other photos."""
    name = records.name(index)
    result = draw(epoch, index, read_header(data, name, exif), name)
    return with_partners(result, partial(read_many, records), exif) if result.others else result


def read_many(records: RecordReader, indices: Sequence[int]) -> list[bytes]:
    """The bytes of several records. Raises DataError where one cannot be read."""
    try:
        results = records.read_many(indices)
    except OSError as error:  # of a container that raises no DataError itself; a time-out is one too
        raise DataError(
            f"{join_names(map(records.name, indices), NAMED)}: cannot be read ({error.strerror or error})."
        ) from error
    assert len(results) == len(indices), "read_many returns one entry for each index"
    return results


def sample_orientation(random: SampleRng, vflip: float, rot90: float) -> int:
    """An orientation of data/transforms/exif.py: upside down with probability vflip, then a turn by 90, 180 or 270 degrees, each as
    likely, with probability rot90. Nothing is drawn for a probability of 0."""
    turn = UPSIDE_DOWN if vflip and random.coin(vflip) else UPRIGHT
    if rot90 and random.coin(rot90):
        turn = compose_orientations(turn, QUARTERS[random.integer(0, len(QUARTERS))])
    return turn


def sample_training_spec(header: Header, name: str, label: int, random: SampleRng, settings: ImageInput) -> SampleSpec:
    """Turn, RandomResizedCrop, flip, augmentation and mixing, for an input of (size, size)."""
    header = header.turned(sample_orientation(random, 0.0, settings.rot90))
    height, width = header.height, header.width
    window = random_resized_crop(
        height, width, settings.image_size, random, area=settings.crop_scale, aspect=settings.crop_ratio
    )
    flip = random.coin(settings.hflip)
    augmentation = sample_augmentation(random, settings)
    mix = sample_mix(random, settings)
    mixed = label if mix is None else MixedClass(label, *mix)
    return SampleSpec(name, header, window, mixed, flip=flip, decoder=settings.decoder, augmentation=augmentation)


def evaluation_spec(header: Header, name: str, label: int, settings: ImageInput) -> SampleSpec:
    """The center of the resized photo, for an input of (eval_crop_size, eval_crop_size)."""
    window = resize_and_center_crop(header.height, header.width, settings.eval_resize_size, settings.eval_crop_size)
    return SampleSpec(name, header, window, label, decoder=settings.decoder)
