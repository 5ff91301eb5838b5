"""What training does not read of a picture is counted: alpha, 16 bits, pages, bands. Formats that are not read are named."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from messages import check_line
from PIL import Image
from tiny_runs import command

from paceline._utils.errors import DataError
from paceline.data.prepare.verify_image import InvalidImage, verify_bytes
from paceline.data.transforms.image_io import ALPHA, BANDS, DEEP, PAGES, PNG, find_dropped_channels, open_rgb, read_header
from paceline.inference.writer import note_dropped_pixels

RGB = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)


def saved(mode: str, kind: str, **more: object) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(RGB).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(RGB[..., 0]))
    image.save(file, kind, **more)
    return file.getvalue()


def several(kind: str) -> bytes:
    file = io.BytesIO()
    pages = [Image.fromarray(np.roll(RGB, place * 9, axis=0)) for place in range(3)]
    pages[0].save(file, kind, save_all=True, append_images=pages[1:])
    return file.getvalue()


def deep(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(RGB[..., 0].astype(np.uint16) << 8).save(file, kind)
    return file.getvalue()


def tiff_of_bands(bands: int, photometric: int = 2) -> bytes:
    """An uncompressed TIFF of 8 bits with this number of values per pixel; photometric: 2 for RGB, 1 for gray."""
    pixels = np.dstack([RGB, *[RGB[..., :1]] * (bands - 3)]).tobytes()
    tags = [
        (256, 4, 1, 40), (257, 4, 1, 30), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, photometric), (273, 4, 1, 0),
        (277, 3, 1, bands), (278, 4, 1, 30), (279, 4, 1, len(pixels)), (284, 3, 1, 1),
    ]  # fmt: skip
    extra = bands - (3 if photometric == 2 else 1)
    bits = struct.pack(f"<{bands}H", *[8] * bands)
    tags.append((338, 3, extra, 0))
    data_at = 8 + 2 + 12 * len(tags) + 4
    extra_at, pixels_at = data_at + len(bits), data_at + len(bits) + 2 * max(2, extra)
    values = {258: (bands, data_at), 273: (1, pixels_at), 338: (extra, extra_at if extra > 2 else 0)}
    entries = b"".join(
        struct.pack("<HHII", tag, kind, *values.get(tag, (count, value))) for tag, kind, count, value in sorted(tags)
    )
    return b"".join(
        [b"II*\0", struct.pack("<IH", 8, len(tags)), entries, b"\0\0\0\0", bits, b"\0\0" * max(2, extra), pixels]
    )


CASES: dict[str, tuple[bytes, str, tuple[str, ...]]] = {
    "jpg": (saved("RGB", "JPEG"), "jpg", ()),
    "png": (saved("RGB", "PNG"), "png", ()),
    "rgba png": (saved("RGBA", "PNG"), "png", (ALPHA,)),
    "la png": (saved("LA", "PNG"), "png", (ALPHA,)),
    "palette": (saved("P", "PNG"), "png", ()),
    "palette with transparency": (saved("P", "PNG", transparency=3), "png", (ALPHA,)),
    "rgba webp": (saved("RGBA", "WEBP", lossless=True, exact=True), "webp", (ALPHA,)),
    "16 bit png": (deep("PNG"), "png", (DEEP,)),
    "16 bit tiff": (deep("TIFF"), "tif", (DEEP,)),
    "pages": (several("TIFF"), "tif", (PAGES,)),
    "animated png": (several("PNG"), "png", (PAGES,)),
    "animated webp": (several("WEBP"), "webp", (PAGES,)),
    "five bands": (tiff_of_bands(5), "tif", (BANDS,)),
    "bmp": (saved("RGB", "BMP"), "bmp", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_dropped_of_a_picture(case):
    data, _, dropped = CASES[case]
    assert find_dropped_channels(data) == dropped
    assert find_dropped_channels(data[:20]) == ()


def test_prepare_counts_it_also_of_photos_that_it_knows_and_predict_prints_it(tmp_path, capsys):
    files = []
    for number, (data, suffix, _) in enumerate(CASES.values()):
        for split in ("train", "val"):
            for label in ("a", "b"):
                files.append(tmp_path / "set" / split / label / f"{number}.{suffix}")
                files[-1].parent.mkdir(parents=True, exist_ok=True)
                files[-1].write_bytes(data)
    wanted = {
        ALPHA: "16 images have an alpha channel",
        DEEP: "8 images have 16 bits per value",
        PAGES: "12 images have multiple pages",
        BANDS: "4 images have extra color bands",
    }
    for _ in range(2):  # the second one knows all photos
        said = command(capsys, "prepare", "folder", tmp_path / "set", "--output-dir", tmp_path / "index")
        assert said.code == 0, said
        for text in wanted.values():
            assert said.out.count(f"note: {text}") == 1, said.out
    notes = note_dropped_pixels(files)
    assert all(any(note.startswith(text) for note in notes) for text in wanted.values()) and len(notes) == 4
    assert note_dropped_pixels([files[0], tmp_path / "gone.png"]) == ()


def box(brand: bytes, *others: bytes) -> bytes:
    return struct.pack(">I", 16 + 4 * len(others)) + b"ftyp" + brand + b"\0\0\0\0" + b"".join(others) + b"\0" * 40


NAMED: dict[str, tuple[bytes, str]] = {
    "heic": (box(b"heic", b"mif1", b"heic"), "HEIC"),
    "heif, a general brand": (box(b"mif1", b"mif1", b"heic"), "HEIC"),
    "avif": (box(b"avif", b"avif", b"mif1"), "AVIF"),
    "avif, a sequence": (box(b"avis"), "AVIF"),
    "video": (box(b"isom", b"mp42"), "a video"),
    "gif": (saved("RGB", "GIF"), "GIF"),
    "jpeg xl": (b"\xff\x0a" + b"\x12" * 30, "JPEG XL"),
    "jpeg 2000": (b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0" * 30, "JPEG 2000"),
    "photoshop": (b"8BPS" + b"\0" * 30, "Photoshop"),
    "svg": (b"\n <svg xmlns='x'>\xc3\xa4</svg>", "SVG"),
    "tiff of five bands of gray": (tiff_of_bands(5, photometric=1), "TIFF with 5 values per pixel"),
}


@pytest.mark.parametrize("case", NAMED)
def test_a_format_that_is_not_read_is_named_with_what_to_do(case):
    data, name = NAMED[case]
    with pytest.raises(InvalidImage, match=f"^{name} .*JPEG"):
        verify_bytes(data, b"photo.jpg", 0)
    if case != "gif":  # which predict reads
        reasons = f"photo.jpg: the image cannot be decoded: ({name} is not supported.*Convert it to JPEG|.*AVIF)"
        with pytest.raises(DataError, match=reasons):
            read_header(data, "photo.jpg")


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


LONG = 3 << 20
UNREAD: dict[str, Callable[[], bytes]] = {
    "compressed text": lambda: chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * LONG)),
    "international text": lambda: chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"x" * LONG)),
    "plain text": lambda: chunk(b"tEXt", b"parameters\0" + b"x" * LONG),
    "much plain text": lambda: b"".join(chunk(b"tEXt", b"k\0" + b"x" * LONG) for _ in range(30)),
    "profile": lambda: chunk(b"iCCP", b"icc\0\0" + zlib.compress(bytes(LONG))),
    "damaged profile": lambda: chunk(b"iCCP", b"icc\0\0" + b"no zlib"),
}


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("kind", UNREAD)
def test_texts_and_profiles_of_any_size_do_not_keep_a_png_from_being_read(kind, place):
    plain = saved("RGBA", "PNG")
    pixels = plain.index(b"IDAT") - 4 if place == "before" else plain.rindex(b"IEND") - 4
    data = plain[:pixels] + UNREAD[kind]() + plain[pixels:]
    assert data.startswith(PNG)
    facts = verify_bytes(data, b"a.png", 0)
    assert (facts.height, facts.width) == (30, 40)
    assert read_header(data, "a.png")[:2] == (30, 40)
    np.testing.assert_array_equal(np.asarray(open_rgb(data, "apply")), RGB)
    assert find_dropped_channels(data) == (ALPHA,)


def test_a_png_that_ends_within_a_text_is_damaged_or_read():
    plain = saved("RGB", "PNG")
    at = plain.index(b"IDAT") - 4
    data = plain[:at] + chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * LONG)) + plain[at:]
    for end in range(0, len(data), 97):
        try:
            assert verify_bytes(data[:end], b"a.png", 0).width == 40
        except InvalidImage:
            assert end < len(data)


def test_predict_prints_what_it_drops(resnet_run, tmp_path: Path, capsys):
    for name in ("rgba png", "jpg", "pages"):
        data, suffix, _ = CASES[name]
        (tmp_path / f"{name.split()[0]}.{suffix}").write_bytes(data)
    said = command(capsys, "predict", resnet_run.folder, tmp_path, "--output-dir", tmp_path / "out", "--no-save-images")
    assert said.code == 0 and check_line(said.out, "1 image", "alpha") and check_line(said.out, "1 image", "pages"), said
