"""Runs whose scores, or steps, come when the test says so: the recipe `scored_slowly` of small_recipe.py, and its orders."""

from __future__ import annotations

from pathlib import Path

from small_run import Trainer, kinds, said, wait_until
from zygote import Ended, Job

# Evaluations at 5, 10, ...; a train event at 8, 16, ...; an epoch ends after 5, 9, 13, ...: a result is taken 3 or 4 steps
# after its evaluation. One checkpoint stays, so that one which is not judged yet could be deleted.
FLAGS = "--eval-every 5 --log-every 8 --save-every 100 --keep-checkpoints 1 --ema-decay 0.9"
TARGET = f"{FLAGS} --target top1=0.6"  # met at step 20, by far
RECIPE = "scored_slowly"
INTERRUPTED = 75


def order(run: Path, text: str) -> Path:
    """Tell whoever scores `run` what to do."""
    file = Path(f"{run}.scorer")
    file.write_text(text)
    return file


def held(trainer: Trainer, run: Path, flags: str, what: str, *, ranks: int = 1) -> tuple[Job, Path]:
    """A run that waits where it was told to, and the order that holds it."""
    orders = order(run, what)
    job = trainer.start(trainer.train(run, flags, recipe=RECIPE), ranks=ranks)
    wait_until(Path(f"{run}.scoring").exists, what)
    return job, orders


def begun_and_held(trainer: Trainer, run: Path, flags: str, what: str, *, step: int, ranks: int = 1) -> tuple[Job, Path]:
    """A run whose evaluation of `step` waits, and the order that holds it; its checkpoint is on the disk."""
    job, orders = held(trainer, run, flags, what, ranks=ranks)
    wait_until((run / "checkpoints" / f"step-{step:06d}").exists, f"the checkpoint of step {step}")
    return job, orders


def scored_late(trainer: Trainer, run: Path, flags: str, *, ranks: int) -> list[Ended]:
    """A run whose step 5 is scored once step 8, after which its result is taken, has begun; it ends well."""
    orders = order(run, "past 7")
    job = trainer.start(trainer.train(run, flags, recipe=RECIPE), ranks=ranks)
    wait_until(lambda: ("eval", 5) in (kinds(run) if run.exists() else []), "the result of step 5")
    orders.unlink()
    ended = job.wait()
    assert [rank.code for rank in ended] == [0] * ranks, said(ended)
    return ended
