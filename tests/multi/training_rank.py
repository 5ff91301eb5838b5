"""One rank of the small trainings: the real command line, with everything that a training imports already there.

WITHOUT_REPORT in its environment leaves the report out: it takes as long as the run, and has tests of its own.
"""

from __future__ import annotations

import os

import matplotlib.figure  # noqa: F401  the report draws with it
import torch._dynamo  # noqa: F401  the memory estimate's meta device brings it in
import tyro  # noqa: F401

from paceline.cli import main as front_door
from paceline.training.job import Job


def main(arguments: list[str] | None = None) -> int:
    if "WITHOUT_REPORT" in os.environ:
        Job.write_report = lambda self: None  # type: ignore[method-assign]
    return front_door.main(arguments)
