"""Find the label file of each YOLO image, and the label files without an image.

A label lies in the image's folder with its last `images` replaced by `labels`, or in the image's own folder if no part is called
`images`; it has the image's name with the suffix .txt. If it is not there, the folders around the image are searched for the only
file that differs in case, Unicode form, spaces, URL encoding, or suffix (a.TXT, a.jpg.txt).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from paceline.config.names import OTHER_PICTURES, is_image_name, suffix_of
from paceline.config.plain_file import open_plain
from paceline.config.printable import counted, one_line, some
from paceline.datasets.formats.near_names import NearNames, form_of, grouped, loose_form_of

IMAGE_FOLDERS = ("images", "image", "imgs", "img")
# A line of a label has at least a class and a box. Lists and read-me files lie next to labels, too.
LEAST_NUMBERS, BEGINNING = 5, 1 << 12


def label_path(image: str) -> str:
    """Where the label of `image` is expected."""
    folder, name = os.path.split(image)
    parts = folder.split(os.sep)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"  # the last one
    return os.path.join(os.sep.join(parts), os.path.splitext(name)[0] + ".txt")


class LabelFiles:
    """The label files of all images of a data set.

    Args:
        splits (dict[str, list[str]]): paths of the images of each split.
    """

    def __init__(self, splits: dict[str, list[str]]) -> None:
        self._near = NearNames()
        self._folders, self._by_form = cache(self._near_folders), cache(self._labels_by_form)
        self._stems = cache(lambda folder: {os.path.splitext(name)[0] for name in self._pictures(folder)})
        images = dict.fromkeys(image for paths in splits.values() for image in paths)
        self.paths = {image: path for image in images if os.path.lexists(path := label_path(image))}  # image -> label
        self.near: dict[str, str] = {}  # those found under another name
        counts = Counter(self.paths.values())
        for image, path in self.paths.items():  # a.jpg and a.png would share a.txt
            full = os.path.join(os.path.dirname(path), f"{os.path.basename(image)}.txt")
            if counts[path] > 1 and os.path.lexists(full):
                self.near[image] = full
        self.paths |= self.near
        used = set(self.paths.values())
        for image in images:
            if image not in self.paths and (label := self._search(image, used)):
                self.near[image] = label
        self.paths |= self.near

    def notes(self, split: str, images: Sequence[str], folder: str) -> list[str]:
        """Lines on labels that were found under another name, and on images without one."""
        near = [image for image in images if image in self.near]
        without = sum(image not in self.paths for image in images)
        notes = []
        if near:
            first = f"{shown(self.near[near[0]], folder)} for {shown(near[0], folder)}"
            notes.append(
                f"{split}: {counted(len(near), 'label file')} read under another name or place, the first is {first}"
            )
        if without:
            notes.append(f"{split}: {without:,} of {len(images):,} images have no label file: images without objects")
        return notes

    def shared(self, with_objects: Iterable[str]) -> list[str]:
        """A line per label file that is the label of two or more images with objects."""
        owners: dict[str, list[str]] = {}
        for image in dict.fromkeys(with_objects):
            owners.setdefault(self.paths[image], []).append(image)
        return [
            f"{label}: this label file belongs to {len(images)} images ({some(map(os.path.basename, images))}). Keep one of the "
            "images, or give each a name and a label of its own"
            for label, images in owners.items()
            if len(images) > 1
        ]

    def unused(self, images: Iterable[str]) -> list[str]:
        """The label files with objects, in the folders of the labels of `images`, that belong to no image in their folders."""
        listed, used = set(images), set(self.paths.values())
        folders = {os.path.dirname(path): os.path.dirname(self.paths.get(path, label_path(path))) for path in images}
        others: dict[str, set[str]] = {}  # folder of labels -> forms of the stems of images that no split lists
        for folder, labels in folders.items():
            pictures = (name for name in self._pictures(folder) if os.path.join(folder, name) not in listed)
            others.setdefault(labels, set()).update(form_of(os.path.splitext(name)[0]) for name in pictures)
        return [
            path
            for folder, stems in others.items()
            for path in (os.path.join(folder, name) for name in self._near.names(folder))
            if path not in used
            and stems.isdisjoint(map(form_of, _stems_of(os.path.basename(path))))
            and _is_label(path)
        ]

    def _pictures(self, folder: str) -> list[str]:
        names = self._near.names(folder)
        return [
            name for name in names if is_image_name(os.fsencode(name)) or suffix_of(os.fsencode(name)) in OTHER_PICTURES
        ]

    def _search(self, image: str, used: set[str]) -> str:
        """The only label around `image` that its name fits; "" for none or several."""
        folder, name = os.path.split(image)
        stem = os.path.splitext(name)[0]
        for form in (form_of, loose_form_of):
            for place in self._folders(folder):
                names = self._by_form(place, form).get(form(stem), ())
                names = [
                    one for one in names if (own := os.path.splitext(one)[0]) == stem or own not in self._stems(folder)
                ]
                paths = [path for path in (os.path.join(place, one) for one in names) if path not in used]
                if paths:
                    return paths[0] if len(paths) == 1 else ""
        return ""

    def _labels_by_form(self, folder: str, form: Callable[[str], str]) -> dict[str, list[str]]:
        """The .txt files of a folder by the forms of the stems of the images that they may belong to."""
        return grouped((form(stem), name) for name in self._near.names(folder) for stem in _stems_of(name))

    def _near_folders(self, folder: str) -> list[str]:
        """Where the labels of the images in `folder` may lie, the usual folder first."""
        parts = folder.split(os.sep)
        above, own = os.path.split(folder)
        tried: list[tuple[str, ...]] = []
        for at in range(len(parts) - 1, 0, -1):
            if parts[at].lower() in IMAGE_FOLDERS:
                labels = (os.sep.join(parts[:at]) or os.sep, "labels")
                tried += [(*labels, *parts[at + 1 :]), labels]
        tried += [(folder,), (folder, "labels"), (above, "labels", own), (above, "labels")]
        usual = os.path.dirname(label_path(os.path.join(folder, "x")))
        return list(dict.fromkeys([usual, *(place for way in tried for place in self._near.below(*way))]))


def shown(path: str, folder: str) -> str:
    """`path` for a message, relative to `folder`."""
    return one_line(os.path.relpath(path, folder))


def _stems_of(label: str) -> list[str]:
    """Stems of the images that a label file may belong to: a for a.txt, and a for a.jpg.txt; none if it is not a .txt file."""
    stem, suffix = os.path.splitext(label)
    if suffix.lower() != ".txt":
        return []
    inner, suffix = os.path.splitext(stem)
    return [stem, inner] if suffix.lower() == ".txt" or is_image_name(os.fsencode(stem)) else [stem]


def _is_label(path: str) -> bool:
    """True if the first line of a .txt file holds the numbers of an object."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            words = next(iter(file.read(BEGINNING).split(b"\n")), b"").split()
        return path.lower().endswith(".txt") and len([float(word) for word in words]) >= LEAST_NUMBERS
    except (OSError, ValueError):
        return False
