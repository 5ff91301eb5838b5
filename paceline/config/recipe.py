"""Define a recipe: model, data processing, and training settings, independent of the hardware.

`system.py` describes the hardware. The `Help` of each field is also the help of its flag. Derived values, such as steps, per-rank
batches, and decay points, are not stored here. `plan.py` computes them once, after overrides.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

from paceline._utils.errors import RecipeError
from paceline._utils.names import flatten
from paceline.config.constraints import (
    AboveZero,
    BelowOne,
    Ge,
    Help,
    Le,
    Lt,
    Share,
    Whole,
    ZeroOrMore,
    check_bounds,
    convert_checked,
    format_value,
    get_hints,
)
from paceline.config.schedule import Schedule, Unit, check_schedule

ModelT = TypeVar("ModelT")
InputT = TypeVar("InputT")

# Names of choices whose field would otherwise not fit on one line with its comment.
OptimizerName = Literal["sgd", "lars", "adamw"]
MomentumStyle = Literal["torch", "mxnet", "mxnet-corrected"]
NoDecay = Literal["none", "norm", "norm-and-bias"]
Targets = tuple[tuple[str, float], ...]
EpochRounding = Literal["exact", "up", "down"]
Sampler = Literal["random", "class-balanced", "repeat-factor"]

# Training and validation images of the data sets that recipes are written for; `plan` plans with them when no --data is given.
# ImageNet-1k (ILSVRC 2012) counts as in MLPerf's rules; the rendered sets as in data/shapes/render.py.
DATA_IMAGES = {
    "imagenet": (1_281_167, 50_000),
    "coco": (117_266, 5_000),
    "shapes": (2_000, 400),
    "shapes-boxes": (1_600, 320),
}
# Their classes.
DATA_CLASSES = {"imagenet": 1_000, "coco": 80, "shapes": 8, "shapes-boxes": 8}
# The field that is a fact of the recipe as published and no flag: what a run starts from, its --weights say.
NO_FLAG = "pretrained"
# Bounds of the whole numbers in a network and in its input (sides in pixels), of a step's images, and of evaluations.
MAX_IN_MODEL, MAX_IN_INPUT, MAX_BATCH, MAX_EVALUATIONS = 2**16, 2**14, 2**24, 10**6
BatchImages = Annotated[int, Ge(1), Le(MAX_BATCH)]


@dataclass(frozen=True)
class Optim:
    """Configure the optimizer.

    paceline/training/optim/sgd.py has the formulas of SGD and LARS, and adamw.py has those of AdamW.

    Attributes:
        name (str): ``"sgd"``, ``"lars"``, or ``"adamw"``.
        lr (float): peak learning rate for the `global_batch_size` of the recipe. It is never rescaled.
        momentum (float): momentum coefficient in [0, 1). For AdamW, beta1.
        momentum_style (str): how `lr` enters the velocity: ``"torch"``, ``"mxnet"``, or ``"mxnet-corrected"``.
        nesterov (bool): use Nesterov momentum. Requires SGD and `momentum_style` ``"torch"``.
        weight_decay (float): L2 coefficient, which is added to the gradient. For AdamW, it is multiplied by `lr`.
        no_decay (str): parameters without weight decay: ``"none"``, ``"norm"`` (BatchNorm), or ``"norm-and-bias"``.
        lars_trust_coefficient, lars_eps (float): trust coefficient of LARS, and epsilon in the denominator of its trust ratio.
        clip_value, clip_norm (float): maximum absolute value of a gradient element before weight decay, and maximum norm of the
            gradient over all weights. 0 turns clipping off. Only one of them may be above 0.
        bias_lr_factor, head_lr_factor (float): factors on the learning rate of biases, and of layers outside the backbone.
        layer_decay (float): learning-rate factor of the last stage. It is applied again for each stage before it.
    """

    name: Annotated[OptimizerName, Help("optimizer")] = "sgd"
    lr: Annotated[AboveZero, Help("peak learning rate for the recipe's global_batch_size; it is never rescaled")] = 0.1
    momentum: Annotated[BelowOne, Help("momentum coefficient; adamw: beta1, for the gradient's average")] = 0.9
    momentum_style: Annotated[MomentumStyle, Help("how lr enters the velocity: torch, or MXNet's two forms")] = "torch"
    nesterov: Annotated[bool, Help("look-ahead gradient; momentum_style torch only")] = False
    weight_decay: Annotated[ZeroOrMore, Help("L2 coefficient, added to the gradient; adamw: times lr")] = 1e-4
    no_decay: Annotated[NoDecay, Help("parameters without weight decay: none, those of BatchNorm, or also biases")] = "none"
    lars_trust_coefficient: Annotated[AboveZero, Help("LARS trust coefficient")] = 0.001
    lars_eps: Annotated[ZeroOrMore, Help("LARS epsilon in the trust ratio's denominator")] = 0.0
    clip_value: Annotated[ZeroOrMore, Help("largest absolute gradient element, before the decay; 0: off")] = 0.0
    clip_norm: Annotated[ZeroOrMore, Help("largest norm of the gradient over all weights; 0: off")] = 0.0
    bias_lr_factor: Annotated[AboveZero, Help("factor on the learning rate of biases")] = 1.0
    head_lr_factor: Annotated[AboveZero, Help("factor on the learning rate of layers outside the backbone")] = 1.0
    layer_decay: Annotated[Share, Help("learning-rate factor of the last stage, again for each stage below")] = 1.0


@dataclass(frozen=True)
class Evaluation:
    """Configure when to evaluate.

    A run ends when one evaluation meets every target of the recipe (metric >= value).

    Attributes:
        unit (str): unit of `start`, `every`, and `at`: ``"epochs"``, ``"fraction"`` (of the run), or ``"steps"``.
        start, every (float): first evaluation, and interval between evaluations, in `unit`.
        at (tuple[float, ...]): exact evaluation points, in `unit`. They replace `start` and `every`.
    """

    unit: Annotated[Unit, Help("unit of start, every, and at: epochs, fractions of the run, or steps")] = "epochs"
    start: Annotated[ZeroOrMore, Help("first evaluation, in `unit`")] = 1.0
    every: Annotated[float, Help("interval between evaluations, in `unit`")] = 1.0
    at: Annotated[tuple[AboveZero, ...], Help("exact evaluation points, in `unit`; replaces start and every")] = ()


@dataclass(frozen=True)
class Recipe(Generic[ModelT, InputT]):
    """Describe what to train: model, data processing, optimizer, schedule, and target metrics.

    If `ema_decay` is above 0, the exponential moving average (EMA) of the weights is evaluated, saved as the best checkpoint, and
    used for prediction. It starts as a copy of the initial weights. In a short run, these would still contribute more than 1% at
    the end (`ema_decay` to the power of the number of steps). The decay of step t = 0, 1, ... is then min(`ema_decay`, (1 + t) /
    (10 + t)), and the run prints a message.

    Attributes:
        task (str): name of the task (``paceline list tasks``), or a custom task: ``"./file.py:name"``.
        model, input (dataclass): network and loss, and conversion of images to the network input. The task defines both classes.
        target_data (str): dataset that the target was set for. With another one, the target is ignored and the run trains to the end.
        global_batch_size (int): images per optimizer step, over all ranks and micro-batches.
        epochs (float), max_images (int): length in passes over the training images, or in images. Exactly one must be above 0.
        epoch_rounding (str): rounding of the steps per epoch: ``"exact"`` (may be fractional), ``"up"``, or ``"down"``.
        bn_batch_size (int): number of images that share BatchNorm statistics.
        optim (Optim), schedule (Schedule), eval (Evaluation): optimizer, learning-rate schedule, and times of the evaluations.
        target (tuple[tuple[str, float], ...]): metrics that end the run, such as ``(("top1", 0.759),)``. Empty: train to the end.
        ema_decay (float): decay per step of the EMA. 0: no EMA.
        sampler (str): images of an epoch: ``"random"`` (each once), ``"class-balanced"``, or ``"repeat-factor"``.
        repeat_threshold (float): for ``"repeat-factor"``, sample classes in less than this fraction of images more often.
        seed (int): random seed of initial weights, sample order, and augmentation.
        pretrained (str): published weights that are recommended for ``--weights``. Empty: random initialization.
    """

    task: Annotated[str, Help("task: a name (paceline list tasks), or a custom one as ./file.py:name")]
    model: Annotated[ModelT, Help("network and loss; a dataclass of the task")]
    input: Annotated[InputT, Help("conversion of images to network input; a dataclass of the task")]
    target_data: Annotated[str, Help("dataset of the target; with another dataset the run trains to the end")] = "imagenet"
    global_batch_size: Annotated[BatchImages, Help("images per optimizer step, over all ranks and accumulations")] = 256
    epochs: Annotated[ZeroOrMore, Help("length in passes over the training images; alternative to max_images")] = 0.0
    max_images: Annotated[Whole, Help("length in images; alternative to epochs")] = 0
    epoch_rounding: Annotated[EpochRounding, Help("steps per epoch; exact: may be fractional; up, down: rounded")] = "exact"
    bn_batch_size: Annotated[BatchImages, Help("number of images that share BatchNorm statistics")] = 64
    optim: Annotated[Optim, Help("optimizer")] = field(default_factory=Optim)
    schedule: Annotated[Schedule, Help("learning-rate schedule")] = field(default_factory=Schedule)
    eval: Annotated[Evaluation, Help("times of the evaluations")] = field(default_factory=Evaluation)
    target: Annotated[Targets, Help("metrics that end the run, e.g. top1=0.759; empty: train to the end")] = ()
    ema_decay: Annotated[BelowOne, Help("decay per step of the weight average (EMA) that is evaluated; 0: no EMA")] = 0.0
    sampler: Annotated[Sampler, Help("images of an epoch: each once, equally per class, or by repeat factors")] = "random"
    repeat_threshold: Annotated[
        Share, Help("repeat-factor: sample classes in less than this fraction of images more often")
    ] = 0.001
    seed: Annotated[int, Ge(0), Lt(2**63), Help("random seed of initial weights, sample order, and augmentation")] = 1
    pretrained: Annotated[str, Help("published weights recommended for --weights; empty: random initialization")] = ""


def check_recipe(recipe: Recipe) -> None:
    """Reject a recipe that contradicts itself.

    Raises RecipeError that names the field.
    """
    check_bounds(recipe)
    if (recipe.epochs > 0) == (recipe.max_images > 0):
        raise RecipeError(
            f"--epochs {recipe.epochs:g} and --max-images {recipe.max_images}: exactly one of them must be above 0. "
            "Set the other to 0."
        )
    optim, quality = recipe.optim, recipe.eval
    check_schedule(recipe.schedule)
    for name, value in recipe.target:
        # A little above 1 is a way to ask for a target that no run meets; 75.9 is a percentage written by mistake.
        if not 0 <= value < 2:
            raise RecipeError(
                f"--target {name}={value:g}: must be in [0, 1], because metrics are fractions. Example: {name}=0.759"
            )
    usual = next(entry.default for entry in fields(Recipe) if entry.name == "repeat_threshold")
    if recipe.sampler != "repeat-factor" and recipe.repeat_threshold != usual:
        raise RecipeError(f"--repeat-threshold {recipe.repeat_threshold:g}: requires --sampler repeat-factor.")
    if optim.clip_value and optim.clip_norm:
        raise RecipeError(
            f"--optim.clip-value {optim.clip_value:g} and --optim.clip-norm {optim.clip_norm:g}: only one of them may be "
            "above 0. Set the other to 0."
        )
    if optim.name == "lars" and (optim.clip_value or optim.clip_norm):
        raise RecipeError(
            "--optim.clip-value and --optim.clip-norm: not supported with lars, which divides each gradient by its norm. "
            "Set both to 0, or use --optim.name sgd."
        )
    if optim.name == "adamw" and optim.momentum_style != "torch":
        raise RecipeError("--optim.momentum-style: must be torch with --optim.name adamw.")
    if optim.nesterov and (optim.momentum_style != "torch" or optim.name != "sgd"):
        raise RecipeError("--optim.nesterov: requires --optim.name sgd and --optim.momentum-style torch.")
    if not quality.at and not 0 < quality.every < math.inf:
        raise RecipeError(f"--eval.every {quality.every:g}: must be above 0 and finite.")


def check_sizes(recipe: Recipe[Any, Any]) -> None:
    """Reject counts, widths, and sides that no network can have and that would only fill the memory.

    Raises RecipeError that names the flag.
    """
    for flag, node, most in (("--model", recipe.model, MAX_IN_MODEL), ("--input", recipe.input, MAX_IN_INPUT)):
        for name, value in flatten(node, f"{flag}.").items():
            for part in value if isinstance(value, tuple) else (value,):
                if type(part) is int and part > most:
                    raise RecipeError(f"{name.replace('_', '-')} {part}: must be {most:,} or less.")


def differing_fields(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """Map each dotted field in which two dataclasses differ to its values, None if missing."""
    ours, theirs = flatten(one), flatten(other)
    pairs = {name: (ours.get(name), theirs.get(name)) for name in (*ours, *(theirs.keys() - ours.keys()))}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def check_rules(*rules: tuple[str, Any, bool, str]) -> None:
    """Check rules of the form (flag, value, True if the rule holds, text of the rule).

    Raises RecipeError for the first rule that does not hold.
    """
    for flag, value, holds, what in rules:
        if not holds:
            raise RecipeError(f"{flag} {format_value(value)}: {what}.")


def check_batch_and_lr(
    before: Recipe, after: Recipe, explicit: Set[str], *, spelt: Literal["flags", "python"] = "flags"
) -> None:
    """Reject a changed global batch size unless the learning rate is set, too. Nothing is scaled.

    explicit  dotted names of the fields that the user set
    spelt     form of the fields in the message
    Raises RecipeError with both solutions.
    """
    if after.global_batch_size == before.global_batch_size or "optim.lr" in explicit:
        return
    batch, lr, way = "--global-batch-size", "--optim.lr", "--optim.lr {:.6g}"
    if spelt == "python":
        batch, lr, way = "global_batch_size", "optim.lr", 'overrides={{"optim.lr": {:.6g}}}'
    scaled = before.optim.lr * after.global_batch_size / before.global_batch_size
    raise RecipeError(
        f"{batch} changed from {before.global_batch_size} to {after.global_batch_size}, but {lr} is still "
        f"{before.optim.lr:g}, which is tuned for {before.global_batch_size}.\n"
        f"  scale the learning rate linearly:  {way.format(scaled)}\n"
        f"  keep the learning rate:            {way.format(before.optim.lr)}"
    )


def resolve_length(recipe: Recipe, explicit: set[str]) -> Recipe:
    """Let `epochs` replace the length of a recipe in images, and `max_images` one in epochs.

    explicit  dotted names of the fields that the user set
    """
    if "epochs" in explicit and "max_images" not in explicit and recipe.epochs:
        return replace(recipe, max_images=0)
    if "max_images" in explicit and "epochs" not in explicit and recipe.max_images:
        return replace(recipe, epochs=0.0)
    return recipe


def override(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Replace recipe fields by dotted name, such as {"optim.lr": 0.1}, and check the result.

    Raises RecipeError for an unknown field (suggesting a similar one), a value of a wrong type, and an invalid recipe.
    """
    changed = resolve_length(with_fields(recipe, changes), set(changes))
    check_batch_and_lr(recipe, changed, set(changes), spelt="python")
    check_recipe(changed)
    return changed


def with_fields(recipe: Recipe[Any, Any], changes: Mapping[str, Any]) -> Recipe[Any, Any]:
    """Replace recipe fields by dotted name, and check only their types. Raise the errors of `override`."""
    for dotted, value in changes.items():
        recipe = _replace_at(recipe, dotted.split("."), value, dotted)
    return recipe


def _replace_at(node: Any, path: list[str], value: Any, dotted: str) -> Any:
    if isinstance(node, type) or not is_dataclass(node):
        raise RecipeError(f"{dotted}: {type(node).__name__} has no fields. Use the name of the field itself.")
    names = [entry.name for entry in fields(node)]
    if path[0] not in names:
        near = difflib.get_close_matches(path[0], names, n=1)
        hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(names)}."
        raise RecipeError(f"{dotted}: not a field of a recipe.{hint}")
    current = getattr(node, path[0])
    if len(path) > 1:
        value = _replace_at(current, path[1:], value, dotted)
    elif is_dataclass(current) and type(value) is not type(current):
        inside = fields(current)[0].name
        raise RecipeError(f'{dotted}: must name a field in this group, as in overrides={{"{dotted}.{inside}": ...}}.')
    else:
        value = convert_checked(get_hints(type(node)).get(path[0]), value, dotted)
    return replace(node, **{path[0]: value})  # type: ignore[arg-type]  # the checker does not narrow `type` out of Any
