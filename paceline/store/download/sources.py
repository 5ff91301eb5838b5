"""The data sets that `paceline download` knows: one row a file, with its official addresses, bytes and digest.

COCO publishes no digests. Those below are what TensorFlow Datasets recorded from the official address
(tensorflow_datasets/url_checksums/coco.txt) and what torchvision checks (prototype/datasets/_builtin/coco.py): the two agree.
The zips' own CRCs are checked when they are unpacked, and `prepare` counts and decodes every photo.
ImageNet: bytes as in tensorflow_datasets/url_checksums/imagenet2012.txt, MD5 as in torchvision/datasets/imagenet.py (ARCHIVE_META);
the devkit's bytes are published nowhere. VOC: bytes and SHA-256 as in url_checksums/voc.txt, addresses and MD5 as in
torchvision/datasets/voc.py.
COCO's two addresses are one bucket; by TLS it is the second. The rows are sources.json's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.config.table import read_menu


@dataclass(frozen=True)
class Archive:
    """One file to bring."""

    path: str  # under the publisher's address; a mirror may have it there or by its name alone
    size: int | None  # bytes; None where no publisher says
    sha256: str = ""
    md5: str = ""
    bases: tuple[str, ...] = ()  # addresses; none where an account is needed
    gives: tuple[tuple[str, int], ...] = ()  # what it unpacks to: a folder and its files, or a file and 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def urls(self) -> list[str]:
        """The official addresses."""
        return [f"{base}/{self.path}" for base in self.bases]


@dataclass(frozen=True)
class DataSet:
    """One row of the menu."""

    about: str  # one line
    archives: tuple[Archive, ...]
    prepare: tuple[str, ...] = ()  # words of `paceline prepare` before and after the folder
    inside: str = ""  # where in the folder the data set lies once it is unpacked
    recipe: str = ""  # one that trains on it
    account: str = ""  # where the files are given out, where that takes an account


DATA_SETS = read_menu(Path(__file__).with_suffix(".json"), DataSet)
