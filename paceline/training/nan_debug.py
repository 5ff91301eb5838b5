"""Find the module in which a non-finite loss begins: the step's photos go through the network once more, module by module.

The weights of the step itself are gone, because losses are read once an interval; those of the newest checkpoint before it are
used, or the first ones. What is not finite with these too is in the photos, the labels or the number format; what is finite with
them began with later weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.journal import write_error
from paceline.config.run import RunSpec
from paceline.data.batch import Batch
from paceline.distributed.device.setup import autocast_for
from paceline.models.task import InputRank, Task
from paceline.training.checkpoint.layout import list_steps, step_name
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.factory import find_weights_file
from paceline.training.state import load_model


def explain_non_finite(
    run: RunSpec,
    task: Task,
    rank_info: InputRank,
    folder: Path,
    written: Callable[[], None],
    step: int,
    means: dict[str, float],
    what: Literal["loss", "gradient"] = "loss",
) -> str:
    """Write the facts that explain a non-finite loss into the run's folder; -> a message about it. Rank 0 writes.

    written  waits until the last checkpoint is written
    step     0-based; the file and the message have the number of logs and checkpoints, which count completed steps
    means    the losses of the interval
    """
    files = task.data.images_of_step(0 if run.options.overfit_one_batch else step)
    facts = {"step": step + 1, "losses": {name: str(value) for name, value in means.items()}, "images": files}
    bundle, begins = folder / f"non-finite-step-{step + 1:06d}.json", ""
    if rank_info.rank == 0:
        try:
            atomic_write(bundle, json.dumps(facts, indent=2))
        except OSError as error:
            raise write_error(bundle, error) from error
        written()
        begins = find_first_non_finite(run, task, folder, rank_info, step)
    return (
        f"the {what} of step {step + 1:,} is not finite. The {len(files)} images of the step are listed in {bundle.name}. {begins} "
        "Common causes: the learning rate is too high for the batch size, the warm-up is too short, or fp16 has no dynamic loss scale."
    )


def find_first_non_finite(run: RunSpec, task: Task, folder: Path, rank_info: InputRank, step: int) -> str:
    """A sentence that names the first module whose output is not finite in 0-based `step`. One rank calls it, alone."""
    try:
        model, weights = _weights_before(run, task, folder, rank_info.device, step)
        result = _first_module(run, task, model, rank_info, step)
    except (PacelineError, OSError, RuntimeError) as problem:
        return f"The first affected module is unknown ({str(problem).splitlines()[0]})."
    if result:
        return f"With {weights}, the first module with a non-finite output is {result}."
    return f"With {weights}, all values of this step are finite, so the weights diverged later."


def first_non_finite_name(model: nn.Module, batch: Batch) -> str:
    """Name of the first module whose output is not finite in a forward of `model`, "the loss" where only that is; "" for none."""
    results: list[str] = []
    named = [(name, module) for name, module in model.named_modules() if name]
    hooks = [module.register_forward_hook(_look(name, results)) for name, module in named]
    try:
        with torch.no_grad():
            losses = model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not results and not _is_finite(losses):
        results.append("the loss")
    return results[0] if results else ""


def _look(name: str, results: list[str]) -> Any:
    def look(_module: nn.Module, _given: Any, output: Any) -> None:
        if not results and not _is_finite(output):
            results.append(name)

    return look


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return all(_is_finite(part) for part in parts)


def _weights_before(run: RunSpec, task: Task, folder: Path, device: torch.device, step: int) -> tuple[nn.Module, str]:
    """-> (a separate model, so that nothing is exchanged with other ranks; its weights in words)."""
    model = task.build(device)
    earlier = [number for number in list_steps(folder / "checkpoints") if number <= step]
    if earlier:
        name = step_name(earlier[-1])
        load_model(model, load_checkpoint(folder / "checkpoints" / name).tensors["model"])
        return model, f"the weights of {name}"
    if run.options.weights not in ("", "none"):
        task.load_weights(model, find_weights_file(run.options.weights))
    return model, "the initial weights"


def _first_module(run: RunSpec, task: Task, model: nn.Module, rank_info: InputRank, step: int) -> str:
    one, autocast = run.options.overfit_one_batch, autocast_for(run.system, rank_info.device)
    for rank in range(run.plan.world_size):
        there = replace(rank_info, rank=rank)
        with task.data.train_loader(run.plan, run.system, there, first=step, one_batch=one) as loader:
            _, batches = next(iter(loader))
            for batch in batches:
                with autocast():
                    if result := first_non_finite_name(model, batch):
                        return result
    return ""
