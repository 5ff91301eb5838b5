"""tf.train.Example: the features of a TFRecord's record, with the position of every run of bytes in it.

A protocol buffer, walked here: what is wanted is where the photo lies, and a parsed message does not tell that.

    Example   1 Features   1 repeated: entry of a map, 1 key (text), 2 Feature
    Feature   one of 1 BytesList (1 repeated bytes), 2 FloatList (1 repeated float), 3 Int64List (1 repeated varint)
Numbers may be packed or not; of two entries with one key the last counts; unknown fields are passed over.
Source: tensorflow/core/example/example.proto, feature.proto; protobuf's encoding page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from paceline.config.errors import DataError
from paceline.store.containers.protobuf import BYTES, FIXED32, VARINT, Malformed, fields, varint

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3


class Range(NamedTuple):
    """Bytes of a record: where they begin in it, and how many there are."""

    start: int
    length: int


class Feature(NamedTuple):
    """The values of one feature; of the three, two are empty."""

    ranges: tuple[Range, ...]  # of each run of bytes
    floats: np.ndarray  # (n,) float32
    ints: np.ndarray  # (n,) int64

    def texts(self, data: bytes) -> list[bytes]:
        """The runs of bytes themselves, out of the record `data`."""
        return [data[start : start + length] for start, length in self.ranges]


_NO_FLOATS = np.zeros(0, np.float32)
_NO_INTS = np.zeros(0, np.int64)
NOTHING = Feature((), _NO_FLOATS, _NO_INTS)


def parse_example(data: bytes, where: str) -> dict[str, Feature]:
    """Name -> feature, of one record `data`. Raises DataError, beginning with `where`, where it is no Example."""
    features: dict[str, Feature] = {}
    try:
        for number, begin, end in _messages(data, 0, len(data), "Example"):
            if number != 1:
                continue
            for kind, entry, entry_end in _messages(data, begin, end, "Features"):
                if kind == 1:
                    key, feature = _entry(data, entry, entry_end)
                    features[key] = feature
    except Malformed as error:
        raise DataError(f"{where}: no tf.train.Example ({error}). Only TFRecords of Examples can be read.") from None
    return features


def _entry(data: bytes, begin: int, end: int) -> tuple[str, Feature]:
    key, feature = "", NOTHING
    for number, start, stop in _messages(data, begin, end, "entry"):
        if number == 1:
            try:
                key = data[start:stop].decode()
            except UnicodeDecodeError:
                raise Malformed(f"a feature's name at byte {start:,} is no UTF-8") from None
        elif number == 2:
            feature = _feature(data, start, stop)
    return key, feature


def _feature(data: bytes, begin: int, end: int) -> Feature:
    ranges: list[Range] = []
    floats: list[np.ndarray] = []
    ints: list[int] = []
    last = 0
    for kind, start, stop in _messages(data, begin, end, "Feature"):
        if kind != last:  # one of three: a later one takes the place of the earlier
            ranges, floats, ints, last = [], [], [], kind
        if kind == BYTES_LIST:
            ranges += [Range(a, b - a) for number, a, b in _messages(data, start, stop, "BytesList") if number == 1]
        elif kind == FLOAT_LIST:
            for number, wire, a, b in fields(data, start, stop, "FloatList"):
                if number == 1 and wire in (BYTES, FIXED32):
                    if (b - a) % 4:
                        raise Malformed(f"{b - a} bytes of numbers of four bytes at byte {a:,}")
                    floats.append(np.frombuffer(data, "<f4", (b - a) // 4, a))
        elif kind == INT64_LIST:
            for number, wire, a, b in fields(data, start, stop, "Int64List"):
                if number == 1 and wire in (BYTES, VARINT):
                    ints += _varints(data, a, b)
    return Feature(
        tuple(ranges),
        np.concatenate(floats).astype(np.float32) if floats else _NO_FLOATS,
        np.array(ints, np.int64) if ints else _NO_INTS,
    )


def _messages(data: bytes, begin: int, end: int, what: str) -> Iterator[tuple[int, int, int]]:
    """-> (field number, first byte, end) of the fields that have a length."""
    return ((number, a, b) for number, wire, a, b in fields(data, begin, end, what) if wire == BYTES)


def _varints(data: bytes, at: int, end: int) -> list[int]:
    values = []
    while at < end:
        value, at = varint(data, at, end)
        values.append(value - (1 << 64) if value >> 63 else value)
    return values
