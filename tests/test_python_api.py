"""The same from Python: train, load, predict; weights in and out; and what evaluation leaves behind."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
import torchvision
from messages import check_line, raises
from PIL import Image
from run_files import events_of, facts_of, tensor_files
from safetensors.torch import save_file
from tiny_runs import CLASSES, TINY_CHANGES, command, make_photos, of_its_own, train
from torch import nn

import paceline
from paceline._utils.errors import PacelineError, RecipeError
from paceline.api import OWN, TrainOptions
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.inference.trained_model import open_trained
from paceline.models.backbones.base import Backbone
from paceline.models.metrics.top_k import TopKScore
from paceline.models.weights.formats.torchvision import to_plain_tensors
from paceline.training.eval_history import TrainResult
from paceline.training.evaluate import inference_mode
from paceline.training.run_arguments import choose_recipe

pytestmark = pytest.mark.usefixtures("no_report")
ROOT = Path(paceline.__file__).parents[1]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Three classes; PNG, so that a path and its pixels are the same image to the last bit."""
    return make_photos(tmp_path_factory.mktemp("photos") / "set", kind="png", train=8, val=4)


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory) -> TrainResult:
    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        return paceline.train(
            "classify-demo",
            data=str(photos),
            output_dir=str(tmp_path_factory.mktemp("runs") / "run"),
            system="cpu",
            overrides={**TINY_CHANGES, "ema_decay": 0.0, "optim.lr": 0.05, "schedule.warmup": 0.0},
            max_steps=9,
            eval_every=3,
            keep_checkpoints=9,
        )


# train ----------------------------------------------------------------------------------------------------------------


def test_train_returns_how_the_run_ended(trained):
    assert (trained.status, trained.step, trained.exit_code) == ("stopped_early", 9, 0)
    assert "step 9 of" in trained.reason
    best = max(event["top1"] for event in events_of(Path(trained.run_dir), "eval"))
    assert trained.best_metrics["top1"] == best and set(trained.best_metrics) == {"top1", "top5"}
    facts = facts_of(Path(trained.run_dir))
    assert facts["recipe"]["optim"]["lr"] == 0.05 and facts["command"]


def test_train_takes_a_recipe_object_and_its_run_can_be_repeated_and_evaluated(photos, tmp_path, capsys):
    recipe = replace(override(RECIPES["classify-demo"](), TINY_CHANGES), seed=5)
    ending = paceline.train(recipe, data=str(photos), output_dir=str(tmp_path / "a"), max_steps=2)
    assert ending.status == "stopped_early"
    assert command(capsys, "train", tmp_path / "a" / "run.json", "--output-dir", tmp_path / "b").code == 0
    assert tensor_files(tmp_path / "a") == tensor_files(tmp_path / "b")
    assert command(capsys, "eval", tmp_path / "a").code == 0


def test_train_names_what_it_does_not_know(photos, tmp_path):
    for words, wanted in (
        ({"recipe": "classify-dmeo"}, "classify-demo"),
        ({"recipe": "classify-demo", "system": "gpus"}, "gpu"),
        ({"recipe": "classify-demo", "data": str(tmp_path / "none")}, "/none: "),
    ):
        with pytest.raises(PacelineError, match=wanted):
            paceline.train(**dict[str, Any]({"data": str(photos), "output_dir": str(tmp_path / "run"), **words}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"optim.lrr": 1}, "lr"),
        ({"optm.lr": 1}, "optim"),
        ({"seed.x": 1}, "seed.x ... int"),
        ({"global_batch_size": 7}, "optim.lr ... 0.021875"),
        ({"epochs": 2, "max_images": 5}, "--epochs 2 ... --max-images 5"),
    ],
)
def test_changes_are_checked_as_flags_are(changes, wanted):
    with raises(RecipeError, wanted):
        override(RECIPES["classify-demo"](), changes)


def test_a_changed_length_replaces_the_other_kind():
    assert override(RECIPES["classify-demo"](), {"epochs": 2}).max_images == 0
    assert override(RECIPES["resnet50"](), {"max_images": 640}).epochs == 0


# load and predict -----------------------------------------------------------------------------------------------------


def test_a_path_its_pixels_and_a_pil_image_get_the_same_answer(trained, photos):
    predictor = paceline.load(trained.run_dir)
    assert predictor.classes == CLASSES
    path = photos / "val" / "bee" / "0.png"
    image = Image.open(path)
    image.load()
    answers = predictor.predict([path, str(path), np.asarray(image), image])
    assert [answer.file for answer in answers] == [str(path), str(path), "", ""]
    for answer in answers[1:]:
        assert answer.class_ids == answers[0].class_ids and answer.scores == answers[0].scores
    assert sum(answers[0].scores) == pytest.approx(1, abs=1e-5)
    assert list(answers[0].scores) == sorted(answers[0].scores, reverse=True)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_a_pil_image_of_any_mode_is_read_as_its_rgb(trained, photos, mode):
    predictor = paceline.load(trained.run_dir)
    image = Image.open(photos / "val" / "bee" / "0.png").convert(mode)
    got, wanted = predictor.predict([image, image.convert("RGB")])
    assert got.scores == wanted.scores


def test_three_classes_give_three_answers_and_top5_is_certain(trained, photos):
    answer = paceline.load(trained.run_dir, checkpoint="last").predict([photos / "val" / "ant" / "1.png"])[0]
    assert len(answer.class_ids) == len(answer.names) == len(answer.scores) == 3
    assert sorted(answer.names) == sorted(CLASSES)
    assert all(event["top5"] == 1.0 for event in events_of(Path(trained.run_dir), "eval"))


def test_the_answers_do_not_depend_on_the_batch_and_no_photos_give_none(trained, photos):
    predictor = paceline.load(trained.run_dir)
    paths = sorted((photos / "val").rglob("*.png"))
    assert predictor.predict([]) == []
    together, alone = predictor.predict(paths), predictor.predict(paths, batch=1)
    for left, right in zip(together, alone):
        assert left.class_ids == right.class_ids
        assert left.scores == pytest.approx(right.scores, abs=1e-5)


def test_prediction_agrees_with_the_evaluation_of_training(trained, photos):
    """The same photos, the same checkpoint: predict's best classes are those that training's evaluation wrote down."""
    file = Path(trained.run_dir) / "predictions" / "step-000009.json"
    images = json.loads(file.read_text())["images"]
    answers = paceline.load(trained.run_dir, checkpoint="last").predict(
        [photos / "val" / image["file"] for image in images]
    )
    for image, answer in zip(images, answers):
        assert [entry["class"] for entry in image["top5"]] == list(answer.class_ids)
        assert [entry["score"] for entry in image["top5"]] == pytest.approx(answer.scores, abs=1e-5)


def test_predict_writes_pictures_and_one_json(trained, photos, tmp_path, capsys):
    other = make_photos(tmp_path / "other", kind="jpg")
    words = ["predict", trained.run_dir, photos / "val" / "ant", other / "val" / "ant", other / "val" / "bee" / "2.jpg"]
    said = command(capsys, *words, "--output-dir", tmp_path / "answers")
    assert said.code == 0 and said.err == ""
    facts = json.loads((tmp_path / "answers" / "predictions.json").read_text())
    assert [Path(image["file"]).name for image in facts["images"]] == [
        *(f"{i}.png" for i in range(4)), *(f"{i}.jpg" for i in range(3)), "2.jpg",
    ]  # fmt: skip
    assert facts["classes"] == list(CLASSES) and facts["checkpoint"].startswith("step-")
    pictures = sorted(path for path in (tmp_path / "answers").iterdir() if path.suffix == ".jpg")
    assert len(pictures) == 8  # photos of one name do not overwrite each other
    for picture in pictures:
        with Image.open(picture) as image:
            assert image.size[0] > 40 and image.mode == "RGB"
    words[-1] = photos / "val" / "ant" / "0.png"
    assert command(capsys, *words, "--output-dir", tmp_path / "bare", "--no-save-images").code == 0
    assert [path.name for path in (tmp_path / "bare").iterdir()] == ["predictions.json"]


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/predict.md"])
def test_the_python_of_a_page_does_what_it_shows(page, ssd_run, tmp_path, monkeypatch, capsys):
    """Only training is left out, whose result is a run that is there."""
    (block,) = re.findall(r"^ *```python\n(.*?)^ *```", (ROOT / page).read_text(), flags=re.M | re.S)
    asked = {}

    def train_nothing(recipe: str, **options: Any) -> TrainResult:
        asked.update(options, recipe=recipe)
        return TrainResult("stopped_early", "", 2, {"box_ap": 0.5}, str(ssd_run.folder))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.api.train", train_nothing)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "boxes").symlink_to(ssd_run.folder)
    shutil.copy(min((ssd_run.data / "val2017").iterdir()), tmp_path / "photo.jpg")
    names: dict[str, Any] = {}
    exec(textwrap.dedent(block), names)
    assert capsys.readouterr().out and (tmp_path / "answer.jpg").stat().st_size > 1000
    assert isinstance(names["result"], paceline.DetectionResult) and len(names["result"]) > 3
    if page == "README.md":
        assert asked["recipe"] in RECIPES and asked.keys() <= {*OWN, *get_type_hints(TrainOptions), "recipe"}


def test_the_python_tutorial_does_what_it_shows(ssd_run, tmp_path, monkeypatch, capsys):
    """Only the training is left out, whose result is a run that is there."""
    page = (ROOT / "docs/tutorials/first-steps-in-python.md").read_text()
    trained = TrainResult("success", "", 6, {"box_ap": 0.5}, str(ssd_run.folder))
    monkeypatch.setattr("paceline.api.train", lambda recipe, **options: trained)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    for link, target in (("runs/boxes", ssd_run.folder), (".cache/paceline/shapes-boxes-v2", ssd_run.data)):
        (tmp_path / link).parent.mkdir(parents=True)
        (tmp_path / link).symlink_to(target)
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)), names)
    assert (tmp_path / "answer.jpg").stat().st_size > 1000 and "objects," in capsys.readouterr().out
    assert len(names["images"]) > 3 and len(names["crops"]) == len(names["rows"]) == len(names["best"])


def test_a_run_json_means_the_run_that_it_is_in(trained, photos, capsys):
    file = Path(trained.run_dir) / "run.json"
    assert paceline.load(file).trained.checkpoint == paceline.load(trained.run_dir).trained.checkpoint
    told = [command(capsys, "eval", run, "--checkpoint", "last", "--json") for run in (trained.run_dir, file)]
    assert told[0].out == told[1].out and told[0].code == told[1].code == 0


def test_load_names_what_is_no_run(tmp_path, trained):
    with pytest.raises(PacelineError, match=r"run\.json not found"):
        paceline.load(tmp_path)
    with pytest.raises(PacelineError, match="step-000099"):
        paceline.load(trained.run_dir, checkpoint="step-000099")


# evaluate -------------------------------------------------------------------------------------------------------------


def test_evaluation_gives_each_module_its_own_mode_back_even_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[2].eval()  # a part that somebody froze
    before = [module.training for module in model.modules()]
    assert True in before and False in before
    with inference_mode(model):
        assert not any(module.training for module in model.modules()) and torch.is_inference_mode_enabled()
    assert [module.training for module in model.modules()] == before
    with pytest.raises(ZeroDivisionError), inference_mode(model):
        raise ZeroDivisionError
    assert [module.training for module in model.modules()] == before and not torch.is_inference_mode_enabled()


def test_training_goes_on_the_same_whether_it_was_evaluated_in_between_or_not(photos, tmp_path, capsys):
    assert train(capsys, photos, tmp_path / "often", "--eval-every", 1, steps=4).code == 0
    assert train(capsys, photos, tmp_path / "once", steps=4).code == 0
    assert tensor_files(tmp_path / "often") == tensor_files(tmp_path / "once")


@pytest.mark.parametrize(("ema", "precision"), [(0.0, "fp32"), (0.5, "fp32"), (0.0, "bf16")])
def test_eval_repeats_the_evaluation_of_training_exactly(photos, tmp_path, capsys, ema, precision):
    run, more = tmp_path / "run", ["--optim.lr", 0.05, "--system.precision", precision]
    said = train(capsys, photos, run, "--eval-every", 2, "--keep-checkpoints", 9, "--ema-decay", ema, *more, steps=6)
    assert said.code == 0
    found = command(capsys, "eval", run, "--checkpoint", "all", "--json").out.splitlines()
    scored = [json.loads(line) for line in found if line.startswith("{")]
    by_step = {score["step"]: score for score in scored}
    told = events_of(run, "eval")
    assert [event["step"] for event in told] == [2, 4, 6] and by_step.keys() >= {2, 4, 6}
    for event in told:
        for name in ("images", "top1", "top5"):
            assert event[name] == by_step[event["step"]][name]
    out = tmp_path / "again.json"
    assert command(capsys, "eval", run, "--checkpoint", "last", "--output", out).code == 0
    kept = json.loads((run / "predictions" / "step-000006.json").read_text())
    assert json.loads(out.read_text()) == {"paceline": "eval"} | kept


def test_eval_scores_another_number_of_images_where_asked(trained, photos, capsys):
    assert "5 images" in command(capsys, "eval", trained.run_dir, "--max-val-images", 5).out
    assert "12 images" in command(capsys, "eval", trained.run_dir, "--batch-size", 5).out
    best = json.loads(command(capsys, "eval", trained.run_dir, "--json").out.splitlines()[-1])
    assert best["top1"] == trained.best_metrics["top1"]


def test_limits_take_images_of_every_class(photos, tmp_path, capsys):
    assert train(capsys, photos, tmp_path / "run", "--max-train-images", 6, "--max-val-images", 3, steps=1).code == 0
    facts = facts_of(tmp_path / "run")
    assert (facts["plan"]["train_images"], facts["plan"]["val_images"]) == (6, 3)
    images = json.loads((tmp_path / "run" / "predictions" / "step-000001.json").read_text())["images"]
    assert [image["label"] for image in images] == [0, 1, 2]


def test_a_score_of_more_classes_than_five_keeps_five():
    score = TopKScore()
    from paceline.data.batch import Batch

    numbers = torch.arange(4)
    score.add(Batch(torch.zeros(4, 3, 2, 2, dtype=torch.uint8), numbers, numbers), torch.eye(4, 9))
    assert score.pack()


# Weights in and out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pth", "safetensors"])  # a checkpoint: tests/training/test_weight_start.py
def test_weights_start_a_run_and_every_key_is_reported(trained, photos, tmp_path, capsys, kind):
    network = open_trained(Path(trained.run_dir), checkpoint="last").model.network
    assert isinstance(network, nn.Module)
    state = to_plain_tensors(network.state_dict())
    source = tmp_path / f"weights.{kind}"
    (torch.save if kind == "pth" else save_file)(state, source)
    # A learning rate of next to nothing: after one step the weights are still those that were read.
    said = train(capsys, photos, tmp_path / "run", "--weights", source, "--optim.lr", 1e-9, "--ema-decay", 0, steps=1)
    assert said.code == 0, said
    assert f"{len(state)} tensors used" in said.out
    started = open_trained(tmp_path / "run", checkpoint="last").model.network
    assert isinstance(started, nn.Module)
    for name, tensor in to_plain_tensors(started.state_dict()).items():
        if name.endswith(("weight", "bias")):
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=1e-6)


def test_an_averaged_runs_checkpoint_gives_its_average_as_weights(photos, tmp_path, capsys):
    assert train(capsys, photos, tmp_path / "a", "--ema-decay", 0.9, "--optim.lr", 0.05, steps=4).code == 0
    checkpoint = tmp_path / "a" / "checkpoints" / "last"
    words = ["--weights", checkpoint, "--optim.lr", 1e-9, "--ema-decay", 0]
    said = train(capsys, photos, tmp_path / "b", *words, steps=1)
    assert said.code == 0 and "average.safetensors" in said.out
    averaged = open_trained(tmp_path / "a", checkpoint="last").model.state_dict()
    for name, tensor in open_trained(tmp_path / "b", checkpoint="last").model.state_dict().items():
        if name.endswith(("weight", "bias")):
            torch.testing.assert_close(tensor, averaged[name], rtol=0, atol=1e-6)


def test_a_new_head_is_reported_and_the_trunk_is_kept(trained, tmp_path, capsys):
    two = make_photos(tmp_path / "two", ("left", "right"))
    words = ["--weights", Path(trained.run_dir) / "checkpoints" / "best", "--optim.lr", 1e-9]
    said = train(capsys, two, tmp_path / "run", *words, steps=1)
    assert said.code == 0 and check_line(said.out, "2", "fc.weight, fc.bias")


def test_a_trained_checkpoint_loads_into_torchvision_and_gives_the_same_logits(photos, tmp_path, capsys):
    """Depth 18 and width 64 are torchvision's resnet18."""
    words = ["--model.depth", 18, "--model.width", 64]
    assert train(capsys, photos, tmp_path / "run", *words, steps=2).code == 0
    ours = open_trained(tmp_path / "run", checkpoint="last").model
    assert isinstance(ours.network, Backbone)
    theirs = torchvision.models.resnet18(num_classes=3)
    theirs.load_state_dict(to_plain_tensors(ours.network.state_dict()), strict=True)
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(ours.network.classify(images), theirs.eval()(images), rtol=1e-4, atol=1e-5)


def test_the_two_ways_in_know_the_same_menus():
    assert choose_recipe("resnet50") == RECIPES["resnet50"]()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = paceline.nothing  # type: ignore[attr-defined]
