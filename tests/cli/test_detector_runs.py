"""Both detectors through the command line alike: scored again, drawn before training, repeated, refused by a flag's name."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from run_files import events_of, tensor_files
from shared_runs import MASKRCNN, MASKRCNN_TOY, SSD, VAL, SharedRun
from tiny_runs import command, refused

from paceline.config.recipes import RECIPES
from paceline.models.registry import WORKLOADS

pytestmark = pytest.mark.usefixtures("no_charts")

# Recipe -> the fixture of its shared run, its flags, and those with which its training images are drawn.
DETECTORS = {"ssd-demo": ("ssd_run", SSD, SSD), "maskrcnn-demo": ("maskrcnn_run", MASKRCNN, MASKRCNN_TOY)}


@pytest.fixture(scope="module", params=DETECTORS)
def recipe(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(request, recipe) -> SharedRun:
    return request.getfixturevalue(DETECTORS[recipe][0])


def test_eval_repeats_the_run_s_own_numbers_at_any_batch(recipe, run, capsys):
    own = events_of(run.folder, "eval")[-1]
    for batch in (1, 5):
        said = command(capsys, "eval", run.folder, "--checkpoint", "last", "--batch-size", batch, "--json")
        assert said.code == 0, said
        found = json.loads(said.out.splitlines()[-1])
        assert found["images"] == VAL
        for name in WORKLOADS[RECIPES[recipe]().task].reporting.metrics:
            assert found[name] == pytest.approx(own[name], abs=1e-3), name


def test_each_checkpoint_is_scored_where_all_are_asked_for(ssd_run, capsys):
    said = command(capsys, "eval", ssd_run.folder, "--checkpoint", "all")
    assert said.code == 0 and "step-000006" in said.out


def test_preview_draws_training_photos_with_their_objects(recipe, run, tmp_path, capsys):
    out = tmp_path / "mosaic.png"
    flags = ["--data", run.data, "--output", out, "--num-images", 6, "--columns", 3, *DETECTORS[recipe][2].split()]
    said = command(capsys, "preview", recipe, *flags)
    assert said.code == 0, said
    with Image.open(out) as picture:
        assert picture.width > 3 * 100


def test_the_run_json_repeats_the_run_bit_for_bit(run, tmp_path, capsys):
    again = tmp_path / "again"
    assert command(capsys, "train", run.folder / "run.json", "--output-dir", again).code == 0
    assert tensor_files(again) == tensor_files(run.folder)
    for kind in ("train", "eval"):
        for got, wanted in zip(events_of(again, kind), events_of(run.folder, kind), strict=True):
            for name in ("loss", "mask_ap", "box_ap"):
                assert got.get(name) == wanted.get(name)


@pytest.mark.parametrize(
    ("recipe", "flags", "wanted"),
    [
        ("ssd-demo", ["--model.scales", 0.1, 0.2], ["scales"]),
        ("ssd-demo", ["--input.image-size", 40], ["--input.image-size 40"]),
        ("ssd-demo", ["--model.match-iou", 1.5], ["--model.match-iou 1.5"]),
        ("ssd-demo", ["--model.detect.nms-iou", 0], ["--model.detect.nms-iou"]),
        ("ssd-demo", ["--target", "top1=0.5"], ["metric"]),
        ("ssd-demo", ["--input.crop-ratio", 2, 3], ["--input.crop-ratio"]),
        ("maskrcnn-demo", ["--input.scale-jitter", 0.5, 2], ["--input.scale-jitter", "--input.min-crop-scale"]),
        ("maskrcnn-demo", ["--input.scale-jitter", 2, 0.5], ["--input.scale-jitter"]),
        ("maskrcnn-demo", ["--model.no-masks", "--input.copy-paste-prob", 0.5], ["--input.copy-paste-prob 0.5", "boxes"]),
        ("maskrcnn-demo", ["--input.min-size", 128, "--input.max-size", 96], ["--input.max-size 96", "--input.min-size"]),
        ("maskrcnn-demo", ["--model.loss-normalizer-images", 3], ["--model.loss-normalizer-images 3", "batch of 4"]),
        ("maskrcnn-demo", ["--model.rpn.anchor-sizes", 32, 64], ["--model.rpn.anchor-sizes", "5 levels"]),
        ("maskrcnn-demo", ["--target", "top1=0.5"], ["top1", "mask_ap"]),
        ("maskrcnn-demo", ["--model.mask.target-buffer-size", 4], ["--model.mask.target-buffer-size 4"]),
    ],
    indirect=["recipe"],
)
def test_a_recipe_that_cannot_be_is_refused_by_its_flag(recipe, run, tmp_path, capsys, flags, wanted):
    out = tmp_path / "run"
    said = command(capsys, "train", recipe, "--data", run.data, "--output-dir", out, *DETECTORS[recipe][1].split(), *flags)
    refused(said, *wanted, lines=6)
    assert not out.exists()
