"""Find the label file of each YOLO image, and the label files without an image.

A label lies in the image's folder with its last `images` replaced by `labels`, or in the image's own folder if no part is called
`images`; it has the image's name with the suffix .txt. If it is not there, the folders around the image are searched for the only
file that differs in case, Unicode form, spaces, URL encoding, or suffix (a.TXT, a.jpg.txt).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from paceline._utils.names import OTHER_PICTURES, get_suffix, is_image_name, walk_visible
from paceline._utils.safe_read import open_plain
from paceline._utils.text import escape_line, format_count, join_names
from paceline.data.formats.file_matching import NearNames, fold_name, fold_name_loosely, group_pairs

IMAGE_FOLDERS = ("images", "image", "imgs", "img")
# Captions, lists and read-me files lie next to labels, too. A wrong label may lack a number.
MIN_NUMBERS, BEGINNING = 4, 1 << 12


def label_path(image: str) -> str:
    """Where the label of `image` is expected."""
    folder, name = os.path.split(image)
    parts = folder.split(os.sep)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"  # the last one
    return os.path.join(os.sep.join(parts), f"{_stem(name)}.txt")


class LabelFiles:
    """The label files of the images of all splits of a data set.

    Args:
        images (Iterable[str]): paths of the images.
    """

    def __init__(self, images: Iterable[str]) -> None:
        self._images = dict.fromkeys(images)
        self._near = NearNames()
        self._folders, self._by_form = cache(self._near_folders), cache(self._labels_by_form)
        self._names = cache(lambda folder: {one for name in self._pictures(folder) for one in (name, _stem(name))})
        # paths: the label of each image; near: of those, the labels that were found under another name.
        self.paths = {image: path for image in self._images if os.path.lexists(path := label_path(image))}
        used = set(self.paths.values())
        lacking = (image for image in self._images if image not in self.paths)
        self.near = {image: path for image in lacking if (path := self._search(image, used))}
        self.paths |= self.near

    def notes(self, split: str, images: Sequence[str], folder: str) -> list[str]:
        """Lines on labels that were found under another name, and on images without one."""
        near = [image for image in images if image in self.near]
        without = sum(image not in self.paths for image in images)
        notes = []
        if near:
            first = f"{format_relative(self.near[near[0]], folder)} for {format_relative(near[0], folder)}"
            notes.append(
                f"{split}: {format_count(len(near), 'label file')} read under another name or place, first {first}"
            )
        if without:
            notes.append(f"{split}: {without:,} of {len(images):,} images have no label file: images without objects")
        return notes

    def shared(self, with_objects: Iterable[str]) -> list[str]:
        """A line per label file that is the label of two or more images with objects."""
        owners = group_pairs((self.paths[image], image) for image in dict.fromkeys(with_objects))
        return [
            f"{label}: this label file belongs to {len(images)} images ({join_names(images)}). Keep one of the "
            "images, or give each a name and a label of its own"
            for label, images in owners.items()
            if len(images) > 1
        ]

    def unused(self) -> list[str]:
        """The label files with objects, in the folders of the labels and below, that belong to no image."""
        used, others = set(self.paths.values()), dict[str, set[str]]()
        pairs = ((image, self.paths.get(image) or label_path(image)) for image in self._images)
        for folder, labels in dict.fromkeys(tuple(map(os.path.dirname, pair)) for pair in pairs):
            for location in [labels] if labels == folder else [location for location, _, _ in walk_visible(labels)]:
                images = os.path.normpath(os.path.join(folder, os.path.relpath(location, labels)))
                # Labels of images that no split lists are not missed.
                names = (name for name in self._pictures(images) if os.path.join(images, name) not in self._images)
                others.setdefault(location, set()).update(fold_name(_stem(name)) for name in names)
        files = [
            (stems, os.path.join(location, name))
            for location, stems in others.items()
            for name in self._near.names(location)
        ]
        files = [(stems, path) for stems, path in files if path not in used]
        return sorted(
            path for stems, path in files if (own := _stems_of(path)) and stems.isdisjoint(own) and _is_label(path)
        )

    def _pictures(self, folder: str) -> list[str]:
        names = ((name, os.fsencode(name)) for name in self._near.names(folder))
        return [name for name, raw in names if is_image_name(raw) or get_suffix(raw) in OTHER_PICTURES]

    def _search(self, image: str, used: set[str]) -> str:
        """The only label around `image` that its name fits; "" for none or several."""
        folder, name = os.path.split(image)
        own = (name, _stem(name))
        for form, wanted in itertools.product((fold_name, fold_name_loosely), own):
            for location in self._folders(folder):
                names = self._by_form(location, form).get(form(wanted), ())
                names = [label for label in names if _stem(label) in own or _stem(label) not in self._names(folder)]
                paths = [path for one in names if (path := os.path.join(location, one)) not in used and _is_label(path)]
                if paths:
                    return paths[0] if len(paths) == 1 else ""
        return ""

    def _labels_by_form(self, folder: str, form: Callable[[str], str]) -> dict[str, list[str]]:
        """The .txt files of a folder by the forms of the stems of the images that they may belong to."""
        return group_pairs((stem, name) for name in self._near.names(folder) for stem in _stems_of(name, form))

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
        return list(dict.fromkeys([usual, *(location for way in tried for location in self._near.below(*way))]))


def format_relative(path: str, folder: str) -> str:
    """`path` for a message, relative to `folder`."""
    return escape_line(os.path.relpath(path, folder))


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _stems_of(label: str, form: Callable[[str], str] = fold_name) -> list[str]:
    """Forms of what the images are called that a label file may belong to: a for a.txt, a.jpg and a for a.jpg.txt."""
    stem = _stem(os.path.basename(label))
    twice = stem.lower().endswith(".txt") or is_image_name(os.fsencode(stem))
    return [form(one) for one in ([stem, _stem(stem)] if twice else [stem])] if label.lower().endswith(".txt") else []


def _is_label(path: str) -> bool:
    """True if the first line of a .txt file holds the numbers of an object."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            words = re.split(rb"[\s,;]+", file.read(BEGINNING).lstrip().partition(b"\n")[0].strip())
        return len([float(word) for word in words]) >= MIN_NUMBERS
    except (OSError, ValueError):
        return False
