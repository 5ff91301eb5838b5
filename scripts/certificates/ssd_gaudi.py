"""Certificate: recipes `ssd-gaudi` and `ssd-gaudi-cosine` train as Habana's TensorFlow SSD of 1.5.0 and of 1.14.0 does, step by step.

    PYTHONPATH=. python scripts/certificates/ssd_gaudi.py --original EARLY --later LATE --data COCO --env ENV --dump DUMP --out OUT

EARLY, LATE: checkouts of github.com/HabanaAI/Model-References at 1.5.0 (cf420d00) and 1.14.0 (f69c6d63); without --later the
first alone. COCO: a folder of COCO with a hundred photos. ENV: a folder for the original's Python 3.10 with TensorFlow 2.9.1,
which is made there by uv where it is empty. Both sides take the same steps from the same first weights, which are the original's,
on the same augmented photos: the original by its own reader of records and `ssd_model_fn` (scripts/originals/ssd_gaudi_steps.py),
ours by `TrainStep`. verdict.py judges the losses, and what trained vectors and running statistics come to. DUMP keeps what each
run found; what is there is not computed again. Exit code 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from original_runs import interpreter, run_original
from ssd_gaudi_ours import LOSSES, PLANTED, WEIGHT_DECAY, ours, targets
from ssd_gaudi_samples import TIES, pixel_difference, write_samples
from verdict import Rule, Run, differences, one_ulp_away, tail_means, write

PACKAGES = ("tensorflow-cpu==2.9.1", "numpy==1.23.5", "protobuf==3.19.6", "tf-slim==1.1.0")
PROGRAM = Path(__file__).parents[1] / "originals" / "ssd_gaudi_steps.py"
RULE = Rule()
# Seeds of twins' first weights; the first of the original goes to the end. One twin is enough for the shorter runs of 1.14.0.
SEEDS = {"1.5.0": {"original": (1, 2), "ours": (1, 2)}, "1.14.0": {"original": (), "ours": (1,)}}
PLANTED_STEPS, DECAY_STEPS = 6, 14
# Errors that losses cannot show, or not so soon: running statistics are no part of them, and decay moves a weight slowly.
DECAY = ("no decay on BatchNorm", "no decay on BatchNorm and biases", "decay on BatchNorm")
STATISTICS = ("BatchNorm's momentum 0.01",)
# It lies in a branch whose last scale starts at zero, so that it hardly moves in these steps.
FAINT = frozenset(("the first convolution trains",))
# Our pixels are bytes: mean difference in levels of 255, and of the hue in turns.
LEVELS, HUE = 2.0, 0.004

Found = Mapping[str, np.ndarray]


class Trajectories(NamedTuple):
    """Of one release."""

    original: Found
    ours: Found
    own_pixels: Found | None  # the original's from the photos' bytes on
    twins: Mapping[str, list[Found]]
    planted: Mapping[str, Found]


def once(out: Path, make: Callable[[Path], object]) -> Path:
    """`out`, made unless it is there; a run that ended early leaves nothing under its name."""
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(f"part-{out.name}")
        make(part)
        part.replace(out)
    return out


def run_theirs(words: tuple[Any, ...], more: Mapping[str, str], out: Path) -> None:
    run_original(*words, "--out", str(out), **more)


def run_ours(given: tuple[Any, ...], out: Path) -> None:
    np.savez(out, **ours(*given))


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


class Jobs:
    """Trajectories of both sides of one release, each computed once by a process of its own."""

    def __init__(self, asked: argparse.Namespace, release: str, checkout: Path, pool: ProcessPoolExecutor) -> None:
        self.asked, self.release, self.pool, self.folder = asked, release, pool, asked.dump / release
        python = interpreter(asked.env, PACKAGES, "3.10")
        fixed = ("--images", str(asked.images), "--decay", str(WEIGHT_DECAY))
        self.words = (python, PROGRAM, "--habana", str(checkout), *fixed)
        # As each release sets it for itself, too late for a program that has imported TensorFlow before.
        self.more = {} if release == "1.5.0" else {"TF_ENABLE_ONEDNN_OPTS": "0"}
        self.first = once(asked.dump / "first.npz", partial(run_theirs, self.words, self.more))
        count = asked.images * asked.steps
        self.samples = once(asked.dump / "samples.npz", lambda out: write_samples(out, asked.data, count))

    def weights(self, seed: int) -> Path:
        """First weights; with a seed of 1 or more each off by one unit in the last place."""
        moved = self.asked.dump / f"first-{seed}.npz"
        return once(moved, lambda out: np.savez(out, **one_ulp_away(load(self.first), seed))) if seed else self.first

    def original(self, name: str, steps: int, seed: int = 0, *flags: str) -> Future[Path]:
        words = (*self.words, "--samples", self.samples, "--weights", self.weights(seed), "--steps", steps, *flags)
        make = partial(run_theirs, (*self.words[:2], *map(str, words[2:])), self.more)
        return self.pool.submit(once, self.folder / f"{name}.npz", make)

    def ours(self, name: str, steps: int, seed: int = 0, error: str = "") -> Future[Path]:
        given = (self.release, self.samples, self.weights(seed), self.asked.images, steps, error)
        return self.pool.submit(once, self.folder / f"{name}.npz", partial(run_ours, given))

    def start(self) -> Callable[[], Trajectories]:
        """Hand all runs to the pool; -> a call that waits for them."""
        # The rules in which 1.14.0 differs from 1.5.0 show in the steps that are judged one by one.
        steps = self.asked.steps if self.release == "1.5.0" else min(self.asked.steps, RULE.early)
        original, mine = self.original("original", steps), self.ours("ours", steps)
        early, seeds = min(steps, RULE.early), SEEDS[self.release]
        twins = {
            "original": [
                self.original(f"original-{seed}", steps if seed == 1 else early, seed) for seed in seeds["original"]
            ],
            "ours": [self.ours(f"ours-{seed}", early, seed) for seed in seeds["ours"]],
        }
        planted = {
            name: self.ours(f"planted-{number}", min(steps, DECAY_STEPS if name in DECAY else PLANTED_STEPS), 0, name)
            for number, name in enumerate(PLANTED[self.release])
        }
        own = self.original("own-pixels", early, 0, "--own-pixels") if self.release == "1.5.0" else None
        return lambda: Trajectories(
            load(original.result()),
            load(mine.result()),
            load(own.result()) if own else None,
            {side: [load(job.result()) for job in jobs] for side, jobs in twins.items()},
            {name: load(job.result()) for name, job in planted.items()},
        )


def losses_of(found: Found) -> list[dict[str, float]]:
    return [{name: float(found[name][step]) for name in LOSSES} for step in range(len(found["loss"]))]


def gamma_of(first: Found, found: Found) -> list[dict[str, float]]:
    """The mean of BatchNorm's scales after each step."""
    return [{"gamma": float(gamma.mean())} for gamma, *_ in vectors_of(first, found)]


def others_of(first: Found, found: Found) -> list[dict[str, float]]:
    """Mean sizes of the other vectors after each step, and the geometric mean of running variances, which differ by orders."""
    names, rows = ("beta", "bias", "running mean"), []
    for _, *sizes, variance in vectors_of(first, found):
        row = {name: float(np.abs(values).mean()) for name, values in zip(names, sizes)}
        rows.append(row | {"running variance": float(np.exp(np.log(variance).mean()))})
    return rows


def vectors_of(first: Found, found: Found) -> Iterator[list[np.ndarray]]:
    """After each step: gamma, beta, bias, running mean and running variance of all layers."""
    small = {name: values for name, values in first.items() if not name.endswith("kernel")}
    kinds = np.concatenate([np.full(values.size, name.rsplit("/", 1)[1]) for name, values in small.items()])
    for values in np.concatenate([found["vectors"], found["statistics"]], axis=1).astype(np.float64):
        yield [values[kinds == kind] for kind in ("gamma", "beta", "bias", "moving_mean", "moving_variance")]


def runs_of(release: str, found: Trajectories, first: Found) -> dict[str, Run]:
    """Losses and weights of a release, for the verdict; an error is judged where it shows."""
    runs, slow = {}, (*DECAY, *STATISTICS)
    for what, rows, errors in (
        ("losses", losses_of, [name for name in found.planted if name not in slow]),
        ("BatchNorm's scales", partial(gamma_of, first), [name for name in found.planted if name in DECAY]),
        ("biases, statistics", partial(others_of, first), [name for name in found.planted if name in STATISTICS]),
    ):
        twins = {side: [rows(twin) for twin in side_twins] for side, side_twins in found.twins.items()}
        planted = {name: rows(found.planted[name]) for name in errors}
        runs[f"{release}, {what}"] = Run(rows(found.original), rows(found.ours), twins, planted, FAINT & planted.keys())
    return runs


def kernels_apart(left: Found, right: Found, first: Found) -> float:
    """Distance of all kernels after the last step, as a share of the way that training has moved them."""
    start = np.concatenate([values.ravel() for name, values in first.items() if name.endswith("kernel")])
    moved = np.linalg.norm((right["kernels"] - start).astype(np.float64))
    return float(np.linalg.norm((left["kernels"] - right["kernels"]).astype(np.float64)) / moved)


def beside(release: str, found: Trajectories, first: Found, samples: Path) -> tuple[dict[str, Any], list[str]]:
    """What is compared beside the trajectories; and what of it is wrong."""
    original, mine, given = found.original, found.ours, load(samples)
    after = original["rate"] > 0
    facts: dict[str, Any] = {
        "photos_matched_differently": int((original["classes"] != targets(release, samples)).any(axis=1).sum()),
        "rates_apart": float(np.abs(mine["rate"][after] / original["rate"][after] - 1).max()),
        "kernels_apart": kernels_apart(mine, original, first),
        "kernels_of_its_twin_apart": [kernels_apart(twin, original, first) for twin in found.twins["original"][:1]],
    }
    wrong = {
        "matching differs": facts["photos_matched_differently"] > 0,
        "rates differ": facts["rates_apart"] > RULE.floor or bool(mine["rate"][~after].any()),
    }
    if found.own_pixels is not None:
        steps = len(found.own_pixels["loss"])
        means = [[tail_means(losses_of(side)[:steps], RULE)] for side in (mine, found.own_pixels)]
        facts["pixels"] = pixel_difference(given["pixels"], found.own_pixels["image"])
        facts["pixels, hue in degrees"] = pixel_difference(given["hue_in_degrees"], found.own_pixels["image"])
        facts["own_pixels_mean_losses_apart"] = differences(*means)[0]
        wrong["pixels differ"] = pixels_differ(facts["pixels"])
        wrong["hue in degrees is not noticed"] = not pixels_differ(facts["pixels, hue in degrees"])
        wrong["mean losses from its own pixels differ"] = facts["own_pixels_mean_losses_apart"] > RULE.tail_most
    return facts, [f"{release}: {what}" for what, is_so in wrong.items() if is_so]


def pixels_differ(pixels: Mapping[str, float]) -> bool:
    return pixels["levels"] > LEVELS or pixels["hue"] > HUE


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("original", "data", "env", "dump", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--later", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--images", type=int, default=2, help="of a step")
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    asked = parser.parse_args()
    checkouts = {"1.5.0": asked.original} | ({"1.14.0": asked.later} if asked.later else {})
    with ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        jobs = {release: Jobs(asked, release, checkout, pool) for release, checkout in checkouts.items()}
        waiting = {release: of.start() for release, of in jobs.items()}
        found = {release: wait() for release, wait in waiting.items()}
    samples, first = asked.dump / "samples.npz", load(asked.dump / "first.npz")
    facts: dict[str, Any] = {"torch": torch.__version__, "packages": PACKAGES, "images": asked.images}
    facts |= {"weight_decay": WEIGHT_DECAY}
    changed = load(samples)["changed_by_ties"].tolist()
    facts |= {"photos": asked.images * asked.steps, "photos_changed_by_ties": dict(zip(TIES, changed))}
    runs: dict[str, Run] = {}
    faults: list[str] = []
    for release, of in found.items():
        runs |= runs_of(release, of, first)
        facts[release], more = beside(release, of, first, samples)
        faults += more
    facts["wrong_beside"] = faults
    faults = [*write(asked.out, runs, RULE, facts), *faults]
    print(json.dumps(facts, indent=1), *faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
