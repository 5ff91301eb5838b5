"""The plan of a run in lines, as `paceline show` and `paceline train` print it before its first step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from paceline.config.plan import Plan, lr_at
from paceline.config.printable import counted
from paceline.config.recipe import Recipe
from paceline.config.run import NONE
from paceline.config.system import System
from paceline.machine.published import as_published, results_of
from paceline.machine.torch_builds import pinned_for
from paceline.weights.forms.bring import PUBLISHED

if TYPE_CHECKING:
    from paceline.tasks.memory import MemoryEstimate

GIB = 2**30


def describe(
    name: str,
    recipe: Recipe,
    system_name: str,
    system: System,
    plan: Plan,
    memory: MemoryEstimate,
    *,
    brief: bool = False,
    weights: str = "",
) -> list[str]:
    """The plan in lines.

    brief    without the two long lines of every field of model and input, and the one about weights
    weights  as --weights named them; "": the recipe's own
    """
    quality, optim = recipe.quality, recipe.optim
    length = f"{recipe.epochs:g} epochs" if recipe.epochs else f"{recipe.images_seen:,} images"
    targets = " and ".join(f"{metric} {value:g}" for metric, value in quality.targets) or "none"
    span = "" if plan.bn_span == recipe.bn_span else f" (recipe: {recipe.bn_span}, capped at the global batch)"
    evaluations = ", ".join(f"{step:,}" for step in plan.eval_steps[:4]) + (", ..." if len(plan.eval_steps) > 4 else "")
    shared = (
        "split into groups"
        if plan.bn_groups > 1
        else f"joined over {plan.bn_join} ranks"
        if plan.bn_join > 1
        else "whole forward"
    )
    peak = max(
        lr_at(recipe, plan, step)
        for step in {0, plan.total_steps - 1, min(plan.total_steps - 1, int(plan.warmup_steps))}
    )
    stops = f", stops after {plan.stop_after:,}" if plan.stop_after < plan.total_steps else ""
    return [
        f"recipe   {name}   global batch {plan.global_batch:,}   {length}   {optim.kind} lr {optim.lr:g}   "
        f"{recipe.schedule.kind}   target {targets}   seed {recipe.seed}",
        *([] if brief else _fields(recipe)),
        *([] if brief else _weights(weights or recipe.pretrained)),
        f"system   {system_name}   {system.chip or system.accelerator} x {system.per_node} a node, {system.memory_gib:g} GiB each   "
        f"{system.precision}   channels_last {_on(system.channels_last)}   compile {_on(system.compile)}"
        f"{'   graph on' if system.graph else ''}{'   kernels triton' if system.kernels == 'triton' else ''}",
        *([] if brief else torch_of(system)),
        *_published(name, recipe.task, system_name, system),
        f"plan     {counted(plan.world, 'rank')} on {counted(plan.nodes, 'node')}{_evaluating(plan)}   "
        f"{plan.images_per_forward} images a forward x {counted(plan.forwards, 'forward')} = {plan.images_per_rank} a rank",
        *([f"         BatchNorm over {counted(plan.bn_span, 'image')}{span}: {shared}"] if memory.batch_norms else []),
        *_losses(plan),
        f"         {counted(plan.train_images, 'training image')}   {plan.steps_per_epoch:,.6g} steps an epoch   "
        f"{counted(plan.total_steps, 'step')} in all{stops}   warm-up {plan.warmup_steps:,.6g}   highest lr {peak:.6g}",
        f"         evaluates {counted(plan.val_images, 'image')} after steps {evaluations} ({counted(len(plan.eval_steps), 'time')})",
        f"memory   about {memory.total(plan.images_per_forward) / GIB:.2f} GiB a rank: {memory.parameters / 1e6:.2f} M "
        f"parameters {memory.fixed / GIB:.2f} GiB + {plan.images_per_forward} images x {memory.per_image / 2**20:.1f} MiB",
    ]


def _fields(recipe: Recipe) -> list[str]:
    """Lines with every field of the two parts that are the workload's own."""
    parts = {"model": recipe.model, "input": recipe.input}
    return [
        f"{part:<9}" + " ".join(f"{key}={value}" for key, value in asdict(of).items()) for part, of in parts.items()
    ]


def _weights(name: str) -> list[str]:
    """The line about first weights; none for a recipe that starts from random values."""
    known = PUBLISHED.get(name)
    about = "random values" if name == NONE else known.about if known else ""
    return [f"weights  {name}{f': {about}' if about else ''}"] if name else []


def torch_of(system: System) -> list[str]:
    """The line about an accelerator that today's torch has no code for."""
    pin = pinned_for(system.chip)
    return [f"         torch {pin.torch} ({pin.constraints}): {pin.why}"] if pin else []


def _published(name: str, task: str, system_name: str, system: System) -> list[str]:
    """The lines about published results of this recipe on this system."""
    facts = as_published(name, system_name, system)
    return ([f"         {facts}"] if facts else []) + [
        f"         published: {result.epochs:g} epochs in {result.minutes:g} min on {counted(result.nodes, 'node')}, "
        f"{result.rate:,.4g} images/s an accelerator ({result.source})"
        for result in results_of(task, system_name, name)
    ]


def _evaluating(plan: Plan) -> str:
    """The words about ranks that do not train."""
    return f", with {plan.eval_ranks:,} more that only evaluate{'s'[: plan.eval_ranks == 1]}" if plan.eval_ranks else ""


def _losses(plan: Plan) -> list[str]:
    """The line about loss groups, for tasks that have them."""
    if not plan.loss_group:
        return []
    where = (
        f"the whole batch, counts added over {counted(plan.loss_join, 'rank')}"
        if plan.loss_join > 1
        else f"{counted(plan.loss_groups, 'group')} a forward"
        if plan.loss_forwards == 1
        else f"{plan.loss_forwards} forwards a group"
    )
    price = "" if plan.loss_forwards == 1 else "; counting first costs each forward once more, without its backward"
    return [f"         losses over {counted(plan.loss_group, 'image')}: {where}{price}"]


def _on(value: bool) -> str:
    return "on" if value else "off"


def in_roles(plan: Plan) -> str:
    """How many ranks train and how many only evaluate, in words."""
    evaluate = "1 rank only evaluates" if plan.eval_ranks == 1 else f"{plan.eval_ranks:,} ranks only evaluate"
    return f"{plan.world:,} rank{'s train' if plan.world > 1 else ' trains'}, {evaluate}"
