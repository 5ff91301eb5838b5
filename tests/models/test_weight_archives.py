"""An archive of weights is opened only where Python's look and torch's reader see the same, and it is no bomb."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from messages import raises

from paceline._utils.errors import CheckpointError
from paceline.models.weights.formats.detect import read_contents

NUMBERS = 1 << 20  # 4 MiB of zeros, and few bytes of them packed


@pytest.fixture
def packed(tmp_path) -> Path:
    """What torch.save writes, compressed a thousandfold."""
    plain = io.BytesIO()
    torch.save({"conv1.weight": torch.zeros(NUMBERS)}, plain)
    with zipfile.ZipFile(plain) as saved, zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in saved.namelist():
            archive.writestr(name, saved.read(name))
    return tmp_path / "bomb.pth"


def version_255(data: bytes) -> bytes:
    """Python refuses such a member, torch's reader does not look."""
    parts = data.split(b"PK\1\2")
    return b"PK\1\2".join([parts[0], *(part[:2] + b"\xff" + part[3:] for part in parts[1:])])


def behind_something(data: bytes) -> bytes:
    """Python moves the directory by what stands before it."""
    return b"PK\3\4" + bytes(96) + data


def with_a_comment(data: bytes) -> bytes:
    """In the comment another end, of an empty archive."""
    empty = b"PK\5\6" + bytes(18)
    return data[:-2] + struct.pack("<H", len(empty)) + empty


def with_two_ends(data: bytes) -> bytes:
    """Python takes the 64-bit end before the locator, torch's reader that which the locator names."""
    entries, length, offset = struct.unpack("<H2L", data[-12:-2])
    here = len(data) - 22
    real = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, length, offset)
    fake = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 0, 0, 0, here + len(real))
    return data[:-22] + real + fake + struct.pack("<4sLQL", b"PK\6\7", 0, here, 1) + data[-22:]


@pytest.mark.parametrize("disguise", [version_255, behind_something, with_a_comment, with_two_ends])
def test_a_bomb_that_only_torchs_reader_would_see_is_refused(packed, disguise: Callable[[bytes], bytes]) -> None:
    packed.write_bytes(disguise(packed.read_bytes()))
    with raises(CheckpointError, "weight file", "damaged"):
        read_contents(packed)


def test_a_bomb_is_refused_by_its_directory(packed) -> None:
    with raises(CheckpointError, "4.0 MiB"):
        read_contents(packed)


def test_a_name_twice_is_refused(tmp_path) -> None:
    file = tmp_path / "twice.pth"
    torch.save({"conv1.weight": torch.ones(64, 3, 7, 7)}, file)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(archive.namelist()[0], b"x")
    with raises(CheckpointError, "damaged"):
        read_contents(file)


@pytest.mark.parametrize("again", [None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_torch_saves_is_read_also_where_somebody_packed_it_again(tmp_path, again) -> None:
    file, saved = tmp_path / "saved.pth", {"conv1.weight": torch.randn(64, 3, 7, 7)}
    torch.save(saved, file)
    if again is not None:
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(tmp_path / "again.pth", "w", again) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        file = tmp_path / "again.pth"
    kind, (tensors, _) = read_contents(file)
    assert kind == "torch.save" and torch.equal(tensors["conv1.weight"], saved["conv1.weight"])
