"""--val-subset: each validation image is in one half, whatever the layout, and a half's score is that of its images. And the intervals
of its scores that a run ends with."""

from __future__ import annotations

import json

import numpy as np
import pytest
from messages import check_line
from tiny_runs import command, refused, train

from paceline.data.index.splits import format_half, select_half
from paceline.models.metrics.bootstrap import confidence_intervals, final_intervals, resample_stored
from paceline.tools.report.run_report import write_report
from paceline.training.logging.events import read_events

pytestmark = pytest.mark.usefixtures("no_report", "no_charts")


def files_of(path) -> list[str]:
    return sorted(image["file"] for image in json.loads(path.read_text())["images"])


def test_a_half_is_the_name_s_alone():
    names = [b"val/a/%06d.jpg" % number for number in range(1000)]
    test = select_half(names, "test")
    assert 440 < test.sum() < 560 and (select_half(names, "tune") == ~test).all() and select_half(names, "").all()
    moved = select_half([b"other/layout/" + name.rpartition(b"/")[2] for name in names[::-1]], "test")
    assert (moved[::-1] == test).all(), "neither folders nor order decide"
    # COCO's own names, whose SHA-256 begin with 1faf and b7b2: no later change moves photos from one half to the other.
    assert select_half([b"val2017/000000000139.jpg", b"val2017/000000000632.jpg"], "test").tolist() == [False, True]
    assert not len(select_half([], "test")) and format_half("tune") == "tune subset" and format_half(None) == ""


def test_the_halves_part_the_evaluated_images_and_are_named_everywhere(class_photos, tmp_path, capsys):
    run = tmp_path / "run"
    said = train(capsys, class_photos, run, "--val-subset", "test", steps=1)
    assert said.code == 0 and "test subset: " in said.out, said
    facts = json.loads((run / "run.json").read_text())
    assert facts["data"]["half"] == "test" and facts["plan"]["train_images"] == 18
    assert "test subset" in command(capsys, "plan", f"{run}/run.json").out
    page = write_report(run).read_text()
    assert "test subset" in page and "--val-subset test" in page and check_line(page, "test subset", "step 1")
    found, hits = {}, []
    for half in ("tune", "test", "all"):
        out = tmp_path / f"{half}.json"
        whole = ["--data", class_photos] if half == "all" else ["--val-subset", half]
        said = command(capsys, "eval", run, *whole, "--json", "--output", out)
        assert said.code == 0, said
        found[half] = files_of(out)
        record = json.loads(said.out.splitlines()[-1])
        hits.append(record["top1"] * record["images"])
    assert set(found["tune"]) and found["test"] and not set(found["tune"]) & set(found["test"])
    assert sorted(found["tune"] + found["test"]) == found["all"] and np.isclose(hits[0] + hits[1], hits[2])
    names = [name.encode() for name in found["all"]]
    assert found["test"] == [name for name, test in zip(found["all"], select_half(names, "test")) if test]


def test_what_has_no_validation_images_is_refused(class_photos, tmp_path, capsys):
    said = train(capsys, class_photos, tmp_path / "run", "--val-subset", "test", "--num-folds", 3, "--fold", 1)
    refused(said, "--val-subset test ... --num-folds 3")
    assert not (tmp_path / "run").exists()


def test_a_run_ends_with_the_interval_of_its_best_evaluation(ssd_run, maskrcnn_run, class_photos, tmp_path, capsys):
    run = tmp_path / "run"
    said = train(capsys, class_photos, run, steps=1)
    ends = [read_events(folder / "events.jsonl") for folder in (run, ssd_run.folder, maskrcnn_run.folder)]
    for events, metric in zip(ends, ("top1", "box_ap", "mask_ap")):
        end, scored = events[-1], [event for event in events if event["event"] == "eval"]
        best = next(event for event in scored if event["step"] == end["intervals_step"])
        low, high = end["intervals"][metric]
        assert low <= best[metric] <= high and best[metric] == end["best"][metric]
    low, high = (f"{100 * value:.2f}" for value in ends[0][-1]["intervals"]["top1"])
    assert check_line(said.out, "95%", "top1") and f"{low}" in said.out and f"{high}" in said.out, said
    assert "95% CI" in write_report(run).read_text()


@pytest.mark.parametrize("damage", ["", "{}", "many", "missing", '{"kind": "boxes", "images": [{"own": 1}]}'])
def test_many_photos_or_a_damaged_file_have_no_interval_at_the_end(ssd_run, tmp_path, damage):
    (file,) = (ssd_run.folder / "predictions").glob("step-*.json")
    found = json.loads(file.read_text())
    written = tmp_path / "step.json"
    assert final_intervals(file) == {
        name: ends for name, ends in confidence_intervals(resample_stored(found, "box")).items()
    }
    if damage != "missing":
        written.write_text(json.dumps({**found, "images": found["images"] * 200}) if damage == "many" else damage)
    assert final_intervals(written) == {}
