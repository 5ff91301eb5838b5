"""The estimate of time that `plan` and `launch` add to a plan: source of the computing speed, lines, JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline._utils.commands import format_command
from paceline._utils.errors import RecipeError
from paceline._utils.text import Row
from paceline.config.plan import BatchPlan
from paceline.config.published import RESULTS, PublishedResult, published_for, published_results
from paceline.config.recipe import Recipe
from paceline.config.reference_rates import IMAGES, find_fastest
from paceline.config.run import RunRecord, run_folder
from paceline.config.system import FORMS, HALF, Precision, System
from paceline.distributed.device.systems import SYSTEMS
from paceline.models.registry import WORKLOADS
from paceline.tools.estimate.run_time import (
    Estimate,
    RankSpeed,
    estimate,
    given_speed,
    has_published_network,
    measured_speed,
    published_row_speed,
    published_speed,
    run_minutes,
)
from paceline.training.logging.events import read_events

# Bounds of --images-per-second and --network-gbit, beyond any machine and network.
MIN, MAX = 1e-3, 1e9


def check_rates(rate: float, link_gbit: float) -> None:
    """Raises RecipeError for an impossible --images-per-second or --network-gbit."""
    for flag, value in (("--images-per-second", rate), ("--network-gbit", link_gbit)):
        if value != 0 and not MIN <= value <= MAX:
            raise RecipeError(f"{flag} {value:g}: must be between {MIN:g} and {MAX:g}, or 0 for the known value.")


def choose_speed(
    recipe: Recipe,
    recipe_name: str,
    system_name: str,
    system: System,
    plan: BatchPlan,
    *,
    rate: float,
    run: RankSpeed | None,
) -> RankSpeed | None:
    """Return the first speed that is known. Published speeds are those of half precision, so fp32 and tf32 have none.

    The order: --images-per-second, the run's own, the row published for exactly this, the rate that paceline reached on this chip,
    the fit for the chip, and the published row nearest to this plan.
    """
    if rate:
        return given_speed(rate)
    if run is not None:
        return run
    if system.precision not in HALF:
        return None
    if (row := published_row(recipe, recipe_name, system_name, system, plan)) is not None:
        return published_row_speed(row, exactly=True)
    if (own := h200_speed(recipe, system, plan)) is not None:
        return own
    if (fitted := published_speed(recipe, system.device_name)) is not None:
        return fitted
    rows = [row for row in published_results(recipe.task, system_name) if row.rate]
    # Another chip under a system's name (--system.device-name L40) has another speed.
    if not rows or not has_published_network(recipe) or system.device_name != SYSTEMS[system_name]().device_name:
        return None
    share = plan.images_per_rank
    return published_row_speed(
        min(rows, key=lambda row: (row.recipe != recipe_name, abs(row.global_batch_size / row.accelerators - share)))
    )


def h200_speed(recipe: Recipe, system: System, plan: BatchPlan) -> RankSpeed | None:
    """Return the rate that was measured on one H200, of the form of the step that a run takes; None if this step was not measured.

    A forward has at least half as many images as it had there. Mask R-CNN's images are assumed to have several shapes.
    """
    fits = (
        has_published_network(recipe)
        and system.precision == "bf16"
        and "H200" in system.device_name.replace("-", " ").split()
    )
    if not fits or system.channels_last == "off" or 2 * plan.micro_batch_size < IMAGES[recipe.task]:
        return None
    requested = {name: getattr(system, name) for name in FORMS}
    compiles = not WORKLOADS[recipe.task].network.no_compile
    row = find_fastest(recipe.task, requested, plan, compiles=compiles, varied=recipe.task == "instance-segmentation")
    if row is None:
        return None
    form = f"compile {row.compile}, graph {row.cuda_graph}, kernels {row.kernels}"
    basis = f"{row.rate:g} images/s measured on one H200 ({row.measured}: {form}; without the input)"
    return RankSpeed(row.rate, 0.0, basis)


def published_row(
    recipe: Recipe, recipe_name: str, system_name: str, system: System, plan: BatchPlan
) -> PublishedResult | None:
    """The result of this very plan: recipe, system, nodes, number format, and the batch cut over the same ranks; else None."""
    pairing = published_for(recipe_name, system_name, plan.nodes)
    if pairing is None or not has_published_network(recipe) or system.precision != pairing.precision:
        return None
    cut = (plan.world_size, plan.global_batch_size, plan.micro_batch_size, plan.micro_batches)
    if cut != (pairing.accelerators, pairing.global_batch_size, pairing.micro_batch_size, 1):
        return None
    rows = published_results(recipe.task, system_name, recipe_name)
    return next((row for row in rows if row.rate and (row.nodes, row.accelerators) == (plan.nodes, plan.world_size)), None)


def measure_run_speed(path: Path, facts: RunRecord, recipe: Recipe, chip: str) -> RankSpeed | None:
    """A run's own speed: the median over its train events without the first, which includes start-up; None without events.

    Raises PacelineError for events that cannot be read, RecipeError for a plan that is none.
    """
    events = [event for event in read_events(run_folder(path) / "events.jsonl") if event["event"] == "train"]
    rates = [event["images_per_second"] for event in events[1:] or events]
    rates = [rate for rate in rates if 0 < rate < math.inf]
    counts: list[Any] = [facts.plan.get(name) for name in ("world_size", "nodes", "images_per_rank")]
    if not all(type(count) is int and count > 0 for count in counts):
        raise RecipeError("run.json: plan.world_size, plan.nodes, and plan.images_per_rank must be integers above 0.")
    if not rates:
        return None
    world, nodes, images = counts
    what = f"this run: median of {len(rates)} interval{'s'[: len(rates) != 1]} on {world} rank{'s'[: world != 1]}"
    if facts.options.get("synthetic"):
        what += ", on synthetic batches (without the input)"
    fitted = published_speed(recipe, chip)
    return measured_speed(statistics.median(rates) / world, images, fitted, what, nodes)


def published_end(workload: str, recipe_name: str, system_name: str) -> PublishedResult | None:
    """The published row that has the recipe's own settings: of this system, else of any; None where there is none."""
    own = published_results(workload, system_name, recipe_name)
    return next(iter(own or [row for row in RESULTS if row.recipe == recipe_name]), None)


def unknown_rows(recipe: str | Path, precision: Precision) -> list[Row]:
    """Return rows that replace an estimate, with the commands that measure one. recipe: a name, or the Path of a run.json."""
    without = ("--data", "", "--copy-data-to", "") if isinstance(recipe, Path) else ()  # a run.json names its own
    return [
        (
            "estimate",
            [
                f"none: the speed of this machine in {precision} is unknown. Set the images/s of one rank with "
                f"--images-per-second, or measure them:"
            ],
        ),
        f"{'':11}{format_command('train', recipe, '--synthetic', *without, '--max-steps', 100, '--output-dir', 'probe')}",
        f"{'':11}{format_command('plan', 'probe')}",
    ]


def estimate_rows(
    name: str,
    workload: str,
    system_name: str,
    system: System,
    plan: BatchPlan,
    parameters: int,
    speed: RankSpeed | None,
    gbit: float,
) -> tuple[list[Row], dict[str, Any] | None]:
    """-> the rows of `plan`, and the same as JSON (none and None where nothing is known)."""
    if speed is None:
        return [], None
    told = estimate(plan, system, speed, parameters=parameters, system_name=system_name, link_gbit=gbit)
    target = published_end(workload, name, system_name)
    facts: dict[str, Any] = asdict(told)
    if target is not None:
        steps = min(float(plan.total_steps), target.epochs * plan.steps_per_epoch)
        minutes = run_minutes(plan, steps, told.step_seconds, told.evaluation_seconds)
        facts |= {"target_epochs": target.epochs, "target_minutes": minutes}
    return _lines(told, plan, speed, facts), facts


def _lines(told: Estimate, plan: BatchPlan, speed: RankSpeed, facts: Mapping[str, Any]) -> list[Row]:
    computing = f"compute {_ms(told.compute_seconds)}"
    if plan.nodes > 1 and told.links_known and told.exchange_seconds:
        between = f", waiting for gradients {_ms(told.exposed_seconds)} (of {_ms(told.exchange_seconds)} between {plan.nodes} nodes)"
    elif not told.links_known:
        between = "; without the gradients between nodes, because the link speed is unknown (--network-gbit N)"
    else:
        between = ""
    least = "" if told.links_known else "at least "
    ends = [f"complete schedule after {least}{_time(told.minutes)}"]
    if "target_minutes" in facts:
        ends += [f"the target after {least}{_time(facts['target_minutes'])} (published: {facts['target_epochs']:g} epochs)"]
    errors = " to ".join(f"{100 * error:+.0f}" for error in dict.fromkeys((told.slow, told.fast)))
    known = f"known error of the rate at {told.checked}: {errors}%" if told.checked else "the error is unknown"
    owner = "; measured with another program, not with paceline" if speed.others else ""
    return [
        ("estimate", [f"step {_ms(told.step_seconds)}: {computing}{between}"]),
        (
            "",
            [
                f"{_rate(told.images_per_second)} images/s, {_rate(told.images_per_second / plan.world_size)} per rank",
                *ends,
            ],
        ),
        ("", [f"basis: {told.basis}{owner}; {known}"]),
    ]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms" if seconds < 10 else f"{seconds:,.0f} s"


def _time(minutes: float) -> str:
    if minutes < 1:
        return f"{60 * minutes:.2g} s"
    return f"{minutes:.3g} min" if minutes < 120 else f"{minutes / 60:,.3g} h"
