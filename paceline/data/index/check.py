"""Check that the arrays of an index from somebody else fit each other: one pass over each, before one is indexed by another.

Letters as in index.py and box_split.py: N records, F files, K classes, M objects, P polygon coordinates, Q polygons, R runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]
# One entry of each record; arrays that are not there are not checked.
OF_RECORDS = (
    *("files", "offsets", "lengths", "labels", "heights", "widths"),
    *("stored_lengths", "flags", "digests", "image_ids"),
)
OF_OBJECTS = ("classes", "crowd", "areas", "annotation_ids", "usable")
# Starts of rows -> the things that they are starts of, and the array that the rows are cut from.
STARTS = {
    "name_starts": ("files", "name_bytes"),
    "record_starts": ("records", "record_bytes"),
    "object_starts": ("records", "classes"),
    "polygon_starts": ("polygons", "polygon_points"),
    "object_polygons": ("objects", ""),
    "object_rles": ("objects", "rle_counts"),
}
FINITE = ("boxes", "areas", "polygon_points")


def find_contradiction(arrays: Arrays, *, classes: int, own_files: bool, boxes: bool) -> str:
    """Why the arrays of one split cannot be right, in words; "" where they can.

    classes    K
    own_files  whether each record is a file of its own
    boxes      whether objects have the classes, 1..K, and not records, 0..K-1
    """
    records, files = len(arrays["lengths"]), len(arrays["lengths" if own_files else "file_sizes"])
    objects, polygons = len(arrays.get("classes", ())), max(0, len(arrays.get("polygon_starts", ())) - 1)
    counts = {"records": records, "files": files, "objects": objects, "polygons": polygons}
    rows = {**dict.fromkeys(OF_RECORDS, records), **dict.fromkeys(OF_OBJECTS, objects)}
    for name, array in arrays.items():
        if name in rows and array.shape != (rows[name],):
            return f"{name} has the shape {array.shape}, and there are {rows[name]:,}"
        if name in (*rows, *STARTS) and name not in FINITE and array.dtype.kind not in "iub":
            return f"{name} holds no whole numbers"
        if name in FINITE and (array.dtype.kind != "f" or not np.isfinite(array).all()):
            return f"{name} holds what is no finite number"
    if "boxes" in arrays and arrays["boxes"].shape != (objects, 4):
        return f"boxes has the shape {arrays['boxes'].shape}, and there are {objects:,}"
    for name, (of, cut) in STARTS.items():
        if name in arrays:
            end = polygons if not cut else len(arrays[cut]) if cut in arrays else 0
            starts, pieces = arrays[name], counts[of]
            fits = starts.shape == (pieces + 1,) and int(starts[0]) == 0 and int(starts[-1]) == end
            if not (fits and bool((starts[1:] >= starts[:-1]).all())):
                return f"{name} does not cut {end:,} into {pieces:,}"
    limits: list[tuple[str, int, int | None]] = [("files", 0, files), ("stored_lengths", -1, None)]
    limits += [(name, 0, None) for name in ("offsets", "lengths", "heights", "widths", "file_sizes")]
    limits += [("classes", 1, classes + 1)] if boxes else [("labels", 0, classes)]
    for name, least, beyond in limits:
        if name in arrays and len(array := arrays[name]):
            low, high = int(array.min()), int(array.max())
            if low < least or (beyond is not None and high >= beyond):
                what = "label" if name in ("labels", "classes") else name
                most = "" if beyond is None else f" to {beyond - 1:,}"
                return f"{what} {low if low < least else high:,}, and {least:,}{most} are possible"
    return ""
