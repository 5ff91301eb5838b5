"""ImageNet's development kit, made by the format's own rules: a MATLAB file of level 5, and a list of numbers, in a tar."""

from __future__ import annotations

import hashlib
import io
import random
import struct
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from paceline.data.formats.published_sets import official_wnids

FOLDER = "ILSVRC2012_devkit_t12"


def element(kind: int, body: bytes, *, small: bool = False) -> bytes:
    """A tag and its data; a small element has both in eight bytes."""
    if small:
        return struct.pack("<HH4s", kind, len(body), body)
    return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)


def array(kind: int, shape: Sequence[int], content: bytes, name: bytes = b"") -> bytes:
    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, head + element(1, name, small=0 < len(name) <= 4) + content)


def value(item: str | float | None) -> bytes:
    if item is None:
        return array(6, (1, 0), element(9, b""))
    if isinstance(item, str):
        return array(4, (1, len(item)), element(4, item.encode("utf-16-le")))
    return array(
        6, (1, 1), element(2, bytes([int(item)]), small=True) if item < 256 else element(9, struct.pack("<d", item))
    )


def mat_file(rows: Sequence[dict[str, str | float | None]], variable: str = "synsets", *, compressed: bool = True) -> bytes:
    """A file with a struct array of these elements."""
    names = b"".join(name.encode().ljust(32, b"\0") for name in rows[0])
    content = element(5, struct.pack("<i", 32), small=True) + element(1, names)
    content += b"".join(value(item) for row in rows for item in row.values())
    matrix = array(2, (len(rows), 1), content, variable.encode())
    if compressed:
        packed = zlib.compress(matrix)
        matrix = struct.pack("<II", 15, len(packed)) + packed
    return b"MATLAB 5.0 MAT-file, made for a test".ljust(124) + b"\x00\x01IM" + matrix


def kit_numbers(seed: int = 1) -> dict[str, int]:
    """A number 1..1000 for each of ImageNet's classes, in an order of its own."""
    wnids = official_wnids()
    random.Random(seed).shuffle(wnids)
    return {wnid: number for number, wnid in enumerate(wnids, 1)}


def kit_files(labels: Sequence[str]) -> dict[str, bytes]:
    """The two files that labels are read from; groups of classes have numbers above 1000."""
    numbers = kit_numbers()
    rows = [
        {"ILSVRC2012_ID": float(number), "WNID": wnid, "gloss": "a thing", "children": None}
        for wnid, number in numbers.items()
    ]
    rows += [{"ILSVRC2012_ID": 1001.0, "WNID": "n00001740", "gloss": "entity", "children": None}]
    truth = "".join(f"{numbers[label]}\n" for label in labels)
    return {
        "readme.txt": b"readme",
        "data/meta.mat": mat_file(rows),
        "data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }


def write_devkit(path: Path, labels: Sequence[str], mode: str = "w:gz") -> str:
    """Write the kit -> the digest of its labels, as data/formats/published_sets.py has the official ones'."""
    with tarfile.open(path, mode) as book:
        for name, content in kit_files(labels).items():
            info = tarfile.TarInfo(f"{FOLDER}/{name}")
            info.size = len(content)
            book.addfile(info, io.BytesIO(content))
    return hashlib.sha256("".join(f"{label}\n" for label in labels).encode()).hexdigest()
