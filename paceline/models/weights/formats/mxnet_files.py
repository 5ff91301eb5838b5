"""Read MXNet's files: .params, and folders with one .npy an array.

A .params is a list of arrays with their names, as `mx.nd.save`, Gluon's `save_parameters` and Module checkpoints write. The file is
numbers after numbers, little-endian, so nothing in it can be executed; its sizes are compared with the bytes that are there before
anything is allocated.

    u64 0x112, u64 0 | u64 count, that many arrays | u64 count of names (0 or the same), each: u64 length, that many bytes
    array: u32 magic, [i32 storage], shape, [i32 device, i32 number of it, i32 type, values]; what is in brackets by the magic
Source: Apache MXNet 1.9, src/ndarray/ndarray.cc (NDArray::Save, ::Load, ::LegacyLoad), include/mxnet/tuple.h.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from paceline._utils.errors import CheckpointError
from paceline._utils.names import list_matching
from paceline._utils.safe_read import read_plain, require_plain
from paceline._utils.text import abbreviate

# Of one array: ten times the largest backbone here.
MAX_OF_ARRAY = 2**30
LIST = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # V3: written with numpy's shapes, where () is a scalar
DENSE = 0
MAX_SIDES = 32
# MXNet's numbers of the types of its arrays.
TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "|u1", 4: "<i4", 5: "|i1", 6: "<i8", 7: "|b1"}
# Prefixes that Module checkpoints put before names.
KINDS = ("arg:", "aux:")


def read_npy_folder(folder: Path) -> dict[str, np.ndarray]:
    """Every `<name>.npy` of a folder, by name. Raises CheckpointError where there is none, or one is no array."""
    files = list_matching(folder, "*.npy")
    if not files:
        raise CheckpointError(f"{folder}: no .npy files here; --weights takes a file, or a folder of saved arrays")
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        try:
            size = require_plain(file)
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read as weights ({error.strerror})") from None
        if size > MAX_OF_ARRAY:
            raise CheckpointError(f"{file}: larger than any array of these models (1024 MiB)")
        try:
            # Mapped, so that nothing is allocated for a shape beyond the file's bytes.
            array = np.load(file, allow_pickle=False, mmap_mode="r")
        except Exception as error:  # whatever a stranger's bytes make numpy raise
            raise CheckpointError(f"{file}: not a plain numpy array: {abbreviate(str(error), 200)}") from None
        if not isinstance(array, np.ndarray):
            array.close()
            raise CheckpointError(f"{file}: not a plain numpy array: an archive of several")
        arrays[file.stem] = array
    return arrays


def read_params(path: Path, most: int) -> dict[str, np.ndarray]:
    """Name -> array. Raises CheckpointError for another file, a torn one, one of more than `most` bytes, and sparse arrays."""
    try:
        reader = _ByteReader(read_plain(path, most))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read as weights ({error.strerror})") from None
    try:
        return reader.arrays()
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not a readable MXNet .params file: {abbreviate(str(error), 200)}") from None


class _ByteReader:
    """Walks through the bytes; raises ValueError where they are not what they should be."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def arrays(self) -> dict[str, np.ndarray]:
        if len(self.data) < 24 or self.numbers("<QQ") != (LIST, 0):
            raise ValueError("it does not begin as a list of arrays does")
        # An array takes four bytes at least, a name eight: a count beyond that is a lie.
        arrays = [self.array() for _ in range(self.count(4))]
        names = [self.name() for _ in range(self.count(8))]
        if self.place != len(self.data):
            raise ValueError(f"{len(self.data) - self.place:,} bytes follow its end")
        if len(names) != len(arrays):
            raise ValueError(f"{len(arrays)} arrays with {len(names)} names: weights are saved by name")
        if len(set(names)) != len(names):
            raise ValueError("two arrays have one name")
        return {name: array for name, array in zip(names, arrays) if array is not None}

    def numbers(self, form: str) -> tuple[int, ...]:
        results = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return results

    def count(self, least: int) -> int:
        (count,) = self.numbers("<Q")
        if count * least > len(self.data) - self.place:
            raise ValueError(f"it says that {count:,} follow, and ends before")
        return count

    def name(self) -> str:
        size = self.count(1)
        text = self.data[self.place : self.place + size].decode()
        self.place += size
        return next((text.removeprefix(kind) for kind in KINDS if text.startswith(kind)), text)

    def shape(self, magic: int) -> tuple[int, ...] | None:
        """None: an array that was never filled."""
        (sides,) = self.numbers("<i")
        if (magic == V3 and sides == -1) or (magic != V3 and sides == 0):
            return None
        if not 0 <= sides <= MAX_SIDES:
            raise ValueError(f"an array of {sides} dimensions")
        shape = self.numbers(f"<{sides}q")
        if any(side < 0 for side in shape):
            raise ValueError(f"an array of shape {shape}")
        return shape

    def array(self) -> np.ndarray | None:
        (magic,) = self.numbers("<I")
        if magic in (V2, V3):
            (storage,) = self.numbers("<i")
            if storage != DENSE:
                raise ValueError("one of its arrays is sparse, and weights are not; save it as .tostype('default')")
            shape = self.shape(magic)
        elif magic == V1:
            shape = self.shape(magic)
        elif magic <= MAX_SIDES:  # of the first years: the number of sides, and each of 32 bits
            shape = self.numbers(f"<{magic}I") or None
        else:
            raise ValueError(f"an array that begins with {magic:#x}")
        if shape is None:
            return None
        _, _, kind = self.numbers("<3i")
        if kind not in TYPES:
            raise ValueError(f"an array of type {kind}")
        dtype = np.dtype(TYPES[kind])
        size = math.prod(shape) * dtype.itemsize
        if size > len(self.data) - self.place:
            raise ValueError(f"an array of shape {shape}, and the file ends before")
        array = np.frombuffer(self.data, dtype, math.prod(shape), self.place).reshape(shape)
        self.place += size
        return array
