"""Training steps of ResNet-50: GluonCV's network with MXNet's optimizers beside ours, same weights, batches and rates.

    PYTHONPATH=. python scripts/certificates/resnet50.py --env ENV --data imagenette224 --out OUT [--submission FILE]
    PYTHONPATH=. python scripts/certificates/resnet50.py --env ENV --record tests/oracle/recorded/gluoncv_resnet.npz

ENV is the folder of the original's environment; uv makes it where it is not there. DATA has train/CLASS/*.jpg of imagenette's ten
classes. FILE is NVIDIA/benchmarks/resnet/implementations/mxnet/common/fit.py of github.com/mlcommons/training_results_v3.0: its own
LARS and schedule make one more run. One process at a time, of one thread. OUT gets summary.json, losses.csv and losses.png, by the
rule of verdict.py; a run that it has already is not repeated. Exit code 1 where ours is further from the original than rounding
noise, or where an error planted in ours is not noticed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from original_runs import GLUONCV, interpreter
from resnet50_changes import (
    HIDDEN,
    constants_in_float32,
    errors,
    norms_summed_in_order,
    rates_in_float32,
    weights_alone_corrected,
)
from resnet50_systems import (
    LR,
    Losses,
    Start,
    changed,
    column,
    end_differences,
    first_weights,
    original,
    ours,
    photos,
    recipe_of,
    record,
)
from verdict import Rule, Run, differences, load, noise_of, one_ulp_away, table, write

from paceline.config.recipe import Recipe

PLANTED_STEPS = {"float32": 12, "float64": 5}
SEEDS = {"float32": (1, 2), "float64": (1,)}  # of twins
RUNS = {
    "sgd": ("sgd", "float32"),
    "lars": ("lars", "float32"),
    "sgd64": ("sgd", "float64"),
    "lars64": ("lars", "float64"),
    "nvidia64": ("lars", "float64"),
}
FLOOR64 = 1e-13  # of a float64 loss after a network's sums


def rounded(numbers: Iterable[float]) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]


def compare(name: str, asked: argparse.Namespace, python: Path) -> tuple[Run, dict[str, Any]]:
    """A run of RUNS -> what verdict.py judges, and facts beside the losses."""
    kind, dtype = RUNS[name]
    exact, nvidia = dtype == "float64", name == "nvidia64"
    more = {"submission": str(asked.submission.resolve()), "calls": "updater"} if nvidia else {}
    recipe = recipe_of(kind, asked.steps, asked.batch, asked.size, LR[kind])
    if kind == "lars":  # else an untrained trunk of full depth magnifies rounding ten thousandfold within two steps
        recipe = changed(recipe, model__zero_init_residual=True)
    start = Start(first_weights(recipe), *photos(asked.data, asked.steps, asked.batch, asked.size))
    short = replace(start, images=start.images[: PLANTED_STEPS[dtype]], labels=start.labels[: PLANTED_STEPS[dtype]])

    def train(of: Start, by: Recipe, late: int = 0, *, calls: bool = nvidia, sums: bool = exact and kind == "lars"):
        with ExitStack() as as_theirs:
            if sums:
                as_theirs.enter_context(norms_summed_in_order())
            if calls:
                as_theirs.enter_context(weights_alone_corrected(by.optim.momentum))
            return ours(of, by, dtype, late=late)

    def losses(*given: Any, **named: Any) -> Losses:
        return train(*given, **named)[0]

    def twin(seed: int) -> Start:
        return replace(start, weights=one_ulp_away({n: w.astype(dtype) for n, w in start.weights.items()}, seed))

    with tempfile.TemporaryDirectory() as folder:
        here = python, Path(folder), dtype
        found = original(start, recipe, *here, **more)
        theirs = [column(original(twin(seed), recipe, *here, **more)["losses"]) for seed in SEEDS[dtype]]
        if not exact:
            theirs.append(column(original(start, recipe, *here, onednn=False)["losses"]))
        facts = {"rates": rounded(found["rates"]), "versions": json.loads(str(found["versions"]))}
        if name == "lars64":
            fours = column(original(short, recipe, *here, calls="trainer")["losses"])
            facts["gluon.Trainer apart from one call"] = rounded(differences(fours, column(found["losses"])))
    left, model = train(start, recipe)
    facts["after the last step"] = end_differences(model, found, start)
    mine = [losses(twin(seed), recipe) for seed in SEEDS[dtype]]
    if kind == "lars" and exact:
        with rates_in_float32():
            mine.append(losses(start, constants_in_float32(recipe)))
    elif kind == "lars":
        mine.append(losses(start, recipe, sums=True))
    planted = {}
    for error, run in ({} if nvidia else errors(kind, short, recipe, losses)).items():
        print(f"{name}: planted {error}", flush=True)
        planted[error] = run()
    if nvidia:
        planted["momentum corrected for all tensors"] = losses(start, recipe, calls=False)
    floor = FLOOR64 if exact else None
    run = Run(column(found["losses"]), left, {"original": theirs, "ours": mine}, planted, HIDDEN[name], floor)
    own = noise_of(replace(run, noise={"original": theirs}), Rule(early=asked.steps))
    facts["ours beside the original's noise alone"] = max(a / b for a, b in zip(differences(left, run.original), own))
    return run, facts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--record", type=Path, metavar="FILE", help="only the tiny steps that a test compares with")
    parser.add_argument(
        "--submission", type=Path, metavar="FILE", help="common/fit.py of NVIDIA's submission, for nvidia64"
    )
    parser.add_argument("--run", action="append", choices=RUNS, help="only these; default: all")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8, help="images a step")
    parser.add_argument("--size", type=int, default=64, help="pixels")
    asked = parser.parse_args()
    if asked.record is None and None in (asked.data, asked.out):
        parser.error("--data and --out: name both, or --record alone")
    python = interpreter(asked.env, GLUONCV)
    if asked.record is not None:
        record(python, asked.record)
        return 0
    runs, facts = load(asked.out), {}
    if runs:
        facts = json.loads((asked.out / "summary.json").read_text())["facts"]
    for name in asked.run or RUNS:
        if name in runs or (name == "nvidia64" and asked.submission is None):
            continue
        runs[name], facts[name] = compare(name, asked, python)
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "images": asked.batch,
            "pixels": asked.size,
            "facts": facts,
        }
        write(asked.out, runs, Rule(early=max(len(run.original) for run in runs.values()), beyond=10), about)
    summary = json.loads((asked.out / "summary.json").read_text())
    print(table(summary), *summary["wrong"], sep="\n")
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
