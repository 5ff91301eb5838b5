"""What `paceline data pack` writes, read by the tools whose formats it is.

    python scripts/check_pack.py DATA... --mxnet PYTHON --webdataset PYTHON --tensorflow PYTHON [--out LOG]

Each DATA is a data set of class folders or boxes; each PYTHON an interpreter that has that tool (mxnet 1.9.1 with numpy<1.24 and
opencv-python-headless; webdataset with pillow; tensorflow); what is left out is not checked. Every set is packed as it is, shuffled in
several files, and smaller; the tool (scripts/packs/) must find every photo to the last byte, in order, under its class or with its
boxes as DATA has them. One line a pack; exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import SILENT
from paceline.data.index.box_split import BoxSplit
from paceline.data.index.manifest import Manifest
from paceline.data.pack.pack import pack
from paceline.data.pack.plan import VALIDATION, Form, PackRequest, PackSplit, encode, open_sources
from paceline.data.pack.write import fits_label
from paceline.data.prepare.auto_prepare import prepare_source

TOOLS: dict[Form, tuple[str, str]] = {
    "recordio": ("mxnet_reads.py", ".rec"),
    "webdataset": ("webdataset_reads.py", ".tar"),
    "tfrecord": ("tensorflow_reads.py", ".tfrecord"),
}
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "shuffled, in 3 files": {"order": "shuffled", "seed": 5, "shards": 3},
    "short 96, quality 80": {"short": 96, "quality": 80},
}


def check(manifest: Manifest, request: PackRequest, python: str, folder: Path) -> str:
    """Pack, let the tool read, compare; -> what was the same. Raises AssertionError with what was not."""
    pack(manifest, request, folder)
    script, suffix = TOOLS[request.format]
    command = [python, Path(__file__).parent / "packs" / script, *sorted(folder.glob(f"*{suffix}"))]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, f"{script} ended with {run.returncode}: {run.stderr.strip()[-1500:]}"
    said = json.loads(run.stdout)
    photos = total = objects = 0
    for split, source in open_sources(manifest, request).items():
        called = (split, VALIDATION) if split == "val" else (split,)
        files = [found for name, found in sorted(said["files"].items()) if name.split("-")[0].split(".")[0] in called]
        rows = [row for found in files for row in found["rows"]]
        assert len(rows) == len(source.order), f"{split}: {len(rows)} records, {len(source.order)} were packed"
        for place, (key, label, digest, size) in enumerate(rows):
            row = int(source.order[place])
            data = source.index.read(row)
            data = encode(data, request.resize_shorter_side, request.encode_quality).data if source.anew[row] else data
            where = f"{split} {place} ({key})"
            assert hashlib.sha256(data).hexdigest() == digest, f"{where}: other bytes"
            objects += same_label(source, place, key, label, size, where)
            photos, total = photos + 1, total + len(data)
        if request.format == "recordio":
            same_by_iterator(source, [one for found in files for one in found["iterator"]], split)
    what = f", {objects:,} objects" if objects else ""
    return f"{said['version']}: {photos:,} photos, {total:,} bytes{what} in {len(said['files'])} files"


def same_label(source: PackSplit, place: int, key: Any, label: Any, size: list[int], where: str) -> int:
    """Compare one record's name and label; -> its objects."""
    row, boxes = int(source.order[place]), source.boxes
    name = source.names[row].decode()
    if isinstance(label, dict) and "source_id" in label:
        return same_example(boxes, row, label, where)
    if suffix_of(key):
        assert key == name, f"{where}: it should be called {name}"
    elif isinstance(key, str):
        assert key == name[: name.rindex(".")], f"{where}: its key should be {name}"
    else:
        assert key == place, where
    if boxes is None:
        found = label if isinstance(label, int) else label[0]
        assert found == source.index.labels[row], f"{where}: class {found}, not {source.index.labels[row]}"
        return 0
    if isinstance(label, dict):
        return same_objects(boxes, row, label, size, where)
    wanted = label_of(boxes, row)
    found = real(label[2:])
    assert label[:2] == [2, 5] and np.array_equal(found, wanted), f"{where}: {found} instead of {wanted}"
    return len(found)


def suffix_of(key: Any) -> bool:
    """Whether a record is called as a file is, by an Example; WebDataset's keys have no suffix, MXNet's are numbers."""
    return isinstance(key, str) and "." in key.rpartition("/")[2]


def same_example(boxes: BoxSplit | None, row: int, label: dict[str, Any], where: str) -> int:
    """Compare the objects of one Example with the source."""
    assert boxes is not None and label["source_id"] == str(boxes.image_ids[row]), where
    wanted = boxes.objects(row)
    kept = np.flatnonzero(wanted.usable)
    assert len(label["objects"]) == len(kept), where
    for said, place in zip(label["objects"], kept.tolist(), strict=True):
        x, y, width, height = wanted.boxes[place]
        sides = np.array([boxes.widths[row], boxes.heights[row]] * 2, np.float64)
        corners = np.clip(np.array([x, y, x + width, y + height]) / sides, 0, 1).astype(np.float32)
        number = wanted.classes[place] - 1
        assert said[:2] == [int(boxes.category_ids[number]), boxes.names[number]], where
        assert np.array_equal(np.array(said[2:6], np.float32), corners) and said[6] == int(wanted.crowd[place]), where
    return len(kept)


def same_objects(boxes: BoxSplit, row: int, label: dict[str, Any], size: list[int], where: str) -> int:
    """Compare the JSON of one photo with the source, boxes in fractions of the photo."""
    found, wanted = label["annotations"], boxes.objects(row)
    assert (label["image_id"], len(found)) == (int(boxes.image_ids[row]), len(wanted.boxes)), where
    fractions = np.array([entry["bbox"] for entry in found]).reshape(-1, 4) / (size[1], size[0], size[1], size[0])
    whole = (boxes.widths[row], boxes.heights[row]) * 2
    np.testing.assert_allclose(fractions, wanted.boxes / whole, rtol=1e-12, atol=0, err_msg=where)
    for key, values in (
        ("category_id", boxes.category_ids[wanted.classes - 1]),
        ("category", [boxes.names[k - 1] for k in wanted.classes]),
        ("iscrowd", wanted.crowd),
        ("id", wanted.annotation_ids),
    ):
        assert [entry[key] for entry in found] == list(values), f"{where}: {key}"
    return len(found)


def real(numbers: Any) -> np.ndarray:
    """(M, 5) float32 objects of a label, without the padding of class -1 that stands for none."""
    objects = np.array(numbers, np.float32).reshape(-1, 5)
    return objects[objects[:, 0] >= 0]


def label_of(boxes: BoxSplit, row: int) -> np.ndarray:
    """(M, 5) float32: class from 0 and corners as fractions, of the objects that training uses."""
    wanted = boxes.objects(row)
    kept = fits_label(boxes)[wanted.first : wanted.first + len(wanted.boxes)]
    x, y, width, height = wanted.boxes[kept].T
    sides = np.array([boxes.widths[row], boxes.heights[row]] * 2, np.float64)
    corners = np.clip(np.stack([x, y, x + width, y + height], axis=1) / sides, 0, 1)
    return np.column_stack([wanted.classes[kept] - 1, corners]).astype(np.float32)


def same_by_iterator(source: PackSplit, found: list[Any], split: str) -> None:
    """Compare what MXNet's own iterators gave."""
    assert len(found) == len(source.order), f"{split}: its iterator gives {len(found)} labels"
    for place, row in enumerate(source.order.tolist()):
        if source.boxes is None:
            assert found[place] == source.index.labels[row], f"{split} {place}: its iterator gives class {found[place]}"
        else:
            got, wanted = real(found[place]), label_of(source.boxes, row)
            # The iterator drops boxes that float32 leaves without area.
            assert np.array_equal(got, wanted[(wanted[:, 3] > wanted[:, 1]) & (wanted[:, 4] > wanted[:, 2])]), (
                split,
                place,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--mxnet", metavar="PYTHON")
    parser.add_argument("--webdataset", metavar="PYTHON")
    parser.add_argument("--tensorflow", metavar="PYTHON")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    same = True
    for data in asked.data:
        manifest = prepare_source(str(data), SILENT)
        tools: list[tuple[Form, str | None]] = [
            ("recordio", asked.mxnet),
            ("webdataset", asked.webdataset),
            ("tfrecord", asked.tensorflow),
        ]
        for to, python in tools:
            if python is None:
                continue
            for name, changes in CHANGES.items():
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        what = check(manifest, PackRequest(to, **changes), python, Path(folder) / "packed")
                        say(f"same       {data.name} --to {to} ({name}): {what}")
                    except (AssertionError, PacelineError) as error:
                        same = False
                        say(f"DIFFERENT  {data.name} --to {to} ({name}): {str(error)[:2000]}")
    say("all the same" if same else "not the same")
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
