"""Photos that use the lower of their 16 bits alone come out nearly black, and prepare says so; it says nothing of any others."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import packed_sets
import pytest
from messages import check_text
from PIL import Image
from tiny_runs import command

WIDTH, HEIGHT = 40, 30


def values(most: int) -> np.ndarray:
    return np.linspace(0, most, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH)


def saved(kind: str, dtype: str = "<u2") -> Callable[[int], bytes]:
    def write(most: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(values(most).astype(dtype)).save(file, kind)
        return file.getvalue()

    return write


def color_png(most: int) -> bytes:
    """Pillow writes none of 16 bits."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in np.stack([values(most)] * 3, axis=2))
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def pgm(most: int) -> bytes:
    return b"P5 %d %d 65535\n" % (WIDTH, HEIGHT) + values(most).astype(">u2").tobytes()


DEEP = {
    "png": (saved("PNG"), "png"),
    "tiff": (saved("TIFF"), "tif"),
    "big-endian tiff": (saved("TIFF", ">u2"), "tif"),
    "colour png": (color_png, "png"),
    "pgm": (pgm, "pgm"),
}
BYTES = {"jpg": saved("JPEG", "u1"), "8-bit png": saved("PNG", "u1"), "8-bit tiff": saved("TIFF", "u1")}


def photos(root: Path, write: Callable[[int], bytes], suffix: str, most: list[int]) -> Path:
    for split in ("train", "val"):
        for label in ("a", "b"):
            (root / split / label).mkdir(parents=True)
            for number, one in enumerate(most):
                (root / split / label / f"{number}.{suffix}").write_bytes(write(one))
    return root


def note(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    said = command(capsys, "prepare", *words)
    assert said.code == 0, said.err
    return next((line for line in said.out.splitlines() if "nearly black" in line), "")


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("kind", DEEP)
def test_a_set_of_few_bits_has_a_note_that_names_a_photo_and_the_factor(kind, bits, tmp_path, capsys):
    root = photos(tmp_path / "set", *DEEP[kind], [2**bits - 1, 2 ** (bits - 1)])
    said = note(capsys, "folder", root)
    assert f"0.{DEEP[kind][1]}" in said and f"most {bits} bits" in said
    check_text(said, f"{2**bits - 1:,}", 2 ** (16 - bits))
    assert note(capsys, "folder", root) == said  # of photos that an earlier prepare has looked at, too


@pytest.mark.parametrize("kind", DEEP)
def test_one_bright_photo_shows_that_white_is_white(kind, tmp_path, capsys):
    assert not note(capsys, "folder", photos(tmp_path / "set", *DEEP[kind], [4095, 65535]))


@pytest.mark.parametrize("kind", BYTES)
def test_dark_photos_of_8_bits_have_no_note(kind, tmp_path, capsys):
    suffix = "jpg" if kind == "jpg" else kind[-4:].strip()
    assert not note(capsys, "folder", photos(tmp_path / "set", BYTES[kind], suffix, [15, 8]))


def test_few_bits_are_noticed_in_containers(tmp_path, capsys):
    root = photos(tmp_path / "set", *DEEP["png"], [4095])
    words = packed_sets.pack_both(root, "zip", tmp_path / "packed")
    assert "most 12 bits" in note(capsys, *words, "--output-dir", tmp_path / "out")
