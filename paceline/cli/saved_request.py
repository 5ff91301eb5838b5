"""The request in a run.json, as the defaults of the same command.

A run.json is read as data: Python files that it names run only where this command line names them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.cli.flags import pop_flag_value
from paceline.cli.printing import print_error
from paceline.config.model_card import refuse_graph
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, RunRecord, check_run_options, from_json, read_run, relative_data, saved_system
from paceline.config.system import System
from paceline.models.registry import load_saved_recipe
from paceline.training.run_arguments import format_workload_command


def saved_request(
    path: Path, words: Sequence[str], verb: str
) -> tuple[tuple[str, Recipe, str, System], RunOptions, RunRecord, list[str]]:
    """The request in a run.json as defaults of the same command, all its facts, and the words left over.

    words   what follows the run on the command line: --task-file is taken out
    A recipe of the user's own is read without its Python file; --output-dir is not kept. An edited run.json is accepted with a
    warning. Raises RecipeError for a workload of the user's own that --task-file does not name, PacelineError when `path` is no run.
    """
    refuse_graph(path, verb)
    named, rest = pop_flag_value(words, "--task-file", "./file.py:name")
    facts = read_run(path, changed=print_error)
    recipe = load_saved_recipe(facts, path, named=named, again=format_workload_command(verb, path))
    # How a run was followed is no part of it; and a sink may be a Python file, which only a command line may name.
    anew = {"output_dir": "", "sync_to": "", "quiet": False, "json": False, "logger": ()}
    # fill() complains of a value that is no path.
    result = {"data": relative_data(facts)} if isinstance(facts.options.get("data"), str) else {}
    options = from_json(RunOptions(), {**facts.options, **result, **anew}, f"{path}: options")
    # A claim about the moment before that run, not this one.
    options = replace(options, mlperf=replace(options.mlperf, cache_cleared=False))
    check_run_options(options)
    return (facts.name, recipe, facts.system_name, saved_system(facts, path)), options, facts, rest
