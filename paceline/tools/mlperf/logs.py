"""MLPerf's logs as they lie about: of our runs, of published submissions, with a launcher's words in front of each line; and others'.

Whoever wrote them, they are data: sizes are bounded, every line is judged before anything is made of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any, TypeGuard

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.safe_read import parse_json, read_plain

MAX_BYTES = 2**28  # published logs have up to 4 MB
TOKEN = ":::MLLOG "
OURS = "paceline/"  # what the file names in our own lines start with
WHOLE = r"(?<!\d)(\d{1,15})(?!\d)"  # more digits are no count of anything here
NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"


@dataclass(frozen=True)
class MLLogLine:
    """One :::MLLOG line."""

    ms: float  # since 1970
    key: str
    value: Any
    metadata: dict[str, Any]


def find_logs(words: Sequence[str], kind: str) -> list[Path]:
    """The log files that the words mean: files, run folders, folders of trials (trial-N/) or of a submission (result_N.txt).

    kind  what asks for them: check or analyze
    Raises PacelineError for a word that means none, and for no words.
    """
    if not words:
        raise PacelineError(f"a run folder or a log is required:  paceline mlperf {kind} RUN|FILE")
    return [file for word in words for file in _logs_of(Path(word).expanduser())]


def _logs_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]  # what is wrong with it, its reader says
    if (path / "mllog.txt").exists():
        return [path / "mllog.txt"]
    for pattern in ("trial-*/mllog.txt", "result_*.txt"):
        if results := sorted(path.glob(pattern), key=lambda file: (len(str(file)), str(file))):
            return results
    raise PacelineError(f"{path}: mllog.txt, trial-N/mllog.txt, or result_N.txt not found. Pass a run folder or a log.")


def read_text(path: Path) -> str:
    """A log's text. Raises DataError for what is no file, is empty, or is larger than any log."""
    try:
        content = read_plain(path, MAX_BYTES)
    except OSError as problem:
        raise DataError(f"{path}: the log cannot be read ({problem.strerror or problem}). Pass a file.") from None
    if not content.strip():
        raise DataError(f"{path}: the log is empty. Pass another log.")
    return content.decode("utf-8", "replace")


def read_mllog(path: Path) -> list[MLLogLine]:
    """Every :::MLLOG line of a log, in order.

    Raises DataError for a file without any, naming whose log it looks like, and for a line that is cut or is none.
    """
    return mllog_lines(path, read_text(path))


def mllog_lines(path: Path, text: str) -> list[MLLogLine]:
    """The same of a text that was read already."""
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        if TOKEN.rstrip() not in line:
            continue
        result = _parsed(line.partition(TOKEN)[2])
        if result is None:
            ours = f'"file": "{OURS}' in text  # others' runs cannot go on
            advice = (
                "Resume its run with the same --output-dir to repair the log, or pass another log."
                if ours
                else "Pass another log."
            )
            raise DataError(f"{path}: line {number} is not a :::MLLOG line. The log is truncated or damaged. {advice}")
        lines.append(result)
    if not lines:
        name = identify_log(text)
        whose = f"This is a log of {name}; use `paceline mlperf analyze`" if name else "This is not an MLPerf log"
        raise DataError(f"{path}: no line with {TOKEN.strip()} found. {whose}.")
    return lines


def identify_log(text: str) -> str:
    """Whose log a text without :::MLLOG lines looks like; empty where it is nobody's."""
    return next((name for name, (looks, _) in FOREIGN.items() if looks.search(text)), "")


def _parsed(text: str) -> MLLogLine | None:
    try:
        record = parse_json(text)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    ms, key, metadata = record.get("time_ms"), record.get("key"), record.get("metadata")
    if not is_number(ms) or not isinstance(key, str):
        return None
    if not isinstance(metadata, dict) or "value" not in record:
        return None
    return MLLogLine(float(ms), key, record["value"], metadata)


def get_value(lines: Sequence[MLLogLine], key: str) -> Any:
    """The value of the first line with this key; None without one."""
    return next((line.value for line in lines if line.key == key), None)


def get_benchmark(path: Path, lines: Sequence[MLLogLine]) -> str:
    """Which benchmark a log is of. Raises DataError where it does not say."""
    benchmark = get_value(lines, "submission_benchmark")
    if not isinstance(benchmark, str) or not benchmark.isidentifier():
        raise DataError(f"{path}: the log has no benchmark name (submission_benchmark), which selects the rules.")
    return benchmark


# One line of the table that logs are turned into, whoever wrote them.


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number that a float has room for. JSON has NaN, 1e999 and whole numbers of any length too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class LogSummary:
    """What one log tells; None is what it does not. Numbers that are not finite are left out: nothing can be told from them."""

    file: str
    written_by: str  # paceline, MLPerf submission, GluonCV, ...
    system: str = ""
    benchmark: str = ""
    status: str = ""  # success, aborted, or "" where the log has no such word
    accelerators: int | None = None
    global_batch_size: int | None = None
    minutes: float | None = None  # time to train: run_start to run_stop
    epochs: float | None = None  # trained, up to the evaluation that the quality is of
    images_per_second: float | None = None  # steady: of the median epoch, the first left out
    evaluations: int | None = None
    eval_seconds: float | None = None  # of all evaluations together
    quality: dict[str, float] = field(default_factory=dict)  # of the last evaluation

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int | float) and not is_number(value):
                object.__setattr__(self, entry.name, None)
        quality = {name: value for name, value in self.quality.items() if is_number(value)}
        object.__setattr__(self, "quality", quality)

    @property
    def per_accelerator(self) -> float | None:
        """Images a second of one accelerator."""
        if self.images_per_second is None or not self.accelerators:
            return None
        return self.images_per_second / self.accelerators

    def facts(self) -> dict[str, object]:
        """For JSON, and for CSV where each metric of the quality has a column."""
        result = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        quality = result.pop("quality")
        return {**result, "images_per_second_per_accelerator": self.per_accelerator, "quality": quality}


# Fewer runs have no middle once two are dropped.
MIN_FOR_MEAN = 3


def olympic_mean(seconds: Sequence[float]) -> float:
    """The mean without the fastest and the slowest; infinite where a failed run is left. At least three are needed."""
    inner = sorted(seconds)[1:-1]
    return sum(inner) / len(inner)


# Logs of other trainings, as their programs print them -> a row each. What a log does not tell stays empty.
#
# GluonCV      scripts/instance/mask_rcnn: "[Epoch 3][Batch 99], Speed: ...", speeds of all workers together
# Habana       TensorFlow SSD_ResNet34: "Epoch 3 finished. Duration: 0:01:02 IPS: ..." of all cards, "COCO/AP value for step S = ..."
# DLLogger     NVIDIA's DeepLearningExamples: "DLLL {json}"
# Horovod      its synthetic benchmarks: "Total img/sec on 8 GPU(s): ..."
# MXNet        Module.fit and NVIDIA's fit.py: "Epoch[3] Time cost=...", "Epoch[3] Validation-accuracy=..."


def read_upstream_log(path: Path, text: str, accelerators: int) -> LogSummary:
    """The row of a log without :::MLLOG lines. accelerators: as told; 0 = what the log says.

    Raises DataError for a log that is none of these.
    """
    name = identify_log(text)
    if not name:
        raise DataError(f"{path}: unknown log format. Expected an MLPerf log (:::MLLOG) or a log of {', '.join(FOREIGN)}.")
    facts: dict[str, Any] = {"file": str(path), "written_by": name, **FOREIGN[name][1](text)}
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
        "global_batch_size": _whole(rf"Namespace\(.*?\bbatch_size={WHOLE}", text),
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
        "global_batch_size": _whole(rf"'global_batch_size': {WHOLE}", text),
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
        "global_batch_size": _dll_batch(told, gpus),
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
        "global_batch_size": batch * int(count) if batch and count else None,
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


# What `paceline mlperf analyze` reads and `check` cannot: how each is told, and its reader.
FOREIGN: dict[str, tuple[re.Pattern[str], Callable[[str], dict[str, Any]]]] = {
    "GluonCV": (re.compile(r"\[Epoch \d+\]\[Batch \d+\], Speed: "), _gluoncv),
    "Habana's TensorFlow SSD": (re.compile(r"Epoch \d+ finished\. Duration: "), _habana),
    "NVIDIA's DLLogger": (re.compile(r"^DLLL \{", re.MULTILINE), _dllogger),
    "Horovod": (re.compile(r"Total img/sec on \d+ "), _horovod),
    "MXNet": (re.compile(r"Epoch\[\d+\] Time cost="), _mxnet),
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
