"""Recipe: what is learned. Global quantities only; where it runs is the System's business (`system.py`).

Every field's comment stands on the field's own line: it is that field's help text on the command line.
Nothing derived is stored here: steps, per-rank batches and decay points come out of `plan.py`, once, after overrides.
"""

from __future__ import annotations

import difflib
import math
from bisect import bisect_right
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

from paceline._utils.errors import RecipeError
from paceline._utils.names import flatten
from paceline.config.constraints import (
    AboveZero,
    BelowOne,
    Fraction,
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

ModelT = TypeVar("ModelT")
InputT = TypeVar("InputT")

# Names of choices whose field would otherwise not fit on one line with its comment.
OptimizerKind = Literal["sgd", "lars", "adamw"]
MomentumForm = Literal["torch", "lr_inside", "lr_inside_corrected"]
DecayOn = Literal["all", "no_norm", "no_norm_no_bias"]
Unit = Literal["epochs", "run", "steps"]
ScheduleKind = Literal["cosine", "poly2", "steps", "constant"]
EpochSteps = Literal["exact", "up", "down"]
Sampler = Literal["shuffle", "balanced", "repeat"]

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
    """The optimizer. Formulas: paceline/training/optim/sgd.py (SGD and LARS) and adamw.py."""

    kind: Annotated[OptimizerKind, Help("optimizer")] = "sgd"
    lr: Annotated[AboveZero, Help("peak learning rate for the recipe's global_batch; it is never rescaled")] = 0.1
    momentum: Annotated[BelowOne, Help("momentum coefficient; adamw: of the gradient's average")] = 0.9
    momentum_form: Annotated[MomentumForm, Help("where lr stands: out of the velocity, inside, or corrected")] = "torch"
    nesterov: Annotated[bool, Help("look-ahead gradient; momentum_form torch only")] = False
    weight_decay: Annotated[ZeroOrMore, Help("L2 coefficient, added to the gradient; adamw: times lr")] = 1e-4
    decay_on: Annotated[DecayOn, Help("tensors that decay: all, all but BatchNorm's, or only weights")] = "all"
    lars_eta: Annotated[AboveZero, Help("LARS trust coefficient")] = 0.001
    lars_eps: Annotated[ZeroOrMore, Help("LARS epsilon in the trust ratio's denominator")] = 0.0
    clip_value: Annotated[ZeroOrMore, Help("largest absolute gradient element, before the decay; 0: off")] = 0.0
    clip_norm: Annotated[ZeroOrMore, Help("largest norm of the gradient over all weights; 0: off")] = 0.0
    bias_lr: Annotated[AboveZero, Help("factor on the learning rate of biases")] = 1.0
    head_rate: Annotated[AboveZero, Help("factor on the learning rate of all layers outside the trunk")] = 1.0
    layer_decay: Annotated[Share, Help("factor on the rate of the last stage, once more for each below")] = 1.0


@dataclass(frozen=True)
class Schedule:
    """Learning rate over the run: a pure function of the step, `learning_rate`."""

    kind: Annotated[ScheduleKind, Help("shape of the decay after the warm-up")] = "cosine"
    unit: Annotated[Unit, Help("unit of warmup, horizon and boundaries: epochs, run's shares, steps")] = "epochs"
    warmup: Annotated[ZeroOrMore, Help("length of the linear warm-up, in `unit`")] = 0.0
    warmup_from: Annotated[Fraction, Help("where the warm-up starts, as a fraction of the peak lr")] = 0.0
    warmup_first: Annotated[Literal[-1, 0, 1], Help("steps up the ramp of the first step; poly2: 1")] = 1
    hold: Annotated[ZeroOrMore, Help("until where the peak is held before cosine or poly2 fall, in `unit`")] = 0.0
    horizon: Annotated[ZeroOrMore, Help("where the decay ends, in `unit`; 0: with the run")] = 0.0
    boundaries: Annotated[tuple[AboveZero, ...], Help("kind steps: where lr is multiplied by `factor`, in `unit`")] = ()
    factor: Annotated[AboveZero, Help("kind steps: the multiplier at each boundary")] = 0.1
    end_lr: Annotated[ZeroOrMore, Help("lr that cosine and poly2 end at")] = 0.0


def learning_rate(
    schedule: Schedule,
    step: int,
    *,
    peak: float,
    total_steps: float,
    warmup_steps: float = 0.0,
    hold_steps: float = 0.0,
    boundaries: tuple[float, ...] = (),
) -> float:
    """The learning rate of 0-based step `step`: nothing to save, nothing to restore wrongly.

    The numbers of steps are the schedule's lengths, counted in steps; they may be fractions, because recipes state them in epochs.
    Letters: t = step + 1, as MXNet counts updates   W warm-up steps   T total_steps, at which the decay ends

    Warm-up: a straight line from warmup_from * peak at 0 to peak at W, read at step + schedule.warmup_first
    (1, as MXNet counts: the first step already has some; 0, as GluonCV and Habana: the first step has warmup_from * peak;
    -1, as NVIDIA's Mask R-CNN: the first step has 0, the second warmup_from * peak);
    poly2 reads it at t, whatever warmup_first says.
    After it:
    poly2     end_lr + (peak - end_lr) * (1 - (t - W) / (T - W))^2, so the update t = T has end_lr
    cosine    end_lr + (peak - end_lr) * (1 + cos(pi * (step - W) / (T - W))) / 2, so the step after the last has end_lr
    steps     peak * factor^(boundaries at or below step); boundaries count from the first step, warm-up included
    constant  peak
    hold_steps: up to this step the peak is held; in the two formulas it takes W's place where it lies beyond W.
    At and beyond T poly2 and cosine stay at end_lr.
    Sources: MLPerf's MXNet ResNet (PolySchedule) for poly2; torch.optim.lr_scheduler's CosineAnnealingLR and MultiStepLR
    for cosine and steps, both counted from the first step as torch and MXNet do.
    """
    kind, end_lr = schedule.kind, schedule.end_lr
    count = step + 1 if kind == "poly2" else step
    ramp = count if kind == "poly2" else step + schedule.warmup_first
    if ramp < 0 < warmup_steps:
        return 0.0
    # The ramp ends where it meets the decay: poly2 reads both at t, so t = W is still the ramp's (and equals the peak).
    if ramp < warmup_steps or (kind == "poly2" and ramp <= warmup_steps):
        return peak * (schedule.warmup_from + (1 - schedule.warmup_from) * ramp / warmup_steps)
    if kind == "steps":
        return peak * schedule.factor ** bisect_right(boundaries, step)
    if kind == "constant":
        return peak
    if count >= total_steps:
        return end_lr
    # With warmup_first 1 the step after the ramp can lie before W, or W be all there is: the peak, not more.
    start = max(warmup_steps, hold_steps)
    done = (count - start) / (total_steps - start) if count > start else 0.0
    left = (1 - done) ** 2 if kind == "poly2" else (1 + math.cos(math.pi * done)) / 2
    return end_lr + (peak - end_lr) * left


@dataclass(frozen=True)
class Quality:
    """When to evaluate, and what ends the run. A target is met by >=; all must be met in one evaluation."""

    targets: Annotated[tuple[tuple[str, float], ...], Help("e.g. top1 0.759; empty: train to the end")] = ()
    unit: Annotated[Unit, Help("what first, every and at count in: epochs, fractions of the run, or steps")] = "epochs"
    first: Annotated[ZeroOrMore, Help("first evaluation, in `unit`")] = 1.0
    every: Annotated[float, Help("distance between evaluations, in `unit`")] = 1.0
    at: Annotated[tuple[AboveZero, ...], Help("exact evaluation points, in `unit`; replaces first and every")] = ()


@dataclass(frozen=True)
class Recipe(Generic[ModelT, InputT]):
    """What is learned: model, data treatment, optimizer, schedule, quality target.

    With `ema` an average of the weights is evaluated, kept as best and predicted with. It starts as a copy of the first weights
    (--weights, where given). In a run so short that these would still weigh more than 1 percent in it at the end (ema to the
    power of the run's steps), the decay of step t = 0, 1, ... is min(ema, (1 + t) / (10 + t)) instead of ema, and the run says so.
    """

    task: Annotated[str, Help("the workload: paceline list tasks, or one of your own: ./file.py:name")]
    model: Annotated[ModelT, Help("the network and its loss; a typed dataclass of the task")]
    input: Annotated[InputT, Help("how images become network input; a typed dataclass of the task")]
    target_data: Annotated[str, Help("data set of the target; with another one the run trains to its end")] = "imagenet"
    global_batch: Annotated[BatchImages, Help("images per optimizer step, over all ranks and accumulations")] = 256
    epochs: Annotated[ZeroOrMore, Help("length in passes over the training images; or give images_seen")] = 0.0
    images_seen: Annotated[Whole, Help("length in images; or give epochs")] = 0
    epoch_steps: Annotated[EpochSteps, Help("an epoch's steps: a fraction, or rounded as the original did")] = "exact"
    bn_span: Annotated[BatchImages, Help("images that share one set of BatchNorm statistics")] = 64
    optim: Annotated[Optim, Help("the optimizer")] = field(default_factory=Optim)
    schedule: Annotated[Schedule, Help("the learning rate over time")] = field(default_factory=Schedule)
    quality: Annotated[Quality, Help("evaluations and target")] = field(default_factory=Quality)
    ema: Annotated[BelowOne, Help("decay per step of an average of the weights, which is evaluated; 0: none")] = 0.0
    sampler: Annotated[Sampler, Help("draws of an epoch: each photo once, classes equally, or repeat")] = "shuffle"
    repeat_threshold: Annotated[Share, Help("repeat: draw classes below this share of the photos more often")] = 0.001
    seed: Annotated[int, Ge(0), Lt(2**63), Help("of initial weights, sample order and augmentation")] = 1
    pretrained: Annotated[str, Help("published weights that --weights should name; empty: random values")] = ""


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that contradicts itself.

    Raises RecipeError naming the field.
    """
    check_bounds(recipe)
    if (recipe.epochs > 0) == (recipe.images_seen > 0):
        raise RecipeError(
            f"--epochs {recipe.epochs:g} and --images-seen {recipe.images_seen}: give the length once. "
            "Set one of them above 0 and the other to 0."
        )
    optim, schedule, quality = recipe.optim, recipe.schedule, recipe.quality
    for flag, value in (("warmup", schedule.warmup), ("hold", schedule.hold), ("horizon", schedule.horizon)):
        if schedule.unit == "run" and value > 1:
            raise RecipeError(f"--schedule.{flag} {value:g}: must be in [0, 1], counted in fractions of the run.")
    if any(later <= earlier for earlier, later in zip(schedule.boundaries, schedule.boundaries[1:])):
        raise RecipeError(f"--schedule.boundaries {format_value(schedule.boundaries)}: must be ascending.")
    for name, value in quality.targets:
        # A little above 1 is a way to ask for a target that no run meets; 75.9 is a percentage written by mistake.
        if not 0 <= value < 2:
            raise RecipeError(f"--quality.targets {name} {value:g}: metrics are fractions in [0, 1], e.g. {name} 0.759.")
    usual = next(entry.default for entry in fields(Recipe) if entry.name == "repeat_threshold")
    if recipe.sampler != "repeat" and recipe.repeat_threshold != usual:
        raise RecipeError(f"--repeat-threshold {recipe.repeat_threshold:g}: counts with --sampler repeat alone.")
    if optim.clip_value and optim.clip_norm:
        raise RecipeError(
            f"--optim.clip-value {optim.clip_value:g} and --optim.clip-norm {optim.clip_norm:g}: these are two ways to clip "
            "one gradient. Set one of them to 0."
        )
    if optim.kind == "lars" and (optim.clip_value or optim.clip_norm):
        raise RecipeError(
            "--optim.clip-value and --optim.clip-norm: lars divides each gradient by its own norm already. Leave both at 0, "
            "or use --optim.kind sgd."
        )
    if schedule.kind == "poly2" and schedule.warmup_first != 1:
        raise RecipeError(
            f"--schedule.warmup-first {schedule.warmup_first}: poly2 counts its warm-up from 1, as its decay. Leave it at 1."
        )
    if optim.kind == "adamw" and optim.momentum_form != "torch":
        raise RecipeError("--optim.momentum-form: adamw has its own; leave it at torch.")
    if optim.nesterov and (optim.momentum_form != "torch" or optim.kind != "sgd"):
        raise RecipeError("--optim.nesterov: only kind sgd with momentum_form torch has a look-ahead gradient.")
    if not quality.at and not 0 < quality.every < math.inf:
        raise RecipeError(f"--quality.every {quality.every:g}: the distance between evaluations must be above 0.")


def check_sizes(recipe: Recipe[Any, Any]) -> None:
    """Refuse counts, widths and sides of model and input that no network here can have: they would only fill the memory.

    Raises RecipeError naming the flag.
    """
    for flag, node, most in (("--model", recipe.model, MAX_IN_MODEL), ("--input", recipe.input, MAX_IN_INPUT)):
        for name, value in flatten(node, f"{flag}.").items():
            for part in value if isinstance(value, tuple) else (value,):
                if type(part) is int and part > most:
                    raise RecipeError(f"{name.replace('_', '-')} {part}: must be {most:,} or less.")


def differing_fields(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """The dotted fields in which two dataclasses differ -> their two values; None where one of them has no such field."""
    ours, theirs = flatten(one), flatten(other)
    pairs = {name: (ours.get(name), theirs.get(name)) for name in (*ours, *(theirs.keys() - ours.keys()))}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def check_rules(*rules: tuple[str, Any, bool, str]) -> None:
    """Each rule is (flag, value, whether it holds, what must hold).

    Raises RecipeError for the first that does not.
    """
    for flag, value, holds, what in rules:
        if not holds:
            raise RecipeError(f"{flag} {format_value(value)}: {what}.")


def check_batch_and_lr(
    before: Recipe, after: Recipe, explicit: Set[str], *, spelt: Literal["flags", "python"] = "flags"
) -> None:
    """Refuse a changed global batch whose learning rate was not stated again (no hidden scaling).

    explicit  dotted names of the fields that were set by hand
    spelt   how the message names fields
    Raises RecipeError that prints both ways out.
    """
    if after.global_batch == before.global_batch or "optim.lr" in explicit:
        return
    batch, lr, way = "--global-batch", "--optim.lr", "--optim.lr {:.6g}"
    if spelt == "python":
        batch, lr, way = "global_batch", "optim.lr", 'changes={{"optim.lr": {:.6g}}}'
    scaled = before.optim.lr * after.global_batch / before.global_batch
    raise RecipeError(
        f"{batch} changed from {before.global_batch} to {after.global_batch}, but {lr} was left at "
        f"{before.optim.lr:g}, which was tuned for {before.global_batch}.\n"
        f"  keep the linear-scaling rule:  {way.format(scaled)}\n"
        f"  keep the learning rate:        {way.format(before.optim.lr)}"
    )


def resolve_length(recipe: Recipe, explicit: set[str]) -> Recipe:
    """--epochs on a recipe counted in images (or the reverse) replaces its length instead of contradicting it.

    explicit  dotted names of the fields that were set by hand
    """
    if "epochs" in explicit and "images_seen" not in explicit and recipe.epochs:
        return replace(recipe, images_seen=0)
    if "images_seen" in explicit and "epochs" not in explicit and recipe.images_seen:
        return replace(recipe, epochs=0.0)
    return recipe


def override(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with dotted fields replaced, e.g. {"optim.lr": 0.1, "global_batch": 64}; the batch rule is applied.

    Raises RecipeError for an unknown field, naming its nearest neighbor, and for a value of another type.
    """
    changed = resolve_length(with_fields(recipe, changes), set(changes))
    check_batch_and_lr(recipe, changed, set(changes), spelt="python")
    check_recipe(changed)
    return changed


def with_fields(recipe: Recipe[Any, Any], changes: Mapping[str, Any]) -> Recipe[Any, Any]:
    """The recipe with dotted fields replaced; of the result nothing but the fields' types is checked. Raises as `override`."""
    for dotted, value in changes.items():
        recipe = _replace_at(recipe, dotted.split("."), value, dotted)
    return recipe


def _replace_at(node: Any, path: list[str], value: Any, dotted: str) -> Any:
    if isinstance(node, type) or not is_dataclass(node):
        raise RecipeError(f"{dotted}: {type(node).__name__} has no fields; name the field itself.")
    names = [entry.name for entry in fields(node)]
    if path[0] not in names:
        near = difflib.get_close_matches(path[0], names, n=1)
        hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(names)}."
        raise RecipeError(f"{dotted}: a recipe has no such field.{hint}")
    current = getattr(node, path[0])
    if len(path) > 1:
        value = _replace_at(current, path[1:], value, dotted)
    elif is_dataclass(current) and type(value) is not type(current):
        inside = fields(current)[0].name
        raise RecipeError(f'{dotted}: this is a group of fields; name them, as in changes={{"{dotted}.{inside}": ...}}.')
    else:
        value = convert_checked(get_hints(type(node)).get(path[0]), value, dotted)
    return replace(node, **{path[0]: value})  # type: ignore[arg-type]  # the checker does not narrow `type` out of Any
