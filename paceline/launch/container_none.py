"""No container: ranks see the machine as it is."""

from __future__ import annotations

from paceline.launch.axes import Container
from paceline.launch.job import Job, Words


def wrap(job: Job, command: Words) -> Words:
    """The command itself."""
    return command


def check(job: Job) -> None:
    """Nothing can be missing."""


NONE = Container(wrap, check)
