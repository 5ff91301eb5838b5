"""--auto-config: from what a data set holds to the flags that fit it, each with its reason. A pure function of these facts.

Fields set by hand are left as they are, and the others follow from them. Bounds without a number beside them are our judgment; what
was measured stands in results/tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.config.constraints import format_value
from paceline.config.maskrcnn import InstanceInput
from paceline.config.recipe import Recipe, resolve_length, with_fields
from paceline.config.resnet import ImageInput
from paceline.config.ssd import BoxInput, grid_sizes

# A tenth of the objects may have fewer pixels along their side than this at the network's input. With 11, larger photos lost at equal
# time (facades10: mask AP50 0.16 for 0.21).
OBJECT_PIXELS = 8
# Most pixels along an input's (shorter) side: on a CPU, and elsewhere.
MAX_PIXELS = {True: 448, False: 640}
# Steps of a run, at least and at most: of classes and of objects, on a CPU (True) and elsewhere.
STEPS = {
    ("classes", True): (200, 3_000),
    ("classes", False): (300, 30_000),
    ("objects", True): (1_500, 4_000),
    ("objects", False): (1_500, 40_000),
}
EVALUATIONS, USUAL_EVALUATIONS = 8, range(5, 11)


class AutoChoice(NamedTuple):
    """One field, and why. `field`: dotted, of the recipe; `patience` is a control's."""

    field: str  # dotted
    value: Any  # its new value
    why: str  # the reason, a clause

    @property
    def flag(self) -> str:
        """As it is typed."""
        return f"--{self.field.replace('_', '-')} {format_value(self.value)}"


@dataclass(frozen=True)
class DatasetStats:
    """What a data set's training photos are. An object's size is the square root of its box's area."""

    photos: int  # training photos
    side: float  # pixels, the median of the photos' shorter sides
    per_class: tuple[int, ...]  # photos with each class
    objects: int = 0  # in all of them
    of_photo: float = 0.0  # a tenth of the objects are smaller than this share of the square root of their photo's area
    of_side: float = 0.0  # and than this share of its shorter side
    large: float = 1.0  # a tenth of them are larger than this share of the square root of their photo's area


@dataclass(frozen=True)
class AutoContext:
    """What the choice depends on beside recipe and data."""

    given: Collection[str]  # dotted names of the fields of recipe and options that were set by hand
    cpu: bool = True  # whether the run is on one
    ranks: int = 1  # processes that share a batch

    def free(self, *fields: str) -> bool:
        """Whether none of the fields, nor a group that they are in, was set by hand."""
        return not any({field, field.partition(".")[0]} & set(self.given) for field in fields)


def choose_fields(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    """The fields to set, in the order in which they follow from each other; none that has its value already."""
    choices: list[AutoChoice] = []
    rules: tuple[Callable[[Recipe[Any, Any], DatasetStats, AutoContext], list[AutoChoice]], ...]
    rules = (_batch, _photo_size, _box_size, _scales, _short_side, _anchors, _length, _evaluations)
    for rule in rules:
        made = rule(recipe, result, requested)
        recipe = apply_choices(recipe, made)
        choices += made
    return choices


def apply_choices(recipe: Recipe[Any, Any], choices: Collection[AutoChoice]) -> Recipe[Any, Any]:
    """The recipe with the choices that are its fields."""
    changes = {choice.field: choice.value for choice in choices if choice.field != "patience"}
    return resolve_length(with_fields(recipe, changes), set(changes))


def count_steps(recipe: Recipe[Any, Any], photos: int) -> int:
    """Steps of the recipe on so many photos."""
    images = recipe.epochs * photos if recipe.epochs else recipe.max_images
    return max(1, math.ceil(images / recipe.global_batch_size - 1e-6))


def count_evaluations(recipe: Recipe[Any, Any], photos: int) -> int:
    """About how often the recipe evaluates on so many photos."""
    total, quality = count_steps(recipe, photos), recipe.eval
    if quality.at:
        return len(quality.at)
    unit = {"epochs": photos / recipe.global_batch_size, "fraction": float(total), "steps": 1.0}[quality.unit]
    return max(1, math.floor((total / unit - quality.start) / quality.every + 1 + 1e-6))


def step_range(found_objects: bool, cpu: bool) -> tuple[int, int]:
    """Steps of a run at least and at most."""
    return STEPS["objects" if found_objects else "classes", cpu]


def _batch(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    batch, fits = recipe.global_batch_size, max(1, result.photos // 4)
    if not requested.free("global_batch_size") or 2 * batch <= result.photos:
        return []
    # Even, because pairs are mixed and a batch of one has no statistics; the spans that were set by hand divide it.
    spans = (recipe.bn_batch_size, getattr(recipe.model, "loss_normalizer_images", 0))
    unit = math.lcm(2, requested.ranks, *(span for span in spans if 0 < span <= fits and fits >= 2))
    size = max(unit, 2 ** (fits.bit_length() - 1) // unit * unit)
    if size >= batch:
        return []
    made = [AutoChoice("global_batch_size", size, f"{result.photos:,} images are fewer than two batches of {batch}")]
    if requested.free("optim.lr"):
        rate = float(f"{recipe.optim.lr * size / batch:.3g}")
        made.append(AutoChoice("optim.lr", rate, f"scaled with the batch size, from {recipe.optim.lr:g} at {batch}"))
    return made


def _photo_size(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    photo = recipe.input
    if not isinstance(photo, ImageInput) or not requested.free(
        "input.image_size", "input.eval_crop_size", "input.eval_resize_size"
    ):
        return []
    if result.side < photo.image_size and (size := max(64, _up(result.side))) < photo.image_size:
        why = f"half of the images have a shorter side of at most {result.side:.0f} pixels"
    else:
        return []
    crop = _up(photo.eval_crop_size * size / photo.image_size - 16)
    resize = max(crop, round(photo.eval_resize_size * size / photo.image_size))
    rest = "same ratio to the training size as before"
    sizes = ("input.image_size", size, why), ("input.eval_crop_size", crop, rest), ("input.eval_resize_size", resize, rest)
    return [AutoChoice(*one) for one in sizes]


def _box_size(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    photo = recipe.input
    if not isinstance(photo, BoxInput) or not result.objects or not requested.free("input.image_size"):
        return []
    size, why = _larger(photo.image_size, result.of_photo, result, requested)
    return [AutoChoice("input.image_size", size, why)] if size > photo.image_size else []


def _larger(side: int, share: float, result: DatasetStats, requested: AutoContext) -> tuple[int, str]:
    """-> (the side at which a tenth of the objects have OBJECT_PIXELS or fewer, within what is sensible; why)."""
    limits = (MAX_PIXELS[requested.cpu], "the limit on this device"), (_up(2 * result.side), "twice the size of the images")
    most, whose = min(limits)
    wanted = _up(OBJECT_PIXELS / share) if share > 0 else side
    why = f"10% of the objects are at most {share * side:.3g} pixels large at size {side}; the target is {OBJECT_PIXELS}"
    return min(wanted, most), why if wanted <= most else f"{why} ({most} is {whose})"


def _scales(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    if not isinstance(recipe.input, BoxInput) or not result.objects or not requested.free("model.scales"):
        return []
    first, share = recipe.model.scales[0], result.of_photo
    # Larger ones are never chosen: a rare class of small objects would be lost (results/tuning: AP50 0.55 in place of 0.87).
    if 0.6 * first <= share:
        return []
    cells = grid_sizes(recipe.input.image_size)
    # A level's boxes are no smaller than its cells: between smaller ones an object is missed.
    first = min(0.5, max(share, 0.8 / cells[0]))
    growth = (min(0.95, max(result.large, 1.2 * first)) / first) ** (1 / (len(cells) - 1))
    sizes = [max(first * growth**k, min(0.95, 1.4 / cells[k]) if k else 0) for k in range(len(cells))]
    scales = (*(round(size, 3) for size in sizes), 1.05)
    why = f"10% of the objects are smaller than {share:.2g} of the image; the smallest boxes had {recipe.model.scales[0]:g}"
    return [AutoChoice("model.scales", scales, why)] if scales != recipe.model.scales else []


def _short_side(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    photo = recipe.input
    if not isinstance(photo, InstanceInput) or not result.objects or not requested.free("input.min_size", "input.max_size"):
        return []
    least = min(photo.min_size)
    size, why = _larger(least, result.of_side, result, requested)
    if size <= least:
        return []
    short = tuple(_up(one * size / least) for one in photo.min_size)
    long = max(*short, _up(photo.max_size * size / least))
    return [AutoChoice("input.min_size", short, why), AutoChoice("input.max_size", long, "same aspect ratio as before")]


def _anchors(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    photo = recipe.input
    if not isinstance(photo, InstanceInput) or not result.objects or not requested.free("model.rpn.anchor_sizes"):
        return []
    sizes, levels = recipe.model.rpn.anchor_sizes, len(recipe.model.rpn.anchor_sizes)
    pixels = result.of_side * min(photo.min_size)
    first = float(max(2 ** (recipe.model.min_fpn_level + 1), 4 * round(pixels / 4)))
    if first > 0.6 * sizes[0] or levels < 2:
        return []
    growth = (sizes[-1] / first) ** (1 / (levels - 1))
    why = f"10% of the objects are at most {pixels:.3g} pixels large; the smallest anchors had {sizes[0]:g}"
    return [AutoChoice("model.rpn.anchor_sizes", tuple(float(round(first * growth**k)) for k in range(levels)), why)]


def _length(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    if not requested.free("epochs", "max_images", "max_steps", "rescale_schedule"):
        return []
    steps, (least, most) = count_steps(recipe, result.photos), step_range(result.objects > 0, requested.cpu)
    if 0.9 * least <= steps <= most:
        return []
    wanted = (least if steps < least else most) * recipe.global_batch_size / result.photos
    epochs = float(math.ceil(wanted)) if steps < least else float(f"{wanted:.2g}")
    why = f"{result.photos:,} images give {steps:,} steps of {recipe.global_batch_size} with the recipe's length; "
    why += f"the minimum is {least:,}" if steps < least else f"the maximum is {most:,}"
    made = [AutoChoice("epochs", epochs, why)]
    schedule, free = recipe.schedule, requested.free("schedule.unit", "schedule.warmup", "schedule.decay_start")
    other = schedule.decay_start or schedule.decay_end or schedule.milestones
    if schedule.unit == "epochs" and schedule.warmup > 0.1 * epochs and free and not other:
        why = f"{schedule.warmup:g} epochs are more than 10% of the run"
        made += [AutoChoice("schedule.unit", "fraction", why), AutoChoice("schedule.warmup", 0.05, why)]
    return made


def _evaluations(recipe: Recipe[Any, Any], result: DatasetStats, requested: AutoContext) -> list[AutoChoice]:
    if not requested.free("eval.unit", "eval.start", "eval.every", "eval.at", "eval_every", "max_steps"):
        return []
    number, steps, made = count_evaluations(recipe, result.photos), count_steps(recipe, result.photos), []
    if number not in USUAL_EVALUATIONS and not recipe.eval.at:
        many = min(EVALUATIONS, max(1, steps // 10))
        why = f"{many} evaluations instead of {number} in {steps:,} steps"
        parts = ("unit", "fraction"), ("start", 1 / many), ("every", 1 / many)
        made = [
            AutoChoice(f"eval.{name}", float(f"{value:.4g}") if name != "unit" else value, why) for name, value in parts
        ]
        number = many
    if number >= min(USUAL_EVALUATIONS) and requested.free("patience"):
        made.append(AutoChoice("patience", number // 2 + 1, "stops after more than half of the run without improvement"))
    return made


def _up(pixels: float) -> int:
    """The next multiple of 32."""
    return max(32, 32 * math.ceil(pixels / 32 - 1e-9))
