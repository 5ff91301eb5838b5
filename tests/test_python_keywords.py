"""`paceline.train(...)` from Python: keywords of the run and of the recipe, what is refused, and what help shows."""

from __future__ import annotations

import inspect
import json
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from messages import check_text, raises

import paceline
from paceline._utils.errors import PacelineError, RecipeError
from paceline.api import OWN, TrainOptions, split_keywords
from paceline.config.constraints import get_hints
from paceline.config.published import Submission, check_submission
from paceline.config.recipe import NO_FLAG, Optim, Recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions

ROOT = Path(paceline.__file__).parents[1]


def tiny() -> Recipe:
    return RECIPES["classify-demo"]()


def test_keywords_of_run_and_recipe_are_told_apart():
    options, overrides = split_keywords(
        tiny(), {"data": Path("photos"), "max_steps": 3, "global_batch_size": 64, "seed": 7}, {"optim.lr": 0.5}
    )
    assert options == RunOptions(data="photos", max_steps=3)
    assert overrides == {"optim.lr": 0.5, "global_batch_size": 64, "seed": 7}
    recipe = override(tiny(), overrides)
    assert (recipe.global_batch_size, recipe.seed, recipe.optim.lr) == (64, 7, 0.5)


def test_a_run_of_which_nothing_is_asked_is_as_its_recipe_says():
    options, overrides = split_keywords(tiny(), {}, {})
    asked = {entry.name for entry in fields(RunOptions) if getattr(options, entry.name)}
    assert (asked, overrides) == ({"keep_checkpoints", "tensorboard", "mlperf"}, {})


def test_what_is_no_recipe_is_refused_in_words():
    with raises(PacelineError, "paceline.train(3)", "Recipe"):
        paceline.train(3)  # type: ignore[arg-type]


def test_no_keyword_means_two_things():
    assert not {entry.name for entry in fields(RunOptions)} & {entry.name for entry in fields(Recipe)}
    assert not {"system", "overrides"} & {entry.name for kind in (RunOptions, Recipe) for entry in fields(kind)}


def test_numpy_s_numbers_and_paths_are_taken_as_python_s():
    options, overrides = split_keywords(
        tiny(), {"max_steps": np.int64(3), "seed": np.int32(4), "weights": Path("w.pth")}, {"optim.lr": np.float32(0.5)}
    )
    assert (type(options.max_steps), options.max_steps, options.weights) == (int, 3, "w.pth")
    assert type(overrides["optim.lr"]) is float and type(override(tiny(), overrides).seed) is int


@pytest.mark.parametrize(
    "keywords, said",
    [
        ({"stepps": 3}, "max_steps=..."),
        ({"lr": 0.1}, 'Did you mean overrides={"optim.lr": ...}?'),
        ({"optim_lr": 0.1}, 'overrides={"optim.lr": ...}'),
        ({"global_bach": 3}, "global_batch_size=..."),
        ({"momentum": 0.5}, 'overrides={"optim.momentum": ...}'),
        ({"xyzzy": 1}, "Keywords: data, output_dir, system, overrides, "),
        ({"max_steps": "3"}, 'max_steps ... "3"'),
        ({"max_steps": 3.5}, "max_steps ... 3.5"),
        ({"deterministic": 1}, "deterministic ... 1"),
        ({"data": 7}, "data ... 7"),
        ({"data": ["photos"]}, "text"),
        ({"mlperf": "closed"}, "mlperf ... 'closed'"),
        ({"mlperf": {"submiter": "Us"}}, "mlperf ... 'submiter' ... submitter, division"),
        ({"mlperf": {5: "Us"}}, "mlperf ... 5"),
        ({"mlperf": {"submitter": 5}}, "mlperf.submitter ... 5"),
        ({"mlperf": {"cache_cleared": 1}}, "mlperf.cache_cleared ... 1"),
        ({"mlperf": Submission(division="foo")}, 'mlperf.division ... "foo" ... auto, closed, open'),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_keyword_that_is_none_is_refused_with_its_nearest_neighbour(keywords, said):
    with pytest.raises(PacelineError) as refusal:
        split_keywords(tiny(), keywords, {})
    assert check_text(str(refusal.value), said)


@pytest.mark.parametrize(
    "overrides, said",
    [
        ({"global_batch_size": "64"}, 'global_batch_size ... "64"'),
        ({"optim.lr": "0.1"}, 'optim.lr ... "0.1"'),
        ({"optim.name": "adam"}, 'optim.name ... "adam" ... sgd, lars, adamw'),
        ({"optim": {"lr": 0.1}}, 'overrides={"optim.name": ...}'),
        ({"global_batch_size": 48}, 'overrides={"optim.lr": '),
    ],
    ids=str,
)
def test_a_change_of_the_recipe_is_checked_as_a_flag_is(overrides, said):
    with pytest.raises(RecipeError) as refusal:
        override(tiny(), overrides)
    assert check_text(str(refusal.value), said) and "--global-batch" not in str(refusal.value)


def test_whole_parts_of_a_recipe_and_whole_numbers_for_fractions_are_taken():
    assert override(tiny(), {"optim": Optim(lr=3.0)}).optim == Optim(lr=3.0)
    assert override(tiny(), {"epochs": 2}).epochs == 2.0
    assert override(tiny(), {"eval.at": [1, 2]}).eval.at == (1.0, 2.0)


@pytest.mark.parametrize("overrides", [["optim.lr"], "optim.lr=0.1", {1: 2}], ids=str)
def test_overrides_that_are_no_dict_of_names_are_refused(overrides):
    with raises(PacelineError, "overrides", "dict"):
        split_keywords(tiny(), {}, overrides)


# Options of a run and fields of a recipe whose keyword takes more than the field itself.
WIDER = {
    "copy_data_to": str | Path,
    "weights": str | Path,
    "logger": str | Sequence[str],
    "mlperf": Submission | Mapping[str, Any],
    "model": Any,
    "input": Any,
}


def test_the_typed_keywords_are_the_fields_of_the_run_s_options_and_of_a_recipe():
    wanted = get_hints(RunOptions) | get_hints(Recipe)
    for name in (*OWN, "task", NO_FLAG):  # named parameters of train; no keywords
        wanted.pop(name, None)
    assert get_type_hints(TrainOptions) == wanted | WIDER
    assert not TrainOptions.__required_keys__ and set(WIDER) <= set(wanted)
    assert get_hints(RunOptions)["logger"] == tuple[str, ...] and get_hints(RunOptions)["mlperf"] is Submission


def test_every_typed_keyword_is_taken():
    usual = asdict(RunOptions()) | {entry.name: getattr(tiny(), entry.name) for entry in fields(Recipe)}
    options, overrides = split_keywords(tiny(), {name: usual[name] for name in get_type_hints(TrainOptions)}, {})
    assert options == RunOptions() and override(tiny(), {**overrides, "optim.lr": tiny().optim.lr}) == tiny()


def test_an_editor_knows_the_keywords_and_their_types(tmp_path):
    """basedpyright finds exactly the lines with an error in them."""
    (tmp_path / "calls.py").write_text(
        """\
import paceline

result = paceline.train("ssd-demo", data="x", max_steps=3, global_batch_size=8, overrides={"optim.lr": 0.1}, logger=["wandb"])
paceline.train("ssd-demo", stepps=3)
paceline.train("ssd-demo", max_steps="3")
paceline.train("ssd-demo", mlperf={"submitter": "Us"}, sampler="class-balanced", val_subset="tune")
paceline.train("ssd-demo", sampler="all")
predictor = paceline.load(result.run_dir, allow_code_execution=True)
for one in predictor.predict_iter(paceline.Video("clip.mp4").path):
    print(one.reason if isinstance(one, paceline.FailedImage) else one.summary())
print(result.best)
"""
    )
    facts = {"include": ["calls.py"], "typeCheckingMode": "standard", "pythonVersion": "3.10", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(facts))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["generalDiagnostics"]
    assert [one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"] == [4, 5, 7, 11], found


def test_the_submission_is_taken_as_a_dict_as_itself_and_by_dotted_names():
    wanted = RunOptions(mlperf=Submission(submitter="Us", cache_cleared=True))
    given = {"submitter": "Us", "cache_cleared": True}
    for keywords, overrides in (
        ({"mlperf": given}, {}),
        ({"mlperf": wanted.mlperf}, {}),
        ({}, {f"mlperf.{name}": value for name, value in given.items()}),
    ):
        assert split_keywords(tiny(), keywords, {"optim.lr": 0.5, **overrides}) == (wanted, {"optim.lr": 0.5})
    with raises(PacelineError, "mlperf", "overrides"):
        split_keywords(tiny(), {"mlperf": given}, {"mlperf.status": "cloud"})


@pytest.mark.parametrize("field, value", [("submitter", 5), ("division", "foo"), ("cache_cleared", "yes")], ids=str)
def test_a_submission_made_in_python_is_checked_before_a_run(field, value):
    with pytest.raises(RecipeError, match=f"mlperf.{field}: must be "):
        check_submission(Submission(**{field: value}), tiny())


def test_a_keyword_given_twice_is_refused():
    with raises(PacelineError, "seed", "overrides"):
        split_keywords(tiny(), {"seed": 1}, {"seed": 2})


def test_train_with_keywords_trains_that_recipe_and_a_refused_call_leaves_nothing(class_photos, tmp_path, monkeypatch):
    from tiny_runs import TINY_CHANGES, without_report

    without_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    below = {name: value for name, value in TINY_CHANGES.items() if "." in name}
    ending = paceline.train(
        "classify-demo",
        data=class_photos,
        output_dir=tmp_path / "run",
        overrides=below,
        global_batch_size=4,
        seed=5,
        max_steps=1,
    )
    recipe = json.loads((Path(ending.run_dir) / "run.json").read_text())["recipe"]
    assert (recipe["global_batch_size"], recipe["seed"], ending.step) == (4, 5, 1)
    before = sorted(tmp_path.iterdir())
    refused: list[dict[str, Any]] = [{"global_batch_size": 4}, {"stepps": 1}, {"seed": "1"}]
    for keywords in refused:
        with pytest.raises(paceline.PacelineError):
            paceline.train("classify-demo", data=class_photos, **keywords)
    assert sorted(tmp_path.iterdir()) == before


# What people see ----------------------------------------------------------------------------------------------------------


def test_the_package_shows_its_api_and_nothing_else_and_loads_no_torch_for_it():
    results = ["ClassificationResult", "DetectionResult", "FailedImage", "PredictionResult", "TrainResult"]
    errors = ["CheckpointError", "DataError", "PacelineError", "RecipeError"]
    others = ["Frame", "Predictor", "TrainOptions", "Video", "__version__", "load", "train"]
    assert dir(paceline) == paceline.__all__ == sorted([*results, *errors, *others])
    assert all(hasattr(paceline, name) for name in dir(paceline))
    assert paceline.PacelineError is PacelineError
    program = "import paceline, sys; dir(paceline), paceline.PacelineError; print([name for name in sys.modules if 'torch' in name])"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done


def test_help_on_the_package_names_its_functions_classes_and_errors():
    page = pydoc.plain(pydoc.render_doc(paceline))
    assert "train(recipe" in page and "load(run" in page
    above = page.partition("PACKAGE CONTENTS")[0]
    assert "Example::" in above and {"train", "load", "paceline"} <= set(re.findall(r"\w+", above))
    assert set(paceline.__all__) - set(re.findall(r"\w+", above)) <= {"PredictionResult", "__version__"}
    assert "_Package" not in page and "TYPE_CHECKING" not in page


def test_help_on_train_names_every_keyword_an_example_the_result_and_the_errors():
    page = pydoc.plain(pydoc.render_doc(paceline.train))
    lacking = {*get_type_hints(TrainOptions), *OWN} - set(re.findall(r"\w+", page.partition("Args:")[2]))
    assert not lacking, f"help(paceline.train) does not name {sorted(lacking)}"
    for part in ("paceline.train(", "Args:", "Returns:", "TrainResult", "Raises:", "PacelineError"):
        assert part in page
    assert max(map(len, (paceline.train.__doc__ or "").splitlines())) <= 135


def public_functions() -> dict[str, Callable[..., Any]]:
    """Name -> function or method of the API, which is no property; of a method that is overridden, the base class's."""
    found: dict[str, Callable[..., Any]] = {"train": paceline.train, "load": paceline.load}
    for kind in (paceline.Predictor, paceline.DetectionResult, paceline.PredictionResult, paceline.Video):
        found |= {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and name[0] != "_"}
    del found["reader"]  # for subclasses
    return found


@pytest.mark.parametrize("name", public_functions())
def test_a_public_docstring_has_a_summary_its_arguments_and_its_result(name):
    function = public_functions()[name]
    text = inspect.getdoc(function) or ""
    above, _, arguments = text.partition("Args:")
    assert re.match(r"[A-Z][^\n]+\.(\n|$)", above)
    for one in inspect.signature(function).parameters:
        assert one == "self" or re.search(rf"^    [*\w, ]*\b{one}\b[\w, ]*(:| \()", arguments, flags=re.M), one
    assert function.__annotations__["return"] == "None" or re.search("^(Returns|Yields):", text, flags=re.M)


def test_help_on_load_and_predict_says_what_is_taken_and_what_comes_back():
    from paceline.inference.trained_model import TorchPredictor

    load, predict = (pydoc.plain(pydoc.render_doc(thing)) for thing in (paceline.load, TorchPredictor.predict))
    for part in (
        '"best"',
        '"last"',
        '"step-N"',
        "allow_code_execution",
        "logging",
        "Returns:",
        "Raises:",
        "CheckpointError",
    ):
        assert part in load
    for part in ("PIL image", "tensor", "bytes", "ClassificationResult", "DetectionResult", "Raises:", "DataError"):
        assert part in predict


@pytest.mark.parametrize(
    ("keyword", "ours"),
    [
        ("batch_size", "global_batch_size=..."),
        ("imgsz", 'overrides={"input.image_size": ...}'),
        ("lr0", 'overrides={"optim.lr": ...}'),
        ("max_iter", "max_steps=..."),
    ],
)
def test_what_other_tools_call_a_keyword_is_answered_with_ours(keyword, ours):
    with pytest.raises(PacelineError) as refused:
        paceline.train("ssd-demo", **dict[str, Any]({keyword: 8}))
    check_text(str(refused.value), keyword, ours)


def test_a_recipe_written_as_python_names_are_is_answered_with_its_name():
    with raises(PacelineError, "'ssd_demo'", "ssd-demo"):
        paceline.train("ssd_demo")
