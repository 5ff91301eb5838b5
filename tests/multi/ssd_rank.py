"""One rank of the tests in test_ssd_ranks.py: `train` and `eval` are the real command line; `steps FOLDER CASE OVER` takes
two training steps on this rank's part of a batch and writes what came out. The small SSD recipes are here too.

Letters: B = 8 images   S = 64 pixels   K = 2 classes
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from given_model import state_around
from torch import Tensor

from paceline.config.plan import StepRates, make_plan
from paceline.config.recipe import Evaluation, Optim, Recipe
from paceline.config.run import RunOptions, RunSpec
from paceline.config.schedule import Schedule
from paceline.config.ssd import BoxInput, SSDModel
from paceline.config.system import System
from paceline.data.batch import DetectionBatch, Objects, detection_batch
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.model import init_ssd
from paceline.training.step import TrainStep

IMAGES, SIDE, CLASSES, STEPS = 8, 64, 2, 15
SCALES = (0.18, 0.25, 0.47, 0.7, 0.95)


def by_image() -> Recipe[SSDModel, BoxInput]:
    """Fifteen steps of eight photos; BatchNorm over four."""
    return Recipe(
        task="detection",
        model=SSDModel(depth=10, width=4, extra_channels=8, scales=SCALES, zero_init_residual=True),
        input=BoxInput(image_size=SIDE),
        target_data="none",
        global_batch_size=IMAGES,
        max_images=IMAGES * STEPS,
        bn_batch_size=4,
        optim=Optim(lr=0.002, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule(name="constant"),
        eval=Evaluation(unit="fraction"),
    )


def by_batch() -> Recipe[SSDModel, BoxInput]:
    """The same with losses divided by the positives of the global batch."""
    recipe = by_image()
    return replace(recipe, model=replace(recipe.model, loss_normalizer="batch"))


def objects_of(image: int, case: str) -> Objects:
    """Objects of one image: few in the first half of the batch; in the second, many (another number of slots), or none."""
    random = np.random.default_rng(image)
    count = 1 + image if image < IMAGES // 2 else {"full": 12, "empty": 0}[case]
    low = random.uniform(0.02, 0.5, (count, 2))
    boxes = np.concatenate((low, low + random.uniform(0.15, 0.45, low.shape)), axis=1)
    return Objects(boxes.astype(np.float32), random.integers(1, CLASSES + 1, count))


def part_of_batch(case: str, rank: int, world: int) -> DetectionBatch:
    """This rank's images, as its own input path would pad them."""
    mine = range(rank * IMAGES // world, (rank + 1) * IMAGES // world)
    pixels = np.random.default_rng(1).integers(0, 128, (IMAGES, 3, SIDE, SIDE), dtype=np.uint8)
    # Images get brighter along the batch: ranks that do not join their statistics are wrong by a lot.
    pixels += 16 * np.arange(IMAGES, dtype=np.uint8)[:, None, None, None]
    images = torch.from_numpy(pixels[mine.start : mine.stop]).contiguous(memory_format=torch.channels_last)
    return detection_batch(images, [objects_of(image, case) for image in mine], torch.tensor(list(mine)))


def steps(folder: Path, case: str, over: str) -> None:
    """Two steps with BatchNorm over the whole batch; outputs, gradients, statistics and losses into FOLDER/RANK.pt."""
    recipe = by_image()
    recipe = replace(
        recipe,
        model=replace(recipe.model, loss_normalizer="batch" if over == "batch" else "image"),
        bn_batch_size=IMAGES,
        optim=replace(recipe.optim, weight_decay=0.0),
    )
    torch.set_num_threads(1)
    with open_distributed(read_launch(os.environ), device=torch.device("cpu"), collective_seconds=20) as world:
        plan = make_plan(recipe, System(), world=world.world, most=IMAGES, train_images=100, val_images=1)
        run = RunSpec("steps", recipe, "cpu", System(), plan, RunOptions())
        model = WORKLOADS["detection"].network.build(recipe, CLASSES)
        init_ssd(model.network, torch.Generator().manual_seed(3), zero_init_residual=True)
        state = state_around(lambda device: model, run, world)
        step_once = TrainStep(state, plan, System(), torch.device("cpu"))
        found: dict[str, Tensor] = {}
        outputs: list[tuple[Tensor, Tensor]] = []
        model.network.register_forward_hook(lambda module, given, output: outputs.append(output))
        batch = part_of_batch(case, world.rank, world.world)
        for step in range(2):
            losses = step_once([batch], StepRates(0.002, 0.002))
            found.update({f"{step}.loss.{name}": value.clone() for name, value in losses.items()})
            # Without decay the momentum form's velocity holds the gradients: g, then 0.9 g + g'.
            found.update({f"{step}.{name}": value.clone() for name, value in state.optimizer.state().items()})
            for name, value in zip(("logits", "deltas"), outputs[step]):
                found[f"{step}.output.{name}"] = value.detach().clone()
        found.update({f"buffer.{name}": value for name, value in model.named_buffers() if "running_" in name})
        torch.save(found, folder / f"{world.rank}.pt")


def main() -> int:
    if sys.argv[1] == "steps":
        steps(Path(sys.argv[2]), *sys.argv[3:])
        return 0
    from training_rank import main as command_line  # loads what the tests of this file do without

    return command_line(sys.argv[1:])
