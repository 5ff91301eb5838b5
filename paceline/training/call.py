"""From a request to its ending: `paceline.train`, and what the command line calls with the Request that it builds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from paceline._utils.commands import command
from paceline._utils.errors import UserError
from paceline._utils.names import CHECKPOINTS, STOP_FILE
from paceline._utils.text import did_you_mean
from paceline.config.keywords import controls_and_changes
from paceline.config.recipe import Recipe, override
from paceline.log.console import Console, open_console
from paceline.log.output import lasting_output
from paceline.machine.machine import choose_device
from paceline.machine.placing import choose_adapter
from paceline.machine.provenance import untested_torch
from paceline.machine.shortage import failures_in_words
from paceline.ranks.environment import environment
from paceline.ranks.launcher import read_launch
from paceline.ranks.stop import StopVote, catch_stop
from paceline.ranks.world import open_world
from paceline.training.checkpoint.layout import LAST
from paceline.training.job import Job
from paceline.training.loop import loop
from paceline.training.opening import refuse_inexact
from paceline.training.request import Request
from paceline.training.run_folder import nearest_folder
from paceline.training.saved_run import FinishedError
from paceline.training.setup import set_up
from paceline.training.standing import Ending
from paceline.workers.template import start_early


def train(
    recipe: str | Recipe,
    *,
    data: str | Path = "",
    out: str | Path = "",
    system: str = "auto",
    changes: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Ending:
    """Train a recipe to its quality target, or as long as is asked; -> how the run ended.

        ending = paceline.train("resnet50-tiny", data="photos", out="runs/first", steps=500)
        ending = paceline.train("ssd-custom", data="coco", weights="resnet34", global_batch=16, changes={"optim.lr": 0.005})
        ending.status, ending.best, ending.run        # "success", {"box_ap": 0.41, ...}, "/home/me/runs/first"
        paceline.load(ending.run).predict("cat.jpg")

    `paceline train` does the same: the run prints its progress, writes a checkpoint an epoch and a report. Called again with the
    same `out` it resumes an interrupted run, and continues a finished one where it is given more steps.

    recipe    a name from `paceline train --help`, e.g. "resnet50-tiny", "ssd-custom", "maskrcnn-tiny"; or a Recipe
    data      the data set: class folders, COCO, Pascal VOC or YOLO; "" is the recipe's built-in pictures
    out       the run's folder; one with an unfinished run resumes it; "" makes runs/NAME-001, -002, ...
    system    where it runs: auto, cpu, gpu, ... (`paceline show RECIPE` tells)
    changes   fields of the recipe by their dotted names: {"optim.lr": 0.1, "model.depth": 18}; and "mlperf.submitter"

    Keywords of the run (paceline.config.run.Controls says what each means):
        weights steps time_budget fit_schedule auto patience limit_train limit_val val_half lint folds fold fold_seed fold_group
        log_every save_every eval_every eval_ranks keep keep_every mirror overfit_one_batch synthetic stage exact profile quiet
        json sink tensorboard mlperf
        sink is a list of names: ["wandb", "./file.py:name"].
        mlperf is a dict of paceline.config.submission.Submission's fields: {"submitter": "Us", "cache_cleared": True}.
    Keywords of the recipe, each a field of it (paceline.config.recipe.Recipe):
        global_batch epochs images_seen bn_span ema seed sampler repeat_threshold epoch_steps target_data, and whole parts:
        model input optim schedule quality.
        A changed global_batch needs its learning rate named again, changes={"optim.lr": ...}: none is scaled.

    return    an Ending: status, "success" where the target or the end was reached, reason in words, step, best value of each
              metric, and run, the folder that paceline.load opens
    Raises UserError, with one of its kinds, for anything that a user can mend: an unknown name, a value that cannot be, data
    that cannot be used, a folder that is finished or in use. paceline.UserError is their common class.
    """
    from paceline.machine.machines import SYSTEMS
    from paceline.machine.published import system_for
    from paceline.recipes import RECIPES
    from paceline.recipes.rows import ROWS

    if not isinstance(recipe, str | Recipe):
        raise UserError(f"paceline.train({recipe!r:.60}): the first argument is a recipe's name, or a Recipe.")
    recipes = RECIPES | {name: row.make for name, row in ROWS.items()}
    for name, menu, noun in ((recipe, RECIPES, "recipe"), (system, SYSTEMS, "system")):
        if isinstance(name, str) and name not in menu and not (noun == "recipe" and name in ROWS):
            hint = did_you_mean(name, menu) or f"Known: {', '.join(menu)}."
            raise UserError(f"there is no {noun} {name!r}. {hint}")
    chosen = recipes[recipe]() if isinstance(recipe, str) else recipe
    controls, changed = controls_and_changes(chosen, {"data": data, "out": out, **keywords}, changes or {})
    return run_training(
        Request(
            name=recipe if isinstance(recipe, str) else "custom",
            recipe=override(chosen, changed),
            system_name=system,
            system=system_for(str(recipe), system, SYSTEMS[system](), changed),
            controls=controls,
            given=frozenset(changed) | ({"system"} if system != "auto" else set()),
        )
    )


def run_training(request: Request, console: Console | None = None) -> Ending:
    """Carry out one request on this rank: join the other ranks, set up, train, report.

    console   closed here; None: a new one, by the request's controls
    """
    launch = read_launch(os.environ)
    refuse_inexact(request.system, request.controls.exact)
    facts, folder = request.facts() if launch.world > 1 else None, nearest_folder(request.controls.out)
    named = "system.interface" in request.given
    try:
        with (
            environment(request.system, launch, named=named) as notes,
            lasting_output() as output,
            console or open_console(request.controls, launch.rank) as console,
        ):
            start_early("paceline.input.render_job")
            notes = (*notes, untested_torch(torch.__version__)) if launch.rank == 0 else ()
            for note in filter(None, notes):
                console.warning(note)
            device = choose_device(request.system, launch.local_rank, launch.local_world)
            choose_adapter(request.system, launch, os.environ)
            with (
                open_world(launch, device=device, facts=facts, secret_folder=folder) as world,
                failures_in_words(),
                set_up(request, launch, world, console) as job,
            ):
                output.goes_on = f"training goes on, events are in {job.folder}/events.jsonl"
                ending = Ending(**serve(job)) if job.roles.evaluates else loop(job)
                job.write_report()
                ended = launch.rank == 0 and ending.status != "interrupted" and not request.controls.synthetic
                if ended and (job.folder / CHECKPOINTS / LAST).exists():
                    console.line(f"next:   {command('predict', job.folder, 'PHOTOS')}")
                return ending
    except FinishedError as finished:
        raise UserError(f"{finished}{written_late(finished.folder)}") from None


def written_late(folder: Path) -> str:
    """Write the report of a finished run that was killed before it had one; -> a line about it, or ""."""
    if (folder / "report.html").exists():
        return ""
    from paceline.pages.page import write_report

    try:
        return f"\nIts report was missing and is written now: {write_report(folder)}"
    except (UserError, OSError) as error:
        return f"\nIts report is missing and cannot be written: {error}"


def serve(job: Job) -> dict[str, Any]:
    """On a rank that only evaluates (`--eval-ranks`): score the weights that rank 0 sends until the run ends; -> fields of its Ending.

    The ranks that train continue meanwhile (loop.py), and take the result where they would take any other, so the run is the same as
    without such ranks. At most one evaluation is under way: its result is taken before the next begins.
    A signal or a STOP file on this rank is passed on to those that train, which decide. It stops an evaluation during inference;
    scores that are being computed are waited for.
    """
    with catch_stop(job.folder / STOP_FILE) as request, closing(StopVote(job.world, request, outside=True)) as vote:
        evaluator = job.evaluator(vote)
        while "end" not in (order := job.roles.next_order(vote.stopping_here)):
            evaluator.answer(order["evaluate"])
        return order["end"]
