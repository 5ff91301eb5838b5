"""The scoring benchmark: contenders see the same data, inequality is reported, the report is JSON."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import paceline.tools.bench as bench_package
from paceline._utils.errors import PacelineError
from paceline.cli.commands import bench as benches
from paceline.cli.printing import Printer
from paceline.tools.bench import scoring


def test_the_synthetic_data_set_is_the_same_on_every_call_and_has_its_hard_parts():
    truth, detections = scoring.make_synthetic_detections(400, 20, 5)
    again, same = scoring.make_synthetic_detections(400, 20, 5)
    np.testing.assert_array_equal(truth.boxes, again.boxes)
    np.testing.assert_array_equal(detections.scores, same.scores)
    assert len(detections.scores) == 8000 and truth.starts[-1] == len(truth.boxes)
    assert truth.crowd.sum() > 0 and (np.diff(truth.starts) == 0).any()
    assert (np.diff(truth.image_ids) < 0).any()  # ids are not in the order of rows
    assert 0.05 < scoring.score_boxes(truth, detections).metrics["box_ap"] < 0.9


def test_every_round_times_every_contender_and_ours_is_equal_to_pycocotools():
    found = scoring.run_scoring(30, 10, 3, 2)
    assert set(found["seconds"]) >= {"paceline", "pycocotools"} and found["agrees"]["pycocotools"] is True
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in found["seconds"].values())
    assert all(len(numbers) == 12 for numbers in found["numbers"].values())


def test_a_contender_with_other_numbers_is_called_unequal(monkeypatch):
    theirs = bench_package.find_peers("scoring")
    real = theirs.contenders
    monkeypatch.setattr(theirs, "contenders", lambda *args: {**real(*args), "wrong": lambda: (0.5,) * 12})
    found = scoring.run_scoring(5, 4, 2, 1)
    assert found["agrees"]["wrong"] is False and found["agrees"]["pycocotools"] is True


def test_without_a_checkout_nothing_is_claimed(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_package, "CHECKOUT", tmp_path)
    found = scoring.run_scoring(5, 4, 2, 1)
    assert found["agrees"] == {} and list(found["median_seconds"]) == ["paceline"]


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    out = tmp_path / "new" / "eval.json"
    assert (
        benches.run(
            Printer(), ["eval", "--num-images", "5", "--detections", "4", "--num-classes", "2", "--output", str(out)]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "pycocotools" in printed and re.search("5 images x 4 detections", printed)
    found = json.loads(out.read_text())
    assert found["images"] == 5 and found["versions"]["hotcoco"] and found["times_faster"]["pycocotools"]["median"] > 0


def test_nothing_to_measure_is_refused():
    with pytest.raises(PacelineError, match="--num-images 0"):
        benches.run(Printer(), ["eval", "--num-images", "0"])
