"""Weights that their makers publish, by the names of `paceline weights get`. torchvision's carry the beginning of their SHA-256 in the
file's name; TensorFlow's backbone has MD5s in Habana's README (branch 0.14.0), GluonCV's files SHA-1s in its model_store.py.
The rows are published.json's. `rules`: torchvision's newer recipe is evaluated on a larger crop; its Mask R-CNN has no epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.config.table import read_menu


@dataclass(frozen=True)
class File:
    """One file: where it is, and what its content must be."""

    url: str = ""
    package: str = ""  # in place of an address: a package for Python that `pip install` brings, and that holds it
    sha256_prefix: str | None = None
    md5: str | None = None
    sha1: str | None = None
    member: str = ""  # what is kept of a zip, or of a package

    @property
    def name(self) -> str:
        """As it is kept; the address's last part."""
        return self.member or self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Published:
    """One set of weights."""

    about: str
    files: tuple[File, ...]
    train: str = ""  # flags that go with it
    rules: Mapping[str, Any] = field(default_factory=dict)  # how its maker evaluates it, by dotted fields of a recipe


PUBLISHED = read_menu(Path(__file__).with_suffix(".json"), Published)
