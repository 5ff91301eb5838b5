"""Numbers as people read them, on the console, in captions and in the report. Files hold the numbers themselves."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Rates of right answers are read in percent; COCO's averages are read in points without a sign, as in papers.
_PERCENT = ("top1", "top5", "accuracy")
_COCO = re.compile(r"(box|mask)_(ap|ar)(\d*)(_small|_medium|_large)?")
# Kind of event -> what its measured parts belong to, and the field that holds them.
MEASURED = {"train": ("a step", "step_seconds"), "eval": ("an evaluation", "eval_parts")}


def format_metric_name(name: str) -> str:
    """A metric's name as papers write it: box_ap -> box AP, mask_ap50 -> mask AP50, box_ar_small -> box AR small."""
    coco = _COCO.fullmatch(name)
    if coco is None:
        return name
    what, kind, number, size = coco.groups()
    return f"{what} {kind.upper()}{number}{(size or '').replace('_', ' ')}"


def format_metric(name: str, value: float) -> str:
    """A metric's value with its unit: top1 0.7123 -> '71.23 %', box_ap 0.0841 -> '8.4'; others keep 4 digits.

    COCO's -1, for a size or class without any object, is 'n/a'.
    """
    if not math.isfinite(value):
        return str(value)
    if name in _PERCENT:
        return f"{100 * value:.2f} %"
    if _COCO.fullmatch(name):
        return "n/a" if value < 0 else f"{100 * value:.1f}"
    return f"{value:.4g}"


def format_target(name: str, value: float) -> str:
    """A quality target as it was set: top1 0.759 -> '75.9 %', box_ap 0.23 -> '23'."""
    if name in _PERCENT:
        return f"{100 * value:g} %"
    return f"{100 * value:g}" if _COCO.fullmatch(name) else f"{value:g}"


def select_leading_metrics(names: Iterable[str]) -> list[str]:
    """The metrics of an evaluation that one line or one chart has room for.

    From COCO's twelve AP, AP50 and AP75; where boxes and masks were scored, AP of both, then AP50 of both.
    """
    split = [(name, _COCO.fullmatch(name)) for name in names]
    both = {coco[1] for _, coco in split if coco} == {"box", "mask"}
    kept = [(name, coco) for name, coco in split if coco is None or (coco[2] == "ap" and not coco[4])]
    if not both:
        return [name for name, _ in kept]
    kept = [(name, coco) for name, coco in kept if coco is None or coco[3] in ("", "50")]
    return [name for name, _ in sorted(kept, key=lambda pair: pair[1] is not None and pair[1][3] == "50")]


def format_duration(seconds: float | None) -> str:
    """Seconds in words: 41 s, 3 min 20 s, 2 h 05 min, 3 d 4 h; 0.42 s below ten seconds; '-' for unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 60:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} min {whole % 60:02d} s"
    if days == 0:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{days} d {hours % 24} h"


def format_bytes(number: int) -> str:
    """Bytes in words: 12.3 GiB, 45.6 MiB, 78.9 KiB, 12 bytes."""
    if number < 2**10:
        return f"{number} bytes"
    if number >= 2**30 / 10:
        return f"{number / 2**30:,.1f} GiB"
    return f"{number / 2**20:,.1f} MiB" if number >= 2**20 / 10 else f"{number / 2**10:,.1f} KiB"


def format_quantity(value: float) -> str:
    """A rate or count, thousands grouped: 0.42, 7.3, 85, 1,234."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 10 else f"{value:,.0f}"


def format_flop_rate(value: float) -> str:
    """Multiplications and additions a second: 85 MFLOP/s, 4.31 GFLOP/s, 1.02 PFLOP/s."""
    thousands = max(0, min(5, (len(str(int(value))) - 1) // 3)) if math.isfinite(value) else 0
    return f"{value / 1000**thousands:.3g} {' kMGTP'[thousands].strip()}FLOP/s"


def format_warm_up(event: Mapping[str, Any]) -> str:
    """A warm_up event in a line: how long it took, its results, and the memory that was needed beside the estimate."""
    shapes, graphs, captures = (event[name] for name in ("shapes", "compilations", "captures"))
    done = [f"warmed up {shapes} shape{'s'[: shapes > 1]} in {format_duration(event['warm_up_seconds'])}"]
    done += [f"{graphs} graph{'s'[: graphs > 1]} compiled"] if graphs else []
    done += [f"{captures} step{'s'[: captures > 1]} captured"] if captures else []
    if peak := event.get("peak_memory"):
        done.append(f"memory: {format_bytes(peak)} peak, {format_bytes(event['memory_estimate'])} estimated")
    return "; ".join(done)


def format_recompile_warning(graphs: int, step: int) -> str:
    """The warning that a network was compiled again after its warm-up."""
    return (
        f"warning: {graphs} graph{'s'[: graphs > 1]} compiled up to step {step:,}, for inputs that the warm-up did not cover. "
        "Each one takes seconds to minutes. See `recompilations` in events.jsonl; to log the reasons, set TORCH_LOGS=recompiles."
    )


def format_late_capture_warning(steps: int, step: int) -> str:
    """The warning that steps were captured after the warm-up."""
    return (
        f"warning: {steps} step{'s'[: steps > 1]} captured up to step {step:,}, for batches that the warm-up did not cover. Each one "
        "takes seconds, and memory until the end of the run. See `late_captures` in events.jsonl."
    )


def approximation_warning(kind: str, count: int, step: int | None = None) -> str:
    """The warning about what an accelerator's fixed shapes left out; kinds are those of batch.py's APPROXIMATED."""
    what = {
        "unsettled_boxes": "boxes were not resolved by NMS in the available rounds, so some duplicates may remain",
        "candidates_left_out": "detections above the score threshold were ignored, because of --model.detect.topk-candidates",
    }
    at = "" if step is None else f" (first at step {step:,}; see `approximated` in events.jsonl)"
    return f"warning: {count:,} {what.get(kind, kind)}{at}. On a CPU, no such limits apply."


def format_step_times(events: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """How long a step and an evaluation take in all, and the shares of their parts; medians over the events.

    return  "a step" -> ("0.085 s", "forward 46 %, backward 49 %, update 5 %"), the largest part first; only what was measured
    """
    result = {}
    for kind, (name, field) in MEASURED.items():
        parts = [event[field] for event in events if event["event"] == kind and event.get(field)]
        medians = {part: statistics.median(each.get(part, 0.0) for each in parts) for part in (parts[0] if parts else ())}
        if total := sum(medians.values()):
            largest = sorted((part for part in medians if medians[part]), key=medians.__getitem__, reverse=True)
            shares = ", ".join(f"{part} {100 * medians[part] / total:.0f}%" for part in largest)
            result[name] = (format_duration(total), shares)
    return result


def split_run_time(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """(what, seconds) of a run, which add up to its time; only what was measured, and the rest last."""
    spent: dict[str, float] = {}
    before = {"step": 0, "samples": 0}
    for event in events:
        if event["event"] == "train":
            steps, seconds = event["step"] - before["step"], 0.0
            if event["images_per_second"] > 0:
                seconds = (event["samples"] - before["samples"]) / event["images_per_second"]
            parts = {name: steps * each for name, each in event.get("step_seconds", {}).items()}
            parts["waiting for data"] = seconds * event["data_wait"]
            parts["other parts of steps" if len(parts) > 1 else "steps"] = max(0.0, seconds - sum(parts.values()))
            before = event
        elif event["event"] == "eval":
            parts = {"evaluations": event.get("eval_seconds") or 0.0}
        else:
            parts = {"warm-up": event["warm_up_seconds"]} if event["event"] == "warm_up" else {}
        for name, seconds in parts.items():
            spent[name] = spent.get(name, 0.0) + seconds
    rest = (events[-1]["seconds"] if events else 0.0) - sum(spent.values())
    results = sorted(((name, seconds) for name, seconds in spent.items() if seconds > 0), key=lambda one: -one[1])
    return [*results, *([("other: start, checkpoints, images", rest)] if results and rest > 0 else [])]
