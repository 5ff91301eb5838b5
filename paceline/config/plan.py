"""Plan = Recipe + System + number of ranks. All arithmetic on batches, steps and epochs lives here and is done once.

Letters: B global batch   W ranks   f images per forward   A forwards per step   S bn_batch_size   g loss group   N training images
A rank's share of a step is B/W images = A forwards of f images. One set of BatchNorm statistics covers S images: a forward
is split into f/S groups (ghost BN), or S/f neighboring ranks are joined (group BN). Either way group number g of a step
holds the same S images, so the trajectory does not depend on how the batch was cut. The same goes for the g images whose
losses are normalized together, where a task does that.

Some losses are a sum over places divided by how many places count (sampled anchors, sampled regions, pixels of masks). Such
a recipe says over how many images both sums go: published systems took the images of one GPU, the default is the global
batch. The step's loss is the mean over its B/g groups. A forward of f images holds f/g groups whole, or is a part of one:
then the counts of its f*A or B images must be known before the first backward, from a counting pass or from all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from paceline._utils.errors import RecipeError
from paceline.config.recipe import MAX_EVALUATIONS, Recipe, check_recipe
from paceline.config.schedule import Unit, learning_rate
from paceline.config.system import System, check_system


@runtime_checkable
class LossNormalization(Protocol):
    """What the model's part of a recipe has where its losses are normalized over groups of images."""

    @property
    def loss_normalizer_images(self) -> int:
        """Images over which losses are normalized together; 0 = the global batch."""
        ...


@dataclass(frozen=True)
class LossGroups:
    """How a cut batch makes up loss groups; groups * f images, or f * forwards * join, are g."""

    groups: int  # whole groups in one forward
    forwards: int  # consecutive forwards of a rank that make up one group
    join: int  # ranks whose forwards make up one group: 1 or all


def recipe_loss_group(recipe: Recipe) -> int:
    """Images of one loss group of this recipe; 0 for a task whose losses are plain sums over images."""
    settings = recipe.model
    if not isinstance(settings, LossNormalization):
        return 0
    return settings.loss_normalizer_images or recipe.global_batch_size


def split_loss_groups(group: int, *, images: int, forwards: int, world: int, bn_join: int) -> LossGroups | None:
    """How `world` ranks with `forwards` forwards of `images` images make up groups of `group`; None where they cannot.

    group    0 = the losses need no groups
    bn_join  ranks that share BatchNorm statistics: they take turns in the sample stream, so only a forward, and the whole
             batch, hold neighboring images there
    """
    if not group or images % group == 0:
        return LossGroups(images // group if group else 1, 1, 1)
    share = images * forwards
    if bn_join == 1 and group % images == 0 and share % group == 0:
        return LossGroups(1, group // images, 1)
    if group == share * world:
        return LossGroups(1, forwards, world)
    return None


def explain_impossible_group(group: int, cuts: Sequence[tuple[int, int, int]], *, world: int, most: int) -> str:
    """Why no cut reaches a loss group, and both ways out.

    cuts  (images, forwards, ranks joined for BatchNorm) of every cut that the ranks, the memory and --bn-batch-size allow
    most  images that one forward may hold
    """
    share = cuts[0][0] * cuts[0][1]
    reachable = {
        size
        for images, forwards, bn_join in cuts
        for size in range(1, share + 1)
        if share % size == 0
        and split_loss_groups(size, images=images, forwards=forwards, world=world, bn_join=bn_join) is not None
    }
    nearest = sorted(sorted(reachable, key=lambda size: max(size, group) / min(size, group))[:3])
    return (
        f"--model.loss-normalizer-images {group}: not possible with {share} images per rank, {world} ranks, and micro-batches "
        f"of at most {most}. A rank must hold whole groups, or one group must be the global batch of {share * world}.\n"
        f"Nearest possible values: {', '.join(map(str, nearest))}, or 0 for the global batch. Alternatively, use another "
        "number of ranks or increase --system.micro-batch-size."
    )


# Epoch arithmetic is done in floats; a step that lies within this of an integer is that integer.
STEP_TOLERANCE = 1e-6
# Where the first weights would weigh more than this in the weight average at the run's end, its decay is warmed up.
MAX_FIRST_WEIGHTS = 0.01


class StepRates(NamedTuple):
    """What changes from step to step by the recipe's rules. Data order and augmentation follow the step's number too."""

    lr: float  # learning rate
    previous_lr: float  # of the step before; of step 0 its own. 0: no momentum is corrected for it
    ema: float = 0.0  # share of the old weight average that is kept, in [0, 1); 0 where there is no average


@dataclass(frozen=True)
class BatchPlan:
    """What the loop carries out. Steps are counted from 0; "after step n" means n steps are done."""

    world_size: int  # ranks that train
    nodes: int  # machines, those of ranks that only evaluate included
    global_batch_size: int  # images per optimizer step
    images_per_rank: int  # images of one step on one rank
    micro_batch_size: int  # images of one forward on one rank
    micro_batches: int  # forwards (accumulations) per step
    bn_batch_size: int  # images that share BatchNorm statistics, after capping at the global batch
    bn_groups: int  # groups that one forward is split into
    bn_ranks: int  # ranks whose forwards share statistics
    train_images: int  # N
    val_images: int  # images of one evaluation
    steps_per_epoch: float  # N / B, or rounded as the recipe says
    total_steps: int  # the recipe's length
    stop_after: int  # steps this run is asked to take: total_steps, or fewer with --max-steps
    warmup_steps: float  # end of the warm-up
    decay_start_step: float  # end of the held peak
    decay_end_step: float  # end of the decay
    milestones: tuple[float, ...]  # steps at which a multistep schedule decays
    eval_steps: tuple[int, ...]  # evaluations fall after these steps
    loss_normalizer_images: int = 0  # images whose losses are normalized together; 0 = the task's losses need no groups
    loss_groups: int = 1  # loss groups that one forward holds
    loss_micro_batches: int = 1  # consecutive forwards of a rank that make up one loss group
    loss_ranks: int = 1  # ranks whose forwards make up one loss group: 1 or all
    eval_ranks: int = 0  # further ranks, which only evaluate

    @property
    def evaluators(self) -> int:
        """Ranks that share an evaluation: those that do nothing else, else those that train."""
        return self.eval_ranks or self.world_size


def split_batch(
    global_batch_size: int, world: int, most: int, bn_batch_size: int, loss_images: int = 0
) -> tuple[int, int, int, int]:
    """Cut a global batch: -> (images per forward, forwards, BatchNorm groups per forward, ranks joined for BatchNorm).

    most        images that one forward may hold
    loss_images  images whose losses are normalized together; 0 = no matter
    The largest forward that fits and reaches exactly `bn_batch_size` and `loss_images` is taken.
    Raises RecipeError when the batch does not divide over the ranks or one of the two cannot be reached.
    """
    if global_batch_size % world:
        low = global_batch_size // world * world
        nearest = f"{low} or {low + world}" if low else f"{world}"
        raise RecipeError(
            f"--global-batch-size {global_batch_size}: must be divisible by {world} ranks. Nearest possible values: {nearest}.\n"
            "Use another number of ranks, or set both --global-batch-size and --optim.lr."
        )
    share = global_batch_size // world
    cuts: list[tuple[int, int, int, int]] = []
    for forwards in range(1, share + 1):
        images = share // forwards
        if share % forwards or images > most:
            continue
        if images % bn_batch_size == 0:
            cuts.append((images, forwards, images // bn_batch_size, 1))
        elif bn_batch_size % images == 0 and world % (bn_batch_size // images) == 0:
            cuts.append((images, forwards, 1, bn_batch_size // images))
    if not cuts:
        raise RecipeError(_span_refusal(share, world, most, bn_batch_size))
    for images, forwards, groups, join in cuts:
        if split_loss_groups(loss_images, images=images, forwards=forwards, world=world, bn_join=join) is not None:
            return images, forwards, groups, join
    raise RecipeError(
        explain_impossible_group(loss_images, [(cut[0], cut[1], cut[3]) for cut in cuts], world=world, most=most)
    )


def _split_fields(global_batch_size: int, world: int, most: int, bn_batch_size: int, loss_images: int) -> dict[str, int]:
    """The fields of a BatchPlan that a cut decides. Arguments and errors as of `split_batch`."""
    images, forwards, groups, join = split_batch(global_batch_size, world, most, bn_batch_size, loss_images)
    losses = split_loss_groups(loss_images, images=images, forwards=forwards, world=world, bn_join=join)
    assert losses is not None  # split_batch took a cut that reaches it
    return {
        "micro_batch_size": images,
        "micro_batches": forwards,
        "bn_groups": groups,
        "bn_ranks": join,
        "loss_groups": losses.groups,
        "loss_micro_batches": losses.forwards,
        "loss_ranks": losses.join,
    }


def _span_refusal(share: int, world: int, most: int, bn_batch_size: int) -> str:
    reachable = sorted(
        {
            span
            for images in range(1, min(share, most) + 1)
            if share % images == 0
            for span in (
                *(images // groups for groups in range(1, images + 1) if images % groups == 0),
                *(images * ranks for ranks in range(2, world + 1) if world % ranks == 0),
            )
        },
        key=lambda span: abs(math.log(span / bn_batch_size)),
    )
    return (
        f"--bn-batch-size {bn_batch_size}: not possible with {share} images per rank, {world} ranks, and micro-batches of at most "
        f"{most}. A micro-batch must hold a multiple of it, or an exact fraction of it on neighboring ranks.\n"
        f"Nearest possible values: {', '.join(map(str, sorted(reachable[:3]))) or 'none'}. Alternatively, increase "
        f"--system.micro-batch-size or use another number of ranks."
    )


def steps_in_epoch(train_images: int, global_batch_size: int, rounding: Literal["exact", "up", "down"]) -> float:
    """Optimizer steps of one pass over the training images; "up" and "down" repeat the original systems' arithmetic."""
    exact = train_images / global_batch_size
    if rounding == "exact":
        return exact
    return float(max(1, math.ceil(exact) if rounding == "up" else math.floor(exact)))


def epochs_done(step: int, steps_per_epoch: float) -> int:
    """Whole epochs in the first `step` steps."""
    return int(step / steps_per_epoch + 1e-9)


def is_epoch_end(step: int, steps_per_epoch: float) -> bool:
    """Whether an epoch's last sample is in this step, the one that makes them `step`."""
    return epochs_done(step, steps_per_epoch) > epochs_done(step - 1, steps_per_epoch)


def whole_steps(steps: float) -> int:
    """The first whole step at or past a point of the run."""
    return math.ceil(steps - STEP_TOLERANCE)


def count_ranks(flags: Any, explicit: Collection[str], per_node: int) -> int:
    """All ranks of a plan: --world-size, or --nodes times a node's; a run's own number gives way to a --nodes that was given.

    explicit  names of the flags that were set by hand
    Raises RecipeError where both were explicit and disagree.
    """
    world, of_nodes = getattr(flags, "world_size", 0), flags.nodes * per_node
    if "nodes" not in explicit:
        return world or of_nodes
    if "world_size" in explicit and world not in (0, of_nodes):
        raise RecipeError(
            f"--nodes {flags.nodes} and --world-size {world} disagree: {flags.nodes} nodes x {per_node} ranks per node "
            f"are {of_nodes} ranks. Remove one of them, or set --system.ranks-per-node."
        )
    return of_nodes


def count_training_ranks(ranks: int, eval_ranks: int) -> int:
    """How many of so many ranks train, where `eval_ranks` of them only evaluate.

    Raises RecipeError where none would.
    """
    if eval_ranks == 0 or 0 < eval_ranks < ranks:
        return ranks - eval_ranks
    if ranks == 1:
        raise RecipeError(
            f"--dedicated-eval-ranks {eval_ranks}: the run has only one rank, which must train. Start more ranks, for example "
            "with torchrun --nproc-per-node, or remove --dedicated-eval-ranks to train and evaluate on one rank."
        )
    raise RecipeError(
        f"--dedicated-eval-ranks {eval_ranks}: at least one of {ranks} ranks must train. Use 0 to {ranks - 1}, or start more ranks."
    )


def make_plan(
    recipe: Recipe, system: System, *, world: int, most: int, train_images: int, val_images: int, eval_ranks: int = 0
) -> BatchPlan:
    """Work out how `recipe` runs on `world` ranks of `system`.

    most        images that one forward may hold: --system.micro-batch-size, or from the memory estimate
    eval_ranks  ranks beside these that only evaluate
    Raises RecipeError for anything that cannot be carried out exactly: so `plan` and `launch` refuse it too.
    """
    check_recipe(recipe)
    check_system(system)
    if getattr(recipe.input, "decoder", "") == "nvjpeg" and system.device != "cuda":
        raise RecipeError(
            f"--input.decoder nvjpeg: requires cuda, and this run uses {system.device}. Use  --input.decoder simplejpeg"
        )
    batch = recipe.global_batch_size
    # A span beyond the batch means the whole batch: there are no more images to share statistics with. `describe` says so.
    bn_batch_size = min(recipe.bn_batch_size, batch)
    loss_normalizer_images = recipe_loss_group(recipe)
    try:
        cut = _split_fields(batch, world, most, bn_batch_size, loss_normalizer_images)
    except RecipeError as refusal:
        if not eval_ranks:
            raise
        which = f"{world} of {world + eval_ranks} ranks train; {eval_ranks} only evaluate (--dedicated-eval-ranks)."
        raise RecipeError(f"{refusal}\n{which}") from None
    per_epoch = steps_in_epoch(train_images, batch, recipe.epoch_rounding)
    length = recipe.epochs * per_epoch if recipe.epochs else recipe.max_images / batch
    total = max(1, whole_steps(length))
    schedule, quality = recipe.schedule, recipe.eval
    unit = _steps_of(schedule.unit, per_epoch, total)
    return BatchPlan(
        world_size=world,
        nodes=max(1, math.ceil((world + eval_ranks) / system.ranks_per_node)),
        global_batch_size=batch,
        images_per_rank=batch // world,
        bn_batch_size=bn_batch_size,
        train_images=train_images,
        val_images=val_images,
        steps_per_epoch=per_epoch,
        total_steps=total,
        stop_after=total,
        warmup_steps=schedule.warmup * unit,
        decay_start_step=schedule.decay_start * unit,
        decay_end_step=schedule.decay_end * unit if schedule.decay_end else float(total),
        milestones=tuple(boundary * unit for boundary in schedule.milestones),
        eval_steps=_eval_steps(quality.start, quality.every, quality.at, _steps_of(quality.unit, per_epoch, total), total),
        loss_normalizer_images=loss_normalizer_images,
        eval_ranks=eval_ranks,
        **cut,
    )


def resplit(plan: BatchPlan, most: int) -> BatchPlan:
    """The plan with its batch cut into forwards of at most `most` images. Raises RecipeError where spans cannot be reached so."""
    return replace(
        plan,
        **_split_fields(plan.global_batch_size, plan.world_size, most, plan.bn_batch_size, plan.loss_normalizer_images),
    )


def _steps_of(unit: Unit, per_epoch: float, total: int) -> float:
    """Optimizer steps in one `unit`."""
    return {"epochs": per_epoch, "fraction": float(total), "steps": 1.0}[unit]


def limit_steps(plan: BatchPlan, *, steps: int = 0, eval_every: int = 0) -> BatchPlan:
    """The plan with --max-steps and --eval-every applied; schedule and data order stay the recipe's.

    steps       stop after this many; 0 = at the recipe's end
    eval_every  steps between evaluations; 0 = as the recipe says
    Raises RecipeError for more evaluations than a run can hold.
    """
    stop = min(plan.total_steps, steps) if steps else plan.total_steps
    if eval_every and stop // eval_every > MAX_EVALUATIONS:
        raise RecipeError(f"--eval-every {eval_every}: exceeds {MAX_EVALUATIONS:,} evaluations in {stop:,} steps.")
    due = range(eval_every, stop + 1, eval_every) if eval_every else plan.eval_steps
    return replace(plan, stop_after=stop, eval_steps=tuple(sorted({step for step in due if step <= stop} | {stop})))


def evaluation_batch(micro_batch_size: int, val_images: int, world: int) -> int:
    """Most images in one forward of an evaluation: as in training, but not more than a rank's share."""
    return max(1, min(micro_batch_size, math.ceil(val_images / world)))


def _eval_steps(first: float, every: float, at: tuple[float, ...], scale: float, total: int) -> tuple[int, ...]:
    if at:
        points = {whole_steps(point * scale) for point in at}
    else:
        count = max(0.0, (total / scale - first) / every + STEP_TOLERANCE)
        if not count <= MAX_EVALUATIONS:
            raise RecipeError(f"--eval.every {every:g}: exceeds {MAX_EVALUATIONS:,} evaluations in {total:,} steps.")
        points = {whole_steps((first + number * every) * scale) for number in range(math.floor(count) + 1)}
    # The end of the run is always evaluated: a trained model without its number is worth little.
    return tuple(sorted({step for step in points if 1 <= step <= total} | {total}))


def lr_at(recipe: Recipe, plan: BatchPlan, step: int) -> float:
    """Learning rate of 0-based step `step`; a pure function, so nothing of it is ever checkpointed."""
    return learning_rate(
        recipe.schedule,
        step,
        peak=recipe.optim.lr,
        total_steps=plan.decay_end_step,
        warmup_steps=plan.warmup_steps,
        hold_steps=plan.decay_start_step,
        boundaries=plan.milestones,
    )


def step_rates(recipe: Recipe, plan: BatchPlan, step: int) -> StepRates:
    """The rates of 0-based step `step`: `lr_at`, `lr_at` of the step before, `ema_at`."""
    return StepRates(lr_at(recipe, plan, step), lr_at(recipe, plan, max(0, step - 1)), ema_at(recipe, plan, step))


def ema_initial_share(recipe: Recipe, plan: BatchPlan) -> float:
    """What the weights of step 0 would weigh in the average at the run's end if the decay were the recipe's in every step."""
    return recipe.ema_decay**plan.stop_after if recipe.ema_decay else 0.0


def ema_at(recipe: Recipe, plan: BatchPlan, step: int) -> float:
    """Decay of the weight average in 0-based step `step`; the rule stands in Recipe's docstring. A pure function, as lr_at."""
    if ema_initial_share(recipe, plan) <= MAX_FIRST_WEIGHTS:
        return recipe.ema_decay
    return min(recipe.ema_decay, (1 + step) / (10 + step))
