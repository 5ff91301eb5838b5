"""A log -> a Row: time to train, epochs, images a second, evaluations, final quality; and what several runs of one system make.

Steady rate: training images over the median time from epoch_start to epoch_stop, the first epoch left out; logs without epochs (Intel
Habana's) are counted in blocks, from block_start to eval_start. That is how the fact sheets' numbers were made from published logs.
Of ours the events beside the log are asked first, then the steps done: a block only plans its epochs, and may hold an interruption.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from paceline._utils.errors import PacelineError
from paceline._utils.safe_read import parse_json, read_plain
from paceline.tools.mlperf.logs import (
    MAX_BYTES,
    MIN_FOR_MEAN,
    OURS,
    TOKEN,
    LogSummary,
    MLLogLine,
    get_benchmark,
    get_value,
    is_number,
    mllog_lines,
    olympic_mean,
    read_text,
    read_upstream_log,
)
from paceline.training.logging.events import read_events

# Published Mask R-CNN logs have the number of iterations as train_samples.
ITERATIONS_AS_SAMPLES, COCO_IMAGES = "maskrcnn", 117_266


def analyze_log(path: Path, accelerators: int = 0) -> LogSummary:
    """One log's row.

    accelerators  how many there were; 0 = as the log, or the system description of its submission, says
    Raises DataError for a file that is none of the logs known.
    """
    text = read_text(path)
    if TOKEN.rstrip() not in text:
        return read_upstream_log(path, text, accelerators)
    return _mllog_row(path, mllog_lines(path, text), accelerators)


def summarize_groups(rows: Sequence[LogSummary]) -> list[LogSummary]:
    """For several runs of one system on one benchmark in one folder: MLPerf's mean of their times, the medians of the rest.

    A run that missed its target counts as the slowest; with fewer than three there is no such mean.
    """
    groups: dict[tuple[str, str, str], list[LogSummary]] = {}
    for row in rows:
        groups.setdefault((_group(row.file), row.system, row.benchmark), []).append(row)
    return [_summary(folder, group) for (folder, _, _), group in groups.items() if len(group) > 1]


def _group(file: str) -> str:
    """The folder that several runs share: of result_N.txt, or of trial-N/."""
    folder = Path(file).parent
    return str(folder.parent if re.fullmatch(r"trial-\d+", folder.name) else folder)


def _summary(folder: str, rows: Sequence[LogSummary]) -> LogSummary:
    reached = [row.minutes if row.status == "success" and row.minutes is not None else math.inf for row in rows]
    mean = olympic_mean(reached) if len(rows) >= MIN_FOR_MEAN else None
    names = {name for row in rows for name in row.quality}
    return replace(
        rows[0],
        file=f"{folder} ({len(rows)} runs)",
        status=f"{sum(math.isfinite(one) for one in reached)} of {len(rows)} reached the target",
        minutes=mean if mean is not None and math.isfinite(mean) else None,
        epochs=_median(row.epochs for row in rows),
        images_per_second=_median(row.images_per_second for row in rows),
        evaluations=None,
        eval_seconds=_median(row.eval_seconds for row in rows),
        quality={
            name: value for name in sorted(names) if (value := _median(row.quality.get(name) for row in rows)) is not None
        },
    )


def _median(values: Iterable[float | None]) -> float | None:
    results = [value for value in values if value is not None]
    return median(results) if results else None


def _mllog_row(path: Path, lines: Sequence[MLLogLine], accelerators: int) -> LogSummary:
    ours = any(_text(line.metadata.get("file")).startswith(OURS) for line in lines)
    benchmark = get_benchmark(path, lines)
    start = next((line.ms for line in lines if line.key == "run_start"), None)
    stop = next((line for line in reversed(lines) if line.key == "run_stop"), None)
    evaluations = [line for line in lines if line.key == "eval_accuracy"]
    times = list(_pairs(lines, "eval_start", "eval_stop", "epoch_num"))
    batch = get_value(lines, "global_batch_size")
    images = get_value(lines, "train_samples")
    if benchmark == ITERATIONS_AS_SAMPLES and not ours:
        images = COCO_IMAGES
    description = _description(path)
    platform = _text(get_value(lines, "submission_platform"))
    done = batch / images if ours and is_number(batch) and is_number(images) and images > 0 else None
    seconds = _epoch_seconds(lines, done)
    rate = _events_rate(path) if ours else None
    if rate is None:
        rate = images / seconds if is_number(images) and seconds else None
    return LogSummary(
        file=str(path),
        written_by="paceline" if ours else "MLPerf submission",
        system=(not ours and description.get("system"))
        or f"{_text(get_value(lines, 'submission_org'))} {platform}".strip(),
        benchmark=benchmark,
        status=_text(stop.metadata.get("status")) if stop is not None else "no run_stop",
        accelerators=accelerators or description.get("accelerators") or _told_accelerators(lines, batch),
        global_batch_size=int(batch) if is_number(batch) else None,
        minutes=(stop.ms - start) / 60_000 if start is not None and stop is not None else None,
        epochs=next(
            (line.metadata["epoch_num"] for line in reversed(evaluations) if is_number(line.metadata.get("epoch_num"))),
            None,
        ),
        images_per_second=rate,
        evaluations=len(evaluations),
        eval_seconds=sum(times) if times else None,
        quality=_quality(evaluations[-1].value) if evaluations else {},
    )


def _quality(value: Any) -> dict[str, float]:
    if is_number(value):
        return {"accuracy": float(value)}
    if isinstance(value, dict):
        return {_text(name): float(part) for name, part in value.items() if is_number(part)}
    return {}


def _text(value: Any) -> str:
    """A text as any terminal and file can hold it: JSON may escape half a character."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _events_rate(log: Path) -> float | None:
    """Images a second by the train events beside a run's log: neither what was only planned nor an interruption is in them."""
    events = log.with_name("events.jsonl")
    if not events.is_file():
        return None
    with suppress(PacelineError):  # damaged: the log itself says something
        told = [event.get("images_per_second") for event in read_events(events) if event["event"] == "train"]
        results = [rate for rate in told if is_number(rate) and 0 < rate < math.inf]
        return median(results[1:] or results) if results else None
    return None


def _epoch_seconds(lines: Sequence[MLLogLine], step_epochs: float | None = None) -> float | None:
    """Seconds of the median epoch, evaluation left out.

    step_epochs   epochs of a step, where blocks are counted by the steps that were taken: a block only plans its epochs
    """
    results = [seconds for seconds in _pairs(lines, "epoch_start", "epoch_stop", "epoch_num") if seconds > 0]
    if results:
        return median(results[1:] or results)
    blocks: list[float] = []
    begun: MLLogLine | None = None
    for line in lines:
        if line.key == "block_start":
            begun = line
        elif line.key == "eval_start" and begun is not None:
            count = begun.metadata.get("epoch_count")
            first, last = begun.metadata.get("step_num"), line.metadata.get("step_num")
            if step_epochs and first is not None and last is not None and is_number(first) and is_number(last):
                count = (last - first) * step_epochs
            if is_number(count) and count > 0 and line.ms > begun.ms:
                blocks.append((line.ms - begun.ms) / 1000 / count)
            begun = None
    return median(blocks[1:] or blocks) if blocks else None


def _pairs(lines: Sequence[MLLogLine], start: str, stop: str, by: str) -> Iterator[float]:
    """Seconds from each first `start` to the first `stop` of the same number; every rank may have written its own."""
    begun: dict[Any, float] = {}
    over: set[Any] = set()
    for line in lines:
        number = line.metadata.get(by)
        if not is_number(number) or number in over:
            continue
        if line.key == start:
            begun.setdefault(number, line.ms)
        elif line.key == stop and number in begun:
            over.add(number)
            yield (line.ms - begun[number]) / 1000


def _told_accelerators(lines: Sequence[MLLogLine], batch: Any) -> int | None:
    """As our log has it beside the platform, or from the batch of one device, or the ranks that each wrote init_start.

    A platform's name tells nothing: "1xDGX H100" counts nodes. Nor does a single init_start: rank 0 may have written for all.
    """
    counted = next((line.metadata.get("accelerators") for line in lines if line.key == "submission_platform"), None)
    if type(counted) is int and counted > 0:
        return counted
    each = get_value(lines, "d_batch_size")
    if is_number(each) and is_number(batch) and each >= 1 and batch % each == 0:
        return int(batch // each)
    begun = sum(line.key == "init_start" for line in lines)
    return begun if begun > 1 else None


def _description(path: Path) -> dict[str, Any]:
    """The system of a log that lies as MLPerf publishes it: SUBMITTER/results/SYSTEM/BENCHMARK/result_N.txt.

    Runs of ours may lie in such folders by chance: they are called as their own lines say.
    """
    parts = path.absolute().parents
    if len(parts) < 4 or parts[2].name != "results":
        return {}
    submitter, system = parts[3], parts[1].name
    result: dict[str, Any] = {"system": f"{submitter.name} {system}"}
    try:
        content = read_plain(submitter / "systems" / f"{system}.json", MAX_BYTES)
        facts = parse_json(content.decode("utf-8", "replace"))
        count = int(facts["number_of_nodes"]) * int(facts["accelerators_per_node"])
        if is_number(count) and count > 0:
            result["accelerators"] = count
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return result  # without it the log itself is asked
    return result
