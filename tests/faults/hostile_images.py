"""Photos and class folders of strangers: what stands where a photo should, photos that never end, and files beside them."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from hostile import ESCAPE, Case, Family, fifo, sparse, unix_socket, zeros
from PIL import Image, PngImagePlugin

from paceline.data.prepare.class_source import prepare_folder

PHOTO = "train/cat/0.jpg"


def good(folder: Path) -> None:
    """train and val with two classes; one photo each, two in train/cat."""
    for number, place in enumerate((PHOTO, "train/cat/1.jpg", "train/dog/0.jpg", "val/cat/0.jpg", "val/dog/0.jpg")):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((24, 16), 60 + number).convert("RGB").save(folder / place)


def read(folder: Path) -> None:
    prepare_folder(folder, workers=1)


def words(folder: Path) -> list[object]:
    return ["prepare", "folder", folder, "--workers", 1]


def at(place: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: change(folder / place)


def photo(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return at(PHOTO, change)


def content(data: bytes | Callable[[], bytes]) -> Callable[[Path], object]:
    return photo(lambda path: path.write_bytes(data() if callable(data) else data))


def encoded(size: tuple[int, int] = (24, 16), kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()


def scans(count: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A progressive JPEG whose last scan is there so many times more."""
    data = encoded(size, progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + data[-2:]


def segments(count: int, length: int) -> bytes:
    """A JPEG with so many comments of `length` bytes."""
    data = encoded()
    return data[:2] + (b"\xff\xfe" + struct.pack(">H", length + 2) + bytes(length)) * count + data[2:]


def of_size(width: int, height: int) -> bytes:
    """A JPEG that says it is of this size."""
    data = encoded()
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunk(*each) for each in chunks) + chunk(b"IEND", b"")


def text_of_200_megabytes() -> bytes:
    return png(4, 4, (b"zTXt", b"a\0\0" + zlib.compress(bytes(200 << 20), 1)))


def many_texts() -> bytes:
    info = PngImagePlugin.PngInfo()
    for number in range(2000):
        info.add_text(f"key{number}", "x" * 40_000, zip=True)
    return encoded(kind="PNG", pnginfo=info)


def renamed(name: str | bytes) -> Callable[[Path], object]:
    return photo(lambda path: os.rename(os.fsencode(path), os.path.join(os.fsencode(path.parent), os.fsencode(name))))


def classes(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for split in ("train", "val"):
            (folder / split / "cat").rename(folder / split / name)

    return change


def beside(name: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def linked(name: str) -> Callable[[Path], None]:
    """A link of the name of a file that prepare writes, to a file of the user's beside the folder."""

    def change(folder: Path) -> None:
        (folder.parent / "precious").write_text("precious")
        os.symlink("../precious", folder / name)

    return change


def many_unreadable(folder: Path) -> None:
    for number in range(10):
        (folder / "train/cat" / f"x{number}.jpg").write_bytes(b"")
    linked("unreadable.txt")(folder)


CASES: dict[str, Case] = {
    "named pipe": (photo(fifo), "a named pipe"),
    "socket": (photo(unix_socket), "a socket"),
    "endless zeros": (photo(zeros), "a device"),
    "folder": (photo(lambda path: (path.unlink(), path.mkdir())), "must have only images"),
    "link to nowhere": (photo(lambda path: (path.unlink(), os.symlink("nowhere", path))), "link to a missing file"),
    "link to itself": (photo(lambda path: (path.unlink(), os.symlink("0.jpg", path))), "cannot be read"),
    "link to the user's passwords": (photo(lambda path: (path.unlink(), os.symlink("/etc/passwd", path))), "text and not an image"),
    "link to a photo": (photo(lambda path: (path.unlink(), os.symlink("1.jpg", path))), ""),
    "class that is a link to its folder": (lambda folder: os.symlink(".", folder / "train/cat/loop"), "must have only images"),
    "a tebibyte": (photo(lambda path: sparse(path, 1 << 40)), "the limit is 1,073,741,824"),
    "empty": (content(b""), "empty file"),
    "text": (content(f"hello{ESCAPE}".encode()), "not an image"),
    "torn": (content(lambda: encoded()[:-30]), "truncated"),
    "PostScript": (content(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"), "not an image"),
    "SVG": (content(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "not an image"),
    "GIF": (content(lambda: encoded(kind="GIF")), "GIF is not supported"),
    "JPEG of 65,000 x 65,000": (content(lambda: of_size(65_000, 65_000)), "exceeds limit"),
    "JPEG without size": (content(lambda: of_size(0, 0)), "damaged|not an image"),
    "PNG of 30,000 x 30,000": (content(lambda: png(30_000, 30_000)), "exceeds limit"),
    "PNG of 2^31 x 2^31": (content(lambda: png(2**31 - 1, 2**31 - 1)), "exceeds limit"),
    "PNG with a text of 200 MB": (content(text_of_200_megabytes), "too large|damaged"),
    "PNG with 80 MB of texts": (content(many_texts), ""),
    "marker after 64 MB of zeros": (photo(lambda path: sparse(path, 64 << 20, b"\xff\xd8\xff")), "bytes between its segments"),
    "marker after 64 MB of fill": (content(b"\xff\xd8" + b"\xff" * (64 << 20)), "bytes between its segments"),
    "50,000 empty comments": (content(lambda: segments(50_000, 0)), "more than 1,000 segments"),
    "100 comments of 64 kB": (content(lambda: segments(100, 65_000)), ""),
    "3,000 scans": (content(lambda: scans(3000)), "more than 100 scans"),
    "60 scans": (content(lambda: scans(50)), ""),
    "a motion photo": (content(lambda: scans(0) + b"\xff\xda\0" * 3000), ""),
    "escape sequences in a photo's name": (renamed(f"{ESCAPE}.jpg"), ""),
    "escape sequences in a broken photo's name": (lambda f: (content(b"")(f), renamed(f"{ESCAPE}.jpg")(f)), "empty file"),
    "line break in a photo's name": (renamed("a\nforged: all is well.jpg"), "contains a line break"),
    "photo's name that is no text": (renamed(b"\xff\xfe.jpg"), ""),
    "escape sequences in a class": (classes(ESCAPE), ""),
    "line break in a class": (classes("a\nforged: all is well"), "contains a line break"),
    "class names nested deep": (beside("classes.json", "[" * 100_000), "not valid JSON"),
    "class names with half characters": (beside("classes.json", r'{"cat": "\ud800", "dog": "d"}'), "surrogate code point"),
    "class names with escape sequences": (beside("classes.json", r'{"cat": "\u001b[2J\n", "dog": "d"}'), ""),
    "class names of a tebibyte": (at("classes.json", lambda path: sparse(path, 1 << 40)), "the limit is"),
    "an older version's journal that is a named pipe": (at("prepare.journal", fifo), ""),
    "an older version's journal that is a link": (linked("prepare.journal"), ""),
    "manifest that is a named pipe": (at("manifest.json", fifo), "not written by paceline"),
    "manifest of endless zeros": (at("manifest.json", zeros), "not written by paceline"),
    "list of unreadable photos that is a link": (many_unreadable, "was not written by paceline and is kept"),
}  # fmt: skip

IMAGES = Family("images and class folders", good, read, words, CASES)
