"""What the check pages of boxes and of class folders share: notices, numbers of photos, and the templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from paceline.data.index import Index
from paceline.data.orientation import UPRIGHT


class Notice(NamedTuple):
    """Something to know before training.

    colour  "bad" or "fair"
    noted   the manifest's notes, which prepare prints, say it already
    """

    colour: str
    text: str
    noted: bool = False


class Page(NamedTuple):
    """A check page. verdict: colour and words."""

    html: str
    verdict: tuple[str, str]
    notices: list[Notice]


def render(template: str, **content: Any) -> str:
    """A template of this folder as HTML. Everything is escaped: class names and paths come from other people's folders."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    return environment.get_template(template).render(**content)


def share_rows(counts: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
    """-> of each split, the share of each count in the split's sum, and the largest share of any, 1 where all are 0."""
    shares = {split: values / max(int(values.sum()), 1) for split, values in counts.items()}
    return shares, max((float(share.max(initial=0)) for share in shares.values()), default=0) or 1.0


def twins(splits: Mapping[str, Index]) -> list[tuple[int, int]]:
    """Rows (train, val) of photos of equal content, a pair for each such photo of val."""
    if "train" not in splits or "val" not in splits:
        return []
    train, val = (np.asarray(splits[split].extra["digests"]) for split in ("train", "val"))
    order = np.argsort(train, kind="stable")
    place = np.minimum(np.searchsorted(train[order], val), max(len(train) - 1, 0))
    same = np.flatnonzero(train[order][place] == val) if len(train) else []
    return [(int(order[place[row]]), int(row)) for row in same]


def image_size(index: Index) -> tuple[str, str]:
    """-> the most frequent size with its share, and the range."""
    if not len(index):
        return "no images", ""
    sizes, counts = np.unique(np.stack([index.widths, index.heights], axis=1), axis=0, return_counts=True)
    width, height = sizes[counts.argmax()]
    share = counts.max() / len(index)
    most = f"{width} x {height} px in {100 * share:.0f} % of the images"
    if len(sizes) == 1:
        return f"all {width} x {height} px", ""
    return (
        most,
        f"{index.widths.min()} to {index.widths.max()} wide, {index.heights.min()} to {index.heights.max()} high",
    )


def where(mask: np.ndarray, classes: Sequence[str]) -> list[str]:
    """Names of the classes for which `mask` is true."""
    return [name for name, wanted in zip(classes, mask.tolist()) if wanted]


def turned_photos(splits: Mapping[str, Index]) -> list[tuple[str, int]]:
    """(split, row) of each photo that carries an EXIF rotation."""
    return [
        (split, row)
        for split, index in splits.items()
        for row in np.flatnonzero(index.orientations != UPRIGHT).tolist()
    ]


def turned_notice(splits: Mapping[str, Index], count: int) -> list[Notice]:
    """Where there are such photos: how the page, and which recipes, show them."""
    if not count:
        return []
    shown = all(index.exif == "apply" for index in splits.values())
    how = "upright here, as --input.exif apply trains on them" if shown else "as stored here, as the annotations count"
    return [Notice("fair", f"Photos with an EXIF rotation: {count:,}, {how}.", noted=True)]
