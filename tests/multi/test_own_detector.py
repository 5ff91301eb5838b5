"""The detector of tests/center_points.py, a workload from outside the package: every verb, and two ranks resumed to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from instance_sets import make_instances
from small_run import FLAGS, events, tensor_files

FILE = Path(__file__).parents[1] / "center_points.py"
NAMED = ("--task-file", f"{FILE}:CENTERS")
SMALL = (
    "--model.width 4 --model.channels 8 --input.image-size 64 --global-batch-size 6 --bn-batch-size 6 --optim.lr "
    "0.005 --max-steps 8 "
    "--eval-every 4 --log-every 1 --max-val-images 6"
)


@pytest.fixture(scope="module")
def photos(trainer) -> Path:
    return make_instances(trainer.folder / "objects", train=14, val=6)


def train(trainer, photos: Path, run: Path, more: str = "", ranks: int = 2) -> Path:
    flags = FLAGS.replace("--eval-every 13 --max-val-images 21", "")
    words = ["train", f"{FILE}:recipe", "--data", str(photos), "--output-dir", str(run), *flags.split(), *SMALL.split()]
    trainer.ended_well([*words, *more.split()], ranks=ranks)
    return run


@pytest.mark.nightly("two live ranks, stopped and resumed")
def test_two_ranks_that_were_stopped_go_on_to_the_same_bits(trainer, photos):
    whole = train(trainer, photos, trainer.folder / "centres")
    parts = train(trainer, photos, trainer.folder / "centres-again", "--max-steps 3")
    train(trainer, photos, parts)
    assert tensor_files(parts) == tensor_files(whole)
    losses = [[(one["step"], one["loss"]) for one in events(run) if one["event"] == "train"] for run in (whole, parts)]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    assert [one["box_ap"] for one in events(parts) if one["event"] == "eval"][-1] == events(whole)[-2]["box_ap"]


def test_every_verb_knows_it_where_its_file_is_named(trainer, photos, tmp_path):
    run = train(trainer, photos, trainer.folder / "centres-verbs", "--max-steps 2", ranks=1)
    found = tmp_path / "found"
    commands = {
        "eval": ["eval", run, "--json"], "plan": ["plan", run], "report": ["report", run],
        "predict": ["predict", run, photos / "val2017", "--output-dir", found],
        "train": ["train", run / "run.json", "--output-dir", tmp_path / "again"],
    }  # fmt: skip
    for verb, words in commands.items():
        trainer.ended_well([*map(str, words), *NAMED])
        if verb == "predict":  # the others refuse alike: tests/cli/test_foreign_runs.py
            (ended,) = trainer.run([*map(str, words)])
            assert ended.code == 2 and f"--task-file {FILE}:CENTERS" in ended.text, ended
    answers = json.loads((found / "predictions.json").read_text())
    assert len(answers["images"]) == 6 and (found / "coco_results.json").is_file()
    assert "Worst" in (run / "report.html").read_text()
    again = tmp_path / "again"
    assert tensor_files(again) == tensor_files(run)
    picture = tmp_path / "preview.png"
    words = ["preview", f"{FILE}:recipe", "--data", photos, "--num-images", 4, "--output", picture]
    trainer.ended_well([*map(str, words)])
    assert picture.is_file()
