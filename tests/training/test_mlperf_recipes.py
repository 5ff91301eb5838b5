"""Which recipes and rows the closed rules reject whatever their run reaches: those of docs/how-to/write-mlperf-logs.md."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from paceline.config.plan import make_plan
from paceline.config.published import Submission, get_division
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.recipes import RECIPES
from paceline.config.recipes.published_rows import ROWS
from paceline.config.run import RunOptions, RunSpec
from paceline.distributed.device.systems import SYSTEMS
from paceline.models.registry import WORKLOADS
from paceline.tools.mlperf.compliance import package_folder

PAGE = Path(__file__).parents[2] / "docs/how-to/write-mlperf-logs.md"
OF_THE_RUN = ("eval_accuracy", "weights_initialization")  # keys that are no fact of the recipe
needs_checker = pytest.mark.skipif(
    importlib.util.find_spec("mlperf_logging") is None, reason="mlperf-logging is not installed (extra: mlperf)"
)


def listed() -> dict[str, set[str]]:
    """recipe -> keys that the page says its log fails."""
    table = PAGE.read_text().partition("| Recipe | Rejected keys |")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {}
    for line in table.splitlines()[2:]:
        names, keys = line.split("|")[1:3]
        for name in re.findall(r"`([^`]+)`", names):
            found[name] = set(re.findall(r"`([^`]+)`", keys))
    return found


@cache
def rules(ruleset: str, name: str) -> list[dict]:
    import yaml

    file = package_folder() / "compliance_checker" / f"training_{ruleset}" / f"{name}.yaml"
    return yaml.safe_load(file.read_text())


def rejected(recipe: Recipe, ranks: int) -> Iterator[str]:
    """The keys of a run's facts that closed rules object to, by the checker's own expressions."""
    workload, system = WORKLOADS[recipe.task], SYSTEMS["h100x8"]()
    train, val = DATA_IMAGES.get(recipe.target_data, (1000, 100))
    plan = make_plan(recipe, system, world=ranks, train_images=train, val_images=val, most=recipe.global_batch_size)
    facts = workload.reporting.log_facts(RunSpec("", recipe, "", system, plan, RunOptions()))
    parts = [f"closed_{workload.reporting.benchmark}"]
    if workload.reporting.benchmark == "resnet":
        parts.append(f"closed_resnet_{facts['opt_name']}")
    known = {"math": math, "is_integer": lambda value: abs(round(value) - value) < 1e-5, "s": dict(facts)}
    for rule in (rule["KEY"] for part in parts for rule in rules(workload.reporting.ruleset, part) if "KEY" in rule):
        key, checks = rule["NAME"], rule.get("CHECK", [])
        if key in OF_THE_RUN:
            continue
        if key not in facts:
            yield key
            continue
        value = {"v": {"value": facts[key]}}
        for check in [checks] if isinstance(checks, str) else checks:
            if not eval(check.strip(), {**known, **value}):  # the installed checker's own rules
                yield key


@needs_checker
def test_the_page_lists_every_recipe_whose_log_closed_rules_reject_with_what_they_reject():
    ranks = {name: row.nodes * row.per_node for name, row in ROWS.items()}
    made = {**{name: make() for name, make in RECIPES.items()}, **{name: row.make() for name, row in ROWS.items()}}
    closed = {
        name: recipe
        for name, recipe in made.items()
        if get_division(Submission(), recipe) == "closed" and WORKLOADS[recipe.task].reporting.rules(recipe)[0]
    }
    assert made.keys() - closed.keys() >= {"fasterrcnn", "fasterrcnn-finetune"}  # no benchmark of MLPerf's
    found = {name: set(rejected(recipe, ranks.get(name, 1))) for name, recipe in closed.items()}
    assert {name: keys for name, keys in found.items() if keys} == listed()
