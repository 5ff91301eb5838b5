"""Logs of other trainings, as their programs print them -> a Row each. What a log does not tell stays empty.

GluonCV      scripts/instance/mask_rcnn: "[Epoch 3][Batch 99], Speed: ...", speeds of all workers together
Habana       TensorFlow SSD_ResNet34: "Epoch 3 finished. Duration: 0:01:02 IPS: ..." of all cards, "COCO/AP value for step S = ..."
DLLogger     NVIDIA's DeepLearningExamples: "DLLL {json}"
Horovod      its synthetic benchmarks: "Total img/sec on 8 GPU(s): ..."
MXNet        Module.fit and NVIDIA's fit.py: "Epoch[3] Time cost=...", "Epoch[3] Validation-accuracy=..."
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from paceline._utils.errors import DataError
from paceline._utils.safe_read import parse_json
from paceline.tools.mlperf.logs import FOREIGN, LogSummary, identify_log, is_number

WHOLE = r"(?<!\d)(\d{1,15})(?!\d)"  # more digits are no count of anything here
NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"


def read_upstream_log(path: Path, text: str, accelerators: int) -> LogSummary:
    """The row of a log without :::MLLOG lines. accelerators: as told; 0 = what the log says.

    Raises DataError for a log that is none of these.
    """
    name = identify_log(text)
    if not name:
        known = ", ".join(name for name, _ in FOREIGN)
        raise DataError(f"{path}: no log that is known here: neither MLPerf's (:::MLLOG) nor one of {known}.")
    facts: dict[str, Any] = {"file": str(path), "written_by": name, **READERS[name](text)}
    if accelerators:
        facts["accelerators"] = accelerators
    return LogSummary(**facts)


def _gluoncv(text: str) -> dict[str, Any]:
    # Until January 2021 an epoch's line had no speed.
    epochs = re.findall(rf"\[Epoch \d+\] Training cost: {NUMBER}(?:, Speed: {NUMBER} samples/sec)?", text)
    steps = _floats(rf"\[Epoch \d+\]\[Batch \d+\], Speed: {NUMBER} samples/sec", text)
    evaluations = _floats(rf"\[Epoch \d+\] Validation Inference cost: {NUMBER}", text)
    spent = sum(float(cost) for cost, _ in epochs) + sum(evaluations)
    quality = {}
    for kind in ("bbox", "segm"):
        # Of the last summary of that kind: the first line is AP over all IoUs, areas and 100 detections.
        summary = text.rpartition(f"~~~~ Summary {kind} metrics ~~~~")[2] if f"Summary {kind} metrics" in text else ""
        if result := re.search(rf"IoU=0\.50:0\.95 \| area=\s*all \| maxDets=\s*100 \] = {NUMBER}", summary):
            quality[f"{kind}_ap"] = float(result[1])
    speeds = [float(speed) for _, speed in epochs if speed]
    return {
        "benchmark": "maskrcnn" if "segm" in text or "RCNN_Mask" in text else "faster_rcnn",
        "global_batch": _whole(rf"Namespace\(.*?\bbatch_size={WHOLE}", text),
        "minutes": spent / 60 if epochs else None,
        "epochs": len(epochs) or None,
        "images_per_second": median(speeds[1:] or speeds or steps) if speeds or steps else None,
        "evaluations": len(evaluations),
        "eval_seconds": sum(evaluations) if evaluations else None,
        "quality": quality,
    }


def _habana(text: str) -> dict[str, Any]:
    speeds = _floats(rf"Epoch \d+ finished\. Duration: [^\n]*? IPS: {NUMBER}", text)
    total = re.search(r"Training finished\. Total time: ([^\n]+)", text)
    seconds = _clock_seconds(total[1]) if total else None
    scores = _floats(rf"COCO/AP value for step \d+ = {NUMBER}", text)
    return {
        "system": "Gaudi" if "habana" in text.lower() or "hpu" in text.lower() else "",
        "benchmark": "ssd",
        "accelerators": _whole(rf"'num_shards': {WHOLE}", text),
        "global_batch": _whole(rf"'global_batch_size': {WHOLE}", text),
        "minutes": seconds / 60 if seconds is not None else None,
        "epochs": len(speeds) or None,
        "images_per_second": median(speeds[1:] or speeds) if speeds else None,
        "evaluations": len(scores),
        "quality": {"box_ap": scores[-1]} if scores else {},
    }


def _dllogger(text: str) -> dict[str, Any]:
    records = list(_dll_records(text))
    # A step of one number is an epoch, of two an iteration in it, of none the end.
    epochs = [record for record in records if isinstance(record.get("step"), list) and len(record["step"]) == 1]
    speeds = [
        speed for record in epochs if (speed := _first(record["data"], "train.total_ips", "train.ips", "train.compute_ips"))
    ]
    scores = [record["data"] for record in records if any(name.startswith("val.") for name in record["data"])]
    elapsed = [record["elapsedtime"] for record in records if isinstance(record.get("elapsedtime"), int | float | str)]
    told: dict[str, Any] = {}
    for record in records:
        if record.get("step") == "PARAMETER":
            told |= record["data"]
    seconds = [float(str(one)) for one in elapsed if re.fullmatch(NUMBER, str(one))]
    top1 = [score for data in scores if (score := _first(data, "val.top1", "val.accuracy")) is not None]
    gpus = _count(told, "num_gpus", "world_size")
    return {
        "accelerators": gpus,
        "global_batch": _dll_batch(told, gpus),
        "minutes": (seconds[-1] - seconds[0]) / 60 if len(seconds) > 1 else None,
        "epochs": len(epochs) or None,
        "images_per_second": median(speeds[1:] or speeds) if speeds else None,
        "evaluations": len(top1),
        # Percent in the PyTorch examples, a fraction in the MXNet ones.
        "quality": {"top1": top1[-1] / 100 if top1[-1] > 1 else top1[-1]} if top1 else {},
    }


def _dll_batch(told: dict[str, Any], gpus: int | None) -> int | None:
    """The global batch: the PyTorch examples tell one GPU's, the MXNet one (which has a kv_store) the whole.

    Source: the help of `--batch-size` and `--optimizer-batch-size` in NVIDIA's ConvNets; get_epoch_size in their MXNet fit.py.
    """
    batch = _count(told, "batch_size", "batch-size")
    if batch is None or "kv_store" in told:
        return batch
    if gpus is None:
        return None
    at_once = batch * gpus
    # The ConvNets accumulate as many whole batches as --optimizer-batch-size has room for.
    return at_once * max((_count(told, "optimizer_batch_size") or 0) // at_once, 1)


def _horovod(text: str) -> dict[str, Any]:
    results = re.findall(rf"Total img/sec on {WHOLE} \w+(?:\(s\))?: {NUMBER}", text)
    count, speed = results[-1] if results else (None, None)
    batch = _whole(rf"Batch size: {WHOLE}", text)
    model = re.search(r"^Model: (\S+)", text, re.MULTILINE)
    return {
        "benchmark": model[1] if model else "",
        "accelerators": int(count) if count else None,
        "global_batch": batch * int(count) if batch and count else None,
        "images_per_second": float(speed) if speed else None,
    }


def _mxnet(text: str) -> dict[str, Any]:
    costs = _floats(rf"Epoch\[\d+\] Time cost={NUMBER}", text)
    speeds = _floats(rf"Epoch\[\d+\][^\n]*?Speed: {NUMBER} samples/sec", text)
    scores = re.findall(rf"Epoch\[\d+\] Validation-([\w.-]+)={NUMBER}", text)
    return {
        "minutes": sum(costs) / 60 if costs else None,
        "epochs": len(costs) or None,
        "images_per_second": median(speeds[1:] or speeds) if speeds else None,
        "evaluations": len({name for name, _ in scores}) and len(scores) // len({name for name, _ in scores}),
        "quality": {name: float(value) for name, value in scores},
    }


# By the names in logs.FOREIGN.
READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "GluonCV": _gluoncv,
    "Habana's TensorFlow SSD": _habana,
    "NVIDIA's DLLogger": _dllogger,
    "Horovod": _horovod,
    "MXNet": _mxnet,
}


def _floats(pattern: str, text: str) -> list[float]:
    return [float(result) for result in re.findall(pattern, text)]


def _whole(pattern: str, text: str) -> int | None:
    result = re.search(pattern, text)
    return int(result[1]) if result else None


def _first(data: dict[str, Any], *names: str) -> float | None:
    return next((float(data[name]) for name in names if is_number(data.get(name))), None)


def _count(data: dict[str, Any], *names: str) -> int | None:
    values = (data.get(name) for name in names)
    return next((value for value in values if is_number(value) and type(value) is int and value > 0), None)


def _dll_records(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.startswith("DLLL {"):
            continue
        try:
            record = parse_json(line.removeprefix("DLLL "))
        except ValueError:
            continue  # the line that a killed run tore
        if isinstance(record, dict) and isinstance(record.get("data"), dict):
            yield record


def _clock_seconds(text: str) -> float | None:
    """Seconds of Python's timedelta: 1 day, 2:03:04. None for what is no such time."""
    result = re.match(r"(?:(\d{1,9}) days?, )?(\d{1,9}):(\d{1,2}):(\d{1,2})", text.strip())
    if result is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in result.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
