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

import paceline.api
import paceline.cli.commands.train
import paceline.config.recipes
import paceline.data.prepare.auto_prepare
import paceline.models.backbones
import paceline.models.maskrcnn.module
import paceline.models.maskrcnn.task
import paceline.models.resnet.loss
import paceline.models.resnet.task
import paceline.models.ssd.loss
import paceline.models.ssd.task
import paceline.models.weights.formats.table
from paceline.cli import main as front_door


def main(arguments: list[str] | None = None) -> int:
    if "WITHOUT_REPORT" in os.environ:
        paceline.api.report_run = lambda *_: None
    return front_door.main(arguments)
