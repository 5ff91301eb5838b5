"""CRC-32C (Castagnoli) of long contents, with numpy alone: TensorFlow's files carry it.

A content is cut into lanes that advance together, a byte a step; the checksum is linear, so lanes are joined by a table that says
what a lane's length of zeros makes of each byte of a state. Source: RFC 3720, section 12.1.
"""

from __future__ import annotations

from functools import cache

import numpy as np

POLYNOMIAL = 0x82F63B78
# Bytes of a lane: numpy's cost of a step is shared by as many lanes as the content has.
LANE = 1024


def crc32c(content: bytes | memoryview) -> int:
    """The checksum of `content`."""
    # The first state of all ones is the first four bytes turned over; zeros in front change nothing from a state of 0.
    if len(content) < 4:
        return _by_bytes(content)
    size = len(content)
    data = np.zeros(-(-size // LANE) * LANE, np.uint8)
    data[-size:] = np.frombuffer(content, np.uint8)
    data[len(data) - size : len(data) - size + 4] ^= 0xFF
    lanes = data.reshape(-1, LANE)
    table, state = _table(), np.zeros(len(lanes), np.uint32)
    for step in range(LANE):
        state = table[(state ^ lanes[:, step]) & 0xFF] ^ (state >> np.uint32(8))
    over = _over_a_lane()
    total = 0
    for lane in state.tolist():
        total = over[0][total & 0xFF] ^ over[1][total >> 8 & 0xFF] ^ over[2][total >> 16 & 0xFF] ^ over[3][total >> 24]
        total ^= lane
    return total ^ 0xFFFFFFFF


def masked(checksum: int) -> int:
    """As TensorFlow stores it, so that a checksum of checksums stays one."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _by_bytes(content: bytes | memoryview) -> int:
    table, state = _table().tolist(), 0xFFFFFFFF
    for byte in bytes(content):
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


@cache
def _table() -> np.ndarray:
    rows = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        rows = np.where(rows & 1, rows >> np.uint32(1) ^ np.uint32(POLYNOMIAL), rows >> np.uint32(1))
    return rows.astype(np.uint32)


@cache
def _over_a_lane() -> list[list[int]]:
    """For each of a state's four bytes, what LANE bytes of zeros make of its 256 values."""
    state = (np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)).astype(np.uint32)
    for _ in range(LANE):
        state = _table()[state & 0xFF] ^ (state >> np.uint32(8))
    return state.tolist()
