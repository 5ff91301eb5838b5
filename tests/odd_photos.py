"""A folder of files as people have them: photos of every kind, broken ones, and what is no photo.

    python tests/odd_photos.py DIR

DIR must not be there yet. Of its twelve entries GOOD are photos that get an answer, BAD are photos that cannot be read, and
the others are no photos.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

GOOD = (
    "cmyk.jpg",
    "alpha.png",
    "sixteen bits.png",
    "animated.gif",
    "same.bmp",
    "same.tiff",
    "deeper/sub folder/Grüße aus Köln.jpg",
)
BAD = ("empty.jpg", "text.jpg", "truncated.jpg")
OTHERS = ("notes.txt", "film.mp4")


def make_odd_photos(folder: Path) -> None:
    """Raises FileExistsError where the folder is there already."""
    (folder / GOOD[-1]).parent.mkdir(parents=True)
    scene = _scene(180, 240)
    photo = Image.fromarray(scene)
    photo.convert("CMYK").save(folder / "cmyk.jpg")
    alpha = np.dstack([scene, np.linspace(0, 255, scene.shape[1], dtype=np.uint8)[None].repeat(len(scene), axis=0)])
    Image.fromarray(alpha).save(folder / "alpha.png")
    Image.fromarray(scene[..., 1].astype(np.uint16) * 257).save(folder / "sixteen bits.png")
    photo.save(folder / "animated.gif", save_all=True, append_images=[photo.rotate(90)])
    photo.save(folder / "same.bmp")
    photo.rotate(180).save(folder / "same.tiff")
    photo.save(folder / GOOD[-1], quality=90)
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("this is no photo\n")
    (folder / "truncated.jpg").write_bytes((folder / GOOD[-1]).read_bytes()[:2000])
    (folder / "notes.txt").write_text("remember the milk\n")
    (folder / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42")


def _scene(height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8: a colored disc and a square on a gradient."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([columns * 255 // width, rows * 255 // height, (rows + columns) % 256], axis=2).astype(np.uint8)
    pixels[(rows - height // 3) ** 2 + (columns - width // 3) ** 2 < (height // 5) ** 2] = (230, 60, 50)
    pixels[height // 2 : height * 4 // 5, width * 3 // 5 : width * 4 // 5] = (40, 90, 220)
    return pixels


def main(words: Sequence[str]) -> int:
    """-> exit code."""
    if len(words) != 1:
        print(__doc__)
        return 2
    make_odd_photos(Path(words[0]))
    print(f"{len(GOOD)} photos, {len(BAD)} broken ones, {len(OTHERS)} other files: {words[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
