"""Faster R-CNN through the command line, on data with boxes alone: train, resume, evaluate, predict, preview; no mask anywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from instance_sets import json_file
from PIL import Image
from run_files import events_of, facts_of, tensor_files, without_card
from shared_runs import MASKRCNN, VAL, drawn_instances
from tiny_runs import command, refused

from paceline.cli.main import main
from paceline.models.maskrcnn.loss import TERMS
from paceline.models.registry import WORKLOADS

pytestmark = pytest.mark.usefixtures("no_charts")

STEPS = 4
FLAGS = f"--weights none --model.depth 10 {MASKRCNN} --log-every 1"


@pytest.fixture(scope="module")
def boxes(tmp_path_factory) -> Path:
    """The drawn photos, their objects without masks; a crowd is a mask."""
    root = tmp_path_factory.mktemp("faster") / "boxes"
    shutil.copytree(drawn_instances(tmp_path_factory), root)
    for split in ("train", "val"):
        document = json.loads(json_file(root, split).read_text())
        document["annotations"] = [entry for entry in document["annotations"] if not entry["iscrowd"]]
        for entry in document["annotations"]:
            del entry["segmentation"]
        json_file(root, split).write_text(json.dumps(document))
    return root


@pytest.fixture(scope="module")
def trained(boxes, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return trained_in(tmp_path_factory.mktemp("trained") / "run", boxes, STEPS)


def trained_in(out: Path, boxes: Path, steps: int) -> Path:
    words = ["train", "fasterrcnn-finetune-cpu", "--data", str(boxes), "--output-dir", str(out), *FLAGS.split()]
    assert main([*words, "--max-steps", str(steps)]) == 0
    return out


def test_boxes_alone_are_learned_scored_answered_and_shown(boxes, trained, tmp_path, capsys):
    (scored,) = events_of(trained, "eval")
    known = {name for name in scored if name.startswith(("box_", "mask_"))}
    assert scored["images"] == VAL and known == set(WORKLOADS["detection"].reporting.metrics)
    losses = events_of(trained, "train")
    for event in losses:
        terms = {name: event[name] for name in event if name.startswith("loss_")}
        assert terms.keys() == {f"loss_{term}" for term in TERMS if term != "mask"} and min(terms.values()) > 0
        assert event["loss"] == pytest.approx(sum(terms.values()), rel=1e-5)
    assert len(losses) == STEPS and facts_of(trained)["recipe"]["model"]["masks"] is False
    predictions = json.loads((trained / "predictions" / f"step-{STEPS:06d}.json").read_text())
    assert predictions["kind"] == "boxes" and len(predictions["images"]) == VAL
    assert not any("masks" in image or "masks" in image["truth"] for image in predictions["images"])
    report = (trained / "report.html").read_text()
    assert "box AP" in report and "mask AP" not in report
    assert (trained / "checkpoints" / "best").exists()

    said = command(capsys, "eval", trained, "--data", boxes, "--json")
    assert said.code == 0 and json.loads(said.out)["box_ap"] == scored["box_ap"] and "mask" not in said.out
    assert "box AP" in command(capsys, "runs", trained.parent).out
    photo = next((boxes / "val2017").iterdir())
    said = command(capsys, "predict", trained, photo, "--output-dir", tmp_path / "answers")
    (image,) = json.loads((tmp_path / "answers" / "predictions.json").read_text())["images"]
    assert said.code == 0 and image["detections"]
    assert not any("segmentation" in row for row in image["detections"])
    said = command(
        capsys, "preview", "fasterrcnn-finetune-cpu", "--data", boxes, "--output", tmp_path / "seen.png", "--num-images", 4
    )
    assert said.code == 0 and "4 training images" in said.out, said
    with Image.open(tmp_path / "seen.png") as picture:
        assert min(picture.size) > 100


def test_a_run_that_goes_on_leaves_what_an_unbroken_one_leaves(boxes, trained, tmp_path, no_report):
    trained_in(tmp_path / "cut", boxes, STEPS // 2)
    assert tensor_files(tmp_path / "cut") != tensor_files(trained)
    trained_in(tmp_path / "cut", boxes, STEPS)
    assert tensor_files(tmp_path / "cut") == tensor_files(trained)


@pytest.mark.nightly("a run more")
def test_masks_of_the_data_change_no_bit(boxes, trained, tmp_path, maskrcnn_run, no_report):
    with_masks = tmp_path / "masks"
    shutil.copytree(maskrcnn_run.data, with_masks)
    assert "segmentation" in json_file(with_masks, "train").read_text()
    other = trained_in(tmp_path / "other", with_masks, STEPS)
    ours, theirs = tensor_files(other), tensor_files(trained)
    assert {name: without_card(ours[name]) for name in ours} == {name: without_card(theirs[name]) for name in theirs}


def test_its_log_is_of_no_benchmark_and_what_is_asked_of_masks_is_refused(boxes, trained, tmp_path, capsys):
    assert '"submission_benchmark", "value": ""' in (trained / "mllog.txt").read_text()
    refused(command(capsys, "mlperf", "check", trained), "benchmark")
    refused(command(capsys, "eval", trained, "--mask-threshold", 0.4), "--mask-threshold")
    words = ("--target", "mask_ap=0.1")
    said = command(
        capsys, "train", "fasterrcnn-finetune-cpu", "--data", boxes, "--output-dir", tmp_path / "no", *FLAGS.split(), *words
    )
    refused(said, "--target mask_ap", "box_ap")
