"""`paceline eval RUN [--data DIR] [--checkpoint best|last|all|step-N]`: score a trained run, on any number of ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from paceline.cli.choose import choose_system
from paceline.cli.flags import parse
from paceline.config.errors import DataError
from paceline.config.run import Controls, read_run


def run(arguments: Sequence[str]) -> int:
    """Print each asked checkpoint's metrics."""
    import tyro

    @dataclass(frozen=True)
    class Flags:
        run: Annotated[Path, tyro.conf.Positional]  # run folder
        data: str = ""  # data set to score on; empty = the run's own
        checkpoint: str = "best"  # best, last, all or step-N
        limit_val: int = 0  # use only N validation images, evenly spread; 0 = all
        batch: int = 0  # images in one forward; 0 = the run's
        system: str = "auto"  # where to compute
        json: bool = False  # print one JSON object a checkpoint
        out: str = ""  # also write a predictions JSON file here

    flags = parse(arguments, Flags(Path()), prog="eval", description="Score a run's checkpoint.")
    facts = read_run(flags.run)

    from paceline.checkpoint.read import list_checkpoints
    from paceline.dist.launcher import read_launch
    from paceline.dist.world import open_world
    from paceline.evaluate import evaluate
    from paceline.machine import choose_device, set_threads
    from paceline.tasks import open_task
    from paceline.tasks.task import Place
    from paceline.trained import open_trained, saved_recipe

    recipe, system = saved_recipe(facts), choose_system(flags.system)
    names = list_checkpoints(flags.run / "checkpoints") if flags.checkpoint == "all" else [flags.checkpoint]
    launch = read_launch(os.environ)
    device = choose_device(system, launch.local_rank)
    with open_world(launch, device=device) as world:
        threads = set_threads(system, world)
        saved = facts["controls"]
        controls = Controls(data=flags.data or saved["data"], limit_val=flags.limit_val or saved["limit_val"])
        task = open_task(recipe, controls, world, say=print if world.is_main else _silent)
        check_classes(task, facts, flags.data)
        place = Place(world.rank, world.world, device, threads["loader"])
        batch = flags.batch or min(facts["plan"]["images_per_forward"], max(1, task.val_images // world.world))
        for name in names:
            trained = open_trained(flags.run, checkpoint=name, device=device)
            result = evaluate(
                trained.model,
                task,
                key=name,
                batch=batch,
                system=system,
                place=place,
                world=world,
                autocast=nullcontext,
            )
            if result is None or not world.is_main:
                continue
            found = {"checkpoint": trained.checkpoint, "step": trained.step, "images": result.images, **result.metrics}
            if flags.json:
                print(json.dumps(found))
            else:
                numbers = "  ".join(f"{metric} {value:.4f}" for metric, value in result.metrics.items())
                print(f"{trained.checkpoint}  {numbers}  ({result.images:,} images)")
            if flags.out:
                Path(flags.out).write_text(json.dumps({"step": trained.step, **result.predictions}))
    return 0


def check_classes(task, facts: dict, data: str) -> None:
    """The data's classes must be the run's, in the same order.

    Raises DataError naming the difference.
    """
    now, then = list(task.classes), list(facts["classes"])
    if now == then:
        return
    missing, extra = sorted(set(then) - set(now)), sorted(set(now) - set(then))
    raise DataError(
        f"--data {data or facts['controls']['data']}: its classes are not the run's. "
        f"Missing: {', '.join(missing[:5]) or 'none'}; unknown: {', '.join(extra[:5]) or 'none'}; "
        f"{len(now)} classes here, {len(then)} in the run. Scores between them would mean nothing."
    )


def _silent(_: str) -> None:
    """What ranks other than 0 say."""
