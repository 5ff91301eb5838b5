"""TensorFlow's laws beside the obvious loop over a whole photo, and what of a turned JPEG they need to see."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec, decode_crop
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.resample import resample_tensorflow, source_window

PHOTO = np.random.default_rng(8).integers(0, 256, (23, 31, 3), dtype=np.uint8)


def place(law: str, start: int, length: int, side: int, count: int, number: int) -> float:
    """Of output pixel `number`, in pixels of the photo."""
    if law == "tensorflow-photo":
        return start + number * length / count
    first, last = start / side * (side - 1), (start + length) / side * (side - 1)
    return (first + last) / 2 if count == 1 else first + number * (last - first) / (count - 1)


def slow(window: CropWindow, law: str) -> np.ndarray:
    """(resized_height, resized_width, 3) float64: four pixels a pixel."""
    photo, out = PHOTO.astype(np.float64), np.zeros((window.resized_height, window.resized_width, 3))
    height, width = photo.shape[:2]
    for row in range(window.resized_height):
        y = place(law, window.top, window.height, height, window.resized_height, row)
        for column in range(window.resized_width):
            x = place(law, window.left, window.width, width, window.resized_width, column)
            top, left = int(y), int(x)
            down, right = min(top + 1, height - 1), min(left + 1, width - 1)
            upper = photo[top, left] + (x - left) * (photo[top, right] - photo[top, left])
            lower = photo[down, left] + (x - left) * (photo[down, right] - photo[down, left])
            out[row, column] = upper + (y - top) * (lower - upper)
    return out


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("window", "law"),
    [
        (CropWindow(0, 0, 23, 31, 9, 9), "tensorflow-crop"),
        (CropWindow(4, 7, 11, 9, 16, 16), "tensorflow-crop"),
        (CropWindow(12, 0, 11, 31, 5, 40), "tensorflow-crop"),
        (CropWindow(22, 30, 1, 1, 3, 3), "tensorflow-crop"),
        (CropWindow(5, 6, 7, 8, 1, 1), "tensorflow-crop"),
        (CropWindow(0, 0, 23, 31, 12, 40), "tensorflow-photo"),
        (CropWindow(0, 0, 23, 31, 12, 40, 3, 5), "tensorflow-photo"),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, CropWindow) else value,
)
def test_each_pixel_is_the_obvious_one(window, law, flip) -> None:
    out = np.zeros((window.resized_height - window.skip_top, window.resized_width - window.skip_left, 3), np.uint8)
    region = source_window(window, 23, 31)
    pixels = PHOTO[region.top : region.top + region.height, region.left : region.left + region.width]
    resample_tensorflow(pixels, window, (23, 31), out, flip, law)
    wanted = slow(window, law)[window.skip_top :, window.skip_left :]
    assert np.abs(out - (wanted[:, ::-1] if flip else wanted)).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])
def test_a_photo_that_is_to_be_turned_gives_the_shown_photos_pixels(orientation, decoder) -> None:
    smooth = np.add.outer(np.arange(48) * 3, np.arange(64) * 2)[..., None] % 200 + np.array([0, 20, 40])
    exif = Image.Exif()
    exif[0x0112] = orientation
    file, plain = io.BytesIO(), io.BytesIO()
    Image.fromarray(smooth.astype(np.uint8)).save(file, "JPEG", quality=100, subsampling=0, exif=exif)
    shown = ImageOps.exif_transpose(Image.open(file))
    shown.save(plain, "PNG")
    header = read_header(file.getvalue(), "it", "apply")
    assert (header.height, header.width) == (shown.height, shown.width)
    window, pictures = CropWindow(9, 11, 20, 17, 13, 13), []
    for data, about in ((file.getvalue(), header), (plain.getvalue(), read_header(plain.getvalue(), "it", "apply"))):
        out = np.zeros((13, 13, 3), np.uint8)
        decode_crop(data, SampleSpec("it", about, window, None, False, decoder=decoder, law="tensorflow-crop"), out)
        pictures.append(out)
    np.testing.assert_array_equal(*pictures)


def test_one_pixel_more_is_looked_at_on_each_side_that_has_one() -> None:
    assert source_window(CropWindow(5, 7, 10, 20, 8, 8), 40, 60)[:4] == (4, 6, 12, 22)
    assert source_window(CropWindow(0, 0, 40, 60, 8, 8), 40, 60)[:4] == (0, 0, 40, 60)
