"""`paceline predict` as people use it: odd folders, filters, a second time, broken off, and a run without a best checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from messages import check_line, check_text
from odd_photos import BAD, GOOD, main, make_odd_photos
from PIL import Image
from tiny_runs import command, refused

from paceline.cli.printing import Printer
from paceline.inference import load
from paceline.inference.results import DetectionResult
from paceline.training.logging.events import EventLog, read_events


def pictures(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.jpg")}


@pytest.mark.parametrize("task", ["resnet", "ssd", "maskrcnn"])
def test_a_folder_of_odd_files_gets_an_answer_for_every_good_photo_and_a_reason_for_every_bad_one(
    task, request, tmp_path, capsys
):
    run, odd, out = request.getfixturevalue(f"{task}_run").folder, tmp_path / "odd", tmp_path / "out"
    assert main([str(odd)]) == 0
    said = command(capsys, "predict", run, odd, "--output-dir", out)
    assert said.code == 1 and said.err == ""
    lines = said.out.splitlines()
    assert lines[0] == "skipped 2 files: 1 .mp4, 1 .txt"
    assert next(line for line in lines if line.startswith("7 images in ")).endswith(f"images/s: {out}")
    at = lines.index("not predicted: 3 of 10")
    assert [line.split(":")[0].strip() for line in lines[at + 1 :]] == [str(odd / name) for name in BAD]
    facts = json.loads((out / "predictions.json").read_text())
    images = facts["images"]
    assert {image["file"] for image in images} == {str(odd / name) for name in GOOD}
    for image in images:
        assert f"{image['file']}: " in said.out
        with Image.open(out / image["annotated_image"]) as picture:
            assert min(picture.size) > 40
    assert {image["annotated_image"] for image in images} == pictures(out)
    assert {"same.bmp.jpg", "same.tiff.jpg", "deeper/sub folder/Grüße aus Köln.jpg"} <= pictures(out)
    assert [one["file"] for one in facts["skipped"]] == [str(odd / name) for name in BAD]
    assert "prepare" not in said.out  # advice on training sets


def test_only_bad_photos_still_give_an_empty_list(resnet_run, tmp_path, capsys):
    (tmp_path / "empty.jpg").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.jpg")
    out = tmp_path / "out"
    said = command(capsys, "predict", resnet_run.folder, tmp_path / "empty.jpg", tmp_path / "pipe.jpg", "--output-dir", out)
    assert said.code == 1 and "0 images in " in said.out and "named pipe" in said.out
    facts = json.loads((out / "predictions.json").read_text())
    assert facts["images"] == [] and len(facts["skipped"]) == 2


def test_a_photo_that_is_not_there_is_refused_before_the_run_is_opened(tmp_path, capsys):
    refused(command(capsys, "predict", tmp_path / "no run", tmp_path / "gone.jpg"), "gone.jpg", "file")


def test_a_second_prediction_replaces_the_first_and_a_folder_of_ones_own_is_refused(resnet_run, tmp_path, capsys):
    odd, out = tmp_path / "odd", tmp_path / "out"
    make_odd_photos(odd)
    assert command(capsys, "predict", resnet_run.folder, odd, "--output-dir", out).code == 1
    assert command(capsys, "predict", resnet_run.folder, odd / "cmyk.jpg", "--output-dir", out).code == 0
    assert pictures(out) == {"cmyk.jpg"} and {path.name for path in out.iterdir()} == {"cmyk.jpg", "predictions.json"}
    before = sorted(odd.rglob("*"))
    refused(command(capsys, "predict", resnet_run.folder, odd / "cmyk.jpg", "--output-dir", odd), "--output-dir", "files")
    assert sorted(odd.rglob("*")) == before


def test_answers_among_the_photos_are_not_photos_the_next_time(resnet_run, tmp_path, capsys):
    shutil.copytree(resnet_run.data / "val", tmp_path / "set")
    for name in ("first", "second", "first"):
        said = command(capsys, "predict", resnet_run.folder, tmp_path / "set", "--output-dir", tmp_path / "set" / name)
        assert said.code == 0 and len(json.loads((tmp_path / "set" / name / "predictions.json").read_text())["images"]) == 9


def test_a_prediction_that_is_broken_off_looks_unfinished_and_the_next_one_replaces_it(
    resnet_run, tmp_path, capsys, monkeypatch
):
    out, photos = tmp_path / "out", resnet_run.data / "val"
    with monkeypatch.context() as patch:
        lines: list[str] = []

        def interrupted(_: Printer, text: object) -> None:
            lines.append(str(text))
            if len(lines) == 6:
                raise KeyboardInterrupt

        patch.setattr(Printer, "say", interrupted)
        assert command(capsys, "predict", resnet_run.folder, photos, "--output-dir", out).code == 75
    check_text(lines[-1], "not finished", "same command")
    assert not (out / "predictions.json").exists() and (out / "predictions.json.part").exists()
    assert command(capsys, "predict", resnet_run.folder, photos, "--output-dir", out).code == 0
    assert len(pictures(out)) == 9 and not (out / "predictions.json.part").exists()


def test_filters_choose_what_is_printed_and_drawn_and_the_files_have_all(ssd_run, tmp_path, capsys):
    photo, out = sorted((ssd_run.data / "val2017").iterdir())[0], tmp_path / "out"
    result = load(ssd_run.folder).predict(photo)
    assert isinstance(result, DetectionResult) and len(set(result.names)) > 1
    chosen = result.names[1]
    words = ["--score-threshold", 0, "--classes", chosen, "--max-detections", 2]
    said = command(capsys, "predict", ssd_run.folder, photo, "--output-dir", out, *words)
    line = next(line for line in said.out.splitlines() if line.startswith(f"{photo}: "))
    assert line == f"{photo}: {result.filter([chosen], max_detections=2).summary(0)}" and line.count(chosen) == 2
    (image,) = json.loads((out / "predictions.json").read_text())["images"]
    assert len(image["detections"]) == len(result.scores) > 2

    def drawn(*more: object) -> np.ndarray:
        assert command(capsys, "predict", ssd_run.folder, photo, "--output-dir", out, *words, *more).code == 0
        with Image.open(out / image["annotated_image"]) as picture:
            return np.asarray(picture).astype(int)

    assert np.abs(drawn() - drawn("--no-show-labels")).max() > 60


def test_without_a_score_it_shows_from_the_runs_best_f1_on_and_says_so(ssd_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(ssd_run.folder, run, symlinks=True)
    photo = sorted((ssd_run.data / "val2017").iterdir())[0]
    result = load(run).predict(photo)
    assert isinstance(result, DetectionResult)
    threshold = result.scores[1]
    events = read_events(run / "events.jsonl")

    def with_best(best: object) -> str:
        (run / "events.jsonl").unlink()
        log = EventLog(run / "events.jsonl")
        for event in events:
            more = {"best_f1": best} if event["event"] == "eval" else {}
            log.write(**{**event, **more})
        said = command(capsys, "predict", run, photo, "--output-dir", tmp_path / "out")
        assert said.code == 0
        return said.out

    best = {"iou": 0.5, "threshold": threshold, "f1": 0.5, "precision": 0.5, "recall": 0.5}
    out = with_best(best)
    assert result.summary(threshold) in out and f"score threshold {threshold:g}" in out
    for wrong in ({**best, "threshold": 7}, {"f1": 0.5}, "x"):
        out = with_best(wrong)
        assert result.summary(0.3) in out and "score threshold" not in out


def test_classes_that_the_run_does_not_have_and_flags_of_objects_for_a_classifier_are_refused(
    ssd_run, resnet_run, tmp_path, capsys
):
    photo, out = sorted((ssd_run.data / "val2017").iterdir())[0], tmp_path / "out"
    known = load(ssd_run.folder).classes[0]
    asked = ["predict", ssd_run.folder, photo, "--output-dir", out]
    refused(command(capsys, *asked, "--classes", known, f"{known}x"), f"--classes {known}x", f"Did you mean {known}")
    refused(command(capsys, *asked, "--classes", "zzz"), "--classes zzz", "Its classes: ")
    refused(command(capsys, *asked, "--max-detections", -1), "--max-detections")
    for flag in (["--classes", "ant"], ["--max-detections", 3], ["--no-show-labels"], ["--image-ids", "x.json"]):
        refused(
            command(capsys, "predict", resnet_run.folder, photo, "--output-dir", out, *flag), flag[0], "classifies images"
        )
    assert not out.exists()


def test_a_run_without_a_best_checkpoint_answers_with_its_last_and_says_so(resnet_run, tmp_path, capsys, caplog):
    run, photo = tmp_path / "run", next((resnet_run.data / "val" / "ant").iterdir())
    shutil.copytree(resnet_run.folder, run, symlinks=True)
    (run / "checkpoints" / "best").unlink()
    said = command(capsys, "predict", run, photo, "--output-dir", tmp_path / "out")
    assert said.code == 0 and check_line(said.out, "best checkpoint", "step-000002")
    assert load(run).trained.checkpoint == "step-000002"
    assert check_line(caplog.text, "WARNING", "best checkpoint", "step-000002")
    shutil.rmtree(run / "checkpoints")
    refused(command(capsys, "predict", run, photo, "--output-dir", tmp_path / "out"), "'best'", "none")


def test_a_photo_that_cannot_be_drawn_keeps_its_answer_and_is_listed(resnet_run, tmp_path, capsys, monkeypatch):
    from paceline._utils.errors import DataError
    from paceline.inference.results import ClassificationResult

    def fails(*_: object, **__: object) -> None:
        raise DataError("a.jpg: gone meanwhile")

    monkeypatch.setattr(ClassificationResult, "draw", fails)
    photo, out = next((resnet_run.data / "val" / "ant").iterdir()), tmp_path / "out"
    said = command(capsys, "predict", resnet_run.folder, photo, "--output-dir", out)
    assert said.code == 1 and "image: a.jpg: gone meanwhile" in said.out
    (image,) = json.loads((out / "predictions.json").read_text())["images"]
    assert image["annotated_image"] is None and image["names"] and pictures(out) == set()


def test_json_prints_one_object_a_photo_to_stdout_and_quiet_prints_none(resnet_run, tmp_path, capsys):
    photos, out = tmp_path / "photos", tmp_path / "out"
    shutil.copytree(resnet_run.data / "val" / "ant", photos)
    (photos / "bad.jpg").write_bytes(b"no photo")
    words = ["predict", resnet_run.folder, photos / "*.jpg", photos / "0.jpg", "--output-dir", out]
    said = command(capsys, *words, "--json")
    rows = [json.loads(line) for line in said.out.splitlines()]
    facts = json.loads((out / "predictions.json").read_text())
    assert said.code == 1 and [row for row in rows if "reason" not in row] == facts["images"]
    assert [row for row in rows if "reason" in row] == facts["skipped"] and len(rows) == 4
    assert "3 images in " in said.err and check_text(said.err, "1 given")
    said = command(capsys, *words, "--quiet")
    lines = said.out.splitlines()
    assert said.code == 1 and not any(line.startswith(f"{photos}/0.jpg: ") for line in lines)
    assert any("bad.jpg: skipped" in line for line in lines) and any("images/s" in line for line in lines)
