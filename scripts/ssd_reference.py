"""Training steps of the MLPerf reference SSD and of ours, side by side: same weights, same batches, same learning rates.

    PYTHONPATH=. python scripts/ssd_reference.py --reference training/retired_benchmarks/ssd-v1/ssd --data coco --out OUT

DIR is the folder of train.py in a checkout of github.com/mlcommons/training; its own model, loss, encoder and transform
run, around torch.optim.SGD. OUT gets losses.csv, summary.json and losses.png. Exit code 1 where the two differ, or where
a planted twin of ours (tie rule, momentum form, hue in degrees) is not noticed.
Letters: B images of a step   T steps   S = 300 pixels   A = 8732 default boxes   G object slots
"""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from paceline.batch.detection import Objects, detection_batch
from paceline.boxes.anchors import anchor_to_cell, default_boxes
from paceline.boxes.geometry import to_ltrb
from paceline.boxes.matching import Tie, match
from paceline.config.detection import SSDModel, grids
from paceline.config.plan import lr_at, make_plan
from paceline.config.recipe import Optim, Schedule
from paceline.config.run import Controls, Run
from paceline.config.system import System
from paceline.data.box_sample import inside, read_training_sample
from paceline.data.manifest import Manifest
from paceline.data.randomness import SampleRandom
from paceline.data.ssd_crop import ssd_crop
from paceline.dist.launcher import read_launch
from paceline.dist.world import open_world
from paceline.models.detector import Detector
from paceline.models.ssd import initialise_ssd
from paceline.models.weights_ssd import to_reference
from paceline.prepare.box_folder import ensure_boxes_prepared
from paceline.recipes.ssd import MLPERF_IMAGES, MLPERF_LR, SSDRecipe, mlperf
from paceline.setup import build_state
from paceline.step import TrainStep
from paceline.tasks.ssd import Detection, build_detector
from paceline.tasks.task import Task

CLASSES = 80
WARMUP, DROP = 20, 70  # steps of the warm-up; the step at which lr falls to a tenth
EARLY, TWIN_STEPS, TAIL = 20, 10, 20
# Measured: float32 sums in another order differ by 1e-6 of a loss at the start and by less than this after twenty steps.
TIGHT, LOOSE = 2e-4, 0.03
# Pixels beside Pillow's, which rounds to 8 bits after each change: mean difference in levels of 255, and of the hue in turns.
LEVELS, HUE = 2.0, 0.004
COMPARED = 48  # samples whose pixels are compared
LOSSES = ("loss", "class", "box")
COLOURS = ("brightness", "contrast", "saturation", "hue")


@dataclass(frozen=True)
class Sample:
    """One augmented photo, and how to make it again with the reference's own transform."""

    pixels: np.ndarray  # (S, S, 3) uint8
    objects: Objects
    photo: bytes
    window: tuple[int, int, int, int]  # left, top, right, bottom of the crop, pixels of the photo
    flip: bool
    order: tuple[int, ...]  # of the colour changes, as numbers of COLOURS
    amounts: tuple[float, ...]  # of each colour change, 0..1 within its range


class Recorded(SampleRandom):
    """A sample's random numbers, written down as they are drawn."""

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        super().__init__(seed, epoch, index)
        self.uniforms: list[float] = []
        self.integers: list[int] = []

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        self.uniforms.append(super().uniform())
        return low + (high - low) * self.uniforms[-1]

    def integer(self, low: int, high: int) -> int:
        self.integers.append(super().integer(low, high))
        return self.integers[-1]


def draw(task: Detection, recipe: SSDRecipe, epoch: int, number: int) -> Sample:
    """Sample `number` of the training set in `epoch`."""
    photo, index = recipe.input, int(task.train_numbers[number])
    rows = slice(task.train.object_starts[index], task.train.object_starts[index + 1])
    wanted = task.wanted[rows]
    boxes, classes = task.train.boxes[rows][wanted], task.train.classes[rows][wanted]
    data, out = task.train.index.read(index), np.empty((photo.size, photo.size, 3), np.uint8)
    random = Recorded(recipe.seed, epoch, index)
    objects = read_training_sample(data, task.train.index.name(index), boxes, classes, random, photo, out)
    order = list(range(4))
    for last, other in zip((3, 2, 1), random.integers[-3:]):
        order[last], order[other] = order[other], order[last]
    height, width = int(task.train.index.heights[index]), int(task.train.index.widths[index])
    again = SampleRandom(recipe.seed, epoch, index)
    window, _ = ssd_crop(height, width, inside(boxes, height, width), again, size=photo.size)
    corners = (window.left, window.top, window.left + window.width, window.top + window.height)
    return Sample(
        out, objects, data, corners, random.uniforms[-5] < photo.flip, tuple(order), tuple(random.uniforms[-4:])
    )


def matched(sample: Sample, tie: Tie, order: str = "anchor") -> tuple[Tensor, Tensor]:
    """Class (A,) and box (A, 4) ltrb of each default box, in the reference's order; class 0 and box 0 where negative."""
    batch = detection_batch(torch.zeros(1, 3, 1, 1), [sample.objects], torch.zeros(1))
    anchors = default_boxes(300, grids(300), SSDModel().scales, order="cell" if order == "cell" else "anchor")
    slots, positives = match(batch.boxes, batch.labels, to_ltrb(anchors), tie=tie)
    labels, boxes = batch.labels[0, slots[0]] * positives[0], batch.boxes[0, slots[0]] * positives[0][:, None]
    back = anchor_to_cell(grids(300)).argsort() if order == "cell" else slice(None)
    return labels[back], boxes[back]


def same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(left, right))


def choose(task: Detection, recipe: SSDRecipe, wanted: int) -> tuple[list[tuple[int, int]], list[Sample], int]:
    """(epoch, number) of the samples that are taken, the samples, and how many others were left out.

    Left out: objects that overlap two default boxes equally and take the first, so that the order of default boxes decides.
    One whose objects share a best default box comes first.
    """
    keys: list[tuple[int, int]] = []
    samples: list[Sample] = []
    left_out = 0
    tied = False
    for place in range(20 * wanted):
        key = divmod(place, task.train_images)
        sample = draw(task, recipe, *key)
        last = matched(sample, "last")
        if not same(last, matched(sample, "last", "cell")):
            left_out += 1
            continue
        shares = not tied and not same(last, matched(sample, "first"))
        at = 0 if shares else len(keys)
        tied = tied or shares
        keys.insert(at, key)
        samples.insert(at, sample)
        if len(keys) >= wanted and tied:
            return keys[:wanted], samples[:wanted], left_out
    raise SystemExit("no sample holds two objects with the same best default box: name a data set with more objects")


def our_recipe(batch: int, steps: int) -> SSDRecipe:
    """The reference's settings at B images, with a warm-up and one drop.

    Residual branches start at zero: an untrained trunk of full depth magnifies rounding a hundredfold within two steps.
    """
    base = mlperf()
    return replace(
        base,
        model=replace(base.model, zero_init_last_gamma=True),
        global_batch=batch,
        epochs=0,
        images_seen=batch * steps,
        bn_span=batch,
        optim=Optim(lr=MLPERF_LR * batch / MLPERF_IMAGES, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule(kind="steps", unit="run", warmup=WARMUP / steps, boundaries=(DROP / steps,)),
    )


def plain_lr(step: int, batch: int) -> float:
    peak = 2.5e-3 * batch / 32
    return peak * min(1.0, (step + 1) / WARMUP) * (0.1 if step >= DROP else 1.0)


def first_model(recipe: SSDRecipe) -> Detector:
    """The network that both sides start from."""
    model = build_detector(recipe, CLASSES)
    zero = recipe.model.zero_init_last_gamma
    initialise_ssd(model.network, torch.Generator().manual_seed(recipe.seed), zero_init_last_gamma=zero)
    return model


def ours(dump: Path, recipe: SSDRecipe, steps: int) -> list[dict[str, float]]:
    """Losses of our own step."""
    torch.set_num_threads(1)
    model = first_model(recipe)
    plan = make_plan(recipe, System(), world=1, most=recipe.global_batch, train_images=1000, val_images=1)
    run = Run("trajectory", recipe, "cpu", System(), plan, Controls())
    with open_world(read_launch({}), device=torch.device("cpu")) as world:
        task = cast(Task, SimpleNamespace(build=lambda device: model))
        state = build_state(task, run, world)
        step_once = TrainStep(state, plan, System(), torch.device("cpu"))
        losses = []
        for step, part in zip(range(steps), batches(dump, recipe.global_batch)):
            images = torch.from_numpy(np.stack([pixels for pixels, _ in part])).permute(0, 3, 1, 2)
            batch = detection_batch(images, [objects for _, objects in part], torch.arange(len(part)))
            lr, previous = lr_at(recipe, plan, step), lr_at(recipe, plan, max(0, step - 1))
            found = step_once([batch], lr=lr, previous_lr=previous)
            losses.append({name: float(found[name]) for name in LOSSES})
            print(f"ours {recipe.model.tie} {recipe.optim.momentum_form} {step} {losses[-1]}", flush=True)
    return losses


def batches(dump: Path, size: int) -> list[list[tuple[np.ndarray, Objects]]]:
    """The dumped samples, B by B."""
    with np.load(dump / "samples.npz") as file:
        pixels, starts, boxes, classes = (file[name] for name in ("pixels", "starts", "boxes", "classes"))
    samples = [
        (pixels[k], Objects(boxes[starts[k] : starts[k + 1]], classes[starts[k] : starts[k + 1]]))
        for k in range(len(pixels))
    ]
    return [samples[k : k + size] for k in range(0, len(samples), size)]


def load_reference(folder: Path) -> SimpleNamespace:
    """The reference's modules; their logging package is not needed and stands as a mock."""
    for name in ("mlperf_logger", "mlperf_logging", "mlperf_logging.mllog"):
        sys.modules[name] = MagicMock()
    sys.path.insert(0, str(folder))
    names = ("utils", "base_model", "ssd300", "train")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def reference(dump: Path, folder: Path, batch: int, steps: int) -> list[dict[str, float]]:
    """Losses of the reference's network, loss and encoder with torch.optim.SGD, from DUMP/first.pth."""
    torch.set_num_threads(1)
    theirs = load_reference(folder)
    import torchvision

    torch.save(torchvision.models.resnet34(weights=None).state_dict(), dump / "backbone.pth")
    model = theirs.ssd300.SSD300(CLASSES + 1, model_path=str(dump / "backbone.pth"))
    missing, unexpected = model.load_state_dict(torch.load(dump / "first.pth"), strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)
    default = theirs.train.dboxes300_coco()
    loss_of, transform = theirs.base_model.Loss(default), theirs.utils.SSDTransformer(default)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
    losses = []
    for step, part in zip(range(steps), batches(dump, batch)):
        images = torch.stack(
            [transform.normalize(torch.from_numpy(pixels).permute(2, 0, 1).float() / 255) for pixels, _ in part]
        )
        coded = [
            transform.encoder.encode(torch.from_numpy(objects.boxes), torch.from_numpy(objects.classes))
            for _, objects in part
        ]
        boxes = torch.stack([box for box, _ in coded]).transpose(1, 2).contiguous()
        labels = torch.stack([label for _, label in coded])
        deltas, logits = model(images)
        loss = loss_of(deltas, logits, boxes, labels)
        with torch.no_grad():  # the loss of perfect boxes is the class loss
            class_loss = loss_of(loss_of._loc_vec(boxes), logits, boxes, labels)
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = plain_lr(step, batch)
        optimiser.step()
        optimiser.zero_grad()
        found = (loss.item(), class_loss.item(), loss.item() - class_loss.item())
        losses.append(dict(zip(LOSSES, found)))
        print(f"reference {step} {losses[-1]}", flush=True)
    return losses


def reference_targets(folder: Path, samples: Sequence[Sample], tie: Tie) -> int:
    """How many samples our matching codes otherwise than the reference's encoder."""
    theirs = load_reference(folder)
    encoder = theirs.utils.Encoder(theirs.train.dboxes300_coco())
    different = 0
    for sample in samples:
        boxes, labels = encoder.encode(torch.from_numpy(sample.objects.boxes), torch.from_numpy(sample.objects.classes))
        our_labels, our_boxes = matched(sample, tie)
        chosen = labels > 0
        close = torch.allclose(to_ltrb(boxes[chosen]), our_boxes[chosen], rtol=0, atol=1e-6)
        different += not (torch.equal(labels, our_labels) and close)
    return different


def pixel_difference(folder: Path, samples: Sequence[Sample]) -> dict[str, float]:
    """Our pixels beside those of the reference's transform with the same crop, flip and random numbers.

    return  "levels": mean absolute difference, of 255; "hue": mean absolute difference of a photo's mean hue, turns
    """
    theirs = load_reference(folder)
    resize, jitter, to_tensor = theirs.utils.SSDTransformer(theirs.train.dboxes300_coco()).img_trans.transforms
    levels, hues = [], []
    for sample in samples:
        image = Image.open(io.BytesIO(sample.photo)).convert("RGB").crop(sample.window)
        if sample.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        ranges = [getattr(jitter, name) for name in COLOURS]
        amounts = [low + (high - low) * share for (low, high), share in zip(ranges, sample.amounts)]
        given = (torch.tensor(sample.order), *amounts)
        jitter.get_params = lambda *_, given=given: given
        expected = to_tensor(jitter(resize(image))).permute(1, 2, 0).numpy() * 255
        levels.append(np.abs(expected - sample.pixels).mean())
        turn = np.angle(mean_chroma(sample.pixels.astype(np.float32)) * mean_chroma(expected).conjugate()) / (2 * np.pi)
        hues.append(abs(turn))
    return {"levels": float(np.mean(levels)), "hue": float(np.median(hues))}


def mean_chroma(pixels: np.ndarray) -> complex:
    """Mean hue of a photo as a direction in the plane of colours, from (S, S, 3) RGB."""
    red, green, blue = pixels.mean(axis=(0, 1))
    return complex(red - (green + blue) / 2, 3**0.5 / 2 * (green - blue))


def differences(left: Sequence[dict[str, float]], right: Sequence[dict[str, float]]) -> list[float]:
    """Of each step: the largest relative difference of the three losses."""
    return [max(abs(a[name] - b[name]) / max(abs(b[name]), 1e-3) for name in LOSSES) for a, b in zip(left, right)]


def first_difference(relative: Sequence[float]) -> int | None:
    """The first of the early steps that differs by more than float noise; None where none does."""
    return next((step for step, value in enumerate(relative[:EARLY]) if value > TIGHT), None)


def write(out: Path, left: list[dict[str, float]], right: list[dict[str, float]], twins: dict, batch: int) -> None:
    """losses.csv and losses.png. twins: relative differences of each step, by name."""
    relative = differences(left, right)
    with (out / "losses.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        columns = [f"{who}_{name}" for who in ("ours", "reference") for name in LOSSES]
        rows.writerow(["step", "lr", *columns, "relative_difference"])
        for step, (a, b) in enumerate(zip(left, right)):
            values = [f"{row[name]:.9g}" for row in (a, b) for name in LOSSES]
            rows.writerow([step, f"{plain_lr(step, batch):.9g}", *values, f"{relative[step]:.3g}"])
    figure = Figure(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name, colour in zip(LOSSES, ("black", "tab:blue", "tab:orange")):
        above.plot([row[name] for row in right], color=colour, alpha=0.3, linewidth=5, label=f"{name}, reference")
        above.plot([row[name] for row in left], color=colour, linewidth=1, label=f"{name}, ours")
    above.set_ylabel("loss")
    above.legend(ncols=3, fontsize="small")
    below.semilogy(np.maximum(relative, 1e-9), color="black", label="ours")
    for name, rows in twins.items():
        below.semilogy(np.maximum(rows, 1e-9), "--", label=f"planted twin: {name}")
    below.axhline(TIGHT, color="grey", linewidth=0.8)
    below.set(xlabel="step", ylabel="largest relative difference")
    below.legend(fontsize="small")
    figure.savefig(out / "losses.png", dpi=110)


def wrong(found: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    twins = found["twins"]
    holds = {
        "matching differs from the reference's": found["samples_matched_differently"] > 0,
        "pixels differ from the reference's": pixels_differ(found["pixels"]),
        "losses differ within the early steps": found["first_different_step"] is not None,
        "mean losses of the last steps differ": found["tail_difference"] > LOOSE,
        "the matching of the twin with tie first is not noticed": twins["tie first"]["samples_matched_differently"]
        == 0,
        "the losses of the twin with tie first are not noticed": twins["tie first"]["first_different_step"] is None,
        "the twin with momentum lr_inside is not noticed": twins["momentum lr_inside"]["first_different_step"] is None,
        "the twin with hue in degrees is not noticed": not pixels_differ(twins["hue in degrees"]["pixels"]),
    }
    return [what for what, is_so in holds.items() if is_so]


def pixels_differ(pixels: dict[str, float]) -> bool:
    return pixels["levels"] > LEVELS or pixels["hue"] > HUE


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
    task = Detection(recipe, Manifest.load(ensure_boxes_prepared(asked.data, say=print)))
    keys, samples, left_out = choose(task, recipe, asked.batch * asked.steps)
    degrees = replace(recipe, input=replace(recipe.input, hue=recipe.input.hue / 360))
    compared = samples[:COMPARED]
    twin_samples = [draw(task, degrees, *key) for key in keys[:COMPARED]]
    first = replace(recipe, model=replace(recipe.model, tie="first"))
    inner = replace(recipe, optim=replace(recipe.optim, momentum_form="lr_inside"))
    short = min(TWIN_STEPS, asked.steps)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        dump = Path(folder)
        torch.save(to_reference(first_model(recipe).network.state_dict()), dump / "first.pth")
        np.savez(
            dump / "samples.npz",
            pixels=np.stack([sample.pixels for sample in samples]),
            starts=np.cumsum([0, *(len(sample.objects.classes) for sample in samples)]),
            boxes=np.concatenate([sample.objects.boxes for sample in samples]),
            classes=np.concatenate([sample.objects.classes for sample in samples]),
        )
        targets = pool.submit(reference_targets, asked.reference, samples, "last")
        twin_targets = pool.submit(reference_targets, asked.reference, samples, "first")
        pixels = pool.submit(pixel_difference, asked.reference, compared)
        twin_pixels = pool.submit(pixel_difference, asked.reference, twin_samples)
        right_job = pool.submit(reference, dump, asked.reference, asked.batch, asked.steps)
        left_job = pool.submit(ours, dump, recipe, asked.steps)
        twin_jobs = {"tie first": pool.submit(ours, dump, first, short)}
        twin_jobs["momentum lr_inside"] = pool.submit(ours, dump, inner, short)
        left, right = left_job.result(), right_job.result()
        twins = {name: differences(job.result(), right) for name, job in twin_jobs.items()}
        relative = differences(left, right)
        tails = [[np.mean([row[name] for row in rows[-TAIL:]]) for name in LOSSES] for rows in (left, right)]
        found: dict[str, Any] = {
            "torch": torch.__version__,
            "images": asked.batch,
            "steps": asked.steps,
            "samples_left_out": left_out,
            "samples_matched_differently": targets.result(),
            "pixels": pixels.result(),
            "largest_difference_first_20": max(relative[:EARLY]),
            "largest_difference": max(relative),
            "first_different_step": first_difference(relative),
            "tail_difference": max(abs(a - b) / b for a, b in zip(*tails)),
            "twins": {
                name: {"first_different_step": first_difference(rows), "largest_difference": max(rows)}
                for name, rows in twins.items()
            },
        }
        found["twins"]["tie first"]["samples_matched_differently"] = twin_targets.result()
        found["twins"]["hue in degrees"] = {"pixels": twin_pixels.result()}
    found["wrong"] = wrong(found)
    write(asked.out, left, right, twins, asked.batch)
    (asked.out / "summary.json").write_text(json.dumps(found, indent=1, default=float) + "\n")
    print(json.dumps(found, indent=1, default=float))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
