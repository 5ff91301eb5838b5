"""events.jsonl: everything that happened in a run, one JSON object a line. Console, trackers and report read these.

Every event has
    event    its kind, one of the six below
    step     optimizer steps done so far; in an eval event those of the weights that were scored
    epoch    passes over the training set done so far (may be fractional)
    seconds  wall-clock time since the run began; a resumed run continues counting

The facts of each kind are the fields of its class, below; those that are not known are left out.

Events may have more facts. Numbers are not rounded. JSON has no NaN, so a number that is not finite is written as the string "nan",
"inf" or "-inf"; `read_events` returns numbers again.
A line's last key, crc, is the CRC-32 of the line without it, as 8 hex digits. A line that does not fit its own, has none,
or does not follow this schema is damaged: readers leave it out and name it, and resuming cuts it.
"""

from __future__ import annotations

import json
import math
import numbers
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from paceline._utils.errors import PacelineError
from paceline._utils.journal import MAX_BYTES, LineWriter, name_lines
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.safe_read import parse_json, read_entry
from paceline.distributed.comm.exit_code import EXIT_CODES

# Fields whose entries stand in the event under their own names -> those that are always there.
_SPREAD = {"losses": {"loss": "number"}, "metrics": {}}


class RunEvent:
    """Something that happened in a run. A fact that is None is not known, and is not written."""

    kind: ClassVar[str]

    def facts(self) -> dict[str, Any]:
        """What the event has besides its kind, step, epoch and seconds."""
        facts: dict[str, Any] = {}
        for name, value in vars(self).items():
            facts |= value if name in _SPREAD else {name: value} if value is not None else {}
        return facts


@dataclass(frozen=True, kw_only=True)
class TrainEvent(RunEvent):
    """Record an interval of training, every `--log-every N` steps.

    With `--system.cuda-graph on`, step times, rank times, gradient norms, and update ratios are not measured.
    """

    kind = "train"

    lr: float  # base learning rate
    samples: int  # images since the start
    images_per_second: float  # of all ranks, without evaluations
    data_wait: float  # fraction of the interval in which rank 0 waited for images, 0 to 1
    # of all ranks, forward and backward; a multiplication and its addition count as two, and elementwise operations as none
    flop_per_second: float | None = None
    recompilations: int | None = None  # graphs of a compiled network that were compiled after the warm-up
    # `loss`, `loss_NAME`: means over the interval of the loss and its parts; with `--model.log-rcnn-accuracies`, also GluonCV's
    # training metrics `rpn_acc`, `rpn_l1`, `rcnn_acc`, `rcnn_l1`, `mask_acc`, and `mask_fg_acc`
    losses: Mapping[str, float]
    # on accelerators: `unsettled_boxes`, the number of proposals that NMS left undecided
    approximated: Mapping[str, int] | None = None
    skipped_steps: int | None = None  # with a loss scale: steps so far whose gradient was not finite
    late_captures: int | None = None  # with CUDA graphs: steps of this process that were captured after the warm-up
    # mean times of a step on rank 0: `forward`, `backward`, `exchange` (waiting for the gradient exchange), `update`
    step_seconds: Mapping[str, float] | None = None
    gradient_norm: float | None = None  # of the last step, before clipping
    update_ratio: float | None = None  # of the last step: norm of the update divided by that of the weights
    gradient_norms: Mapping[str, float] | None = None  # `gradient_norm` of each part of the network
    update_ratios: Mapping[str, float] | None = None  # `update_ratio` of each part of the network
    # ratio of `gradient_norm` to the median of the 20 values before, if it is at least 10
    gradient_spike: float | None = None
    # largest number of bytes used by any rank so far: tensors on an accelerator, the process on a CPU
    peak_memory: int | None = None
    rank_seconds: Sequence[float] | None = None  # with several ranks: time of each rank for its own part of a step
    slowest_rank: int | None = None  # rank with the longest time in `rank_seconds`


@dataclass(frozen=True, kw_only=True)
class EvalEvent(RunEvent):
    """Record the result of an evaluation, when it is known. `step` is the step of the evaluated weights.

    This event comes after the event of its checkpoint and before any event of a later step. The best result, and whether a target was
    met, follow from these events only.
    """

    kind = "eval"

    images: int  # number of evaluated images
    eval_seconds: float  # time of the evaluation
    metrics: Mapping[str, float]  # `top1`, `top5`, `box_ap`, `mask_ap`, ...: the metrics, as fractions from 0 to 1
    # seconds of inference, of the gather to rank 0, and of scoring, which may run during training
    eval_parts: Mapping[str, float] | None = None
    # if the run ends with this evaluation: steps that were trained while it was scored, and are discarded
    discarded_steps: int | None = None
    # on accelerators: `unsettled_boxes`, boxes that NMS left undecided, and `candidates_left_out`, detections beyond its limit
    approximated: Mapping[str, int] | None = None
    # for detection: `threshold` with the best F1 on these images, with `f1`, `precision`, `recall`, and `iou`; absent if every F1 is 0
    best_f1: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(RunEvent):
    """Record that a checkpoint is being written."""

    kind = "checkpoint"

    name: str  # folder in `RUN/checkpoints`


@dataclass(frozen=True, kw_only=True)
class WarmUpEvent(RunEvent):
    """Record the warm-up before the first step on an accelerator or with a compiled network, also in a resumed run."""

    kind = "warm_up"

    shapes: int  # number of input shapes, each of which ran once
    warm_up_seconds: float  # time of the warm-up
    micro_batch_size: int  # largest size that fits
    memory_estimate: int  # estimated bytes for this size
    compilations: int  # compiled graphs
    captures: int  # captured steps
    peak_memory: int | None = None  # on accelerators: largest number of bytes used by any rank


@dataclass(frozen=True, kw_only=True)
class ResumeEvent(RunEvent):
    """Record that the run resumes from a checkpoint."""

    kind = "resume"

    checkpoint: str  # name of the checkpoint
    world_size: int  # number of ranks from here on
    after: str | None = None  # status of the run, if it had ended before


@dataclass(frozen=True, kw_only=True)
class EndEvent(RunEvent):
    """Record the end of the run. A resumed run has no such event until it ends again."""

    kind = "end"

    evaluations_since_best: int = 0  # number of evaluations since the best one
    # `success` (the target was reached, or a run without a target is complete), `ran_out` (complete or ended by `--patience`, without
    # the target), `stopped_early` (by `--max-steps` or `--max-time`), `interrupted` (can be resumed), or `failed`
    status: str
    best: Mapping[str, float]  # best value of each metric
    reason: str = ""  # why the run ended
    discarded_steps: int = 0  # steps after the evaluation that ended the run; `step` is the step of that evaluation
    # 95% intervals of the best evaluation, `{metric: [low, high]}`, if it has at most 1,000 images and the run was not interrupted
    intervals: Mapping[str, Sequence[float]] | None = None
    intervals_step: int | None = None  # step of the best evaluation
    joules: int | None = None  # energy of all training nodes since this start
    joules_by: Any = None  # meters that measured it
    # with `--sync-to`: URL, bytes sent, failures, and missing files with the reason
    mirror: Mapping[str, Any] | None = None


_TYPES = {"float": "number", "int": "int", "str": "str", "Mapping[str, float]": "dict"}
# Required fields of each kind: field -> type of value. "number" includes the non-finite ones.
SCHEMA: dict[str, dict[str, str]] = {
    event.kind: {
        name: kind
        for one in fields(event)
        if one.default is MISSING
        for name, kind in _SPREAD.get(one.name, {one.name: _TYPES[str(one.type)]}).items()
    }
    for event in (TrainEvent, EvalEvent, CheckpointEvent, WarmUpEvent, ResumeEvent, EndEvent)
}
# Fields that a clock or a machine decides: all others are alike in two runs that are alike.
MEASURED = (
    *("seconds", "images_per_second", "data_wait", "eval_seconds", "flop_per_second", "peak_memory", "rank_seconds"),
    *("slowest_rank", "step_seconds", "eval_parts", "recompilations", "late_captures", "warm_up_seconds", "joules"),
)
# A meter NAME with a meter NAME/count is the quotient of the two.
COUNT = "/count"
COMMON = {"event": "str", "step": "int", "epoch": "number", "seconds": "number"}
# Losing one of these to a power cut would mislead a resumed run or a launcher.
DURABLE = ("eval", "checkpoint", "resume", "end")

_CHECKED = re.compile(r"""(\{.*), "crc": "([0-9a-f]{8})"\}""")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class EventLog:
    """Appends events to a file such as RUN/events.jsonl. One process writes it: rank 0."""

    def __init__(self, path: Path) -> None:
        self._lines = LineWriter(path)

    def write(self, event: str, *, step: int, epoch: float, seconds: float, **facts: Any) -> dict[str, Any]:
        """Append one event and return it as written. Facts are numbers, strings, lists or dicts of these, or None.

        Raises ValueError where it does not follow SCHEMA, PacelineError where the file cannot be written.
        """
        record = to_json_value({"event": event, "step": step, "epoch": epoch, "seconds": seconds, **facts})
        if problems := find_schema_problems(record):
            raise ValueError(f"event {record!r}: {'; '.join(problems)}")
        self._lines.append(_with_crc(format_event(record)), durable=event in DURABLE)
        return record

    def damage(self) -> list[str]:
        """Damage of the file when it was opened, in lines for people; [] for none."""
        damaged = [number for number, line in enumerate(self._lines.lines(), start=1) if _parsed(line) is None]
        results = [_damage_text(self._lines.path, damaged)] if damaged else []
        if self._lines.torn:
            results.append(f"{self._lines.path}: the last line was truncated and is removed. The run may have been killed.")
        return results

    def truncate_after(self, step: int) -> int:
        """Cut what a run resumed after `step` will do again, every `end`, and damaged lines; -> how many. The rewrite is atomic."""

        def keep(line: str) -> bool:
            record = _parsed(line)
            return record is not None and record["event"] != "end" and record["step"] <= step

        return self._lines.rewrite(keep)


def read_events(path: Path, reporter: Reporter = SILENT) -> list[dict[str, Any]]:
    """Every whole event of the file, in order; [] where there is no file.

    Damaged lines are left out with a warning; a last line torn by a kill without one. Raises PacelineError where it cannot be read.
    """
    try:
        lines = read_entry(path, MAX_BYTES).decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PacelineError(
            f"{path}: the file is not readable ({error.strerror}). Move it away and run the same command again."
        ) from None
    records = [_parsed(line) for line in lines]
    damaged = [number for number, record in enumerate(records[:-1], start=1) if record is None]
    if damaged:
        reporter.warning(_damage_text(path, damaged))
    return [from_json_value(record) for record in records if record is not None]


def get_metrics(event: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an `eval` event: its numbers, less those that every evaluation has."""
    known = {*COMMON, *SCHEMA["eval"], "discarded_steps"}
    return {name: from_json_value(value) for name, value in event.items() if name not in known and _is("number", value)}


def get_numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event for trackers, by names such as train/loss and eval/top1; {} for kinds other than these two."""
    if event["event"] == "train":
        values = {name: value for name, value in event.items() if name not in COMMON and name != "samples"}
    else:
        values = get_metrics(event) if event["event"] == "eval" else {}
    numbers = {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {f"{event['event']}/{name}": value for name, value in numbers.items()}


def loss_facts(means: Mapping[str, float]) -> dict[str, float]:
    """Facts of a train event from the meters' means: loss, its parts as loss_NAME, and quotients, but for 0 / 0."""
    facts = {}
    for name, value in means.items():
        if name + COUNT in means:
            facts |= {name: value / means[name + COUNT]} if means[name + COUNT] else {}
        elif not name.endswith(COUNT):
            facts["loss" if name == "loss" else f"loss_{name}"] = value
    return facts


def find_schema_problems(record: Mapping[str, Any]) -> list[str]:
    """Problems of an event, in words; [] when it follows SCHEMA."""
    kind = record.get("event")
    if kind not in SCHEMA:
        return [f"unknown event {kind!r}; expected one of {', '.join(SCHEMA)}"]
    wanted = {**COMMON, **SCHEMA[kind]}
    problems = [f"{name} is missing" for name in wanted if name not in record]
    problems += [
        f"{name} is {record[name]!r}, not a {type_name}"
        for name, type_name in wanted.items()
        if name in record and not _is(type_name, record[name])
    ]
    if kind == "end" and record.get("status") not in EXIT_CODES:
        problems.append(f"status must be one of {', '.join(EXIT_CODES)}, got {record.get('status')!r}")
    if kind == "eval" and not get_metrics(record):
        problems.append("the evaluation has no metric")
    return problems


def to_json_value(value: Any) -> Any:
    """The same value for JSON: numpy and torch scalars as numbers, non-finite ones and paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, numbers.Real) and hasattr(value, "item"):  # a tensor or array of one element
        return to_json_value(value.item())
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    raise ValueError(f"{value!r} ({type(value).__name__}) is not serializable as JSON")


def from_json_value(value: Any) -> Any:
    """The inverse of `to_json_value`: strings of non-finite numbers become numbers again."""
    if isinstance(value, dict):
        return {key: from_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def format_event(record: Mapping[str, Any]) -> str:
    """An event as one line of JSON."""
    return json.dumps(record, allow_nan=False)


def _is(type_name: str, value: Any) -> bool:
    if type_name == "number":
        return (isinstance(value, int | float) and not isinstance(value, bool)) or value in tuple(_NON_FINITE)
    if type_name == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, {"str": str, "dict": dict}[type_name])


def _with_crc(text: str) -> str:
    """A JSON object's text with its CRC as the last key."""
    return f'{text[:-1]}, "crc": "{zlib.crc32(text.encode()):08x}"}}'


def _parsed(line: str) -> dict[str, Any] | None:
    """The event of a line, without its CRC; None for a line that is not as it was written."""
    result = _CHECKED.fullmatch(line)
    if result is None or zlib.crc32(f"{result[1]}}}".encode(errors="surrogateescape")) != int(result[2], 16):
        return None
    try:
        record = parse_json(f"{result[1]}}}")
    except ValueError:
        return None
    return record if isinstance(record, dict) and not find_schema_problems(record) else None


def _damage_text(path: Path, damaged: list[int]) -> str:
    return f"{path}: {name_lines(damaged)} damaged (checksum mismatch) and ignored"
