"""One rank of the small trainings: the real command line, with everything that a training imports already there.

Each rank is a fork: what is imported here is imported once, and not by each of some hundred ranks.

WITHOUT_REPORT in its environment leaves the report out: it takes as long as the run, and has tests of its own.
"""

from __future__ import annotations

import os

import matplotlib.figure  # noqa: F401  the report draws with it
import torch._dynamo
import torch.utils.tensorboard  # noqa: F401
import tyro  # noqa: F401

import paceline.cli.commands.train
import paceline.config.recipes
import paceline.data.prepare.auto_prepare
import paceline.models.classifier
import paceline.models.detector
import paceline.models.make_trunk
import paceline.models.segmenter
import paceline.tasks.classification
import paceline.tasks.maskrcnn
import paceline.tasks.ssd
import paceline.training.python_api
import paceline.weights.forms.table
from paceline.cli import main as front_door


def main(arguments: list[str] | None = None) -> int:
    if "WITHOUT_REPORT" in os.environ:
        paceline.training.python_api.report_run = lambda *_: None
    return front_door.main(arguments)
