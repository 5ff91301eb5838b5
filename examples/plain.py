"""A training run from paceline's own parts, top to bottom: what `paceline train --system.channels-last on` does to the weights.

    python examples/plain.py ssd-demo [--data DIR] [--output-dir OUT] [--max-steps N]

One process, no resume, no logs, no refusals: training/trainer.py has those. Where things are: docs/contributing/architecture.md.
"""

import argparse
import os
from pathlib import Path

from paceline.config.plan import evaluation_batch, limit_steps, make_plan, step_rates
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions, RunSpec
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.distributed.device.host_memory import set_malloc_trim_threshold
from paceline.distributed.device.setup import choose_device, set_threads
from paceline.distributed.device.systems import SYSTEMS
from paceline.models.task import InputRank
from paceline.training.checkpoint.write import save_checkpoint
from paceline.training.evaluate import evaluate
from paceline.training.factory import build_model, build_state
from paceline.training.open_data import open_task
from paceline.training.step import TrainStep

flags = argparse.ArgumentParser()
flags.add_argument("recipe", choices=RECIPES)
flags.add_argument("--data", default="", help="class folders, COCO, VOC or YOLO; empty = the built-in pictures")
flags.add_argument("--output-dir", type=Path, default=Path("plain"))
flags.add_argument("--max-steps", type=int, default=0, help="0 = the recipe's own")
args = flags.parse_args()

recipe, system, options = RECIPES[args.recipe](), SYSTEMS["cpu"](), RunOptions(data=args.data)
launch = read_launch(os.environ)  # this process alone, or a rank under torchrun, srun, mpirun
with open_distributed(launch, device=choose_device(system, launch.local_rank, launch.local_world)) as world:
    threads = set_threads(system, world)
    set_malloc_trim_threshold(world.device)
    rank_info = InputRank(world.rank, world.world, world.device, threads["loader"])

    # Data (a class of models/ssd/task.py, for one), plan (arithmetic alone: steps, batches, when to evaluate), network, optimizer.
    task = open_task(recipe, options, world)
    data = {"train_images": task.data.train_images, "val_images": task.data.val_images, "most": recipe.global_batch_size}
    plan = limit_steps(make_plan(recipe, system, world=world.world, **data), steps=args.max_steps)
    run = RunSpec(args.recipe, recipe, "cpu", system, plan, options)
    state = build_state(build_model(task, run, world), run, world)

    # The loop: what a step trains on is a pure function of its number, and so is its learning rate.
    train_step = TrainStep(state, plan, system, world.device, world.group)
    with task.data.train_loader(plan, system, rank_info) as loader:
        for step, batches in loader:
            losses = train_step(batches, step_rates(recipe, plan, step))
            state.step = step + 1
            if state.step in plan.eval_steps:  # the last step is one of them
                most = evaluation_batch(plan.micro_batch_size, plan.val_images, world.world)
                with state.evaluated(world):
                    where = {"system": system, "rank_info": rank_info, "world": world}
                    found = evaluate(state.model, task, key=f"step-{step}", batch=most, **where)
                print(f"step {state.step}: loss {float(losses['loss']):.4f}", found.metrics)
    print(save_checkpoint(args.output_dir, state.step, state.snapshot(world, {})))
