"""`paceline train RECIPE ...`, `paceline train ./file.py:recipe ...`, `paceline train RUN/run.json ...`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from paceline._utils.commands import command
from paceline._utils.errors import RecipeError
from paceline._utils.text import one_line
from paceline.cli.flags import Asked, parse_recipe
from paceline.cli.help import HELP
from paceline.cli.saved_request import saved_request
from paceline.config.plan import training_ranks
from paceline.config.run import Controls, check_controls, check_first_weights, run_file
from paceline.config.submission import check_submission
from paceline.log.console import open_console
from paceline.log.output import guard_exit
from paceline.log.trackers import makers
from paceline.ranks.launcher import is_first_on_node, read_launch
from paceline.training.choose import is_folder
from paceline.training.opening import check_request
from paceline.training.saved_run import stand_of
from paceline.weights.forms.bring import fitting

USAGE = """usage: paceline train RECIPE [--data DIR] [--out RUN] [--system NAME] [flags]
       paceline train ./my_file.py:my_recipe     a recipe of your own
       paceline train RUN/run.json [--out RUN]   the same run again; into RUN it goes on
       ... --workload ./my_file.py:mine          repeat a run whose workload is your own

Recipes for data of your own (-cpu: on a CPU), and small ones from scratch:
"""


def run(arguments: Sequence[str]) -> int:
    """Train, and return the exit code of the run's ending."""
    if not arguments or arguments[0] in HELP:
        from paceline.recipes import GROUPS, in_groups

        own = [name for name, group in in_groups().items() if group != GROUPS[""]]
        print(USAGE + "\n".join(f"  {name}" for name in own))
        print("\nThe others: paceline list recipes. `paceline train RECIPE --help` has a recipe's flags.")
        return 0 if arguments else 2
    base, controls, notes = None, Controls(), []
    if arguments[0].endswith(".json"):
        base, controls, _, words = saved_request(Path(arguments[0]), arguments[1:], "train")
        asked = parse_recipe(words, controls, verb="train", base=base, description=f"Repeat {arguments[0]}")
        for name in ("data", "weights"):
            if (path := getattr(asked.controls, name)) and name not in asked.given and is_first_on_node():
                notes.append(one_line(f"--{name} {path!r}: as {arguments[0]} names it"))
    else:
        if is_folder(arguments[0]):
            raise RecipeError(f"{arguments[0]} is a folder; to repeat a run name its run.json: {arguments[0]}/run.json")
        asked = parse_recipe(arguments, controls, verb="train")
    check_controls(asked.controls)
    check_submission(asked.controls.mlperf, asked.recipe)
    if read_launch(os.environ).world == 1:
        training_ranks(1, asked.controls.eval_ranks)
    refuse_random(asked, command("train", *arguments), asked.controls.out)
    refuse_early(asked, repeats=base is not None)
    if read_launch(os.environ).rank == 0:
        makers(
            asked.controls, asked.given
        )  # not where `launch` is called: packages and files are those of the machine that trains

    with open_console(asked.controls, read_launch(os.environ).rank) as console:
        for note in notes:
            console.warning(note)
        console.doing("starting")

        from paceline.training.call import run_training
        from paceline.training.request import Request

        guard_exit()
        request = Request(
            name=asked.name,
            recipe=asked.recipe,
            system_name=asked.system_name,
            system=asked.system,
            controls=asked.controls,
            given=asked.given,
            command=shlex.join(["paceline", "train", *arguments]),
            repeats=base is not None,
        )
        return run_training(request, console).exit_code


def refuse_random(asked: Asked, words: str, *folders: str | Path) -> None:
    """Raises RecipeError for a new run in any of the folders that would start from random values unasked; "" is none yet.

    words  the command; a run that goes on has its own weights
    """
    if not all(folder and run_file(Path(folder).expanduser()).is_file() for folder in folders):
        check_first_weights(asked.name, asked.recipe, asked.controls, words, fitting(asked.recipe))


def refuse_early(asked: Asked, *, repeats: bool) -> None:
    """Refuse before torch is loaded a finished run of which no more is asked, another task's run, a recipe that cannot be, and
    a data folder that is not there.

    With several ranks, and where the report is still to be written, that is left to the run itself.
    Raises UserError.
    """
    if read_launch(os.environ).world > 1:
        return
    path = Path(asked.controls.out).expanduser().absolute()
    if asked.controls.out and all((path / name).exists() for name in ("run.json", "report.html")):
        stand_of(path, asked.name, asked.recipe, asked.controls, asked.given, repeats=repeats)
    check_request(asked.recipe, asked.controls.data)
