"""One rank of the small trainings: the real command line, with everything that a training imports already there."""

from __future__ import annotations

import matplotlib.figure  # noqa: F401  the report draws with it
import torch._dynamo  # noqa: F401  the memory estimate's meta device brings it in
import tyro  # noqa: F401

import paceline.cli.eval
import paceline.cli.train
import paceline.evaluate
import paceline.log.tensorboard
import paceline.report.page
import paceline.train
import paceline.trained  # noqa: F401
from paceline.cli.main import main

__all__ = ["main"]
