"""`paceline train RECIPE ...`, `paceline train ./file.py:recipe ...`, `paceline train RUN/run.json ...`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline._utils.commands import format_command
from paceline._utils.errors import RecipeError
from paceline._utils.text import escape_line
from paceline.cli.flags import parse_run_args
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.cli.saved_request import saved_request
from paceline.config.run import RunOptions
from paceline.distributed.comm.launcher import is_first_on_node, read_launch
from paceline.training.logging.console import open_console
from paceline.training.logging.stdout_guard import guard_exit
from paceline.training.request import validate
from paceline.training.run_arguments import is_folder

USAGE = """usage: paceline train RECIPE [--data DIR] [--output-dir RUN] [--system NAME] [flags]
       paceline train ./my_file.py:my_recipe     a custom recipe
       paceline train RUN/run.json [--output-dir RUN]   repeat a run, or resume it with the same RUN
       ... --task-file ./my_file.py:my_task       repeat a run with a custom task

Recipes for your own data (-cpu: on a CPU), and small recipes that train from scratch:
"""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Train, and return the exit code of the run's ending."""
    if not arguments or arguments[0] in HELP:
        from paceline.config.recipes import GROUPS, group_recipes

        own = [name for name, group in group_recipes().items() if group != GROUPS[""]]
        print(USAGE + "\n".join(f"  {name}" for name in own))
        print("\nAll recipes: paceline list recipes. Flags of a recipe: paceline train RECIPE --help")
        return 0 if arguments else 2
    base, options, notes = None, RunOptions(), []
    if arguments[0].endswith(".json"):
        base, options, _, words = saved_request(Path(arguments[0]), arguments[1:], "train")
        args = parse_run_args(words, options, verb="train", base=base, printer=printer)
        for name in ("data", "weights"):
            if (path := getattr(args.options, name)) and name not in args.given and is_first_on_node():
                notes.append(escape_line(f"--{name} {path!r}: from {arguments[0]}"))
    else:
        if is_folder(arguments[0]):
            raise RecipeError(f"{arguments[0]}: is a folder. To repeat a run, use {arguments[0]}/run.json")
        args = parse_run_args(arguments, options, verb="train", printer=printer)
    launch = read_launch(os.environ)
    request = args.request(format_command("train", *arguments), repeats=base is not None)
    validate(request, launch)

    with open_console(args.options, launch.rank) as console:
        for note in notes:
            console.warning(note)
        console.doing("starting")

        from paceline.api import train_request

        guard_exit()
        return train_request(replace(request, system=args.system), console).exit_code
