"""How many training images a second published runs reached on one accelerator: what an input has to deliver to keep it busy.

Source: MLPerf Training's result logs, computed from `tracked_stats` (training alone) where a log has it, else over the whole run,
evaluations included, which is a few percent less: closed division, eight accelerators unless noted.
    classification  H100 and H200 v4.0 (NVIDIA MXNet), A100 v2.0, L40S v4.0, A30 v2.0 (2), Gaudi2 v3.1 (whole run);
                    V100: NVIDIA's DeepLearningExamples, PyTorch, 16 GB, one of one
    maskrcnn        H100 v3.0, A100 v2.1; V100: detectron2's own page, 62 images/s on eight
    ssd             A100 v1.1 (MXNet); nobody has published one on newer hardware
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.config.errors import RecipeError

# workload -> accelerator -> images a second of one.
RATES: dict[str, dict[str, float]] = {
    "classification": {
        "h100": 7165, "h200": 7950, "a100": 3397, "l40s": 1854, "a30": 1596, "gaudi2": 5875, "v100": 1200,
    },
    "maskrcnn": {"h100": 180, "a100": 86.4, "v100": 7.75},
    "ssd": {"a100": 1529},
}  # fmt: skip
MOST_ACCELERATORS, MOST_RATE = 1024, 1e7


class Demand(NamedTuple):
    """What accelerators ask of their input."""

    name: str  # in words
    rate: float  # images a second, of all together


def demand(text: str, task: str) -> Demand:
    """What `--emulate` means: "h200", "h200:8" or images a second such as "2500".

    Raises RecipeError for anything else, naming the accelerators whose rate in this workload is known.
    """
    name, colon, count = text.strip().lower().partition(":")
    known = RATES.get(task, {})
    try:
        if name in known:
            number = int(count) if colon else 1
            if 1 <= number <= MOST_ACCELERATORS:
                return Demand(f"{number} x {name}", known[name] * number)
        elif not colon and 0 < float(name) <= MOST_RATE:
            return Demand(f"{float(name):g} images/s", float(name))
    except ValueError:  # it is neither
        pass
    names = f"NAME or NAME:COUNT with one of {', '.join(known)}, or " if known else ""
    raise RecipeError(f"--emulate {text!r}: write {names}images a second, e.g. --emulate 2500.")
