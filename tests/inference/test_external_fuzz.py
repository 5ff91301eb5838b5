"""No bytes in a file of predictions cause anything but rows or one message: a property test of the readers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline._utils.errors import DataError, PacelineError
from paceline.inference.external_predictions import read_rows
from paceline.inference.external_scores import _strings, match_classes, match_images

FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
HEIGHT, WIDTH = 6, 8
FILES, IDS = [f"/set/val2017/{n}.jpg" for n in range(1, 5)], [4, 3, 2, 1]

numbers = st.one_of(
    st.integers(-2, 70), st.floats(), st.booleans(), st.none(), st.just(10**400), st.sampled_from(["1", "2.0", "x", ""])
)
shallow = st.one_of(
    numbers, st.text(max_size=4), st.lists(numbers, max_size=5), st.dictionaries(st.text(max_size=3), numbers)
)
runs = st.one_of(st.text(max_size=9), st.lists(numbers, max_size=5), numbers)
masks = st.one_of(
    shallow,
    st.lists(st.lists(numbers, max_size=8), max_size=3),
    st.fixed_dictionaries({"size": st.sampled_from([[HEIGHT, WIDTH], [WIDTH, HEIGHT], None]), "counts": runs}),
)
entries = st.fixed_dictionaries(
    {"score": numbers},
    optional={
        "image_id": st.one_of(st.sampled_from([1, "2", "3.0", "val2017/1.jpg"]), shallow),
        "file_name": st.one_of(st.sampled_from(["1.jpg", "train2017/1.jpg"]), shallow),
        "category_id": st.one_of(st.sampled_from([1, "2"]), shallow),
        "category_name": st.one_of(st.just("disc"), shallow),
        "bbox": st.one_of(st.lists(numbers, min_size=4, max_size=4), shallow),
        "segmentation": masks,
    },
)
cells = st.one_of(st.text(max_size=6), numbers.map(str), st.sampled_from(["file", "class", "score", "x", "y", "w", "h"]))


def read(path: Path) -> bool:
    """Read, match and decode all rows; -> False if that ended with a message, which is short and of one file."""
    try:
        rows = read_rows(path)
        assert len(rows.places) == len(rows.photos) == len(rows.classes) == len(rows.scores) == len(rows.boxes)
        assert np.isfinite(rows.boxes).all() and np.isfinite(rows.scores).all()
        places, _ = match_images(rows, path, FILES, IDS)
        classes = match_classes(rows, path, ["square", "disc"], [1, 2], (), 0)
        assert set(places.tolist()) <= set(range(4)) and set(classes.tolist()) <= {0, 1}
        if rows.kind == "masks":
            strings, _ = _strings(rows, 0, np.tile([HEIGHT, WIDTH], (len(rows.masks), 1)), path)
            assert len(strings) == len(rows.masks)
    except (DataError, PacelineError) as problem:
        assert str(path) in str(problem) and len(str(problem)) < 1500
        return False
    return True


@FAST
@given(data=st.binary(max_size=80), suffix=st.sampled_from([".json", ".csv", ".tsv", ".txt"]))
@example(data=b"\xff\xfe\0", suffix=".csv")
@example(data=b"[" * 100_000, suffix=".json")
@example(data=b"1" * 5000, suffix=".json")
@example(data=b'"\0', suffix=".csv")
@example(data=b"file,class\n\0,\0", suffix=".csv")
def test_any_bytes(tmp_path_factory, data, suffix):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / f"a{suffix}").write_bytes(data)
    read(folder if suffix == ".txt" else folder / f"a{suffix}")


@FAST
@given(rows=st.lists(entries, max_size=4))
@example(rows=[{"image_id": 1, "category_id": 1, "score": 1, "bbox": [10**400] * 4}])
@example(rows=[{"image_id": math.inf, "category_id": 1, "score": 1, "bbox": [1] * 4}])
@example(rows=[{"image_id": 1, "category_id": 1, "score": 1, "segmentation": {"size": [6, 8], "counts": "\ud800"}}])
@example(rows=[{"file_name": "\ud800", "category_name": "\ud800", "score": 1, "bbox": [1] * 4}])
@example(rows=[{"image_id": [1], "category_id": {}, "score": 1, "bbox": [1] * 4}])
def test_any_results(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(rows))
    read(path)


@FAST
@given(rows=st.lists(st.lists(cells, max_size=9), max_size=4), separator=st.sampled_from(",;\t| "))
def test_any_table_and_any_yolo_text(tmp_path_factory, rows, separator):
    folder = tmp_path_factory.mktemp("cells")
    text = "\n".join(separator.join(row) for row in rows)
    for head in ("", "image_id,class,score\n", f"{separator.join(('file', 'class_id', 'score', 'x', 'y', 'w', 'h'))}\n"):
        (folder / "a.csv").write_bytes((head + text).encode("utf-8", "surrogatepass"))
        read(folder / "a.csv")
    (folder / "1.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
    read(folder)


def test_right_files_are_read(tmp_path):
    entry = {"image_id": 1, "category_id": 2, "score": 0.5}
    for more in (
        {"bbox": [1, 2, 3, 4]},
        {"segmentation": {"size": [HEIGHT, WIDTH], "counts": [HEIGHT, HEIGHT, HEIGHT * (WIDTH - 2)]}},
        {"segmentation": [[0, 0, 5, 0, 5, 5]]},
    ):
        (tmp_path / "a.json").write_text(json.dumps([{**entry, **more}]))
        assert read(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.tsv", "a"])
def test_a_folder_or_a_file_that_cannot_be_read(tmp_path, name):
    assert not read(tmp_path / name)
    (tmp_path / name).mkdir()
    assert not read(tmp_path / name)
