"""Sixteen-bit pictures keep their upper eight bits, wherever pixels are read; what has no known white is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from orientation import encode, shown
from PIL import Image

from paceline._utils.errors import DataError
from paceline.data.prepare.verify_image import InvalidImage, decode
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec, decode_crop
from paceline.data.transforms.image_io import UnknownPixelRange, open_rgb, read_header, to_rgb
from paceline.inference.image_input import encode_photo

GRAY = np.linspace(0, 65535, 30 * 40).astype(np.uint16).reshape(30, 40)


def _file(picture: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _png_of_16_bit_color(pixels: np.ndarray) -> bytes:
    """(h, w, 3) uint16; Pillow writes none, so its own gray file is given another header and other pixels."""
    import struct
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _pgm(values: np.ndarray) -> bytes:
    return b"P5 %d %d 65535\n" % values.shape[::-1] + values.astype(">u2").tobytes()


def _ours(data: bytes, decoder: str) -> np.ndarray:
    header = read_header(data, "it")
    out = np.empty((header.height, header.width, 3), np.uint8)
    window = CropWindow(0, 0, header.height, header.width, header.height, header.width)
    decode_crop(data, SampleSpec("it", header, window, None, False, decoder=decoder), out)  # pyright: ignore[reportArgumentType]
    return out


FILES = {
    "png": _file(Image.fromarray(GRAY), "PNG"),
    "tiff": _file(Image.fromarray(GRAY), "TIFF"),
    "tiff, big-endian": _file(Image.fromarray(GRAY.astype(">u2")), "TIFF"),
    "pgm": _pgm(GRAY),
    "png in colour": _png_of_16_bit_color(np.stack([GRAY] * 3, axis=2)),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])
def test_every_kind_of_16_bit_file_keeps_the_upper_eight_bits(name, decoder):
    wanted = np.stack([GRAY >> 8] * 3, axis=2)
    np.testing.assert_array_equal(_ours(FILES[name], decoder), wanted)
    np.testing.assert_array_equal(np.asarray(open_rgb(FILES[name], "ignore")), wanted)
    assert decode(FILES[name])[1:3] == (30, 40)


def test_a_16_bit_picture_given_in_python_is_read_the_same():
    data, name = encode_photo(Image.fromarray(GRAY))
    np.testing.assert_array_equal(np.asarray(open_rgb(data, "ignore"))[..., 0], GRAY >> 8)
    assert name == "the given image"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4), "fractions"),
        (np.arange(12, dtype=np.int32).reshape(3, 4) * 10_000, "between 0 and 110000"),
        (np.arange(12, dtype=np.int32).reshape(3, 4) - 5, "between -5 and 6"),
    ],
)
def test_values_without_a_known_white_are_refused_by_preparing_and_by_reading(values, reason):
    data = _file(Image.fromarray(values), "TIFF")
    with pytest.raises(UnknownPixelRange, match=reason):
        to_rgb(Image.fromarray(values))
    with pytest.raises(InvalidImage, match=f"^{reason}|^its values .*{reason}"):
        decode(data)
    with pytest.raises(DataError, match=f"^it: .*decoded: its values .*{reason[-9:]}"):
        _ours(data, "simplejpeg")


def test_a_picture_that_is_handed_over_keeps_what_it_carries():
    picture = Image.new("P", (4, 4))
    picture.info["transparency"] = bytes(256)
    assert to_rgb(picture).mode == "RGB" and "transparency" in picture.info


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_whole_photo_is_turned_at_a_reduced_size_too(orientation):
    picture = Image.effect_noise((640, 320), 90).convert("RGB")
    data = encode(picture, orientation)
    assert open_rgb(data, "ignore").size == (640, 320)
    full, small = (open_rgb(data, "apply"), open_rgb(data, "apply", least=shown(picture, orientation).resize((1, 1)).size))
    assert full.size == shown(picture, orientation).size
    assert small.size == tuple(side // 8 for side in full.size)
    wide = (150, 80) if full.width > full.height else (80, 150)
    assert open_rgb(data, "apply", least=wide).size == tuple(side // 4 for side in full.size)
