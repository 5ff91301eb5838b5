"""The photos of a small class-folder set in every container, in the folder's order or another, written for the tests."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from paceline.data.containers.recordio import RecordIOContent, format_idx, format_lst_line, write_recordio
from paceline.data.containers.tar import write_tar
from paceline.data.containers.tfrecord import example_bytes, write_tfrecord

MAGIC = b"\x0a\x23\xd7\xce"
Photo = tuple[str, int, str, bytes]  # class, its number, file name, bytes


def photos_of(root: Path, split: str, *, backwards: bool = False) -> list[Photo]:
    """Of one split, in the folder's order."""
    classes = sorted(os.listdir(root / split))
    found = [
        (label, number, name, (root / split / label / name).read_bytes())
        for number, label in enumerate(classes)
        for name in sorted(os.listdir(root / split / label))
    ]
    return found[::-1] if backwards else found


def tar(photos: list[Photo], path: Path) -> None:
    with open(path, "wb") as file:
        write_tar(file, [(f"{label}/{name}".encode(), data) for label, _, name, data in photos])


def tar_in_tar(photos: list[Photo], path: Path) -> None:
    inner: dict[str, list[tuple[bytes, bytes]]] = {}
    for label, _, name, data in photos:
        inner.setdefault(label, []).append((name.encode(), data))
    with tarfile.open(path, "w") as outer:
        for label, members in inner.items():
            buffer = io.BytesIO()
            write_tar(buffer, members)
            info = tarfile.TarInfo(f"{label}.tar")
            info.size = buffer.tell()
            buffer.seek(0)
            outer.addfile(info, buffer)


def stored_zip(photos: list[Photo], path: Path, how: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", how) as archive:
        for label, _, name, data in photos:
            archive.writestr(f"{label}/{name}", data)


def deflated_zip(photos: list[Photo], path: Path) -> None:
    stored_zip(photos, path, zipfile.ZIP_DEFLATED)


def webdataset(photos: list[Photo], path: Path) -> None:
    members = []
    for label, number, name, data in photos:
        key = f"{label}/{name.partition('.')[0]}".encode()
        members += [(f"{label}/{name}".encode(), data), (key + b".cls", str(number).encode())]
    with open(path, "wb") as file:
        write_tar(file, members)


def recordio(photos: list[Photo], path: Path, *, listed: bool = True) -> None:
    with open(path, "wb") as file:
        placed = write_recordio(
            file, [RecordIOContent(i, float(number), data) for i, (_, number, _, data) in enumerate(photos)]
        )
    path.with_suffix(".idx").write_bytes(format_idx(placed))
    if listed:
        lines = [
            format_lst_line(i, [number], f"{label}/{name}".encode()) for i, (label, number, name, _) in enumerate(photos)
        ]
        path.with_suffix(".lst").write_bytes(b"".join(lines))


def tfrecord(photos: list[Photo], path: Path) -> None:
    with open(path, "wb") as file:
        write_tfrecord(
            file,
            [
                example_bytes(
                    {
                        "image/encoded": [data],
                        "image/class/label": [number + 1],
                        "image/class/synset": [label.encode()],
                        "image/filename": [name.encode()],
                    }
                )
                for label, number, name, data in photos
            ],
        )


# What `prepare` calls the layout, what writes it, and the file's suffix.
CONTAINERS: dict[str, tuple[str, Callable[[list[Photo], Path], None], str]] = {
    "tar": ("tar", tar, ".tar"),
    "tar in tar": ("tar", tar_in_tar, ".tar"),
    "zip": ("zip", stored_zip, ".zip"),
    "deflated zip": ("zip", deflated_zip, ".zip"),
    "webdataset": ("webdataset", webdataset, ".tar"),
    "recordio": ("recordio", recordio, ".rec"),
    "tfrecord": ("tfrecord", tfrecord, ".tfrecord"),
}
ARCHIVES = ("tar", "tar in tar", "zip", "deflated zip")


def pack_both(root: Path, container: str, out: Path, *, backwards: bool = False) -> list[str]:
    """Pack both splits of `root` into `out` -> the words of `paceline prepare` for them, without --output-dir."""
    layout, write, suffix = CONTAINERS[container]
    out.mkdir(parents=True, exist_ok=True)
    words = [layout]
    for split in ("train", "val"):
        write(photos_of(root, split, backwards=backwards), out / f"{split}{suffix}")
        words += [f"--{split}", str(out / f"{split}{suffix}")]
    return words


def with_magic(data: bytes) -> bytes:
    """A photo that MXNet cuts in pieces: its magic word follows the picture's end, at a multiple of four from the record's payload
    (24 bytes of header before the photo)."""
    return data + bytes(-len(data) % 4) + MAGIC + b"between" + bytes(1) + MAGIC + b"tail"
