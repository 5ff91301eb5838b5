"""A recipe of pretrained weights starts from them, or from random values that were asked for; never from these in silence."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from by_night import ONE_MORE
from messages import check_text, raises
from shared_runs import MASKRCNN
from tiny_runs import TINY_CHANGES, command, forge, of_its_own, refused, train

import paceline
from paceline._utils.errors import DataError, RecipeError
from paceline._utils.text import format_definitions
from paceline.config.plan import make_plan
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.recipes.published_rows import ROWS
from paceline.config.run import RunOptions, check_initial_weights, read_run
from paceline.config.system import System
from paceline.models.memory_estimate import MemoryEstimate
from paceline.models.weights.download import (
    PUBLISHED,
    PretrainedWeights,
    WeightDownload,
    fetch_pretrained,
    weights_cache_folder,
)
from paceline.training.plan_text import describe


@pytest.fixture(autouse=True)
def no_report(monkeypatch, tmp_path_factory):
    of_its_own(monkeypatch, tmp_path_factory)


@pytest.fixture
def mine(monkeypatch, tmp_path, resnet_run) -> Path:
    """Published weights `mine`: the file of a finished run, under an address of its own."""
    file = shutil.copy(resnet_run.folder / "checkpoints" / "last" / "model.safetensors", tmp_path / "mine.safetensors")
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    published = PretrainedWeights("of a test", (WeightDownload(f"file://{file}", sha256_prefix=digest[:8]),))
    monkeypatch.setitem(PUBLISHED, "mine", published)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return Path(file)


def test_fine_tuning_and_detectors_of_full_size_name_weights_that_are_published_and_nothing_else_does():
    made = {name: make() for name, make in RECIPES.items()} | {name: row.make() for name, row in ROWS.items()}
    for name, recipe in made.items():
        wants = "-finetune" in name or (recipe.task != "classification" and not name.endswith("-demo"))
        assert (recipe.pretrained in PUBLISHED) if wants else not recipe.pretrained, name


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ("train ssd --data nowhere --optim.lr 1e-3", "resnet34-mlperf"),
        pytest.param("train ssd-gaudi@", "ssd-resnet34-tensorflow", marks=ONE_MORE),
        pytest.param("train maskrcnn-finetune --data nowhere", "maskrcnn", marks=ONE_MORE),
        (
            "launch maskrcnn-gluoncv-192 --system p3dn --nodes 24 --scheduler slurm --num-trials 2 --output-dir five",
            "resnet50-v1b",
        ),
        ("train ssd@reference-1x8-1024 --data nowhere", "resnet34-mlperf"),
    ],
)
def test_without_weights_it_is_refused_with_the_command_before_anything_is_opened(
    words, weights, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = words.replace("@ ", " ").removesuffix("@")
    said = command(capsys, *words.split())
    refused(said, "pretrained", "--weights none")
    assert said.out == "" and not list(tmp_path.iterdir())
    printed = said.err.split("  ")[1]
    assert printed == f"paceline {words}{'' if '--data' in words else ' --data DIR'} --weights {weights}"
    # What it prints gets further: to the data, which are not there, or on the nodes alone.
    if words.startswith("train"):
        refused(command(capsys, *shlex.split(printed)[1:]), "folder")
    else:
        said = command(capsys, *shlex.split(printed)[1:], "--dry-run")
        assert said.code == 0 and check_text(said.out, f"--weights {weights}", "cache"), said


def test_from_python_it_is_refused_with_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as problem:
        paceline.train("ssd-finetune", data=str(tmp_path), output_dir="run")
    data = f'data="{tmp_path}"'
    assert f'paceline.train("ssd-finetune", {data}, weights="resnet34")' in str(problem.value)
    assert not Path("run").exists()
    with raises(paceline.PacelineError, "pretrained", "weights="):
        paceline.train("ssd-finetune", data=str(tmp_path), pretrained="resnet34")


def test_made_up_batches_named_weights_and_recipes_from_scratch_need_none():
    recipe = RECIPES["ssd"]()
    for options in (RunOptions(synthetic=True), RunOptions(weights="none"), RunOptions(weights="a.pth")):
        check_initial_weights("ssd", recipe, options)
    check_initial_weights("ssd-demo", RECIPES["ssd-demo"](), RunOptions())
    with pytest.raises(RecipeError):
        check_initial_weights("ssd", recipe, RunOptions(overfit_one_batch=True))


def test_random_values_on_purpose_are_recorded_said_and_warned_of_where_parts_do_not_train(maskrcnn_run, tmp_path, capsys):
    words = ["train", "maskrcnn", "--data", maskrcnn_run.data, "--output-dir", tmp_path / "run", *MASKRCNN.split()]
    said = command(capsys, *words, "--max-steps", 1, "--weights", "none")
    assert said.code == 0 and check_text(said.out.splitlines()[1], "--weights none", "random")
    (warned,) = [line for line in said.out.splitlines() + said.err.splitlines() if "random values" in line]
    assert check_text(warned, "11 tensors", "(backbone)") and "--model.freeze-stages 0" in warned
    assert "BatchNorm over" not in said.out
    facts = read_run(tmp_path / "run")
    assert facts.options["weights"] == "none" and facts.recipe["pretrained"] == "resnet50-v1"
    # A run that goes on has its own weights.
    said = command(capsys, *words, "--max-steps", 2)
    assert said.code == 0 and "random values" not in said.out + said.err
    assert "weights    none: random weights" in command(capsys, "plan", tmp_path / "run").out  # as it began


def test_weights_by_name_are_brought_once_compared_and_kept(mine, resnet_run, tmp_path, capsys):
    said = train(capsys, resnet_run.data, tmp_path / "run", "--weights", "mine", steps=1)
    kept = weights_cache_folder() / "mine.safetensors"
    assert said.code == 0 and f"weights {kept}: " in said.out and "BatchNorm over" in said.out
    assert kept.read_bytes() == mine.read_bytes()
    assert read_run(tmp_path / "run").options["weights"] == "mine"
    mine.unlink()
    data = tmp_path / "not looked at"
    data.mkdir()
    kept.write_bytes(b"x" * 100)
    refused(train(capsys, data, tmp_path / "again", "--weights", "mine"), str(kept), "SHA-256", "Move")
    kept.unlink()
    said = train(capsys, data, tmp_path / "again", "--weights", "mine")
    refused(
        said,
        f"file://{mine}",
        f"paceline weights download mine --source FILE_OR_DIR --output-dir {kept.parent}",
        "--weights FILE",
    )
    assert not (tmp_path / "again").exists()


def test_a_file_called_as_published_weights_are_comes_first(mine, resnet_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_bytes(b"<html>")
    refused(train(capsys, resnet_run.data, tmp_path / "run", "--weights", "mine"), "mine", "web page")


def test_what_comes_in_a_zip_is_taken_out_of_it_and_compared(tmp_path, monkeypatch):
    content = b"weights" * 1000
    archive = tmp_path / "w.zip"
    with zipfile.ZipFile(archive, "w") as book:
        book.writestr("w.params", content)
    file = WeightDownload(f"file://{archive}", sha1=hashlib.sha1(content).hexdigest(), member="w.params")
    monkeypatch.setitem(PUBLISHED, "w", PretrainedWeights("", (file,)))
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "w.params").write_bytes(content)
    for place, source in enumerate(("", str(archive), str(tmp_path), str(tmp_path / "mirror"))):
        folder = tmp_path / f"kept-{place}"
        assert fetch_pretrained("w", folder, source=source) == folder / "w.params"
        assert (folder / "w.params").read_bytes() == content and [path.name for path in folder.iterdir()] == ["w.params"]
    assert archive.exists()
    for sha1, member, says in ((hashlib.sha1(b"").hexdigest(), "w.params", "SHA-1"), (file.sha1, "x.params", "x.params")):
        monkeypatch.setitem(PUBLISHED, "w", PretrainedWeights("", (replace(file, sha1=sha1, member=member),)))
        with pytest.raises(DataError, match=says):
            fetch_pretrained("w", tmp_path / "other")
        assert not list((tmp_path / "other").iterdir())
    archive.write_bytes(content)
    with raises(DataError, "zip"):
        fetch_pretrained("w", tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_pickled_weights_by_name_get_the_command_that_converts_them(tmp_path, monkeypatch, resnet_run, capsys):
    (tmp_path / "R-50.pkl").write_bytes(b"\x80\x02}q\x00.")
    msra = replace(PUBLISHED["resnet50-msra"], files=(WeightDownload(f"file://{tmp_path}/R-50.pkl"),))
    monkeypatch.setitem(PUBLISHED, "resnet50-msra", msra)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    said = train(capsys, resnet_run.data, tmp_path / "run", "--weights", "resnet50-msra")
    refused(said, f"paceline weights convert {tmp_path}/cache/weights/R-50.pkl --format paceline --output")


def test_a_run_begun_before_its_recipe_named_weights_goes_on(resnet_run, tmp_path):
    recipe = override(RECIPES["classify-demo"](), TINY_CHANGES)
    run = {"data": str(resnet_run.data), "output_dir": str(tmp_path / "run"), "quiet": True}
    paceline.train(recipe, max_steps=1, **run)
    forge(tmp_path / "run", {"recipe.pretrained": None})  # as it was written then
    assert paceline.train(replace(recipe, pretrained="resnet50"), max_steps=2, **run).step == 2


def shown(name: str, batch_norms: int) -> str:
    """What `plan` says of a recipe with so many BatchNorms, without the estimate."""
    recipe = RECIPES[name]()
    plan = make_plan(recipe, System(), world=1, most=512, train_images=1000, val_images=10)
    memory = MemoryEstimate(0, 1, 0, batch_norms=batch_norms)
    return "\n".join(format_definitions(describe(name, recipe, "cpu", System(), plan, memory, weights=""), 200))


def test_show_says_which_weights_and_speaks_of_batchnorm_where_there_is_one():
    text = shown("maskrcnn-gluoncv", 0)
    assert f"--weights resnet50-v1b ({PUBLISHED['resnet50-v1b'].about})" in text and "BatchNorm over" not in text
    text = shown("maskrcnn-demo", 1)
    assert "weights" not in text and "BatchNorm over 8 images: " in text
    assert "BatchNorm over 1 image: " in shown("maskrcnn", 1)
