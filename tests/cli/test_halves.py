"""--val-half: each validation image is in one half, whatever the layout, and a half's score is that of its images."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_runs import command, refused, train

from paceline.pages.page import write_report
from paceline.store.half import half_in_words, in_half

pytestmark = pytest.mark.usefixtures("no_report")


def files_of(path) -> list[str]:
    return sorted(image["file"] for image in json.loads(path.read_text())["images"])


def test_a_half_is_the_name_s_alone():
    names = [b"val/a/%06d.jpg" % number for number in range(1000)]
    test = in_half(names, "test")
    assert 440 < test.sum() < 560 and (in_half(names, "tune") == ~test).all() and in_half(names, "").all()
    moved = in_half([b"other/layout/" + name.rpartition(b"/")[2] for name in names[::-1]], "test")
    assert (moved[::-1] == test).all(), "neither folders nor order decide"
    # COCO's own names, whose SHA-256 begin with 1faf and b7b2: no later change moves photos from one half to the other.
    assert in_half([b"val2017/000000000139.jpg", b"val2017/000000000632.jpg"], "test").tolist() == [False, True]
    assert not len(in_half([], "test")) and half_in_words("tune") == "half tune" and half_in_words(None) == ""


def test_the_halves_part_the_evaluated_images_and_are_named_everywhere(class_photos, tmp_path, capsys):
    run = tmp_path / "run"
    said = train(capsys, class_photos, run, "--val-half", "test", steps=1)
    assert said.code == 0 and "half test: " in said.out, said
    facts = json.loads((run / "run.json").read_text())
    assert facts["data"]["half"] == "test" and facts["plan"]["train_images"] == 18
    assert "half test" in command(capsys, "show", f"{run}/run.json").out
    page = write_report(run).read_text()
    assert page.count("half test") >= 2 and "validation photos, half test, after step 1" in page
    found, hits = {}, []
    for half in ("tune", "test", "all"):
        out = tmp_path / f"{half}.json"
        whole = ["--data", class_photos] if half == "all" else ["--val-half", half]
        said = command(capsys, "eval", run, *whole, "--json", "--out", out)
        assert said.code == 0, said
        found[half] = files_of(out)
        record = json.loads(said.out.splitlines()[-1])
        hits.append(record["top1"] * record["images"])
    assert set(found["tune"]) and found["test"] and not set(found["tune"]) & set(found["test"])
    assert sorted(found["tune"] + found["test"]) == found["all"] and np.isclose(hits[0] + hits[1], hits[2])
    names = [name.encode() for name in found["all"]]
    assert found["test"] == [name for name, test in zip(found["all"], in_half(names, "test")) if test]


def test_what_has_no_validation_images_is_refused(class_photos, tmp_path, capsys):
    said = train(capsys, class_photos, tmp_path / "run", "--val-half", "test", "--folds", 3, "--fold", 1)
    refused(said, "--val-half test: --folds 3 reads no validation images")
    assert not (tmp_path / "run").exists()
