"""What a command's first word names: a recipe, a run's folder, its run.json, or a file of weights.

A run.json is read as data: Python files that it names run only where this command line names them too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError, RecipeError
from paceline._utils.names import flatten, list_matching
from paceline._utils.reporter import Reporter
from paceline._utils.text import suggest_name
from paceline._utils.user_code import choose_named, is_in_file
from paceline.config.model_card import GRAPHS, has_card, refuse_graph
from paceline.config.recipe import Recipe, override
from paceline.config.run import RunRecord, read_run
from paceline.models.registry import load_saved_recipe
from paceline.models.weights.download import PUBLISHED, is_published
from paceline.models.workload import WorkloadSpec
from paceline.training.checkpoint.layout import INDEX

# More images than any data set has.
MAX_IMAGES = 2**40


def open_run(path: Path, *, verb: str, recipe: str, workload: str) -> tuple[RunRecord, Recipe]:
    """Facts and recipe of a run's folder, for `eval` and `predict`; imports no torch.

    recipe, workload   the verb's flags; --recipe is for a file of weights alone
    Raises PacelineError for a folder that is no run, RecipeError for a workload of one's own that --task-file does not name.
    """
    if not path.exists():
        raise PacelineError(f"{path}: run or weight file not found. {suggest_name(str(path), PUBLISHED)}".rstrip())
    if recipe:
        raise PacelineError(
            f"--recipe {recipe}: only applies to weight files. The recipe of {path} is in its run.json. Remove --recipe."
        )
    facts = read_run(path)
    named = "" if path.suffix in GRAPHS else workload  # which is refused where the file is opened
    return facts, load_saved_recipe(facts, path, named=named, again=format_workload_command(verb, path))


def check_named(
    path: Path, *, verb: str, checkpoint: str, workload: str, recipe: str, allow_code_execution: bool = False
) -> None:
    """Refuse what `paceline.load` cannot open, as far as that is seen without torch: the words of a verb and its flags.

    Raises PacelineError as `open_run` and `refuse_graph`, and for a flag of runs beside a file of weights.
    """
    refuse_graph(path, verb, allow_code_execution=allow_code_execution)
    if not is_weights_argument(path, recipe):
        open_run(path, verb=verb, recipe=recipe, workload=workload)
        return
    for flag, value, usual in (("--task-file", workload, ""), ("--checkpoint", checkpoint, "best")):
        if value != usual:
            raise PacelineError(f"{flag} {value}: only applies to runs, and {path} is a weight file. Remove {flag}.")


def format_workload_command(verb: str, path: Path) -> Callable[[str], str]:
    """The command that names a run's own workload, for `load_saved_recipe`'s error."""
    return lambda name: format_command(verb, path, "--task-file", name)


def read_saved_count(facts: RunRecord, name: str) -> int:
    """A number of images in a run.json's plan. Raises RecipeError for what is not a whole number above 0."""
    number = facts.plan.get(name)
    if type(number) is not int or not 1 <= number <= MAX_IMAGES:
        raise RecipeError(f"run.json: plan.{name} must be an integer above 0, got {json.dumps(number)[:60]}.")
    return number


def is_weights_argument(path: Path, recipe: str = "") -> bool:
    """Whether a command's first word names weights, not a run: a file, a folder of arrays, a checkpoint, a published name.

    A file with a card is opened as a run, unless another recipe is named for it; so is a graph, always.
    """
    if path.is_file():
        if path.suffix in GRAPHS:
            return False
        return path.suffix != ".json" and (bool(recipe) or not has_card(path))
    if path.is_dir():
        named = (path / INDEX).is_file() or bool(list_matching(path, "*.npy", "*.index"))
        return named and not (path / "run.json").is_file()
    return is_published(str(path)) or path.with_name(f"{path.name}.index").is_file()


def resolve_weights(path: Path, reporter: Reporter) -> Path:
    """The file to read; published weights are downloaded into the cache.

    Raises CheckpointError as `find_weights_file`, and for weights that synthetic batches trained; DataError where a download fails.
    """
    from paceline.models.weights.download import download_to_cache
    from paceline.training.factory import find_weights_file, refuse_synthetic_weights

    name = str(path)
    if is_published(name):
        return download_to_cache(name, reporter)
    file = find_weights_file(name)
    refuse_synthetic_weights(file, name)
    return file


def parse_named_recipe(words: str) -> tuple[dict[str, Recipe], frozenset[str]]:
    """--recipe 'NAME [--model.x VALUE ...]' -> the recipe by those words, and its fields that were set by hand; ({}, none) of "".

    Raises RecipeError for a recipe that does not exist, and for a flag or a value that it does not take.
    """
    try:
        name, *flags = shlex.split(words) or [""]
    except ValueError as problem:
        raise RecipeError(f"--recipe {words}: {problem}.") from None
    if not name:
        return {}, frozenset()
    recipe = choose_recipe(name)
    if not flags:
        return {name: recipe}, frozenset()
    try:
        changes = _changes(flags, flatten(recipe))
        return {words: override(recipe, changes)}, frozenset(changes)
    except RecipeError as problem:
        raise RecipeError(f"--recipe {words}: {problem}") from None


def _changes(words: Sequence[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """["--model.depth", "18", "--model.no-x"] -> {"model.depth": 18, "model.x": False}, as `override` takes them."""
    texts: dict[str, list[str]] = {}
    for word in words:
        flag, _, value = word.partition("=")
        if flag.startswith("--"):
            texts[flag[2:].replace("-", "_")] = [value] if value else []
        elif texts:
            texts[list(texts)[-1]].append(word)
        else:
            raise RecipeError(f"{word} is not a flag. Flags start with --.")
    result: dict[str, Any] = {}
    for name, explicit in texts.items():
        above, dot, last = name.rpartition(".")
        if not explicit and last.startswith("no_"):
            result[f"{above}{dot}{last[3:]}"] = False
        elif isinstance(fields.get(name), tuple):
            result[name] = tuple(map(_value, explicit))
        else:
            result[name] = _value(" ".join(explicit)) if explicit else True
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# Only names of published rows have it: workload@submitter-machine-batch.
MARK = "@"


def choose_recipe(name: str) -> Recipe:
    """The recipe called `name`: from the menu, a published row, or `path/to/file.py:function`; of a workload there, with a recipe's
    defaults.

    Raises RecipeError naming the nearest neighbors.
    """
    from paceline.config.recipes import RECIPES

    if MARK in name and not is_in_file(name):
        from paceline.config.recipes.published_rows import ROWS

        if name not in ROWS:
            hint = suggest_name(name, ROWS)
            raise RecipeError(f"configuration {name!r} not found. {f'{hint} ' if hint else ''}Run `paceline list configs`.")
        return ROWS[name].make()
    result = choose_named(name, RECIPES, (Recipe, WorkloadSpec), "recipe")
    return Recipe(task=name, model=result.model, input=result.input) if isinstance(result, WorkloadSpec) else result


def is_folder(word: str) -> bool:
    """Whether a command's first word is a folder; the name of a recipe always means the recipe."""
    from paceline.config.recipes import RECIPES

    return word not in RECIPES and Path(word).is_dir()
