"""Photos, draws of many kinds, and torchvision's CPU decoder in nvJPEG's place: for tests of rendering on a device."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from paceline.data.loader.gpu_decode import DecodePhotos, load_nvjpeg
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform


def photo(height: int, width: int, seed: int) -> bytes:
    """Smooth color with an edge, as JPEG."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [127 + 120 * np.sin((x * (c + 1) + y * (3 - c)) / 17.0 + seed + c) for c in range(3)]
    pixels = np.stack(waves, axis=2).astype(np.uint8)
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 90)
    return encoded(Image.fromarray(pixels), "JPEG", quality=92)


def encoded(picture: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def odd_photos() -> list[bytes]:
    """What a device does not decode: a PNG, a CMYK JPEG, a JPEG with bytes behind its end."""
    picture = Image.open(io.BytesIO(photo(90, 130, 3)))
    return [encoded(picture, "PNG"), encoded(picture.convert("CMYK"), "JPEG"), photo(90, 130, 4) + b"\0\0\0"]


def draws_of(photos: Sequence[bytes], law: str = "bilinear-antialias") -> tuple[list[bytes], list[SampleSpec]]:
    """Of each photo as the camera may have held it, in all eight ways: a whole one, a crop, a center crop, a part of the input beside
    which levels stand; for an input of 48 x 64. -> bytes and draws.
    """
    found = []
    for data in photos:
        for orientation in range(1, 9):
            header = read_header(data, "it").turned(orientation)
            h, w = header.height, header.width
            flip = orientation % 2 == 0
            windows = [
                (CropWindow(0, 0, h, w, 48, 64), (0, 0)),
                (CropWindow(h // 5, w // 7, h // 2, w // 2, 48, 64), (0, 0)),
                (CropWindow(3, 5, h - 9, w - 11, 60, 90, 6, 13), (0, 0)),
                (CropWindow(1, 0, h - 1, w, 30, 40), (7, 11)),
            ]
            for window, place in windows:
                draw = SampleSpec("it", header, window, 0, flip, None, "nvjpeg", law, place=place, around=(9, 99, 199))  # pyright: ignore[reportArgumentType]
                found.append((data, draw))
    return [data for data, _ in found], [draw for _, draw in found]


def rendered_alone(data: Sequence[bytes], draws: Sequence[SampleSpec], shape: tuple[int, int]) -> np.ndarray:
    """(n, H, W, 3): each photo by the loader's threads' own function."""
    out = np.empty((len(draws), *shape, 3), np.uint8)
    for one, draw, pixels in zip(data, draws, out, strict=True):
        decode_and_transform(one, draw, pixels)
    return out


def decoded_on_a_cpu(device: torch.device) -> DecodePhotos:
    """The device's decoder but for its place: the CPU decodes, and the pixels are copied to the device."""
    on_the_host = load_nvjpeg(torch.device("cpu"))
    return lambda photos: [None if photo is None else photo.to(device) for photo in on_the_host(photos)]
