"""The decoder nvjpeg on its device: a forward's photos decoded by NVIDIA's nvJPEG through torchvision, resized and flipped there.

A RenderBatch (data/transforms/sample.py): the loader calls it with the draws of a forward, on its own stream. What a device gets is
the encoded photo; host threads parse headers and, for some photos, Huffman codes. Its form on a CPU is `decode_crop` with the same
decoder's name, which tests hold to Pillow; here a region is resized in float32 and rounded, there in 8-bit fixed point, one level
apart at most. nvJPEG's own inverse DCT and colors differ further: tests/gpu/test_decode_on_cuda.py states the bound.

What nvJPEG does not take (other formats, CMYK, files without their end) is rendered by a CPU thread, and copied.
torchvision's decoder has run on a GPU (results/gpu), this module has not: in the tests the CPU decodes
(docs/reference/decoders.md).

Letters: n photos   H, W the network's input   h, w a photo's stored region
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline._utils.errors import RecipeError
from paceline.data.transforms.crop import source_region
from paceline.data.transforms.decode import END_OF_IMAGE, SampleSpec
from paceline.data.transforms.exif import TURNS
from paceline.data.transforms.sample import RenderBatch, decode_and_transform

# Pixels of photos that are decoded at once: 192 MiB of the device, in addition to what nvJPEG takes.
MAX_PIXELS = 2**26
# Encoded photos -> (3, h, w) uint8 of each as it is stored, on the device, in the order of its current stream; None for what could
# not be decoded.
DecodePhotos = Callable[[Sequence[bytes]], "list[Tensor | None]"]


def choose_gpu_decoder(settings: Any, device: torch.device) -> RenderBatch | None:
    """What a loader renders an input's forwards by; None: photo by photo, by its workers. Raises as `get_gpu_decoder` does."""
    if getattr(settings, "decoder", "") != "nvjpeg" or device.type == "cpu":
        return None
    return get_gpu_decoder(device)


@cache
def get_gpu_decoder(device: torch.device) -> GpuDecoder:
    """The renderer of a device, one for all loaders of this process. Raises RecipeError where nvJPEG does not decode there."""
    made = GpuDecoder(device, load_nvjpeg(device))
    if device.type != "cuda" or not made.decodes():
        raise RecipeError(
            f"--input.decoder nvjpeg: is not supported on {device}. It requires an NVIDIA GPU and a torchvision build with "
            "CUDA. Use  --input.decoder simplejpeg"
        )
    return made


def load_nvjpeg(device: torch.device) -> DecodePhotos:
    """torchvision's decoder on a CUDA device."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:
        return lambda photos: [None] * len(photos)

    def decode(photos: Sequence[bytes]) -> list[Tensor | None]:
        encoded = [torch.frombuffer(bytearray(photo), dtype=torch.uint8) for photo in photos]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # torchvision 0.29 announces that its decoders will move
                return list(decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # of one that nvJPEG does not take; it does not say which
            return [None] if len(photos) == 1 else [one for photo in photos for one in decode([photo])]

    return decode


class GpuDecoder:
    """Renders forwards on one device, on the stream of whichever thread calls it; one at a time works."""

    def __init__(self, device: torch.device, decode: DecodePhotos) -> None:
        self._device, self._decode, self._lock = device, decode, threading.Lock()

    def decodes(self) -> bool:
        """Whether a picture comes out at all: without nvJPEG's library none does, and all would be rendered on the CPU."""
        import simplejpeg

        return self._decode([simplejpeg.encode_jpeg(np.full((16, 16, 3), 128, np.uint8))]) != [None]

    def __call__(self, data: Sequence[bytes], draws: Sequence[SampleSpec], shape: tuple[int, int]) -> Tensor:
        """-> (n, 3, H, W) uint8 in channels_last memory, on the device; see RenderBatch. Raises DataError as
        `decode_and_transform` does."""
        images = torch.empty((len(draws), *shape, 3), dtype=torch.uint8, device=self._device)
        here = [at for at, draw in enumerate(draws) if _is_for_a_device(draw) and data[at][-2:] == END_OF_IMAGE]
        rest = sorted(set(range(len(draws))) - set(here))
        with self._lock:
            for group in _groups(here, draws):
                for at, photo in zip(group, self._decode([data[at] for at in group]), strict=True):
                    if photo is None:
                        rest.append(at)
                    else:
                        _write(photo, draws[at], images[at])
        for at in rest:
            pixels = torch.empty((*shape, 3), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            decode_and_transform(data[at], draws[at], pixels.numpy())
            images[at].copy_(pixels, non_blocking=True)
        return images.permute(0, 3, 1, 2)


def _is_for_a_device(draw: SampleSpec) -> bool:
    """Whether all that this draw asks for has a form on a device."""
    return (
        draw.header.plain_jpeg
        and draw.law in ("bilinear-antialias", "bilinear")
        and draw.color is None
        and draw.augmentation is None
        and not draw.others
    )


def _groups(numbers: Sequence[int], draws: Sequence[SampleSpec]) -> Iterator[list[int]]:
    """The numbers in order, in groups of at most MAX_PIXELS, or of one larger photo."""
    group, pixels = [], 0
    for at in numbers:
        more = draws[at].header.height * draws[at].header.width
        if group and pixels + more > MAX_PIXELS:
            yield group
            group, pixels = [], 0
        group.append(at)
        pixels += more
    if group:
        yield group


def _write(photo: Tensor, draw: SampleSpec, out: Tensor) -> None:
    """Turn, resize and mirror a photo's window, and write it to its place.

    photo  (3, height, width) uint8, as it is stored
    out    (H, W, 3) uint8
    """
    source = source_region(draw.window, draw.header.orientation, draw.header.height, draw.header.width)
    rows, columns = slice(source.top, source.top + source.height), slice(source.left, source.left + source.width)
    region = photo[:, rows, columns].permute(1, 2, 0)
    window, (top, left) = draw.window, draw.place
    h, w = window.resized_height - window.skip_top, window.resized_width - window.skip_left
    part = out[top : top + h, left : left + w]
    if part.shape[:2] != out.shape[:2]:
        for channel, level in enumerate(draw.around):
            out[..., channel].fill_(level)
    pixels = _turned(region, draw.header.orientation).permute(2, 0, 1)[None]
    size = [window.resized_height, window.resized_width]
    if list(pixels.shape[2:]) != size:
        smooth = draw.law == "bilinear-antialias"
        pixels = torch.nn.functional.interpolate(
            pixels.float(), size, mode="bilinear", align_corners=False, antialias=smooth
        )
        pixels = pixels.round_().clamp_(0, 255).to(torch.uint8)
    bottom, right = window.skip_top + part.shape[0], window.skip_left + part.shape[1]
    pixels = pixels[0, :, window.skip_top : bottom, window.skip_left : right].permute(1, 2, 0)
    part.copy_(pixels.flip(1) if draw.flip else pixels)


def _turned(pixels: Tensor, orientation: int) -> Tensor:
    """`rotate_pixels` of data/transforms/exif.py on any device: a view, or a copy where it is mirrored."""
    from_right, from_below, swapped = TURNS[orientation]
    # The stored frame's axes: swapped, the shown x counts along the stored y.
    across, down = (0, 1) if swapped else (1, 0)
    mirrored = [axis for axis, wanted in ((across, from_right), (down, from_below)) if wanted]
    pixels = pixels.flip(mirrored) if mirrored else pixels
    return pixels.transpose(0, 1) if swapped else pixels
