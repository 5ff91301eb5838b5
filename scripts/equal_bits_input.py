"""Render the images of scripts/equal_bits.py, and save the batches of a run's first steps as tensors.

    python scripts/equal_bits_input.py render KIND FOLDER
    python scripts/equal_bits_input.py batches FILE STEPS RECIPE [flags of paceline train]

equal_bits.py runs this text in each tree with the names of that tree: its table NAMES replaces the names below.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.cli.flags import parse_run_args
from paceline.config.plan import limit_steps, make_plan
from paceline.config.run import RunOptions
from paceline.data.shapes.render import render_shapes
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.models.task import InputRank
from paceline.training.open_data import open_task


def save_batches(file: str, steps: int, words: list[str]) -> None:
    """Save every tensor of the batches, and the strides of its memory."""
    asked = parse_run_args(words, RunOptions(), verb="train")
    recipe, system, tensors = asked.recipe, asked.system, {}
    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        options = vars(asked).get("options") or vars(asked)["controls"]  # the name in the base
        task: Any = open_task(recipe, options, world)
        data = getattr(task, "data", task)  # the base's task loads its data itself
        images = {"train_images": data.train_images, "val_images": data.val_images}
        plan = limit_steps(make_plan(recipe, system, world=1, most=system.micro_batch_size, **images), steps=steps)
        with data.train_loader(plan, system, InputRank(0, 1, world.device, 2)) as loader:
            for step, batches in loader:
                for number, batch in enumerate(batches):
                    for name, tensor in batch.tensors().items():
                        key = f"{step + 1} batch {number}: {name}"
                        tensors[key] = tensor.contiguous().clone()
                        tensors[f"{key}: strides"] = torch.tensor(tensor.stride())
    save_file(tensors, file)


if __name__ == "__main__":
    if sys.argv[1] == "render":
        kind = "boxes" if sys.argv[2] == "boxes" else "classes"
        render_shapes(kind, Path(sys.argv[3]), train=64, val=16, side=96, processes=1)
    else:
        save_batches(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
