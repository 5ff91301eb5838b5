"""However a batch is cut, into ranks, forwards or loader threads, the run is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from by_night import ONE_MORE
from small_recipe import small
from small_run import Trainer, assert_same_statistics, events, losses, tensor_files

from paceline.config.plan import make_plan
from paceline.config.system import System
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import WORKLOADS

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]


@pytest.fixture(scope="module")
def steps(nightly) -> int:
    """Of a run in each cut."""
    return 50 if nightly else 20


@pytest.fixture(scope="module")
def whole(trainer: Trainer, steps: int) -> Path:
    """1 rank x 64 images in one forward."""
    return trainer.finished(trainer.folder / "whole", flags_of(steps), recipe="smooth")


def flags_of(steps: int) -> str:
    return f"--max-steps {steps} --eval-every {steps} --log-every 1"


@pytest.mark.parametrize(
    "ranks, images",
    [
        pytest.param(1, 16, id="4 forwards of 16", marks=ONE_MORE),  # so is the last
        pytest.param(2, 32, id="2 ranks of 32", marks=ONE_MORE),  # the next is this and more
        pytest.param(2, 8, id="2 ranks that share statistics over 8 + 8"),
    ],
)
def test_a_batch_cut_in_any_way_gives_the_same_losses_and_running_statistics(trainer, whole, steps, ranks, images):
    run = trainer.folder / f"cut-{ranks}-{images}"
    trainer.finished(run, f"{flags_of(steps)} --system.micro-batch-size {images}", ranks=ranks, recipe="smooth")
    wanted = losses(whole)
    assert len(wanted) == steps and losses(run) == pytest.approx(wanted, abs=1e-5)
    assert wanted[-1] < wanted[0] / 2  # gradients had their say
    assert_same_statistics(run, whole, rtol=1e-5)


def test_one_and_two_ranks_take_the_same_photos_at_every_step(trainer, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", trainer.environ["PACELINE_CACHE"])
    recipe = replace(small(), bn_batch_size=4)  # which two ranks have to share
    task = WORKLOADS["classification"].open(recipe, Manifest.load(prepare_if_needed(trainer.photos)))
    plans = [
        make_plan(
            recipe, System(), world=world, most=most, train_images=task.data.train_images, val_images=task.data.val_images
        )
        for world, most in ((1, 12), (2, 6), (2, 3))
    ]
    assert [(plan.micro_batches, plan.bn_ranks) for plan in plans] == [(1, 1), (3, 2), (3, 2)]
    for step in range(20):
        taken = []
        for plan in plans:
            cut = {"world": plan.world_size, "forwards": plan.micro_batches, "join": plan.bn_ranks}
            places = np.concatenate([task.data.samples(step, rank=rank, **cut)[1] for rank in range(plan.world_size)])
            taken.append(sorted(task.data.train_index.name(int(number)) for number in task.data.train_numbers[places]))
        assert len(taken[0]) == 12 and taken[0] == taken[1] == taken[2] == sorted(task.data.images_of_step(step))


def test_any_number_of_loader_threads_gives_the_same_run_to_the_bit(trainer):
    runs = [
        trainer.finished(trainer.folder / f"threads{threads}", f"--log-every 1 --system.num-workers {threads}")
        for threads in (1, 3)
    ]
    assert events(runs[0]) == events(runs[1])
    assert tensor_files(runs[0]) == tensor_files(runs[1])


def test_two_ranks_learn_one_batch_by_heart(trainer):
    run = trainer.finished(trainer.folder / "overfit", "--overfit-one-batch --log-every 1", ranks=2)
    first, *_, last = losses(run)
    assert first > 1.0 and last < 0.75  # label smoothing alone costs 0.5 nats of three classes
