"""Fixtures of the tests that start several processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_run import UNTIL_STOPPED, Trainer
from zygote import Zygote

from paceline.distributed.comm.interfaces import find_free_port


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Importing torch once serves all ranks."""
    with Zygote() as started:
        yield started


@pytest.fixture(scope="session")
def trainer(zygote, tmp_path_factory) -> Trainer:
    """Starts small trainings."""
    return Trainer(zygote, tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="session")
def undisturbed(trainer) -> Path:
    """Two ranks that nobody stopped, nor anything else happened to."""
    return trainer.finished(trainer.folder / "undisturbed", UNTIL_STOPPED, ranks=2)


@pytest.fixture
def port() -> int:
    """A TCP port that nobody listens at."""
    return find_free_port()
