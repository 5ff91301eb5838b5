"""An index over photos that a test made, as prepare leaves one: what a report shows must be listed by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paceline.data.index.index import describe_arrays, file_per_record_arrays, write_index
from paceline.data.index.manifest import Manifest, Split


def list_photos(root: Path, names: Sequence[str], *, folder: Path | None = None) -> None:
    """A manifest with the split val of `names`, relative to `root`; in `folder`, or in `root` itself."""
    ones, place = np.ones(len(names)), (folder or root).absolute()
    place.mkdir(parents=True, exist_ok=True)
    encoded = [name.encode(errors="surrogateescape") for name in names]
    arrays = file_per_record_arrays(encoded, lengths=ones, labels=0 * ones, heights=ones, widths=ones, extra={})
    counts = dict.fromkeys(("bytes", "rotated", "grayscale", "cmyk", "not_jpeg", "misnamed", "ignored"), 0)
    split = Split(
        **counts, folder="val", images=len(names), per_class=(len(names),), content_hash="", unreadable=(),
        directory_mtimes=(0,), arrays=describe_arrays(arrays),
    )  # fmt: skip
    index = write_index(place, {"val": arrays})
    where = "." if folder is None else str(root.absolute())
    Manifest("class-folder", "any", where, ("a",), None, index, {"val": split}, "test", place).save()
