"""--auto-config carried out: the facts of the opened images, what was chosen by them, and a run that goes on with its own choice."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from paceline._utils.errors import CheckpointError
from paceline._utils.reporter import Reporter
from paceline.config.auto import AutoChoice, AutoContext, DatasetStats, apply_choices, choose_fields
from paceline.config.constraints import convert_checked
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, RunRecord

if TYPE_CHECKING:
    from paceline.models.datamodule import DataModule
    from paceline.models.task import Task


@dataclass(frozen=True)
class AutoConfig:
    """A recipe and options that fit the images."""

    recipe: Recipe
    options: RunOptions  # without auto
    facts: dict[str, Any]  # `auto` of run.json: the fields that were set, by their dotted names


def apply_auto(
    task: Task, recipe: Recipe, options: RunOptions, explicit: Collection[str], *, cpu: bool, ranks: int, reporter: Reporter
) -> AutoConfig:
    """Choose by the task's images, with a line for each field: its flag, and why."""
    usual = RunOptions()
    held = {entry.name for entry in fields(RunOptions) if getattr(options, entry.name) != getattr(usual, entry.name)}
    result = collect_stats(task.data)
    choices = choose_fields(recipe, result, AutoContext({*explicit, *held}, cpu, ranks))
    reporter.line(f"auto: {format_stats(result)}")
    for why, some in groupby(choices, key=lambda choice: choice.why):
        reporter.line(f"  {' '.join(choice.flag for choice in some):<{COLUMN}}  {why}")
    if not choices:
        reporter.line("  all settings stay as in the recipe")
    return with_choices(recipe, options, choices)


COLUMN = 24


def with_choices(recipe: Recipe, options: RunOptions, choices: Collection[AutoChoice]) -> AutoConfig:
    """Recipe and options with the choices."""
    facts = {choice.field: choice.value for choice in choices}
    options = replace(options, auto_config=False, patience=facts.get("patience", options.patience))
    return AutoConfig(apply_choices(recipe, choices), options, facts)


def restore_choices(
    saved: RunRecord, recipe: Recipe, options: RunOptions, explicit: Collection[str], run: object
) -> AutoConfig:
    """What the run of this run.json was begun with: the images are not looked at again.

    run   its folder, for the message
    Raises CheckpointError where it was begun without --auto-config.
    """
    if not isinstance(saved.auto_config, dict):
        raise CheckpointError(f"{run}: the run was started without --auto-config. Remove --auto-config to resume it.")
    facts = {name: value for name, value in saved.auto_config.items() if name not in explicit}
    if "patience" in facts:
        facts["patience"] = convert_checked(int, facts["patience"], f"{run}: run.json: auto.patience")
    return with_choices(recipe, options, [AutoChoice(name, value, "") for name, value in facts.items()])


def command_without(command: str, facts: Mapping[str, Any]) -> str:
    """A command with the chosen fields as flags in place of --auto-config, to be pasted."""
    words = [word for word in shlex.split(command) if word.partition("=")[0] != "--auto-config"]
    flags = [word for name, value in facts.items() for word in AutoChoice(name, value, "").flag.split()]
    return shlex.join([*words, *flags])


def collect_stats(data: DataModule) -> DatasetStats:
    """The facts of the images that a run learns."""
    import numpy as np

    from paceline.models.object_task import ObjectData

    numbers = data.train_numbers
    high, wide = (np.asarray(sides[numbers], np.float64) for sides in (data.train_index.heights, data.train_index.widths))
    photos, side = len(numbers), float(np.median(np.minimum(high, wide)))
    if not isinstance(data, ObjectData):
        counts = np.bincount(data.train_index.labels[numbers]) if data.manifest.kind == "class-folder" else ()
        return DatasetStats(photos, side, tuple(int(count) for count in counts))
    _, classes = data.photos_of_classes()
    rows = [data.wanted_rows(int(number)) for number in numbers]
    of = np.repeat(np.arange(photos), [len(some) for some in rows])
    objects = data.train.boxes[np.concatenate(rows)] if len(of) else np.zeros((0, 4))
    sizes = np.sqrt(objects[:, 2] * objects[:, 3])
    shares = sizes / np.sqrt(high * wide)[of], sizes / np.minimum(high, wide)[of]
    of_photo, of_side = (float(np.quantile(share, 0.1)) if len(of) else 0.0 for share in shares)
    large = float(np.quantile(shares[0], 0.9)) if len(of) else 1.0
    per_class = np.bincount(classes, minlength=len(data.classes))
    return DatasetStats(photos, side, tuple(int(count) for count in per_class), len(of), of_photo, of_side, large)


def format_stats(result: DatasetStats) -> str:
    """The facts in a line."""
    counts = [count for count in result.per_class if count]
    objects = f", {result.objects:,} objects" if result.objects else ""
    small = f", 10% of them below {result.of_photo:.2g} of the image side" if result.objects else ""
    classes = f"; {min(counts):,} to {max(counts):,} images per class" if counts else ""
    return f"{result.photos:,} training images of about {result.side:.0f} pixels{objects}{small}{classes}"
