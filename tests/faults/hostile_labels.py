"""YOLO and Pascal VOC folders of strangers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hostile import ESCAPE, Case, Family, fifo, sparse, unix_socket, zeros
from PIL import Image

from paceline.data.prepare.box_source import BoxRequest, prepare_boxes

SIDE = 40


def photo(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIDE, SIDE), (seed, 90, 200 - seed)).save(path)


# YOLO -----------------------------------------------------------------------------------------------------------------

YAML = "train: images/train\nval: images/val\nnames: [cat, dog]\n"
BOX = "0 0.5 0.5 0.4 0.4\n"


def yolo(folder: Path) -> None:
    for split in ("train", "val"):
        for number in range(2):
            photo(folder / "images" / split / f"{number}.png", number + 2 * (split == "val"))
            label = folder / "labels" / split / f"{number}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text(BOX)
    (folder / "data.yaml").write_text(YAML)


def read_yolo_set(folder: Path) -> None:
    prepare_boxes(folder, BoxRequest("yolo"), workers=1)


def yolo_words(folder: Path) -> list[object]:
    return ["prepare", "yolo", folder, "--workers", 1]


def yaml(text: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "data.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())


def train(entry: str) -> Callable[[Path], object]:
    return yaml(YAML.replace("images/train", entry))


def names(text: str) -> Callable[[Path], object]:
    return yaml(YAML.replace("[cat, dog]", text))


def label(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "labels" / "train" / "0.txt").write_text(text)


def at(place: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: change(folder / place)


def listed(text: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "list.txt").write_bytes(text)
        (folder / "data.yaml").write_text(YAML.replace("images/train", "list.txt"))

    return change


def two_links_to_itself(folder: Path) -> None:
    for name in ("a", "b"):
        os.symlink(".", folder / name)


def renamed(place: str, name: str) -> Callable[[Path], object]:
    return lambda folder: os.rename(folder / place, folder / os.path.dirname(place) / name)


BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 11))
LINE = "labels/train/0.txt"

YOLO_CASES: dict[str, Case] = {
    "lists that name each other": (yaml(f"a0: &a0 x\n{BOMB}nc: *a10\n{YAML}"), "aliases"),
    "a list that names itself": (yaml(f"a: &a [*a]\n{YAML}"), "aliases"),
    "a class of lists that name each other": (yaml(f"a0: &a0 x\n{BOMB}train: images/train\nnames: [*a10]\n"), "aliases"),
    "count that is a list": (yaml(f"nc: [{', '.join('1' * 9)}]\n{YAML}"), "nc: is "),
    "count with escape sequences": (yaml(f'nc: "\\e]0;owned\\a"\n{YAML}'), "nc: is "),
    "nested twenty thousand deep": (yaml("names: " + "[" * 20_000), "nested too deeply"),
    "python tag": (names("!!python/object/apply:os.system [touch PWNED]"), ""),  # a list of one class
    "class number of 20 digits": (names("{0: cat, 99999999999999999999: dog}"), "must be an index"),
    "class number below 0": (names("{-1: cat, 0: dog}"), "must be an index"),
    "class number of 5,000 digits": (names("{? " + "1" * 5000 + " : cat}"), "must be class indices"),
    "class of half a character": (names(r'[cat, "\ud800"]'), "surrogate code point|not valid YAML"),
    "class of a megabyte": (names("[cat, " + "x" * 900_000 + "]"), "more than 1,000 characters"),
    "class with escape sequences": (names(r'["cat\e]0;owned\a", dog]'), ""),
    "class with a line break": (names(r'["cat\nforged", dog]'), ""),
    "two classes of one name but for a line break": (names(r'["cat\ndog", cat dog]'), "two classes are named"),
    "no text": (yaml(b"\xff\xfe\x00"), "cannot be read"),
    "two megabytes": (yaml(YAML + "#" * (2 << 20)), "the limit is"),
    "named pipe": (at("data.yaml", fifo), "a named pipe"),
    "endless zeros": (at("data.yaml", zeros), "a device"),
    "the environment as a list": (train("/proc/self/environ"), "NUL characters"),
    "list with NULs": (listed(b"images/train/0.png\0\n"), "NUL characters"),
    "list with escape sequences": (listed(f"images/{ESCAPE}.png\n".encode()), "was found"),
    "list that is no text": (listed(b"\xff\xff\n"), "cannot be read"),
    "path with NUL": (train(r'"images\0train"'), "is not a valid path|not found"),
    "path with a line break": (train(r'"images\nforged: all is well"'), "is not a valid path"),
    "path of half a character": (train(r'"\ud800"'), "is not a valid path|not valid YAML"),
    "path with escape sequences": (train(r'"\e]0;owned\a"'), "not found"),
    "path to a device": (train("/dev/zero"), "no images in"),
    "label that is a named pipe": (at(LINE, fifo), "a named pipe"),
    "label that is a socket": (at(LINE, unix_socket), "a socket"),
    "label of endless zeros": (at(LINE, zeros), "a device"),
    "label of a tebibyte": (at(LINE, lambda path: sparse(path, 1 << 40)), "the limit is"),
    "label that is a folder": (at(LINE, lambda path: (path.unlink(), path.mkdir())), "a folder"),
    "label not finite": (label("0 nan 0.5 inf 0.4\n"), "not a fraction of the image"),
    "label of 1e400": (label("1e400 0.5 0.5 0.4 0.4\n"), "class 1e400"),
    "label of a class of a megabyte": (label("9" * 1_000_000 + " 0.5 0.5 0.4 0.4\n"), "class 9"),
    "label with escape sequences": (label(f"{ESCAPE} 0.5 0.5 0.4 0.4\n"), "not numbers"),
    "label of too many numbers": (label("0 " + "0.5 " * 100_001 + "\n"), "numbers, expected class"),
    "polygon of 200,000 points": (label("0 " + "0.5 0.25 " * 100_000 + "0.1 0.7 0.9 0.9\n"), ""),
    "100,000 alike boxes": (label(BOX * 100_000), ""),
    "photo with a line break": (renamed("images/train/0.png", "a\nforged.png"), "line break"),
    "photo that is a named pipe": (at("images/train/0.png", fifo), "a named pipe"),
    "two links to the folder they are in": (two_links_to_itself, ""),
    "link to itself among the labels": (lambda folder: os.symlink("x.txt", folder / "labels" / "x.txt"), ""),
}  # fmt: skip

YOLO = Family("YOLO", yolo, read_yolo_set, yolo_words, YOLO_CASES)

# Pascal VOC -----------------------------------------------------------------------------------------------------------

OBJECT = "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>5</ymin><xmax>{}</xmax><ymax>25</ymax></bndbox></object>"
GOOD = OBJECT.format("cat", 5, 25)
FIRST = "Annotations/0.xml"
DTD = '<!DOCTYPE a [<!ENTITY e "expanded">]>'


def document(inside: str = GOOD, *, side: object = SIDE, before: str = "", declared: str = "", name: str = "0.png") -> str:
    size = f"<size><width>{side}</width><height>{side}</height></size>"
    declaration = f'<?xml version="1.0"{declared}?>' if declared or before else ""
    return f"{declaration}{before}<annotation><filename>{name}</filename>{size}{inside}</annotation>"


def voc(folder: Path) -> None:
    (folder / "Annotations").mkdir(parents=True)
    for number in range(4):
        photo(folder / "JPEGImages" / f"{number}.png", number)
        (folder / "Annotations" / f"{number}.xml").write_text(document(name=f"{number}.png"))


def read_voc_set(folder: Path) -> None:
    prepare_boxes(folder, BoxRequest("voc", val_fraction=0.5), workers=1)


def voc_words(folder: Path) -> list[object]:
    return ["prepare", "voc", folder, "--workers", 1, "--val-fraction", 0.5]


def xml(text: str | bytes, encoding: str = "utf-8") -> Callable[[Path], object]:
    return at(FIRST, lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding)))


def laughs() -> str:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    return document(OBJECT.format("&l9;", 5, 25), before=f'<!DOCTYPE a [<!ENTITY l0 "lol">{entities}]>')


def a_set(text: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "ImageSets" / "Main").mkdir(parents=True)
        (folder / "ImageSets" / "Main" / "train.txt").write_bytes(text)

    return change


NO_DTD = "document type or entities"
WITH_DTD = document(OBJECT.format("&e;", 5, 25), before=DTD)

VOC_CASES: dict[str, Case] = {
    "entity": (xml(WITH_DTD), NO_DTD),
    "entity in UTF-16 with a mark": (xml(WITH_DTD, "utf-16"), NO_DTD),
    "entity in UTF-16LE without a mark": (xml(WITH_DTD, "utf-16-le"), NO_DTD),
    "entity in UTF-16BE without a mark": (xml(WITH_DTD, "utf-16-be"), NO_DTD),
    "entity in UTF-16LE after a space": (xml(" " + WITH_DTD, "utf-16-le"), "NUL characters"),
    "entity in UTF-16LE before anything else": (xml(WITH_DTD.partition("?>")[2], "utf-16-le"), NO_DTD + "|NUL characters"),
    "entity in UTF-32": (xml(WITH_DTD, "utf-32"), "NUL characters|not utf-16"),
    "entity in UTF-7": (
        xml(document(OBJECT.format("&e;", 5, 25), before=DTD, declared=' encoding="utf-7"'), "utf-7"), NO_DTD + "|is not utf-8|are not"
    ),
    "a billion laughs": (xml(laughs()), NO_DTD),
    "a file as an entity": (
        xml(document(OBJECT.format("&e;", 5, 25), before='<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]>')), NO_DTD
    ),
    "a file as a document type": (xml(document(before='<!DOCTYPE a SYSTEM "file:///etc/passwd">')), NO_DTD),
    "good in UTF-16LE without a mark": (xml(document(declared=' encoding="utf-16"'), "utf-16-le"), ""),
    "good in UTF-16BE without a mark or declaration": (xml(document(), "utf-16-be"), ""),
    "encoding that is none": (xml(document(declared=' encoding="nonsense"')), "are not nonsense text"),
    "encoding that cannot decode": (xml(document(declared=' encoding="undefined"')), "not valid XML|are not"),
    "encoding that is a packer": (xml(document(declared=' encoding="zlib_codec"')), "are not zlib_codec text"),
    "no XML": (xml("hello"), "not valid XML"),
    "nothing": (xml(""), "not valid XML"),
    "torn": (xml(document()[:-20]), "not valid XML"),
    "nested a hundred thousand deep": (xml(document("<a>" * 100_000 + "</a>" * 100_000)), ""),
    "nested in its root": (xml("<a>" * 100_000), "not valid XML"),
    "another root": (xml("<a" + "b" * 100_000 + "/>"), "its root is <abbb"),
    "nine mebibytes": (xml(" " * (9 << 20)), "the limit is"),
    "a tebibyte": (at(FIRST, lambda path: sparse(path, 1 << 40)), "the limit is"),
    "named pipe": (at(FIRST, fifo), "a named pipe"),
    "socket": (at(FIRST, unix_socket), "a socket"),
    "endless zeros": (at(FIRST, zeros), "a device"),
    "folder": (at(FIRST, lambda path: (path.unlink(), path.mkdir())), "a folder"),
    "no name": (xml(document(OBJECT.format(" ", 5, 25))), "object 1 has no <name>"),
    "name of a megabyte": (xml(document(OBJECT.format("x" * 10**6, 5, 25))), "more than 1,000"),
    "name with a line break": (xml(document(OBJECT.format("a\nforged", 5, 25))), ""),
    "name with control characters": (xml(document(OBJECT.format("a\x9b1m\u202eb", 5, 25))), ""),
    "edge that is no number": (xml(document(OBJECT.format("cat", "nan", 25))), "<xmin> is 'nan'"),
    "edge of a megabyte": (xml(document(OBJECT.format("cat", "1" * 10**6, 25))), "<xmin> is '111"),
    "edges of 1e308": (xml(document(OBJECT.format("cat", "-1e308", "1e308"))), ""),
    "image of 1e308 pixels": (xml(document(side="1e308")), "not a number of pixels"),
    "file's name out of the folder": (xml(document(name="../../../etc/passwd")), ""),
    "file's name with a line break": (
        at("Annotations", lambda path: (path / "x.xml").write_text(document(name="a\nforged.png"))), "x.jpg: not found"
    ),
    "XML with a line break in its name": (renamed(FIRST, "a\nforged.xml"), "line break"),
    "set with NULs": (a_set(b"0\0\n"), "NUL characters"),
    "set out of the folder": (a_set(b"../../etc/passwd\n"), "do not match an XML file"),
    "set with escape sequences": (a_set(f"{ESCAPE}\n".encode()), "do not match an XML file"),
    "20,000 alike objects": (xml(document("".join([GOOD] * 20_000))), ""),
}  # fmt: skip

VOC = Family("Pascal VOC", voc, read_voc_set, voc_words, VOC_CASES)
