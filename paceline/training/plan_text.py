"""The plan of a run in rows, as `paceline plan` and `paceline train` print it before its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline._utils.reporter import Reporter
from paceline._utils.text import Row, format_count, join_names
from paceline.config.plan import BatchPlan, lr_at
from paceline.config.published import published_results, published_settings
from paceline.config.recipe import Recipe
from paceline.config.run import NONE, RunSpec
from paceline.config.system import System
from paceline.distributed.device.accelerators import find_torch_pin
from paceline.models.registry import get_workload
from paceline.models.weights.download import PUBLISHED, pretrained_for

if TYPE_CHECKING:
    from paceline.models.memory_estimate import MemoryEstimate
    from paceline.training.input_rate import InputRate

GIB = 2**30


def describe(
    name: str,
    recipe: Recipe,
    system_name: str,
    system: System,
    plan: BatchPlan,
    memory: MemoryEstimate,
    *,
    weights: str | None = None,
) -> list[Row]:
    """What is trained, from which weights, how much at a time, how long, at which rate, on what: rows for a reporter.

    weights  as --weights named them; "": none were named; None: no row, for a run that reports them itself
    """
    optim = recipe.optim
    length = f"{recipe.epochs:g} epochs" if recipe.epochs else f"{recipe.max_images:,} images"
    stops = [f"stops after {plan.stop_after:,}"] if plan.stop_after < plan.total_steps else []
    ends = {0, plan.total_steps - 1, min(plan.total_steps - 1, int(plan.warmup_steps))}
    peak = max(lr_at(recipe, plan, step) for step in ends)
    highest = [] if f"{peak:.3g}" == f"{optim.lr:.3g}" else [f"highest lr {peak:.6g}"]
    warm_up = [f"warm-up {plan.warmup_steps:,.6g} steps"] if plan.warmup_steps else []
    target = " and ".join(f"{metric} {value:g}" for metric, value in recipe.target) or "no target"
    after = join_names((f"{step:,}" for step in plan.eval_steps), 4)
    cut = f"{plan.micro_batch_size} per micro-batch x {format_count(plan.micro_batches, 'micro-batch')}"
    return [
        ("recipe", [name, _about(recipe), *_trunk(recipe), f"seed {recipe.seed}"]),
        *([] if weights is None else _weights(recipe, weights)),
        ("batch", [format_count(plan.global_batch_size, "image"), f"{cut} = {plan.images_per_rank} per rank"]),
        ("length", [length, format_count(plan.total_steps, "step") + "".join(f", {stop}" for stop in stops),
                    f"{plan.steps_per_epoch:,.6g} steps per epoch of {format_count(plan.train_images, 'training image')}"]),
        ("schedule", [f"{optim.name}, lr {optim.lr:g}", recipe.schedule.name, *warm_up, *highest]),
        *([("input", [size])] if (size := _size(recipe.input)) else []),
        ("target", [target, f"{format_count(len(plan.eval_steps), 'evaluation')} on {format_count(plan.val_images, 'image')}",
                    f"after step{'s'[: len(plan.eval_steps) != 1]} {after}"]),
        ("ranks", [f"{format_count(plan.world_size, 'rank')} on {format_count(plan.nodes, 'node')}{_evaluating(plan)}",
                  *_batch_norms(recipe, plan, memory), *_losses(plan)]),
        ("system", [system_name,
            f"{system.ranks_per_node} x {system.device_name or system.device} per node, {system.memory_gib:g} GiB each",
                    system.precision, *_switches(system)]),
        *(("", [fact]) for fact in (*format_torch(system), *_published(name, recipe.task, system_name, system))),
        ("memory", [f"about {memory.total(plan.micro_batch_size) / GIB:.2f} GiB per rank",
                    f"{memory.fixed / GIB:.2f} GiB for {memory.parameters / 1e6:.2f} M parameters + {plan.micro_batch_size} images "
                    f"x {memory.per_image / 2**20:.1f} MiB"]),
    ]  # fmt: skip


def report_plan(run: RunSpec, memory: MemoryEstimate, feeding: InputRate | None, reporter: Reporter) -> None:
    """Print the plan of a run, and how fast its input is; feeding: None where that is not known."""
    reporter.rows(describe(run.name, run.recipe, run.system_name, run.system, run.plan, memory))
    if run.plan.eval_ranks:
        reporter.line(format_roles(run.plan))
    if feeding is None:
        return
    reporter.line(f"input: {feeding.format_line()}")
    if feeding.short and run.recipe.input.decoder != "nvjpeg":
        reporter.warning(f"note: the accelerator will wait for images. {feeding.remedy(run.recipe)}")


def _about(recipe: Recipe) -> str:
    """What is trained, in a line."""
    boxes_alone = recipe.task == "instance-segmentation" and not recipe.model.masks
    return "Faster R-CNN: object detection" if boxes_alone else get_workload(recipe.task).about


def _trunk(recipe: Recipe) -> list[str]:
    """The trunk, where the model has one: ResNet-50, timm/NAME."""
    backbone, depth = getattr(recipe.model, "backbone", ""), getattr(recipe.model, "depth", 0)
    return [f"ResNet-{depth}" if backbone == "resnet" else backbone] if backbone else []


def _size(photo: Any) -> str:
    """How large photos are for the network; "" of an input of one's own that says nothing of it."""
    if short := getattr(photo, "min_size", ()):
        sides = " or ".join(str(side) for side in (short if len(short) < 4 else (f"{min(short)} to {max(short)}",)))
        return f"shorter side {sides} px, longer side up to {photo.max_size} px"
    size, scored = getattr(photo, "image_size", 0), getattr(photo, "eval_crop_size", 0)
    scored = f", evaluated at {scored} x {scored} px" if scored not in (0, size) else ""
    return f"{size} x {size} px{scored}" if size else ""


def _weights(recipe: Recipe, named: str) -> list[Row]:
    """The row about first weights; none for a recipe that starts from random values."""
    if named:
        known = PUBLISHED.get(named)
        about = "random weights" if named == NONE else known.about if known else ""
        return [("weights", [f"{named}{f': {about}' if about else ''}"])]
    if not recipe.pretrained:
        return []
    fit = pretrained_for(recipe)
    about = f" ({PUBLISHED[fit].about})" if fit in PUBLISHED else ""
    other = "" if fit == recipe.pretrained else f"; {recipe.pretrained} from the recipe does not fit this backbone"
    return [("weights", [f"--weights is not set; training requires --weights {fit}{about}{other}"])]


def format_torch(system: System) -> list[str]:
    """The line about an accelerator that today's torch has no code for."""
    pin = find_torch_pin(system.device_name)
    return [f"torch {pin.torch} ({pin.constraints}): {pin.why}"] if pin else []


def _published(name: str, task: str, system_name: str, system: System) -> list[str]:
    """The lines about published results of this recipe on this system."""
    facts = published_settings(name, system_name, system)
    return ([facts] if facts else []) + [
        f"published: {result.epochs:g} epochs in {result.minutes:g} min on {format_count(result.nodes, 'node')}, "
        f"{result.rate:,.4g} images/s per accelerator ({result.source})"
        for result in published_results(task, system_name, name)
    ]


def _evaluating(plan: BatchPlan) -> str:
    """The words about ranks that do not train."""
    return f", and {format_count(plan.eval_ranks, 'rank')} only for evaluation" if plan.eval_ranks else ""


def _batch_norms(recipe: Recipe, plan: BatchPlan, memory: MemoryEstimate) -> list[str]:
    """Which images share statistics, for networks that compute some."""
    if not memory.batch_norms:
        return []
    span = (
        ""
        if plan.bn_batch_size == recipe.bn_batch_size
        else f" (recipe: {recipe.bn_batch_size}, limited by the global batch)"
    )
    joined = f"across {plan.bn_ranks} ranks" if plan.bn_ranks > 1 else "one micro-batch"
    shared = "micro-batch split into groups" if plan.bn_groups > 1 else joined
    return [f"BatchNorm over {format_count(plan.bn_batch_size, 'image')}{span}: {shared}"]


def _losses(plan: BatchPlan) -> list[str]:
    """Which images share a divisor of their losses, for tasks that have such groups."""
    if not plan.loss_normalizer_images:
        return []
    where = (
        f"the whole batch, counts summed over {format_count(plan.loss_ranks, 'rank')}"
        if plan.loss_ranks > 1
        else f"{format_count(plan.loss_groups, 'group')} per micro-batch"
        if plan.loss_micro_batches == 1
        else f"{plan.loss_micro_batches} micro-batches per group"
    )
    price = "" if plan.loss_micro_batches == 1 else "; counting requires one more forward pass per micro-batch"
    return [f"losses normalized over {format_count(plan.loss_normalizer_images, 'image')}: {where}{price}"]


def _switches(system: System) -> list[str]:
    """What of a system is switched on."""
    on = [name for name in ("channels_last", "compile", "cuda_graph") if getattr(system, name) == "on"]
    return on + ["kernels triton"] * (system.kernels == "triton")


def format_roles(plan: BatchPlan) -> str:
    """How many ranks train and how many only evaluate, in words."""
    evaluate = "1 rank only evaluates" if plan.eval_ranks == 1 else f"{plan.eval_ranks:,} ranks only evaluate"
    return f"{plan.world_size:,} rank{'s train' if plan.world_size > 1 else ' trains'}, {evaluate}"
