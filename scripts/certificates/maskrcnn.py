"""Whole training steps of our Mask R-CNN beside an original's: same weights, photos and masks, rates and sampled anchors.

    PYTHONPATH=. python scripts/certificates/maskrcnn.py --beside torchvision --data COCO --out OUT
    PYTHONPATH=. python scripts/certificates/maskrcnn.py --beside mlperf --reference MASKRCNN --data COCO --out OUT
    PYTHONPATH=. python scripts/certificates/maskrcnn.py --beside gluoncv --environment ENV --data COCO --out OUT

COCO is a data set in COCO's layout with masks, of COCO's 80 classes. MASKRCNN is retired_benchmarks/maskrcnn/pytorch of a checkout of
github.com/mlcommons/training, which wants yacs; ENV a folder for an environment with MXNet, made where there is none.
The network has its full size, photos have not (--short). The original's twins, whose first weights are off by one unit in the last
place, measure what rounding does to its training; ours must stay within that by verdict.py's rule, and each error that is planted in
ours must not. OUT gets summary.json, losses.csv and losses.png, which keep what they have of other originals; the table is printed.
Exit code 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import maskrcnn_gluoncv
import maskrcnn_mlperf
import maskrcnn_torchvision
import torch
import torchvision
from maskrcnn_ours import LOSSES, RECIPES, ours, planted
from maskrcnn_start import write_start
from verdict import Losses, Rule, Run, differences, table, write

PUBLISHED = ("pooling", "narrow proposals")  # rules of the MLPerf reference's whose effect is measured
PLANTED = {"decay of biases": 12, "BatchNorm's epsilon": 8}  # steps that ours takes with an error; with the others 4
# Beside GluonCV a step has one photo: noise is ten times as large, and a decay of biases stays within a hundred times of it.
FAINT = {"gluoncv": frozenset({"decay of biases"})}
RULE = Rule(early=20, tail=10)


def original_of(given: argparse.Namespace) -> Callable[..., Losses]:
    """The original's `train`, which takes DUMP, steps and a twin's seed."""
    if given.beside == "mlperf":
        if given.reference is None:
            raise SystemExit("--beside mlperf runs the reference's own code: name its folder with --reference")
        return partial(maskrcnn_mlperf.train, folder=given.reference.resolve())
    if given.beside == "gluoncv":
        if given.environment is None:
            raise SystemExit("--beside gluoncv runs in an environment of its own: name its folder with --environment")
        return partial(maskrcnn_gluoncv.train, environment=given.environment.resolve())
    return maskrcnn_torchvision.train


def read_runs(path: Path) -> dict[str, Run]:
    """The runs of a losses.csv that is there already: those beside other originals."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                losses = {name: float(row[name]) for name in LOSSES}
                found.setdefault(row["run"], {}).setdefault(row["who"], []).append(losses)
    return {
        name: Run(
            of["original"],
            of["ours"],
            {"original": [losses for who, losses in of.items() if who.startswith("noise: original")]},
            {who.removeprefix("planted: "): losses for who, losses in of.items() if who.startswith("planted: ")},
            FAINT.get(name, frozenset()),
        )
        for name, of in found.items()
    }


def read_facts(path: Path) -> dict[str, Any]:
    """Facts of those runs, by the original's name."""
    return json.loads(path.read_text())["facts"] if path.is_file() else {}


def beside(left: Losses, right: Losses) -> dict[str, Any]:
    """Relative differences of the first step's losses, and the largest of any step that both have."""
    first = {name: abs(left[0][name] - right[0][name]) / right[0][name] for name in right[0]}
    return {"first_step": first, "largest": max(differences(left, right)), "steps": len(right)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", choices=list(RECIPES), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reference", type=Path, help="with --beside mlperf")
    parser.add_argument("--environment", type=Path, help="with --beside gluoncv")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--twin-steps", type=int, nargs=2, default=(20, 20), help="of the original's twins")
    parser.add_argument("--short", type=int, default=96, help="of a photo's sides, pixels")
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    given = parser.parse_args()
    train = original_of(given)
    recipe = RECIPES[given.beside](given.short, given.steps)
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(given.workers) as pool:
        dump = Path(folder)
        write_start(dump, recipe, given.data, given.steps)

        def started(call: Callable[..., Losses], *rest: Any, **words: Any) -> AsyncResult[Losses]:
            return pool.apply_async(call, (dump, *rest), words)

        left, right = started(ours, recipe, given.steps), started(train, given.steps)
        twins = [started(train, min(steps, given.steps), seed) for seed, steps in enumerate(given.twin_steps, 1)]
        errors = {name: started(ours, recipe, min(given.steps, PLANTED.get(name, 4)), name) for name in planted(recipe)}
        rules = PUBLISHED if given.beside == "mlperf" else ()
        others = {rule: started(train, min(3, given.steps), as_published=rule) for rule in rules}
        run = Run(
            right.get(),
            left.get(),
            {"original": [twin.get() for twin in twins]},
            {name: job.get() for name, job in errors.items()},
            FAINT.get(given.beside, frozenset()),
        )
        effects = {rule: beside(run.ours, job.get()) for rule, job in others.items()}
    facts = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "images": recipe.global_batch_size,
        "short": given.short,
        "rules as published": effects,
    }
    runs = {**read_runs(given.out / "losses.csv"), given.beside: run}
    every = {**read_facts(given.out / "summary.json"), given.beside: facts}
    kept = {name: runs[name] for name in RECIPES if name in runs}
    faults = write(given.out, kept, RULE, {"facts": {name: every[name] for name in kept}})
    print(table(json.loads((given.out / "summary.json").read_text())))
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
