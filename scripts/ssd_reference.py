"""Training steps of the MLPerf reference SSD and of ours, side by side: same weights, same batches, same learning rates.

    PYTHONPATH=. python scripts/ssd_reference.py --reference training/retired_benchmarks/ssd-v1/ssd --data coco --out OUT

The first is the folder of train.py in a checkout of github.com/mlcommons/training; its own model, loss, encoder and transform
run, around torch.optim.SGD. Two controls measure what float noise does to this training: the reference beside itself with every
first weight off in its last bit, and in another memory layout. OUT gets losses.csv, summary.json and losses.png. Exit code
1 where ours is further from the reference than noise, or where a planted twin of ours (tie rule, momentum form, hue in degrees)
is not noticed.
Letters: B images of a step   T steps   E early steps, those that are judged one by one
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from ssd_reference_samples import choose, draw, pixel_difference, reference_targets
from ssd_reference_systems import DROP, LOSSES, Control, our_recipe, ours, plain_lr, reference, write_start

from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import WORKLOADS

EARLY, TWIN_STEPS, TAIL = 20, 10, 20
# FLOOR: relative, what a float32 loss and its two parts can say. WITHIN, BEYOND: times the noise; ours is within, twins are beyond.
FLOOR, WITHIN, BEYOND = 1e-6, 10, 100
TAIL_MOST = 0.03  # relative difference of the mean losses of the last steps
# Pixels beside Pillow's, which rounds to 8 bits after each change: mean difference in levels of 255, and of the hue in turns.
LEVELS, HUE = 2.0, 0.004
CONTROLS: tuple[Control, ...] = ("layout", "weights")
COMPARED = 48  # samples whose pixels are compared

Losses = Sequence[Mapping[str, float]]


def differences(left: Losses, right: Losses) -> list[float]:
    """Of each step: the largest relative difference of the three losses."""
    return [max(abs(a[name] - b[name]) / max(abs(b[name]), 1e-3) for name in LOSSES) for a, b in zip(left, right)]


def noise_of(controls: Sequence[Sequence[float]]) -> list[float]:
    """(E,) largest difference of any control up to each step: single steps' differences pass through zero by chance."""
    return [max(FLOOR, *(max(control[: step + 1]) for control in controls)) for step in range(len(controls[0]))]


def beside_noise(relative: Sequence[float], noise: Sequence[float]) -> dict[str, Any]:
    """A trajectory's differences in units of the noise: the largest ratio, and the first step beyond WITHIN (None: none)."""
    ratios = [value / most for value, most in zip(relative, noise)]
    first = next((step for step, ratio in enumerate(ratios) if ratio > WITHIN), None)
    return {"most_times_noise": max(ratios), "first_different_step": first, "largest_difference": max(relative)}


def judge(left: Losses, right: Losses, controls: Mapping[str, Losses], twins: Mapping[str, Losses]) -> dict[str, Any]:
    """The comparison of losses in numbers, for summary.json."""
    noise = noise_of([differences(rows, right) for rows in controls.values()])
    relative = differences(left, right)
    tails = [[float(np.mean([row[name] for row in rows[-TAIL:]])) for name in LOSSES] for rows in (left, right)]
    return {
        "noise": [float(f"{value:.3g}") for value in noise],
        "ours": beside_noise(relative[: len(noise)], noise),
        "largest_difference": max(relative),
        "tail_difference": max(abs(a - b) / b for a, b in zip(*tails)),
        "twins": {name: beside_noise(differences(rows, right), noise) for name, rows in twins.items()},
    }


def wrong(found: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    twins = found["twins"]
    holds = {
        "matching differs from the reference's": found["samples_matched_differently"] > 0,
        "pixels differ from the reference's": pixels_differ(found["pixels"]),
        "losses differ within the early steps": found["ours"]["first_different_step"] is not None,
        "mean losses of the last steps differ": found["tail_difference"] > TAIL_MOST,
        "the matching of tie first is not noticed": twins["tie first"]["samples_matched_differently"] == 0,
        "the losses of tie first are not noticed": twins["tie first"]["most_times_noise"] < BEYOND,
        "momentum mxnet is not noticed": twins["momentum mxnet"]["most_times_noise"] < BEYOND,
        "hue in degrees is not noticed": not pixels_differ(twins["hue in degrees"]["pixels"]),
    }
    return [what for what, is_so in holds.items() if is_so]


def pixels_differ(pixels: dict[str, float]) -> bool:
    return pixels["levels"] > LEVELS or pixels["hue"] > HUE


def write(
    out: Path, left: Losses, right: Losses, controls: Mapping[str, Losses], twins: Mapping[str, Losses], batch: int
) -> None:
    """losses.csv and losses.png."""
    apart = {"ours": differences(left, right)}
    apart.update({f"control: {name}": differences(rows, right) for name, rows in controls.items()})
    apart.update({f"twin: {name}": differences(rows, right) for name, rows in twins.items()})
    with (out / "losses.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        columns = [f"{who}_{name}" for who in ("ours", "reference") for name in LOSSES]
        rows.writerow(["step", "lr", *columns, *(f"difference of {name}" for name in apart)])
        for step, (a, b) in enumerate(zip(left, right)):
            values = [f"{row[name]:.9g}" for row in (a, b) for name in LOSSES]
            last = [f"{column[step]:.3g}" if step < len(column) else "" for column in apart.values()]
            rows.writerow([step, f"{plain_lr(step, batch):.9g}", *values, *last])
    figure = Figure(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name, color in zip(LOSSES, ("black", "tab:blue", "tab:orange")):
        above.plot([row[name] for row in right], color=color, alpha=0.3, linewidth=5, label=f"{name}, reference")
        above.plot([row[name] for row in left], color=color, linewidth=1, label=f"{name}, ours")
    above.set(ylabel="loss", ylim=(0, None))
    above.legend(ncols=3, fontsize="small")
    noise = np.array(noise_of([apart[name] for name in apart if name.startswith("control")]))
    below.fill_between(range(len(noise)), 1e-8, WITHIN * noise, color="grey", alpha=0.2, label=f"up to {WITHIN} x noise")
    for name, values in apart.items():
        style = "-" if name == "ours" else ":" if name.startswith("control") else "--"
        below.semilogy(np.maximum(values, 1e-8), style, color="black" if name == "ours" else None, label=name)
    below.set(xlabel="step", ylabel="largest relative difference", ylim=(1e-8, 1))
    below.legend(fontsize="small", ncols=2)
    figure.savefig(out / "losses.png", dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    recipe = our_recipe(asked.batch, max(asked.steps, DROP + 1))
    task = WORKLOADS["detection"].open(recipe, Manifest.load(prepare_if_needed(asked.data, kind="boxes")))
    keys, samples = choose(task, recipe, asked.batch * asked.steps)
    degrees = replace(recipe, input=replace(recipe.input, hue=recipe.input.hue / 360))
    twin_samples = [draw(task, degrees, *key) for key in keys[:COMPARED]]
    twin_recipes = {
        "tie first": replace(recipe, model=replace(recipe.model, parity=replace(recipe.model.parity, tie="first"))),
        "momentum mxnet": replace(recipe, optim=replace(recipe.optim, momentum_style="mxnet")),
    }
    early, short = min(EARLY, asked.steps), min(TWIN_STEPS, asked.steps)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        dump = Path(folder)
        write_start(dump, recipe, [(sample.pixels, sample.objects) for sample in samples])
        theirs = (dump, asked.reference, asked.batch)
        targets, twin_targets = (pool.submit(reference_targets, asked.reference, samples, t) for t in ("last", "first"))
        pixels, twin_pixels = (
            pool.submit(pixel_difference, asked.reference, chosen) for chosen in (samples[:COMPARED], twin_samples)
        )
        control_jobs = {kind: pool.submit(reference, *theirs, early, kind) for kind in CONTROLS}
        twin_jobs = {name: pool.submit(ours, dump, changed, short) for name, changed in twin_recipes.items()}
        right_job, left_job = pool.submit(reference, *theirs, asked.steps), pool.submit(ours, dump, recipe, asked.steps)
        left, right = left_job.result(), right_job.result()
        controls = {name: job.result() for name, job in control_jobs.items()}
        twins = {name: job.result() for name, job in twin_jobs.items()}
        found: dict[str, Any] = {
            "torch": torch.__version__,
            "images": asked.batch,
            "steps": asked.steps,
            "samples_matched_differently": targets.result(),
            "pixels": pixels.result(),
            **judge(left, right, controls, twins),
        }
        found["twins"]["tie first"]["samples_matched_differently"] = twin_targets.result()
        found["twins"]["hue in degrees"] = {"pixels": twin_pixels.result()}
    found["wrong"] = wrong(found)
    write(asked.out, left, right, controls, twins, asked.batch)
    (asked.out / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
