"""A pretrained trunk of timm's begins with the mean and deviation of its weights: in show and train, on resuming, and from a run."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from messages import check_lines, raises
from recording_reporter import Recording
from safetensors.torch import save_file
from tiny_runs import command, make_photos, without_report

from paceline._utils.errors import RecipeError
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunRecord, read_run
from paceline.training.input_stats import resolve_pixel_stats

pytestmark = pytest.mark.usefixtures("timm")
HALF, IMAGENET = ((0.5,) * 3,) * 2, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRUNK = "timm/test_resnet"  # small, and trained on a half
SMALL = "--input.image-size 32 --input.eval-crop-size 32 --input.eval-resize-size 36 --model.head-init random --model.norm batch"
RUN = f"{SMALL} --global-batch-size 2 --bn-batch-size 2 --optim.lr 1e-4 --system cpu --system.intra-op-threads 1".split()


def settled(changes, weights, given=(), **more):
    heard = Recording()
    recipe = resolve_pixel_stats(override(RECIPES["classify-finetune-cpu"](), changes), weights, given, heard, **more)
    return (recipe.input.mean, recipe.input.std), heard.lines


@pytest.mark.parametrize(
    ("trunk", "weights", "given", "pixels"),
    [
        (TRUNK, "file.pth", (), HALF),
        ("timm/tf_efficientnet_lite0", "efficientnet-lite0", (), HALF),
        ("timm/tf_efficientnet_b0", "timm/tf_efficientnet_b0.ap_in1k", (), HALF),  # of one network the tags differ
        ("timm/tf_efficientnet_b0", "timm/tf_efficientnet_b0.aa_in1k", (), IMAGENET),
        ("timm/resnet18", "file.pth", (), IMAGENET),
        (TRUNK, "none", (), IMAGENET),
        (TRUNK, "", (), IMAGENET),
        (TRUNK, "file.pth", ("input.mean",), IMAGENET),
        ("resnet", "resnet18", (), IMAGENET),
    ],
)
def test_they_are_what_timm_says_of_the_weights_unless_set_by_hand(trunk, weights, given, pixels):
    found, lines = settled({"model.backbone": trunk}, weights, given)
    assert found == pixels and len(lines) == (pixels == HALF)


def test_a_recipe_s_author_and_a_run_that_goes_on_keep_their_own():
    changes = {"model.backbone": TRUNK, "input.mean": (0.4,) * 3}
    assert settled(changes, "file.pth")[0] == ((0.4,) * 3, IMAGENET[1])
    saved = RunRecord(recipe={"input": {"mean": [0.1] * 3, "std": [0.2] * 3}})
    assert settled({"model.backbone": TRUNK}, "", saved=saved) == (((0.1,) * 3, (0.2,) * 3), [])


def test_an_unknown_network_is_refused_before_any_data_are_opened():
    with raises(RecipeError, "network", "test_resnet"):
        settled({"model.backbone": "timm/test_resnt"}, "file.pth")


def test_run_json_has_them_so_resume_repeat_and_the_next_run_are_exact(timm, tmp_path, monkeypatch, capsys):
    without_report(monkeypatch)
    data = make_photos(tmp_path / "data", train=2, val=1)
    torch.manual_seed(1)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "net.safetensors")
    words = ["train", "classify-finetune-cpu", "--data", data, "--model.backbone", TRUNK, *RUN]

    def run(out, *more, words=words):
        said = command(capsys, *words, "--output-dir", tmp_path / out, *more)
        assert said.code == 0, said.err
        facts, model = read_run(tmp_path / out), tmp_path / out / "checkpoints/last/model.safetensors"
        photo = facts.recipe["input"]
        return tuple(photo["mean"]) == HALF[0] == tuple(photo["std"]), model.read_bytes(), said.out

    fresh = ["--weights", tmp_path / "net.safetensors"]
    half, bits, said = run("whole", *fresh, "--max-steps", 2)
    assert half and said.count("mean 0.5 0.5 0.5, std 0.5 0.5 0.5") == 1
    assert run("parts", *fresh, "--max-steps", 1)[1] != bits
    assert run("parts", "--max-steps", 2)[:2] == (True, bits)  # goes on, without --weights
    assert run("again", words=["train", tmp_path / "whole/run.json"])[:2] == (True, bits)
    flags = ["--input.mean", *HALF[0], "--input.std", *HALF[1]]
    assert run("flags", *fresh, "--max-steps", 2, *flags)[:2] == (True, bits)
    # A run that began on ImageNet's goes on with them, and one from its checkpoint begins with them.
    old = ["--input.mean", *IMAGENET[0], "--input.std", *IMAGENET[1]]
    assert not run("old", *fresh, "--max-steps", 1, *old)[0]
    assert not run("old", *fresh, "--max-steps", 2)[0]
    assert not run("next", "--max-steps", 1, "--weights", tmp_path / "old/checkpoints/last")[0]
    shown = command(
        capsys,
        "plan",
        "classify-finetune-cpu",
        "--model.backbone",
        TRUNK,
        "--train-images",
        900,
        "--val-images",
        9,
        "--json",
    )
    assert json.loads(shown.out)["recipe"]["input"]["mean"] == [0.5] * 3


def test_without_timm_it_is_refused_from_the_command_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    data = make_photos(tmp_path / "data", train=1, val=1)
    for verb in (["train", "--weights", "file.pth"], ["plan"], ["preview"]):
        said = command(capsys, verb[0], "classify-finetune-cpu", "--model.backbone", TRUNK, "--data", data, *verb[1:])
        assert said.code == 2 and check_lines(
            said.err.splitlines(), (f"--model.backbone {TRUNK}", "timm", "pip install 'timm>=1.0.22'")
        ), said.err
        assert {entry.name for entry in data.iterdir()} == {"train", "val"}
