"""Runs paired by their photos: what they found in the same ones, drawn anew together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.tasks.metrics.interval import difference
from paceline.tasks.metrics.stored import kind_of, read_predictions, stored_draws


def paired(one: Sequence[Path], other: Sequence[Path], metric: str) -> dict[str, Any]:
    """The interval of the difference, other minus one, over photos, or "why" there is none. Runs of a side are averaged draw by draw.

    The newest predictions of each run count: boxes to 0.01 pixel, and of an image the best 100 of all classes together.
    """
    loaded = [[found for folder in side if (found := _newest(folder)) is not None] for side in (one, other)]
    flat = [found for side in loaded for found in side]
    if not one or not other or len(flat) < len(one) + len(other):
        return {"why": "not every run has predictions that can be read"}
    if len({_photos(found) for found in flat}) > 1:
        return {"why": "they were scored on different photos or labels"}
    draws = [[stored_draws(found, kind_of(metric)) for found in side] for side in loaded]
    if not all(metric in drawn for side in draws for drawn in side):
        return {"why": f"photos are drawn for other metrics than {metric}"}
    means = [{metric: np.mean([drawn[metric] for drawn in side], axis=0)} for side in draws]
    found = difference(*means)
    if metric not in found:
        return {"why": "no draw has a value"}
    return {"interval": list(found[metric]), "photos": len(flat[0]["images"])}


def _newest(folder: Path) -> dict[str, Any] | None:
    files = sorted((folder / "predictions").glob("step-*.json"))
    return read_predictions(files[-1]) if files else None


def _photos(found: Mapping[str, Any]) -> str:
    """Equal exactly where photos and labels are, in their order."""
    return json.dumps(
        [found["classes"], *([image["file"], image.get("label", image.get("truth"))] for image in found["images"])]
    )
