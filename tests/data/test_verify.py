"""Verification is as strict as Pillow's full decode on damaged files, and notices a cut of a single byte."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from PIL import Image

from paceline.data.prepare.verify_image import InvalidImage, decode, verify


def photo(**options) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((61, 47), 90).convert(options.pop("mode", "RGB")).save(file, "JPEG", **options)
    return file.getvalue()


def with_thumbnail() -> bytes:
    """A JPEG whose EXIF holds a whole smaller JPEG, end marker included."""
    plain, thumbnail = photo(), photo(quality=20)
    payload = b"Exif\0\0" + thumbnail
    return plain[:2] + b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload + plain[2:]


JPEGS = {
    "baseline": photo(),
    "subsampled": photo(subsampling="4:2:0"),
    "progressive": photo(progressive=True),
    "restarts": photo(restart_marker_blocks=3),
    "grey": photo(mode="L"),
    "cmyk": photo(mode="CMYK"),
    "thumbnail": with_thumbnail(),
}


def is_accepted(data: bytes) -> bool:
    try:
        decode(data)
    except InvalidImage:
        return False
    return True


def full_decode_works(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            image.load()
    except Exception:
        return False
    return True


@pytest.mark.parametrize("kind", JPEGS)
def test_every_cut_is_noticed(kind):
    data = JPEGS[kind]
    assert is_accepted(data)
    accepted = [end for end in range(1, len(data)) if is_accepted(data[:end])]
    assert accepted == []


@examples(150)
@given(st.sampled_from(sorted(JPEGS)), st.data())
def test_damage_is_judged_as_by_the_full_decode(kind, data):
    damaged = bytearray(JPEGS[kind])
    at = data.draw(st.integers(0, len(damaged) - 3))  # not the end marker, which Pillow does without
    damaged[at] ^= data.draw(st.integers(1, 255))
    assert is_accepted(bytes(damaged)) == full_decode_works(bytes(damaged))


@pytest.mark.parametrize("after", [b"\0", b"\0" * 5000, b"made by a camera", photo()])
@pytest.mark.parametrize("kind", JPEGS)
def test_bytes_after_the_end_marker_do_no_harm(kind, after):
    assert is_accepted(JPEGS[kind] + after)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 7), (8, 1), (300, 2)])
def test_tiny_and_thin_photos_are_fine(size):
    file = io.BytesIO()
    Image.new("RGB", size, (9, 8, 7)).save(file, "JPEG")
    assert decode(file.getvalue()) == ("JPEG", size[1], size[0], 0)


def test_facts_are_the_files_own(tmp_path: Path):
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEGS["baseline"])
    os.utime(path, ns=(5, 1_700_000_000_123_456_789))
    facts = verify(os.fsencode(path))
    digest = int(hashlib.sha256(JPEGS["baseline"]).hexdigest()[:16], 16)
    assert facts == (len(JPEGS["baseline"]), 1_700_000_000_123_456_789, 47, 61, 0, digest)


def test_a_picture_too_large_to_be_a_photo_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with raises(InvalidImage, "2000 pixels"):
        decode(JPEGS["baseline"])


def test_a_file_too_large_is_not_read(tmp_path: Path):
    path = tmp_path / "a.jpg"
    with open(path, "wb") as file:
        file.truncate((1 << 30) + 1)
    with raises(InvalidImage, "1,073,741,824"):
        verify(os.fsencode(path))
