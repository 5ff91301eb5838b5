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
    """An interval of training, written after its last step."""

    kind = "train"

    lr: float
    samples: int  # images seen so far
    images_per_second: float
    data_wait: float  # share of the interval spent waiting for input, 0..1
    flop_per_second: float | None = None  # of all ranks, forward and backward, by the count of models/memory_estimate.py
    recompilations: int | None = None  # of a compiled network: graphs that the warm-up had not compiled
    # Means over the interval, each under its name: loss; loss_NAME of several parts; GluonCV's six accuracies where asked for.
    losses: Mapping[str, float]
    # On accelerators: unsettled_boxes, proposals whose suppression was left open.
    approximated: Mapping[str, int] | None = None
    skipped_steps: int | None = None  # of a scaled loss: steps so far whose gradient was not finite
    # Under --system.cuda-graph: steps so far of this process that the warm-up had not captured.
    late_captures: int | None = None
    # Where steps are not replayed, of a step on rank 0, means over the interval: forward, backward, exchange (of gradients, as far as
    # it is waited for), update.
    step_seconds: Mapping[str, float] | None = None
    # Of the interval's last step, where it is not replayed; the plural ones by part of the network.
    gradient_norm: float | None = None  # before clipping
    update_ratio: float | None = None  # norm of the update over the weights'
    gradient_norms: Mapping[str, float] | None = None
    update_ratios: Mapping[str, float] | None = None
    gradient_spike: float | None = None  # gradient_norm over the median of the readings before, from SPIKE times on
    peak_memory: int | None = None  # most bytes of any rank so far
    rank_seconds: Sequence[float] | None = None  # of several ranks: the part of a step that each computes
    slowest_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class EvalEvent(RunEvent):
    """The result of an evaluation, with the step of the weights that were scored.

    It is written when the result is known, after its checkpoint's event and before any event of a later step, so steps never run
    backwards. It is the last thing written of an evaluation: the best, the number of evaluations since, and whether a target was met
    follow from these events alone.
    """

    kind = "eval"

    images: int  # number scored
    eval_seconds: float
    metrics: Mapping[str, float]  # top1, top5, box_ap, mask_ap, ...: each under its name, as a fraction, 0..1
    # Of eval_seconds: inference, gather to rank 0, and scoring, which may run during training.
    eval_parts: Mapping[str, float] | None = None
    discarded_steps: int | None = None  # where the run ends with it: steps trained past it while it was being scored
    # On accelerators: unsettled_boxes as in train, of detections too; candidates_left_out, detections with enough score beyond the
    # number that suppression takes.
    approximated: Mapping[str, int] | None = None
    # Of boxes: iou, and the score (threshold) from which on F1 is best on these very photos, with f1, precision, recall; absent where
    # none has an F1 above 0 (models/metrics/detection_errors.py).
    best_f1: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(RunEvent):
    """A checkpoint is being written."""

    kind = "checkpoint"

    name: str  # of its folder under checkpoints/


@dataclass(frozen=True, kw_only=True)
class WarmUpEvent(RunEvent):
    """Before the first step of an accelerator or of a compiled network, in a resumed run again."""

    kind = "warm_up"

    shapes: int  # of the input, each of which was tried
    warm_up_seconds: float
    micro_batch_size: int  # those that fitted
    memory_estimate: int  # bytes that were expected for it
    compilations: int  # graphs that were compiled
    captures: int  # steps that were captured
    peak_memory: int | None = None  # on accelerators: most bytes of any rank


@dataclass(frozen=True, kw_only=True)
class ResumeEvent(RunEvent):
    """The run resumes from a checkpoint."""

    kind = "resume"

    checkpoint: str  # its name
    world_size: int  # number of ranks from here on
    after: str | None = None  # status of the `end` that stood here, where the run had ended and was given more


@dataclass(frozen=True, kw_only=True)
class EndEvent(RunEvent):
    """The end of a run; a resumed run has none until it ends again."""

    kind = "end"

    evaluations_since_best: int = 0
    # success (target reached, or no target and all work done), ran_out (ended without reaching it), stopped_early (--max-steps or
    # --max-time ended it before its length), interrupted (may be resumed) or failed
    status: str
    best: Mapping[str, float]  # the best value of every metric
    reason: str = ""
    discarded_steps: int = 0  # those of the evaluation that ended the run; `step` is that evaluation's
    # {metric: [low, high]} of the evaluation after intervals_step steps, the best: the ends of 95 percent over such sets of photos
    # (models/metrics/bootstrap.py); absent where there are more than 1,000 photos, and of an interrupted run
    intervals: Mapping[str, Sequence[float]] | None = None
    intervals_step: int | None = None
    joules: int | None = None  # energy since this start, of the meters named in joules_by
    joules_by: Any = None
    # With --sync-to: its url, bytes sent, failures, and missing: what is not there and why.
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
