"""The labels of ImageNet's 50,000 validation photos, from the official development kit: no other file is needed.

    ILSVRC2012_devkit_t12.tar.gz
        .../data/ILSVRC2012_validation_ground_truth.txt     a number 1..1000 a line, in the order of the photos' names
        .../data/meta.mat                                   which class has which number: `synsets`, ILSVRC2012_ID and WNID
The numbers are the kit's own: neither the labels that are trained on, nor in the order of the class folders' names.
Source: readme.txt of the kit, "Data" and "Validation ground truth".

meta.mat is a MATLAB file (version 5 to 7.2), read as far as needed: one struct array of numbers and texts. Nothing in the format is
code; each size is compared with the bytes there are before it is used.
Source: MathWorks, "MAT-File Format", chapter 1, level 5.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from paceline._utils.errors import DataError
from paceline._utils.hashing import sha256
from paceline._utils.names import list_folder
from paceline._utils.safe_read import open_plain, read_plain
from paceline._utils.text import abbreviate
from paceline.data.download.unpack import MAX_DESCRIPTION, BoundedReader
from paceline.data.formats import published_sets
from paceline.data.formats.published_sets import VAL_NAME, official_wnids

TRUTH, META = "data/ILSVRC2012_validation_ground_truth.txt", "data/meta.mat"
NAME = "ILSVRC2012_devkit_t12.tar.gz"
# The kit has some hundred files and less than 10 MB.
MAX_MEMBERS, MAX_UNPACKED = 10_000, 256 << 20
# The official meta.mat has less than 1 MB.
MAX_BYTES = 32 << 20
_HEADER = 128
_INT8, _UINT8, _UINT16, _MATRIX, _COMPRESSED, _UTF8, _UTF16 = 1, 2, 4, 14, 15, 16, 17
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {_INT8: "latin-1", _UINT8: "latin-1", _UTF8: "utf-8"}
_STRUCT_CLASS, _CHAR_CLASS = 2, 4
Value = float | str | None


def validation_labels(devkit: Path) -> list[str]:
    """The WordNet id of each of the 50,000 validation photos, in order of their names.

    devkit  the kit as downloaded, or the folder that it unpacks to
    Raises DataError where it is another file, damaged, or gives other labels than the official ones.
    """
    truth, meta = _from_folder(devkit) if devkit.is_dir() else _from_tar(devkit)
    classes = _classes(devkit, meta)
    try:
        labels = [classes[int(line)] for line in truth.split()]
    except (ValueError, KeyError) as error:
        raise _not_the_kit(devkit, f"{TRUTH} has {abbreviate(str(error))}, which is not one of its classes") from None
    lines = "".join(f"{label}\n" for label in labels)
    if sha256(lines) != published_sets.VAL_LABELS_SHA256:
        most = Counter(labels).most_common(1)
        raise _not_the_kit(
            devkit, f"its {len(labels):,} labels are not the official labels ({most[0][1] if most else 0} are of one class)"
        )
    return labels


def sort_val(folder: Path, labels: list[str]) -> int:
    """Move validation photos that lie flat in `folder` into class folders -> how many.

    labels  as `validation_labels` gives them
    What was moved by an earlier call stays where it is. Raises DataError where a name is no photo's, or is there twice.
    """
    photos = {name: match for name in list_folder(folder).images if (match := VAL_NAME.match(name))}
    numbers = {name: int(match[1]) for name, match in photos.items()}
    odd = [name for name, number in numbers.items() if not 0 < number <= len(labels)]
    if odd:
        raise DataError(f"{folder / os.fsdecode(odd[0])}: no validation image has this number. Move the file away.")
    try:
        for name, number in numbers.items():
            target = folder / labels[number - 1]
            target.mkdir(exist_ok=True)
            if os.path.lexists(target / os.fsdecode(name)):
                raise DataError(f"{target / os.fsdecode(name)}: already exists, also in {folder}. Remove one of them.")
            os.rename(folder / os.fsdecode(name), target / os.fsdecode(name))
    except OSError as error:
        raise DataError(
            f"{folder}: its images cannot be moved into class folders ({error.strerror or error}). Make it writable, and "
            "run the same command again to continue."
        ) from None
    return len(numbers)


def _classes(devkit: Path, meta: bytes) -> dict[int, str]:
    """The kit's number -> WordNet id, of the 1000 classes."""
    try:
        rows = struct_array(meta, "synsets", ("ILSVRC2012_ID", "WNID"))
    except ValueError as error:
        raise _not_the_kit(devkit, f"{META}: {abbreviate(str(error), 100)}") from None
    classes = {
        int(number): str(row["WNID"])
        for row in rows
        if isinstance(number := row["ILSVRC2012_ID"], float) and 1 <= number <= 1000  # above are groups of classes
    }
    if sorted(classes.values()) != official_wnids():
        raise _not_the_kit(devkit, f"{META} does not list the 1000 classes of ImageNet-1k")
    return classes


def _from_folder(devkit: Path) -> tuple[bytes, bytes]:
    for root in (devkit, devkit / "ILSVRC2012_devkit_t12"):
        if (root / TRUTH).exists():
            try:
                return read_plain(root / TRUTH, MAX_BYTES), read_plain(root / META, MAX_BYTES)
            except OSError as error:
                raise DataError(f"{error.filename or root}: cannot be read ({error.strerror}).") from None
    raise _not_the_kit(devkit, f"it has no {TRUTH}")


def _from_tar(devkit: Path) -> tuple[bytes, bytes]:
    result: dict[str, bytes] = {}
    try:
        with open(open_plain(devkit), "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            plain: BinaryIO = gzip.GzipFile(fileobj=file) if packed else file  # pyright: ignore[reportAssignmentType]
            book = tarfile.TarFile(fileobj=BoundedReader(plain))  # pyright: ignore[reportArgumentType]
            for _ in range(MAX_MEMBERS):
                info = book.next()
                if info is None or len(result) == 2 or info.offset_data > MAX_UNPACKED or info.size < 0:
                    break
                for wanted in (TRUTH, META):
                    if info.isreg() and info.name.endswith(f"/{wanted}") and info.size <= MAX_BYTES:
                        source = book.extractfile(info)
                        assert source is not None
                        result[wanted] = b"".join(iter(lambda source=source: source.read(MAX_DESCRIPTION), b""))
    except FileNotFoundError:
        raise DataError(f"{devkit}: file not found. Pass ImageNet's development kit, {NAME}.") from None
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        raise _not_the_kit(devkit, abbreviate(str(error), 100)) from None
    for wanted in (TRUTH, META):
        if wanted not in result:
            raise _not_the_kit(devkit, f"it has no {wanted}")
    return result[TRUTH], result[META]


def _not_the_kit(devkit: Path, why: str) -> DataError:
    return DataError(
        f"{devkit}: not ImageNet's development kit, or damaged ({why}). Download {NAME} again; `paceline download "
        "imagenet DIR` prints its source."
    )


def struct_array(data: bytes, variable: str, fields: Sequence[str]) -> list[dict[str, Value]]:
    """The elements of the struct array `variable`, with these fields; a field that holds an array or a struct is None.

    Raises ValueError, in a few words, where the file is another one, damaged, or has no such variable or field.
    """
    if len(data) < _HEADER or data[124:126] not in (b"\x00\x01", b"\x01\x00"):
        raise ValueError("not a MATLAB file of version 5 to 7.2")
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError("not a MATLAB file, because its byte order is missing")
    reader = _MatFileReader(order)
    for kind, body in reader.elements(memoryview(data)[_HEADER:]):
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            try:
                plain = unpacker.decompress(body, MAX_BYTES)
            except zlib.error as error:
                raise ValueError(f"damaged ({error})") from None
            if unpacker.unconsumed_tail:
                raise ValueError(f"a variable of more than {MAX_BYTES:,} bytes")
            if not unpacker.eof:
                raise ValueError("truncated")
            kind, body = next(reader.elements(memoryview(plain)))
        if kind == _MATRIX:
            results = reader.struct_array(body, variable, fields)
            if results is not None:
                return results
    raise ValueError(f"it has no variable {variable!r}")


class _MatFileReader:
    def __init__(self, order: str) -> None:
        self._order = order

    def elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Type and bytes of each element, one after the other."""
        at = 0
        while at + 8 <= len(data):
            kind, size = struct.unpack_from(f"{self._order}II", data, at)
            if kind >> 16:  # a small one: size and type share four bytes, the data are the next four
                kind, size, begin, past = kind & 0xFFFF, kind >> 16, at + 4, at + 8
                if size > 4:
                    raise ValueError(f"damaged at byte {at:,} of an element")
            else:
                begin = at + 8
                past = begin + size if kind == _COMPRESSED else begin + -(-size // 8) * 8
            if begin + size > len(data):
                raise ValueError("truncated")
            yield kind, data[begin : begin + size]
            at = past

    def numbers(self, kind: int, body: memoryview) -> tuple[float, ...]:
        letter = _NUMBERS.get(kind)
        if letter is None:
            raise ValueError(f"unsupported numbers of type {kind}")
        count = len(body) // struct.calcsize(letter)
        return struct.unpack_from(f"{self._order}{count}{letter}", body)

    def struct_array(self, matrix: memoryview, variable: str, fields: Sequence[str]) -> list[dict[str, Value]] | None:
        """None where this is another variable. Raises ValueError."""
        parts = self.elements(matrix)
        try:
            class_, shape, name = self._head(parts)
            if name != variable:
                return None
            if class_ != _STRUCT_CLASS:
                raise ValueError(f"{variable} is not a struct")
            (width,) = map(int, self.numbers(5, next(parts)[1])[:1])
            raw = bytes(next(parts)[1])
            if not 0 < width <= 64 or len(raw) % width:
                raise ValueError("damaged field names")
            names = [raw[i : i + width].split(b"\0")[0].decode("latin-1") for i in range(0, len(raw), width)]
            missing = [field for field in fields if field not in names]
            if missing:
                raise ValueError(f"{variable} has no field {missing[0]!r}")
            rows: list[dict[str, Value]] = []
            count = math.prod(map(int, shape))
            if not 0 <= count <= len(matrix):  # each element takes bytes
                raise ValueError("an invalid number of elements")
            for _ in range(count):
                row: dict[str, Value] = {}
                for field in names:
                    kind, body = next(parts)
                    if field in fields:
                        row[field] = self._value(kind, body)
                rows.append(row)
            return rows
        except StopIteration:
            raise ValueError("truncated") from None
        except struct.error as error:
            raise ValueError(f"damaged ({error})") from None

    def _head(self, parts: Iterator[tuple[int, memoryview]]) -> tuple[int, tuple[float, ...], str]:
        """Class, shape and name of an array."""
        (flags,) = struct.unpack_from(f"{self._order}I", next(parts)[1])
        shape = self.numbers(*next(parts))
        return flags & 0xFF, shape, bytes(next(parts)[1]).decode("latin-1")

    def _value(self, kind: int, matrix: memoryview) -> Value:
        """A number or a text; None for all else, and for an empty array."""
        if kind != _MATRIX or not len(matrix):
            return None
        parts = self.elements(matrix)
        class_, _, _ = self._head(parts)
        if class_ != _CHAR_CLASS and not 6 <= class_ <= 15:  # 6 to 15 are arrays of numbers
            return None
        kind, body = next(parts, (_INT8, memoryview(b"")))
        if class_ == _CHAR_CLASS:
            if kind in (_UINT16, _UTF16):
                return bytes(body).decode("utf-16-le" if self._order == "<" else "utf-16-be", "replace")
            return bytes(body).decode(_TEXTS.get(kind, "latin-1"), "replace")
        results = self.numbers(kind, body)
        return float(results[0]) if len(results) == 1 else None
