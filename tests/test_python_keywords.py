"""`paceline.train(...)` from Python: keywords of the run and of the recipe, what is refused, and what help shows."""

from __future__ import annotations

import json
import os
import pydoc
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from messages import check_text, raises

import paceline
from paceline._utils.errors import PacelineError, RecipeError
from paceline.api import OWN, split_keywords
from paceline.config.mlperf import Submission, check_submission
from paceline.config.recipe import Optim, Recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions

ROOT = Path(paceline.__file__).parents[1]


def tiny() -> Recipe:
    return RECIPES["classify-demo"]()


def test_keywords_of_run_and_recipe_are_told_apart():
    controls, changes = split_keywords(
        tiny(), {"data": Path("photos"), "steps": 3, "global_batch": 64, "seed": 7}, {"optim.lr": 0.5}
    )
    assert controls == RunOptions(data="photos", steps=3)
    assert changes == {"optim.lr": 0.5, "global_batch": 64, "seed": 7}
    recipe = override(tiny(), changes)
    assert (recipe.global_batch, recipe.seed, recipe.optim.lr) == (64, 7, 0.5)


def test_a_run_of_which_nothing_is_asked_is_as_its_recipe_says():
    controls, changes = split_keywords(tiny(), {}, {})
    asked = {entry.name for entry in fields(RunOptions) if getattr(controls, entry.name)}
    assert (asked, changes) == ({"keep", "tensorboard", "mlperf"}, {})


def test_what_is_no_recipe_is_refused_in_words():
    with raises(PacelineError, "paceline.train(3)", "Recipe"):
        paceline.train(3)  # type: ignore[arg-type]


def test_no_keyword_means_two_things():
    assert not {entry.name for entry in fields(RunOptions)} & {entry.name for entry in fields(Recipe)}
    assert not {"system", "changes"} & {entry.name for kind in (RunOptions, Recipe) for entry in fields(kind)}


def test_numpy_s_numbers_and_paths_are_taken_as_python_s():
    controls, changes = split_keywords(
        tiny(), {"steps": np.int64(3), "seed": np.int32(4), "weights": Path("w.pth")}, {"optim.lr": np.float32(0.5)}
    )
    assert (type(controls.steps), controls.steps, controls.weights) == (int, 3, "w.pth")
    assert type(changes["optim.lr"]) is float and type(override(tiny(), changes).seed) is int


@pytest.mark.parametrize(
    "keywords, said",
    [
        ({"stepps": 3}, "steps=..."),
        ({"lr": 0.1}, 'Did you mean changes={"optim.lr": ...}?'),
        ({"optim_lr": 0.1}, 'changes={"optim.lr": ...}'),
        ({"global_bach": 3}, "global_batch=..."),
        ({"momentum": 0.5}, 'changes={"optim.momentum": ...}'),
        ({"xyzzy": 1}, "Keywords: data, out, system, changes, "),
        ({"steps": "3"}, 'steps ... "3"'),
        ({"steps": 3.5}, "steps ... 3.5"),
        ({"exact": 1}, "exact ... 1"),
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
    "changes, said",
    [
        ({"global_batch": "64"}, 'global_batch ... "64"'),
        ({"optim.lr": "0.1"}, 'optim.lr ... "0.1"'),
        ({"optim.kind": "adam"}, 'optim.kind ... "adam" ... sgd, lars, adamw'),
        ({"optim": {"lr": 0.1}}, 'changes={"optim.kind": ...}'),
        ({"global_batch": 48}, 'changes={"optim.lr": '),
    ],
    ids=str,
)
def test_a_change_of_the_recipe_is_checked_as_a_flag_is(changes, said):
    with pytest.raises(RecipeError) as refusal:
        override(tiny(), changes)
    assert check_text(str(refusal.value), said) and "--global-batch" not in str(refusal.value)


def test_whole_parts_of_a_recipe_and_whole_numbers_for_fractions_are_taken():
    assert override(tiny(), {"optim": Optim(lr=3.0)}).optim == Optim(lr=3.0)
    assert override(tiny(), {"epochs": 2}).epochs == 2.0
    assert override(tiny(), {"quality.at": [1, 2]}).quality.at == (1.0, 2.0)


@pytest.mark.parametrize("changes", [["optim.lr"], "optim.lr=0.1", {1: 2}], ids=str)
def test_changes_that_are_no_dict_of_names_are_refused(changes):
    with raises(PacelineError, "changes", "dict"):
        split_keywords(tiny(), {}, changes)


def test_the_docstring_names_every_keyword_of_the_run():
    text = (paceline.train.__doc__ or "").partition("Keywords of the run")[2].partition("Keywords of the recipe")[0]
    assert {entry.name for entry in fields(RunOptions)} - set(text.split()) <= set(OWN)


def test_the_submission_is_taken_as_a_dict_as_itself_and_by_dotted_names():
    wanted = RunOptions(mlperf=Submission(submitter="Us", cache_cleared=True))
    given = {"submitter": "Us", "cache_cleared": True}
    for keywords, changes in (
        ({"mlperf": given}, {}),
        ({"mlperf": wanted.mlperf}, {}),
        ({}, {f"mlperf.{name}": value for name, value in given.items()}),
    ):
        assert split_keywords(tiny(), keywords, {"optim.lr": 0.5, **changes}) == (wanted, {"optim.lr": 0.5})
    with raises(PacelineError, "mlperf", "changes"):
        split_keywords(tiny(), {"mlperf": given}, {"mlperf.status": "cloud"})


@pytest.mark.parametrize("field, value", [("submitter", 5), ("division", "foo"), ("cache_cleared", "yes")], ids=str)
def test_a_submission_made_in_python_is_checked_before_a_run(field, value):
    with pytest.raises(RecipeError, match=f"mlperf.{field} is "):
        check_submission(Submission(**{field: value}), tiny())


def test_a_keyword_given_twice_is_refused():
    with raises(PacelineError, "seed", "changes"):
        split_keywords(tiny(), {"seed": 1}, {"seed": 2})


def test_train_with_keywords_trains_that_recipe_and_a_refused_call_leaves_nothing(class_photos, tmp_path, monkeypatch):
    from tiny_runs import TINY_CHANGES, without_report

    without_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    below = {name: value for name, value in TINY_CHANGES.items() if "." in name}
    ending = paceline.train(
        "classify-demo", data=class_photos, out=tmp_path / "run", changes=below, global_batch=4, seed=5, steps=1
    )
    recipe = json.loads((Path(ending.run) / "run.json").read_text())["recipe"]
    assert (recipe["global_batch"], recipe["seed"], ending.step) == (4, 5, 1)
    before = sorted(tmp_path.iterdir())
    for keywords in ({"global_batch": 4}, {"stepps": 1}, {"seed": "1"}):
        with pytest.raises(paceline.PacelineError):
            paceline.train("classify-demo", data=class_photos, **keywords)
    assert sorted(tmp_path.iterdir()) == before


# What people see ----------------------------------------------------------------------------------------------------------


def test_the_package_shows_its_api_and_nothing_else_and_loads_no_torch_for_it():
    assert dir(paceline) == ["DataError", "PacelineError", "RecipeError", "__version__", "load", "train"]
    assert all(hasattr(paceline, name) for name in dir(paceline))
    assert paceline.PacelineError is PacelineError
    program = "import paceline, sys; dir(paceline), paceline.PacelineError; print([name for name in sys.modules if 'torch' in name])"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done


def test_help_on_the_package_names_both_functions_and_their_error():
    page = pydoc.plain(pydoc.render_doc(paceline))
    assert "train(recipe" in page and "load(run" in page and "PacelineError" in page
    assert "_Package" not in page and "TYPE_CHECKING" not in page


def test_help_on_train_names_every_keyword_an_example_the_result_and_the_errors():
    page = pydoc.plain(pydoc.render_doc(paceline.train))
    words = set(page.replace(",", " ").replace(".", " ").replace(":", " ").split())
    fields_of_recipe = {entry.name for entry in fields(Recipe)} - {"task", "pretrained"}
    lacking = ({entry.name for entry in fields(RunOptions)} | fields_of_recipe | set(OWN)) - words
    assert not lacking, f"help(paceline.train) does not name {sorted(lacking)}"
    for part in ("paceline.train(", "return", "TrainResult", "Raises PacelineError"):
        assert part in page
    assert max(map(len, (paceline.train.__doc__ or "").splitlines())) <= 135


def test_help_on_load_and_predict_says_what_is_taken_and_what_comes_back():
    from paceline.inference.trained_model import TorchPredictor

    load, predict = (pydoc.plain(pydoc.render_doc(thing)) for thing in (paceline.load, TorchPredictor.predict))
    assert "best, last or step-N" in load and "Raises PacelineError" in load
    for part in ("One photo gives one result", "PIL image", "tensor", "bytes", "Answer", "Found", "Raises DataError"):
        assert part in predict


@pytest.mark.parametrize(
    ("keyword", "ours"),
    [
        ("batch_size", "global_batch=..."),
        ("imgsz", 'changes={"input.size": ...}'),
        ("lr0", 'changes={"optim.lr": ...}'),
        ("max_iter", "steps=..."),
    ],
)
def test_what_other_tools_call_a_keyword_is_answered_with_ours(keyword, ours):
    with pytest.raises(PacelineError) as refused:
        paceline.train("ssd-demo", **{keyword: 8})
    check_text(str(refused.value), repr(keyword), ours)


def test_a_recipe_written_as_python_names_are_is_answered_with_its_name():
    with raises(PacelineError, "'ssd_demo'", "ssd-demo"):
        paceline.train("ssd_demo")
