"""Fixtures of the tests that start several processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_run import Trainer
from zygote import Zygote


@pytest.fixture(scope="session")
def trainer(tmp_path_factory) -> Iterator[Trainer]:
    """Starts small trainings; importing torch once serves all of them."""
    with Zygote("training_rank") as zygote:
        yield Trainer(zygote, tmp_path_factory.mktemp("training"))
