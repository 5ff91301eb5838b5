"""The labels of ImageNet's 50,000 validation photos, from the official development kit: no other file is needed.

    ILSVRC2012_devkit_t12.tar.gz
        .../data/ILSVRC2012_validation_ground_truth.txt     a number 1..1000 a line, in the order of the photos' names
        .../data/meta.mat                                   which class has which number: `synsets`, ILSVRC2012_ID and WNID
The numbers are the kit's own: neither the labels that are trained on, nor in the order of the class folders' names.
Source: readme.txt of the kit, "Data" and "Validation ground truth".
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import BinaryIO

from paceline.config.errors import DataError
from paceline.config.plain_file import open_plain, read_plain
from paceline.config.printable import short
from paceline.datasets.formats import imagenet
from paceline.datasets.formats.imagenet import VAL_NAME, official_wnids
from paceline.datasets.formats.mat5 import MOST_BYTES, struct_array
from paceline.store.class_folder import list_folder
from paceline.store.download.unpack import MOST_DESCRIPTION, CarefulFile

TRUTH, META = "data/ILSVRC2012_validation_ground_truth.txt", "data/meta.mat"
NAME = "ILSVRC2012_devkit_t12.tar.gz"
# The kit has some hundred files and less than 10 MB.
MOST_MEMBERS, MOST_UNPACKED = 10_000, 256 << 20


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
        raise _not_the_kit(devkit, f"{TRUTH} holds {short(str(error))}, which is no class of it") from None
    lines = "".join(f"{label}\n" for label in labels)
    if hashlib.sha256(lines.encode()).hexdigest() != imagenet.VAL_LABELS_SHA256:
        most = Counter(labels).most_common(1)
        raise _not_the_kit(
            devkit, f"its {len(labels):,} labels are not the official ones ({most[0][1] if most else 0} of one class)"
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
        raise DataError(f"{folder / os.fsdecode(odd[0])}: no validation photo has this number. Move it away.")
    try:
        for name, number in numbers.items():
            target = folder / labels[number - 1]
            target.mkdir(exist_ok=True)
            if os.path.lexists(target / os.fsdecode(name)):
                raise DataError(
                    f"{target / os.fsdecode(name)}: there already, and in {folder} too. Remove one of them."
                )
            os.rename(folder / os.fsdecode(name), target / os.fsdecode(name))
    except OSError as error:
        raise DataError(
            f"{folder}: its photos cannot be moved into class folders ({error.strerror or error}). Make it writable, and "
            "give the same command again: it goes on."
        ) from None
    return len(numbers)


def _classes(devkit: Path, meta: bytes) -> dict[int, str]:
    """The kit's number -> WordNet id, of the 1000 classes."""
    try:
        rows = struct_array(meta, "synsets", ("ILSVRC2012_ID", "WNID"))
    except ValueError as error:
        raise _not_the_kit(devkit, f"{META}: {short(str(error), 100)}") from None
    classes = {
        int(number): str(row["WNID"])
        for row in rows
        if isinstance(number := row["ILSVRC2012_ID"], float) and 1 <= number <= 1000  # above are groups of classes
    }
    if sorted(classes.values()) != official_wnids():
        raise _not_the_kit(devkit, f"{META} does not name ImageNet-1k's 1000 classes")
    return classes


def _from_folder(devkit: Path) -> tuple[bytes, bytes]:
    for root in (devkit, devkit / "ILSVRC2012_devkit_t12"):
        if (root / TRUTH).exists():
            try:
                return read_plain(root / TRUTH, MOST_BYTES), read_plain(root / META, MOST_BYTES)
            except OSError as error:
                raise DataError(f"{error.filename or root}: cannot be read ({error.strerror}).") from None
    raise _not_the_kit(devkit, f"no {TRUTH} in it")


def _from_tar(devkit: Path) -> tuple[bytes, bytes]:
    found: dict[str, bytes] = {}
    try:
        with open(open_plain(devkit), "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            plain: BinaryIO = gzip.GzipFile(fileobj=file) if packed else file  # pyright: ignore[reportAssignmentType]
            book = tarfile.TarFile(fileobj=CarefulFile(plain))  # pyright: ignore[reportArgumentType]
            for _ in range(MOST_MEMBERS):
                info = book.next()
                if info is None or len(found) == 2 or info.offset_data > MOST_UNPACKED or info.size < 0:
                    break
                for wanted in (TRUTH, META):
                    if info.isreg() and info.name.endswith(f"/{wanted}") and info.size <= MOST_BYTES:
                        found[wanted] = _content(book, info)
    except FileNotFoundError:
        raise DataError(f"{devkit}: no such file. Name ImageNet's development kit, {NAME}.") from None
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        raise _not_the_kit(devkit, short(str(error), 100)) from None
    for wanted in (TRUTH, META):
        if wanted not in found:
            raise _not_the_kit(devkit, f"no {wanted} in it")
    return found[TRUTH], found[META]


def _content(book: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    source = book.extractfile(info)
    assert source is not None
    parts = []
    while part := source.read(MOST_DESCRIPTION):
        parts.append(part)
    return b"".join(parts)


def _not_the_kit(devkit: Path, why: str) -> DataError:
    return DataError(
        f"{devkit}: not ImageNet's development kit, or damaged ({why}). Bring {NAME} again: `paceline download imagenet DIR` "
        "says from where."
    )
