"""SSD through the command line: train, evaluate, predict; on rendered pictures and on COCO photos."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_files import events_of
from shared_runs import FP32, SSD

from paceline.cli.main import main

SMALL = SSD.split()


@pytest.fixture(scope="module")
def pictures(ssd_run) -> Path:
    return ssd_run.data


@pytest.fixture(scope="module")
def trained(ssd_run) -> Path:
    return ssd_run.folder


def test_a_run_writes_the_twelve_numbers_pictures_and_a_report(trained):
    scored, losses = events_of(trained, "eval")[-1], events_of(trained, "train")[-1]
    assert scored["step"] == 6 and scored["images"] == 6
    assert {"box_ap", "box_ap50", "box_ap75", "box_ar100", "box_ar_large"} <= scored.keys()
    assert losses["loss"] == pytest.approx(losses["loss_class"] + losses["loss_box"], rel=1e-6)
    predictions = json.loads((trained / "predictions" / "step-000006.json").read_text())
    assert predictions["kind"] == "boxes" and len(predictions["images"]) == 6
    assert sum(len(image["truth"]["labels"]) for image in predictions["images"]) > 0
    assert "box AP" in (trained / "report.html").read_text()


def test_predict_draws_and_writes_boxes(trained, pictures, tmp_path, capsys):
    out = tmp_path / "answers"
    photos = sorted((pictures / "val2017").iterdir())[:3]
    assert main(["predict", str(trained), *map(str, photos), "--output-dir", str(out)]) == 0
    facts = json.loads((out / "predictions.json").read_text())
    assert len(facts["images"]) == 3
    assert len(list(out.glob("*.jpg"))) == 3


def test_weights_of_a_run_start_another_with_other_classes_removed(trained, pictures, tmp_path, capsys):
    flags = ["--data", str(pictures), *SMALL, "--max-steps", "1", "--weights", str(trained / "checkpoints" / "last")]
    assert main(["train", "ssd-demo", "--output-dir", str(tmp_path / "tuned"), *flags]) == 0
    assert "tensors used" in capsys.readouterr().out


def test_coco_photos_with_crowds_and_an_empty_image_train_evaluate_and_predict(shared_data, tmp_path, capsys):
    root, out = shared_data / "coco_mini", tmp_path / "run"
    flags = ["--data", str(root), *SMALL, "--max-steps", "3", "--max-val-images", "12", "--output-dir", str(out)]
    assert main(["train", "ssd-demo", *flags]) == 0
    assert (
        main(["predict", str(out), str(sorted((root / "val2017").iterdir())[0]), "--output-dir", str(tmp_path / "p")]) == 0
    )
    assert "warning" not in capsys.readouterr().err.lower()
    facts = json.loads((out / "run.json").read_text())
    assert len(facts["classes"]) == 80 and facts["data"]["category_ids"][-1] == 90


@pytest.mark.nightly("a step at full size")
def test_full_size_ssd_takes_a_step_on_coco_photos(shared_data, tmp_path):
    data = ["--data", str(shared_data / "coco_mini"), "--output-dir", str(tmp_path / "run")]
    flags = f"--weights none --max-steps 1 --max-val-images 2 --global-batch-size 2 --optim.lr 0.0002 {FP32}"
    assert main(["train", "ssd", *data, *flags.split()]) == 0
