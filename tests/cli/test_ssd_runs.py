"""SSD through the command line: train, evaluate, predict, preview, repeat; on rendered pictures and on COCO photos."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shared_runs import FP32, SSD

from paceline.checkpoint.read import load_checkpoint
from paceline.cli.main import main
from paceline.log.events import read_events

NET = ["--model.depth", "10", "--model.width", "4", "--model.extras", "8", "--input.size", "96"]
SMALL = SSD.split()


@pytest.fixture(scope="module")
def pictures(ssd_run) -> Path:
    return ssd_run.data


@pytest.fixture(scope="module")
def trained(ssd_run) -> Path:
    return ssd_run.folder


def test_a_run_writes_the_twelve_numbers_pictures_and_a_report(trained):
    events = read_events(trained / "events.jsonl")
    scored = [event for event in events if event["event"] == "eval"]
    assert scored[-1]["step"] == 6 and scored[-1]["images"] == 6
    assert {"box_ap", "box_ap50", "box_ap75", "box_ar100", "box_ar_large"} <= scored[-1].keys()
    losses = [event for event in events if event["event"] == "train"][-1]
    assert losses["loss"] == pytest.approx(losses["loss_class"] + losses["loss_box"], rel=1e-6)
    predictions = json.loads((trained / "predictions" / "step-000006.json").read_text())
    assert predictions["kind"] == "boxes" and len(predictions["images"]) == 6
    assert sum(len(image["truth"]["labels"]) for image in predictions["images"]) > 0
    assert "box AP" in (trained / "report.html").read_text()


def test_eval_gives_the_run_s_own_numbers_at_any_batch(trained, capsys):
    own = [event for event in read_events(trained / "events.jsonl") if event["event"] == "eval"][-1]
    for batch in ("1", "5"):
        assert main(["eval", str(trained), "--checkpoint", "last", "--batch", batch, "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["images"] == 6
        assert found["box_ap"] == pytest.approx(own["box_ap"], abs=1e-3)
    assert main(["eval", str(trained), "--checkpoint", "all"]) == 0
    assert "step-000006" in capsys.readouterr().out


def test_predict_draws_and_writes_boxes(trained, pictures, tmp_path, capsys):
    out = tmp_path / "answers"
    photos = sorted((pictures / "val2017").iterdir())[:3]
    assert main(["predict", str(trained), *map(str, photos), "--out", str(out)]) == 0
    facts = json.loads((out / "predictions.json").read_text())
    assert len(facts["images"]) == 3
    assert len(list(out.glob("*.jpg"))) == 3


def test_preview_draws_training_images_with_boxes(pictures, tmp_path):
    out = tmp_path / "mosaic.png"
    flags = ["--data", str(pictures), "--out", str(out), "--images", "6", "--columns", "3"]
    assert main(["preview", "ssd-tiny", *flags, *NET, *FP32.split()]) == 0
    assert out.stat().st_size > 1000


def test_run_json_repeats_the_run_bit_for_bit(trained, tmp_path):
    again = tmp_path / "again"
    assert main(["train", str(trained / "run.json"), "--out", str(again)]) == 0
    models = [load_checkpoint(run / "checkpoints" / "step-000006").tensors["model"] for run in (trained, again)]
    assert all(models[0][name].equal(models[1][name]) for name in models[0])


def test_weights_of_a_run_start_another_with_other_classes_removed(trained, pictures, tmp_path, capsys):
    flags = ["--data", str(pictures), *SMALL, "--steps", "1", "--weights", str(trained / "checkpoints" / "last")]
    assert main(["train", "ssd-tiny", "--out", str(tmp_path / "tuned"), *flags]) == 0
    assert "tensors used" in capsys.readouterr().out


@pytest.mark.parametrize("over", ["image", "batch"])
def test_losses_over_images_or_over_the_batch(pictures, tmp_path, over):
    out = tmp_path / over
    flags = ["--data", str(pictures), *SMALL, "--steps", "2", "--log-every", "1", "--model.loss-over", over]
    assert main(["train", "ssd-tiny", "--out", str(out), *flags]) == 0
    assert all(event["loss"] > 0 for event in read_events(out / "events.jsonl") if event["event"] == "train")


def test_coco_photos_with_crowds_and_an_empty_image_train_evaluate_and_predict(shared_data, tmp_path, capsys):
    root, out = shared_data / "coco_mini", tmp_path / "run"
    flags = ["--data", str(root), *SMALL, "--steps", "3", "--limit-val", "12", "--out", str(out)]
    assert main(["train", "ssd-tiny", *flags]) == 0
    assert main(["predict", str(out), str(sorted((root / "val2017").iterdir())[0]), "--out", str(tmp_path / "p")]) == 0
    assert "warning" not in capsys.readouterr().err.lower()
    facts = json.loads((out / "run.json").read_text())
    assert len(facts["classes"]) == 80 and facts["data"]["category_ids"][-1] == 90


def test_full_size_ssd_takes_a_step_on_coco_photos(shared_data, tmp_path):
    flags = [
        "--data",
        str(shared_data / "coco_mini"),
        "--out",
        str(tmp_path / "run"),
        "--steps",
        "1",
        "--limit-val",
        "2",
    ]
    changes = ["--global-batch", "2", "--optim.lr", "0.0002", *FP32.split()]
    assert main(["train", "ssd", *flags, *changes]) == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model.scales", "0.1", "0.2"], "needs?.* scales"),
        (["--input.size", "40"], "--input.size 40"),
        (["--model.match-iou", "1.5"], "--model.match-iou 1.5"),
        (["--model.detect.iou", "0"], "--model.detect.iou"),
        (["--quality.targets", "top1", "0.5"], "no such metric"),
        (["--input.crop-aspect", "2", "3"], "--input.crop-aspect"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_by_its_flag(pictures, tmp_path, capsys, flags, says):
    out = tmp_path / "run"
    assert main(["train", "ssd-tiny", "--data", str(pictures), "--out", str(out), *flags]) == 2
    said = capsys.readouterr().err
    assert says.split(".*")[-1].strip() in said or flags[0] in said
    assert not out.exists() and "Traceback" not in said
