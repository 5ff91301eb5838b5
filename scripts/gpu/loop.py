"""The real training loop on real photos: do 50 losses agree, how fast are 300 steps, does anything wait, does a resume agree.

Each is measured as it is sent and with its steps replayed as CUDA graphs (`--system.cuda-graph`). Runs are taken through
paceline.train
in this process, where their memory can be asked; the killed and resumed ones, and those to a target, are the command `paceline train`.
A CPU captures nothing: a dry run takes every replayed form as it is sent, so that all lines run (test_cuda_graphs.py replays there).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from item import Item, insist, run

from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.config.system import Kernels, Precision, System
from paceline.training.eval_history import TrainResult
from paceline.training.logging.event_logger import EventLogger
from paceline.training.logging.events import read_events
from paceline.training.request import Request
from paceline.training.trainer import run_training

GIB = 2**30
FORMS = {"eager": False, "graph": True}  # name -> whether steps are replayed


@dataclass(frozen=True)
class Workload:
    """A recipe at one GPU's size on the photos given, and the same in a blink."""

    recipe: str
    data: str  # folder inside the photos
    changes: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)
    tiny_recipe: str = ""


WORKLOADS = {
    "resnet": Workload(
        "resnet50", "imagenette224", {"global_batch_size": 256, "optim.lr": 0.1, "bn_batch_size": 256, "epochs": 2000},
        {"model.depth": 10, "model.width": 8, "input.image_size": 32, "input.eval_crop_size": 32, "input.eval_resize_size": 36,
         "global_batch_size": 8, "optim.lr": 0.01, "bn_batch_size": 8}, "classify-demo",
    ),
    "ssd": Workload(
        "ssd", "coco_mini", {"global_batch_size": 128, "optim.lr": 2.5e-3, "bn_batch_size": 128, "epochs": 2000},
        {"model.depth": 10, "model.width": 4, "model.extra_channels": 8, "input.image_size": 96, "global_batch_size": 4,
            "bn_batch_size": 4,
         "optim.lr": 0.001}, "ssd-demo",
    ),
    "maskrcnn": Workload(
        "maskrcnn-nvidia-96", "coco_mini", {"global_batch_size": 12, "optim.lr": 1e-3},
        {"model.width": 8, "model.fpn_channels": 16, "model.roi.fc_channels": 32, "model.rpn.pre_nms_topk_train": 100,
         "model.rpn.post_nms_topk_train": 32, "model.rpn.pre_nms_topk_test": 100, "model.rpn.post_nms_topk_test": 32,
         "model.detect.max_detections": 20,
         "input.min_size": (96,), "input.max_size": 128, "global_batch_size": 2, "bn_batch_size": 2, "optim.lr": 0.001},
         "maskrcnn-demo",
    ),
}  # fmt: skip


def take(
    item: Item,
    name: str,
    what: str,
    steps: int,
    *,
    precision: Precision = "bf16",
    compile: bool = False,
    graph: bool = False,
    kernels: Kernels = "torch",
    **controls: Any,
) -> tuple[TrainResult, Path]:
    """Train so many steps of a workload into a new folder, which is given back."""
    workload = WORKLOADS[name]
    chosen = workload.tiny_recipe if item.tiny else workload.recipe
    changes = workload.tiny if item.tiny else workload.changes
    recipe = override(RECIPES[chosen](), changes)
    assert item.photos is not None
    out = item.scratch / "runs" / f"{name}-{what.replace(' ', '-')}"
    shutil.rmtree(out, ignore_errors=True)
    # A few photos are an epoch of few steps: without a word every one of them would save and evaluate.
    controls = {"save_every": max(1, steps // 2), "eval_every": steps, **controls}
    if item.tiny:
        controls = {"max_train_images": 8, "max_val_images": 2, **controls}
    request = Request(
        name=chosen,
        recipe=recipe,
        system_name="cpu" if item.cpu else "gpu",
        system=replace(system_of(item, precision, compile=compile, graph=graph), kernels="torch" if item.cpu else kernels),
        # Drawn weights, and a batch that is larger than the photos: both on purpose.
        options=RunOptions(
            data=str(item.photos / workload.data), output_dir=str(out), max_steps=steps, weights="none", **controls
        ),
        given=frozenset({"system", "weights", *changes}),
    )
    ending = run_training(request)
    shutil.copyfile(out / "events.jsonl", item.keep / f"{out.name}-events.jsonl")
    return ending, out


def system_of(item: Item, precision: Precision, *, compile: bool, graph: bool) -> System:
    """Where a run computes. A CPU has neither the other number formats nor graphs."""
    if item.cpu:
        return replace(item.system, precision="fp32")
    forms = {name: "on" if value else "off" for name, value in (("compile", compile), ("cuda_graph", graph))}
    return replace(item.system, precision=precision, **forms)


def warm_up_of(out: Path) -> dict[str, Any]:
    """What a run's discarded steps took: shapes, seconds, compilations, captures, memory beside its estimate, where they were needed;
    and what they had left out: forms of the network compiled, and steps captured, once the clock ran.
    """
    events = list(read_events(out / "events.jsonl"))
    found: dict[str, Any] = {}
    for event in events:
        if event["event"] == "warm_up":
            found = {key: value for key, value in event.items() if key not in ("event", "step", "epoch", "seconds")}
    of_steps = [event for event in events if event["event"] == "train"]
    found["recompilations"] = sum(event.get("recompilations", 0) for event in of_steps)
    found["late_captures"] = max((event.get("late_captures", 0) for event in of_steps), default=0)
    return found


def trains(out: Path) -> list[dict[str, Any]]:
    """The train events of a run."""
    return [event for event in read_events(out / "events.jsonl") if event["event"] == "train"]


def gate(item: Item, name: str) -> None:
    """Losses of 50 steps, step by step: each form beside eager fp32, and a replayed one beside what it replays."""
    steps = 3 if item.tiny else 50
    losses: dict[str, list[float]] = {}
    forms: dict[str, dict[str, Any]] = {
        "eager fp32": {"precision": "fp32"}, "eager bf16": {}, "graph bf16": {"graph": True},
    }  # fmt: skip
    if item.triton:
        forms |= {"eager Triton bf16": {"kernels": "triton"}, "graph Triton bf16": {"kernels": "triton", "graph": True}}
    if name != "maskrcnn":
        forms |= {"compiled bf16": {"compile": True}, "compiled graph bf16": {"compile": True, "graph": True}}
    forms |= {"eager fp16": {"precision": "fp16"}, "graph fp16": {"precision": "fp16", "graph": True}}
    found = {}
    for what, form in forms.items():

        def work(what: str = what, form: dict[str, Any] = form) -> dict[str, Any]:
            _, out = take(item, name, what, steps, log_every=1, **form)
            losses[what] = [event["loss"] for event in trains(out)]
            # Trajectories of two number formats part slowly: the first losses are held tight, their mean over the last ten less.
            facts: dict[str, Any] = {"losses": losses[what], **warm_up_of(out)}
            first, last = apart(losses[what], losses["eager fp32"])
            facts |= {"first_five_off": first, "last_ten_off": last, "agrees": first < 0.05 and last < 0.15}
            if form.get("graph"):
                replays = what.replace("graph", "eager").replace("compiled eager", "compiled")
                # The same kernels on the same numbers: what is left is the order of atomic sums, and which convolutions won.
                first, last = apart(losses[what], losses[replays])
                facts |= {"first_five_off_eager": first, "last_ten_off_eager": last}
                facts["agrees"] = facts["agrees"] and first < 0.01 and last < 0.05
                # Nothing was captured anywhere but before the first step.
                facts["agrees"] &= facts["late_captures"] == 0 and (item.cpu or facts["captures"] > 0)
            return facts

        found[what] = item.attempt(f"{name} {what}", work)
    insist(found)


def apart(losses: Sequence[float], wanted: Sequence[float]) -> tuple[float, float]:
    """Most that one of the first five losses is off, and how much the mean of the last ten is; relative."""
    off = [abs(a - b) / max(abs(b), 1e-9) for a, b in zip(losses, wanted, strict=True)]
    return max(off[:5]), abs(sum(losses[-10:]) / sum(wanted[-10:]) - 1)


def throughput(item: Item, name: str) -> None:
    """300 steps from photos and half of them from one batch read once, sent and replayed: img/s, the wait for input, memory."""
    found = {}
    for what, controls in (("photos", {}), ("one batch", {"overfit_one_batch": True})):
        steps = 3 if item.tiny else 150 if controls else 300
        for form, graph in FORMS.items():

            def work(
                what: str = f"{what} {form}", steps: int = steps, graph: bool = graph, controls: dict[str, Any] = controls
            ) -> dict[str, Any]:
                if item.device.type == "cuda":
                    torch.cuda.init()  # the next line refuses a device that nothing has used
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats(item.device)
                ending, out = take(item, name, what, steps, log_every=max(1, steps // 6), graph=graph, **controls)
                events = trains(out)
                facts = json.loads((out / "run.json").read_text())
                estimate, plan = facts["memory_estimate"], facts["plan"]
                predicted = estimate["fixed"] + plan["micro_batch_size"] * estimate["per_image"]
                peak = torch.cuda.max_memory_allocated(item.device) if item.device.type == "cuda" else 0
                reserved = torch.cuda.max_memory_reserved(item.device) if item.device.type == "cuda" else 0
                scored = [event for event in read_events(out / "events.jsonl") if event["event"] == "eval"]
                return {
                    "images_per_second": [round(event["images_per_second"], 1) for event in events],
                    "data_wait": [round(event["data_wait"], 3) for event in events],
                    "micro_batch_size": plan["micro_batch_size"],
                    "memory_predicted_gib": round(predicted / GIB, 2),
                    "memory_peak_gib": round(peak / GIB, 2),
                    "memory_reserved_gib": round(reserved / GIB, 2),
                    **warm_up_of(out),
                    "evaluation": {key: scored[-1][key] for key in ("images", "eval_seconds")},
                    "checkpoints": sorted(path.name for path in (out / "checkpoints").iterdir()),
                    "status": ending.status,
                }

            found[f"{what} {form}"] = item.attempt(f"{name} {what} {form}", work)
    insist(found)


def syncs(item: Item) -> None:
    """Waits for the device in the real loop, by place, and the host's own milliseconds a step, sent and replayed: in a short and a
    long run, so that a step's own ones show.
    """
    found = {}
    for name, (form, graph) in itertools.product(WORKLOADS, FORMS.items()):

        def work(name: str = name, form: str = form, graph: bool = graph) -> dict[str, Any]:
            few, many = (2, 4) if item.tiny else (20, 60)
            take(item, name, f"first {form}", few, graph=graph)  # what a process does once: imports, libraries that choose
            short, before = waits(item, name, few, f"syncs {form}", graph=graph)
            long, after = waits(item, name, many, f"syncs {form}", graph=graph)
            grown = {place: count - short.get(place, 0) for place, count in long.items() if count > short.get(place, 0)}
            return {
                "short": short,
                "long": long,
                "a_step": {place: count / (many - few) for place, count in grown.items()},
                "host_milliseconds_a_step": round((after - before) / (many - few) * 1000, 3),
                "agrees": not grown,
            }

        found[f"{name} {form}"] = item.attempt(f"{name} {form}", work)
    insist(found)


def waits(item: Item, name: str, steps: int, what: str, *, graph: bool) -> tuple[dict[str, int], float]:
    """A run of so many steps; -> how often the host waited for the device from its start to its evaluation, by file and line, and
    CPU-seconds of this thread in all of it. Discarded steps may wait, as often as a run has shapes.
    """
    began = time.thread_time()
    with warnings.catch_warnings(record=True) as seen, ExitStack() as changed:
        warnings.simplefilter("always")
        if item.device.type == "cuda":
            changed.callback(torch.cuda.set_sync_debug_mode, "default")
            for moment, mode in (("start", "warn"), ("evaluation_begins", "default")):
                changed.enter_context(called_before(EventLogger, moment, partial(torch.cuda.set_sync_debug_mode, mode)))
        take(item, name, f"{what} {steps}", steps, log_every=steps, graph=graph)
    places = [f"{Path(entry.filename).name}:{entry.lineno}" for entry in seen if "synchronizing" in str(entry.message)]
    return dict(Counter(places)), time.thread_time() - began


@contextmanager
def called_before(of: type, method: str, called: Callable[[], None]) -> Iterator[None]:
    """Call something before a method, of any object of the class."""
    own = getattr(of, method)

    def both(self: Any, *words: Any, **named: Any) -> Any:
        called()
        return own(self, *words, **named)

    setattr(of, method, both)
    try:
        yield
    finally:
        setattr(of, method, own)


def command(item: Item, recipe: str, *words: str) -> list[str]:
    """`paceline train`, on this device."""
    return [sys.executable, "-m", "paceline", "train", recipe, "--system", "cpu" if item.cpu else "gpu", *words]


def resume(item: Item) -> None:
    """Killed by SIGTERM and resumed under --deterministic, sent and replayed: the final weights of an unbroken run, byte by byte."""
    net = {
        "classify-demo": ["--data", str(item.photos / "imagenette224")] if item.photos else [],
        "ssd-demo": ["--data", str(item.photos / "coco_mini")] if item.photos else [],
    }
    found, bytes_of = {}, {}
    for (recipe, data), (form, graph) in itertools.product(net.items(), FORMS.items()):

        def work(recipe: str = recipe, data: list[str] = data, form: str = form, graph: bool = graph) -> dict[str, Any]:
            steps, stop = (40, 2) if item.tiny else (200, 60)
            words = [*data, "--max-steps", str(steps), "--log-every", "1", "--save-every", "50", "--deterministic"]
            words += ["--system.cuda-graph", "on"] if graph and not item.cpu else []
            if item.tiny:
                small = {
                    "classify-demo": "--model.width 8 --input.image-size 32",
                    "ssd-demo": "--model.width 4 --model.extra-channels 8",
                }
                words += [
                    *small[recipe].split(),
                    "--max-train-images",
                    "32",
                    "--max-val-images",
                    "2",
                    "--global-batch-size",
                    "4",
                ]
                words += ["--bn-batch-size", "4", "--optim.lr", "0.001"]
            whole, broken = (item.scratch / "runs" / f"{recipe}-exact-{form}-{kind}" for kind in ("whole", "broken"))
            for folder in (whole, broken):
                shutil.rmtree(folder, ignore_errors=True)
            first = subprocess.run(
                command(item, recipe, *words, "--output-dir", str(whole)), capture_output=True, text=True
            )
            assert first.returncode in (0, 1), first.stderr[-1000:]
            going = subprocess.Popen(command(item, recipe, *words, "--output-dir", str(broken)), stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + 120
            while going.poll() is None and time.monotonic() < deadline:
                if len(trains(broken) if broken.exists() else []) >= stop:
                    going.send_signal(signal.SIGTERM)
                    break
                time.sleep(0.05)
            stopped = going.wait(timeout=120)
            at = max((event["step"] for event in trains(broken)), default=0)
            again = subprocess.run(
                command(item, recipe, *words, "--output-dir", str(broken)), capture_output=True, text=True
            )
            assert again.returncode in (0, 1), again.stderr[-1000:]
            weights = [(folder / "checkpoints" / "last" / "model.safetensors").read_bytes() for folder in (whole, broken)]
            bytes_of[recipe, form] = weights[0]
            return {
                "exit_at_sigterm": stopped,
                "stopped_at_step": at,
                "of": steps,
                "agrees": weights[0] == weights[1],  # byte by byte
                "as_eager": weights[0] == bytes_of.get((recipe, "eager")),
            }

        found[f"{recipe} {form}"] = item.attempt(f"{recipe} {form}", work)
    insist(found)


def target(item: Item, recipe: str) -> None:
    """`paceline train RECIPE` to its target from an empty cache's rendered pictures: seconds from Enter."""
    out = item.scratch / "runs" / f"{recipe}-target"
    shutil.rmtree(out, ignore_errors=True)
    words = ["--output-dir", str(out)]
    if item.tiny:
        small = {
            "classify-demo": "--model.width 8 --input.image-size 32",
            "ssd-demo": "--model.width 4 --model.extra-channels 8",
        }
        words += [*small[recipe].split(), "--max-steps", "2", "--max-train-images", "8", "--max-val-images", "2"]
    if not item.triton:
        words += ["--system.kernels", "torch"]

    def work() -> dict[str, Any]:
        began = time.monotonic()
        done = subprocess.run(command(item, recipe, *words), env=os.environ, capture_output=True, text=True)
        seconds = time.monotonic() - began
        print(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)[-3000:], done.stderr[-2000:])
        scored = [event for event in read_events(out / "events.jsonl") if event["event"] == "eval"]
        if (out / "events.jsonl").exists():
            shutil.copyfile(out / "events.jsonl", item.keep / f"{out.name}-events.jsonl")
        numbers = [{key: event[key] for key in ("step", "seconds", "top1", "box_ap") if key in event} for event in scored]
        return {
            "exit_code": done.returncode,
            "agrees": done.returncode == 0,
            "seconds_from_enter": round(seconds, 1),
            "evaluations": numbers,
        }

    insist({recipe: item.attempt(recipe, work)})


if __name__ == "__main__":
    run({
        **{f"gate-{name}": partial(gate, name=name) for name in WORKLOADS},
        **{f"throughput-{name}": partial(throughput, name=name) for name in WORKLOADS},
        "syncs": syncs,
        "resume": resume,
        **{f"target-{recipe}": partial(target, recipe=recipe) for recipe in ("classify-demo", "ssd-demo")},
    })  # fmt: skip
