"""Every recipe on the menu: loads, survives JSON, stays small, names its source, and has a help text of its own a field."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from by_night import ONE_MORE
from sources import nodes_of

import paceline.cli
import paceline.config
from paceline._utils.errors import RecipeError
from paceline.cli.main import main
from paceline.config.plan import limit_steps, make_plan
from paceline.config.recipe import DATA_IMAGES, Recipe, check_recipe
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions, RunSpec, from_json, read_run
from paceline.config.system import System, check_system
from paceline.distributed.device.systems import SYSTEMS, a100x8, h100x8, h200x8, v100x8
from paceline.models.registry import WORKLOADS

SHARED_FIELDS = 43  # every recipe has them, so a commit that changes the number says why all need the field
WORLDS = (1, 8, 64, 3584)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_and_does_not_contradict_itself(name):
    recipe = RECIPES[name]()
    assert isinstance(recipe, Recipe)
    check_recipe(recipe)
    WORKLOADS[recipe.task].network.check(recipe)
    assert RECIPES[name]() == recipe
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_json_gives_back_an_equal_recipe_system_and_controls(name, tmp_path):
    recipe, system = RECIPES[name](), h100x8()
    options = RunOptions(data="photos", max_steps=7, deterministic=True, max_time="2h")
    plan = make_plan(recipe, System(), world=1, most=recipe.bn_batch_size, train_images=50_000, val_images=10)
    (tmp_path / "run.json").write_text(
        RunSpec(name, recipe, "h100x8", system, limit_steps(plan, steps=7), options).record().to_json()
    )
    facts = read_run(tmp_path)
    model, treatment = WORKLOADS[recipe.task].model, WORKLOADS[recipe.task].input
    blank = Recipe(task="", model=model, input=treatment)
    assert from_json(blank, facts.recipe, "recipe") == recipe
    assert from_json(System(), facts.system, "system") == system
    assert from_json(RunOptions(), facts.options, "options") == options
    assert facts.plan["stop_after"] == 7 and facts.world_size == 1


@pytest.mark.parametrize("name", RECIPES)
def test_own_photos_are_turned_as_their_cameras_noted_and_published_data_are_read_as_published(name):
    recipe = RECIPES[name]()
    assert recipe.input.exif == ("apply" if name.endswith(("-finetune", "-cpu", "-demo")) else "ignore")
    facts = json.loads(json.dumps(dataclasses.asdict(recipe)))
    del facts["input"]["exif"]  # a run.json of a version that knew no such key
    model, data_treatment = WORKLOADS[recipe.task].model, WORKLOADS[recipe.task].input
    assert from_json(Recipe(recipe.task, model, data_treatment), facts, "recipe").input.exif == "ignore"


def test_a_key_that_this_version_does_not_know_is_refused_by_its_name():
    facts = json.loads(json.dumps(dataclasses.asdict(RECIPES["resnet50"]())))
    facts["optim"]["beta2"] = 0.5
    with pytest.raises(RecipeError, match=r"recipe\.optim: unknown key 'beta2'"):
        from_json(RECIPES["resnet50"](), facts, "recipe")


def shared_fields(node: Any, above: str = "") -> Iterator[str]:
    """Dotted names of the leaves that all recipes have: model and input, which are the workload's, count as one each."""
    for entry in dataclasses.fields(node):
        value = getattr(node, entry.name)
        if dataclasses.is_dataclass(value) and entry.name not in ("model", "input"):
            yield from shared_fields(value, f"{above}{entry.name}.")
        else:
            yield f"{above}{entry.name}"


def test_recipes_share_no_more_fields_than_today():
    found = list(shared_fields(RECIPES["resnet50"]()))
    assert "optim.lr" in found
    assert len(found) == SHARED_FIELDS, (
        f"set SHARED_FIELDS to {len(found)} and write into the commit why all recipes need it"
    )


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("world", WORLDS)
def test_every_recipe_has_a_plan_on_any_number_of_ranks_or_a_refusal_that_says_why(name, world):
    recipe, system = RECIPES[name](), h100x8()
    train, val = DATA_IMAGES[recipe.target_data]
    try:
        plan = make_plan(recipe, system, world=world, most=512, train_images=train, val_images=val)
    except RecipeError as refusal:
        assert re.search(r"--(global-batch-size|bn-batch-size) \d+: .*\s?Nearest", str(refusal)), refusal
        assert world > 1
        return
    assert plan.micro_batch_size * plan.micro_batches * world == recipe.global_batch_size == plan.global_batch_size
    assert plan.bn_batch_size == min(recipe.bn_batch_size, recipe.global_batch_size)
    assert plan.micro_batch_size * plan.bn_ranks == plan.bn_batch_size * plan.bn_groups
    assert plan.eval_steps[-1] == plan.total_steps


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_tells_its_command_or_its_source(name):
    text = inspect.getdoc(RECIPES[name]) or ""
    assert len(text.splitlines()[0]) > 20, name
    assert re.search(r"paceline train|train resnet|Published|Source|config |DGX|batch_256|Habana|reference", text), (
        f"{name}: {text}"
    )


def test_names_on_the_menu_are_workload_source_batch():
    for name, make in RECIPES.items():
        assert re.fullmatch(
            r"(classify|resnet50|ssd|maskrcnn|fasterrcnn)(-[a-z][a-z0-9]*)?(-\d+)?(-\d+x\d+|-[a-z0-9]+)?", name
        ), name
        batch = re.search(r"-(\d{3,})", name)
        assert batch is None or int(batch[1]) == make().global_batch_size, name


@pytest.mark.parametrize("make", [h100x8, h200x8, a100x8, v100x8], ids=lambda make: make.__name__)
def test_every_named_machine_is_sound(make):
    system = make()
    check_system(system)
    assert SYSTEMS[make.__name__] is make
    assert system.ranks_per_node == 8 and system.device == "cuda"
    assert (system.precision == "fp16") == (make is v100x8)  # V100 has no bf16


# Help texts -----------------------------------------------------------------------------------------------------------


def dataclass_sources() -> list[Path]:
    package = Path(paceline.__file__).parent
    files = [
        *(package / "config").glob("*.py"),
        *(package / "cli").rglob("*.py"),
        package / "inference" / "export" / "formats.py",
    ]
    return sorted(file for file in files if "@dataclass" in file.read_text())


def fields_in(file: Path) -> Iterator[tuple[str, str, str, int]]:
    """(class, field, the text of its Help, its last line) of every dataclass in a source file."""
    for node in nodes_of(file):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
            for entry in node.body:
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
                    texts = [
                        call.args[0].value
                        for call in ast.walk(entry.annotation)
                        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Help"
                    ]
                    assert entry.end_lineno is not None
                    yield node.name, entry.target.id, "".join(texts), entry.end_lineno


# What no command line shows: bookkeeping of a parsed command, whose fields speak for themselves.
NOT_FLAGS = {("ParsedArgs", name) for name in ("recipe", "system", "system_name")} | {
    ("RunSpec", name) for name in ("recipe", "system")
}
NOT_FLAGS |= {("RunSpec", "plan"), ("RunSpec", "options")}


@pytest.mark.parametrize("file", dataclass_sources(), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_flag_has_a_text_of_one_short_line_and_other_fields_a_comment(file):
    lines, fields = file.read_text().splitlines(), list(fields_in(file))
    offered = {owner for owner, _, text, _ in fields if text or owner.endswith("Flags")}
    for owner, name, text, last in fields:
        where = f"{file.name}:{last}: {owner}.{name}"
        if owner in offered:
            assert 0 < len(text) <= 90 and not text.endswith("."), f"{where}: {text!r}"
        elif (owner, name) not in NOT_FLAGS and owner != "RunRecord":
            assert "  # " in lines[last - 1], f"{where} has no comment on its line"


def own_texts(node: object, above: str = "") -> Iterator[tuple[str, str]]:
    """(flag, the text of its field's Help) of a dataclass instance and all below it, read from the sources."""
    found: dict[str, str] = {}
    for kind in reversed([kind for kind in type(node).__mro__ if dataclasses.is_dataclass(kind)]):  # a base's come first
        file = Path(inspect.getfile(kind))
        found |= {name: text for owner, name, text, _ in fields_in(file) if owner == kind.__name__}
    for entry in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, entry.name)
        if dataclasses.is_dataclass(value):
            yield from own_texts(value, f"{above}{entry.name}.")
        else:
            yield f"--{above}{entry.name}".replace("_", "-"), found[entry.name]


def help_by_flag(text: str) -> dict[str, str]:
    """Flag -> everything that --help says of it, blanks made one."""
    found: dict[str, str] = {}
    flag = ""
    for line in text.splitlines():
        start = re.match(r"  (--[a-z][a-z0-9.-]+)", line)
        if start:
            flag = start[1]
            found[flag] = line
        elif flag:
            found[flag] += f" {line}"
    return {flag: " ".join(said.split()) for flag, said in found.items()}


# Recipes of a workload have the same fields, and so the same help.
SHOWN = ("classify-demo", "ssd-demo", "maskrcnn-demo")


@pytest.mark.parametrize("name", [name if name in SHOWN else pytest.param(name, marks=ONE_MORE) for name in RECIPES])
def test_help_shows_each_fields_own_text_and_no_neighbours(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # one column of boxes
    said = io.StringIO()
    with redirect_stdout(said):
        assert main(["train", name, "--help-all"]) == 0
    shown = help_by_flag(said.getvalue())
    wanted = dict(own_texts(RECIPES[name]()))
    del wanted["--pretrained"], wanted["--target-data"]  # of published recipes
    wanted |= dict(own_texts(RunOptions()))
    wanted |= dict(own_texts(System(), "system."))
    assert len(wanted) > 60
    assert "--pretrained" not in shown
    for flag, text in wanted.items():
        assert flag in shown, f"{flag} is not offered"
        assert text in shown[flag], f"{flag}: {shown[flag]!r}"
        for other, neighbor in wanted.items():
            if other != flag and len(neighbor) > 25 and neighbor != text and neighbor not in text:
                assert neighbor not in shown[flag], f"{flag} shows the text of {other}"


@pytest.mark.parametrize(
    "verb",
    [
        "eval",
        "predict",
        "report",
        "doctor",
        "prepare folder",
        "prepare shapes",
        "preview",
        "plan",
        "runs",
        "list recipes",
        "bench startup",
        "bench comm",
        "check-performance",
    ],
)
def test_the_other_verbs_answer_help_with_a_text_for_every_flag(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    recipe = ["classify-demo"] if verb in ("preview", "plan") else []
    assert main([*verb.split(), *recipe, "--help-all"]) == 0
    for flag, text in help_by_flag(capsys.readouterr().out).items():
        if flag != "--help":
            words = re.sub(r"\(default:.*?\)$|--\S+|\{.*?\}", "", text).split()
            assert any(word.islower() for word in words), f"{verb} {flag}: {text!r}"
