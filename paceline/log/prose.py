"""Numbers as people read them: on the console, in captions and in the report.

Files hold the numbers themselves; only what a person reads passes through here.
"""

from __future__ import annotations

import math

# Rates of right answers are read in percent; COCO's averages are read in points without a sign, as in papers.
_PERCENT = ("top1", "top5", "accuracy")


def metric_label(name: str) -> str:
    """A metric's short name: box_ap -> box, mask_ap50 -> mask50, top1 -> top1."""
    return name.replace("_ap", "", 1) if "_ap" in name else name


def metric_text(name: str, value: float) -> str:
    """A metric's value with its unit: top1 0.7123 -> '71.23 %', box_ap 0.0841 -> '8.4'; others keep 4 digits."""
    if not math.isfinite(value):
        return str(value)
    if name in _PERCENT:
        return f"{100 * value:.2f} %"
    return f"{100 * value:.1f}" if "_ap" in name or name.startswith("ap") else f"{value:.4g}"


def target_text(name: str, value: float) -> str:
    """A quality target as it was set: top1 0.759 -> '75.9 %', box_ap 0.23 -> '23'."""
    if name in _PERCENT:
        return f"{100 * value:g} %"
    return f"{100 * value:g}" if "_ap" in name or name.startswith("ap") else f"{value:g}"


def duration(seconds: float | None) -> str:
    """Seconds as people say them: 41 s, 3 min 20 s, 2 h 05 min, 3 d 4 h; 0.42 s below ten seconds; '-' for unknown."""
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


def quantity(value: float) -> str:
    """A rate or count, thousands grouped: 0.42, 7.3, 85, 1,234."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 10 else f"{value:,.0f}"
