"""What ranks can run inside, by name."""

from __future__ import annotations

from paceline.launch.axes import Container
from paceline.launch.container_apptainer import APPTAINER
from paceline.launch.container_docker import DOCKER
from paceline.launch.container_pyxis import PYXIS
from paceline.launch.job import Job, Words


def _as_it_is(job: Job, command: Words) -> Words:
    return command


def _nothing_can_be_missing(job: Job) -> None:
    pass


CONTAINER: dict[str, Container] = {
    "none": Container(_as_it_is, _nothing_can_be_missing),
    "docker": DOCKER,
    "pyxis": PYXIS,
    "apptainer": APPTAINER,
}
