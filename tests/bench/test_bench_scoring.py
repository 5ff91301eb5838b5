"""The scoring benchmark: contenders see the same data, inequality is reported, the report is JSON."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from paceline.bench import scoring
from paceline.cli.bench import run as bench
from paceline.config.errors import UserError


def test_the_synthetic_data_set_is_the_same_on_every_call_and_has_its_hard_parts():
    truth, detections = scoring.synthetic(400, 20, 5)
    again, same = scoring.synthetic(400, 20, 5)
    np.testing.assert_array_equal(truth.boxes, again.boxes)
    np.testing.assert_array_equal(detections.scores, same.scores)
    assert len(detections.scores) == 8000 and truth.starts[-1] == len(truth.boxes)
    assert truth.crowd.sum() > 0 and (np.diff(truth.starts) == 0).any()
    assert (np.diff(truth.image_ids) < 0).any()  # ids are not in the order of rows
    assert 0.05 < scoring.score_boxes(truth, detections).metrics["box_ap"] < 0.9


def test_every_round_times_every_contender_and_ours_is_equal_to_pycocotools():
    rows = scoring.run(30, 10, 3, 2)
    assert {row.contender for row in rows} >= {"paceline", "pycocotools"}
    assert [row.round for row in rows if row.contender == "paceline"] == [0, 1]
    assert all(row.equal for row in rows if row.contender in ("paceline", "pycocotools"))
    assert all(row.seconds == row.load_seconds + row.score_seconds > 0 and len(row.numbers) == 12 for row in rows)


def test_a_contender_with_other_numbers_is_called_unequal(monkeypatch):
    def wrong(truth, detections):
        return lambda: (0.0, 1.0, (0.5,) * 12)

    real = scoring.installed()
    monkeypatch.setattr(scoring, "installed", lambda: {**real, "wrong": wrong})
    found = scoring.facts(scoring.run(5, 4, 2, 1))
    assert found["equal_to_pycocotools"]["wrong"] is False and found["equal_to_pycocotools"]["paceline"] is True


def test_without_pycocotools_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr(scoring, "PEERS", {})
    found = scoring.facts(scoring.run(5, 4, 2, 1))
    assert found["equal_to_pycocotools"] is None and list(found["median_seconds"]) == ["paceline"]


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    out = tmp_path / "new" / "eval.json"
    assert bench(["eval", "--images", "5", "--detections", "4", "--classes", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "pycocotools" in printed and re.search("5 images x 4 detections", printed)
    found = json.loads(out.read_text())
    assert found["images"] == 5 and found["versions"]["hotcoco"] and len(found["rows"]) >= 2


def test_nothing_to_measure_is_refused():
    with pytest.raises(UserError, match="--images is 0"):
        bench(["eval", "--images", "0"])
