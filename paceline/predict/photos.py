"""The photos that people hand over: files, folders, arrays, PIL images."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from paceline.config.errors import DataError
from paceline.config.plain_file import read_plain
from paceline.data.class_folder import one_line_name
from paceline.data.header import MOST_BYTES, endless_jpeg, undecodable

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")
Photo = str | Path | np.ndarray | Image.Image


def find_photos(paths: Sequence[Path]) -> list[Path]:
    """The named photos, and every photo directly in a named folder, in name order.

    Raises DataError for a path that is not there, for a folder without photos, and for a name with a line break.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES)
            for entry in inside:
                one_line_name(path, os.fsencode(entry.name))
            if not inside:
                raise DataError(f"{path}: no photos in this folder (looked for {', '.join(SUFFIXES)}).")
            found += inside
        elif path.exists():
            found.append(path)  # what is no plain file is named when it is opened
        else:
            raise DataError(f"{path}: there is no such file or folder.")
    return found


def encoded(photo: Photo) -> tuple[bytes, str]:
    """A photo's encoded bytes and its name; pixels are encoded without loss, so that all photos take one path."""
    if isinstance(photo, str | Path):
        try:
            data = read_plain(photo, MOST_BYTES)
        except OSError as problem:
            raise DataError(f"{photo}: cannot be read ({problem.strerror}).") from None
        if endless := endless_jpeg(data):
            raise undecodable(str(photo), endless)
        return data, str(photo)
    if isinstance(photo, np.ndarray) and not (
        photo.dtype == np.uint8 and photo.ndim == 3 and photo.shape[2] == 3 and photo.size
    ):
        raise DataError(f"a photo given as an array must be (H, W, 3) uint8 RGB, not {photo.shape} {photo.dtype}.")
    image = photo if isinstance(photo, Image.Image) else Image.fromarray(photo)
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, format="BMP")
    return buffer.getvalue(), "the given photo"


def name_of(photo: Photo) -> str:
    """A photo's path, or "" where it was given as pixels."""
    return str(photo) if isinstance(photo, str | Path) else ""
