"""`paceline eval RUN [--data DIR] [--checkpoint best|last|all|step-N]`: score a trained run, on any number of ranks."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from paceline.cli.choose import choose_system
from paceline.cli.flags import parse
from paceline.cli.saved import Named, saved_count, saved_recipe
from paceline.cli.voice import say
from paceline.config.errors import DataError, UserError
from paceline.config.plan import evaluation_batch
from paceline.config.run import Controls, check_controls, fill, saved_system
from paceline.config.system import System


@dataclass(frozen=True)
class Flags:
    """What to score."""

    run: Annotated[Path, tyro.conf.Positional] = Path()  # run folder
    data: str = ""  # data set to score on; empty = the run's own
    checkpoint: str = "best"  # best, last, all or step-N
    limit_val: int = 0  # use only N validation images, evenly spread; 0 = as the run did
    batch: int = 0  # images in one forward; 0 = as the run did
    system: str = ""  # where to compute; empty = as the run did where this machine can, else auto
    json: bool = False  # print one JSON object a checkpoint
    out: str = ""  # also write the predictions to this JSON file
    task: str = ""  # a task of your own, ./file.py:function: the one that the run was trained with
    recipe: str = ""  # its recipe, ./file.py:function, where that is in another file


def run(arguments: Sequence[str]) -> int:
    """Print each asked checkpoint's metrics."""
    flags = parse(arguments, Flags(), prog="eval", description="Score a run's checkpoint.")
    if flags.limit_val < 0 or flags.batch < 0:
        raise UserError("--limit-val and --batch must be 0 (as the run did) or more.")
    if flags.out and flags.checkpoint == "all":
        raise UserError("--out holds one checkpoint's predictions: name one with --checkpoint, not all.")
    named = Named(flags.recipe, flags.task, f"paceline eval {shlex.quote(str(flags.run))}")
    _, recipe, facts = saved_recipe(flags.run, named)
    saved = fill(Controls(), facts["controls"], f"{flags.run}: controls")
    check_controls(saved)
    most = saved_count(facts, "images_per_forward")

    from paceline.alike import data_facts, request_facts
    from paceline.checkpoint.layout import list_steps, step_name
    from paceline.dist.launcher import read_launch
    from paceline.dist.world import open_world
    from paceline.evaluate import evaluate
    from paceline.machine import autocast_for, choose_device, set_threads
    from paceline.tasks import open_task
    from paceline.tasks.task import Place
    from paceline.trained import open_trained

    system = _system(flags.run, facts, flags.system)
    names = [flags.checkpoint]
    if flags.checkpoint == "all":
        names = [step_name(step) for step in list_steps(flags.run / "checkpoints")]
        if not names:
            raise UserError(f"{flags.run}: this run has no checkpoint yet.")
    launch = read_launch(os.environ)
    device = choose_device(system, launch.local_rank, launch.local_world)
    controls = Controls(data=flags.data or saved.data, limit_val=flags.limit_val or saved.limit_val)
    alike = None
    if launch.world > 1:
        alike = request_facts("eval", recipe, system, controls, checkpoint=flags.checkpoint, batch=flags.batch)
    with open_world(launch, device=device, facts=alike, secret_folder=flags.run) as world:
        tell = say if world.is_main else _silent
        threads = set_threads(system, world, tell)
        try:
            task = open_task(recipe, controls, world, say=tell)
        except UserError as problem:
            if flags.data or not saved.data:
                raise
            raise DataError(
                f"{flags.run}: its run.json names the data set {saved.data!r}; name another with --data DIR. {problem}"
            ) from None
        world.agree(data_facts(task), "data")
        check_classes(task.classes, facts, flags.data)
        place = Place(world.rank, world.world, device, threads["loader"])
        batch = flags.batch or evaluation_batch(most, task.val_images, world.world)
        for name in names:
            trained = open_trained(
                flags.run, checkpoint=name, device=device, recipe=recipe, build=lambda: task.build(device)
            )
            result = evaluate(
                trained.model,
                task,
                key=name,
                batch=batch,
                system=system,
                place=place,
                world=world,
                autocast=autocast_for(system, device),
            )
            if not world.is_main:
                continue
            found = {"checkpoint": trained.checkpoint, "step": trained.step, "images": result.images, **result.metrics}
            if flags.json:
                print(json.dumps(found))
            else:
                for line in f"{trained.checkpoint}  {_numbers(result.metrics)}  ({result.images:,} images)".split("\n"):
                    say(line)
            if flags.out:
                _write(flags.out, {"step": trained.step, **result.predictions})
    return 0


def _numbers(metrics: Mapping[str, float]) -> str:
    """Every metric with its value; where boxes and masks were scored, a line for each."""
    box, mask = ([name for name in metrics if name.startswith(f"{what}_")] for what in ("box", "mask"))
    lines = [box, mask] if box and mask else [list(metrics)]
    return "\n  ".join("  ".join(f"{name} {metrics[name]:.4f}" for name in line) for line in lines)


def check_classes(classes: Sequence[str], facts: Mapping[str, Any], data: str) -> None:
    """The data's classes must be the run's, in the same order.

    Raises DataError naming the difference.
    """
    now, then = list(classes), list(facts["classes"])
    if now == then:
        return
    missing, extra = sorted(set(map(str, then)) - set(now)), sorted(set(now) - set(map(str, then)))
    raise DataError(
        f"--data {data or facts['controls']['data']}: its classes are not the run's. "
        f"Missing: {', '.join(missing[:5]) or 'none'}; unknown: {', '.join(extra[:5]) or 'none'}; "
        f"{len(now)} classes here, {len(then)} in the run. Scores between them would mean nothing."
    )


def _system(run: Path, facts: Mapping[str, Any], asked: str) -> System:
    """Where to compute: as asked; else the run's own system, so that the run's own numbers come out, where it is to be had."""
    if asked:
        return choose_system(asked)
    import torch

    own = saved_system(facts, run)
    return own if own.accelerator == "cpu" or torch.cuda.is_available() else choose_system("auto")


def _write(file: str, facts: Mapping[str, Any]) -> None:
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps(facts))
    except OSError as problem:
        raise UserError(f"--out {file}: cannot be written ({problem.strerror}). Name another file.") from None


def _silent(_: str) -> None:
    """What ranks other than 0 say."""
