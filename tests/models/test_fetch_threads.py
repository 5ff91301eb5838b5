"""How many threads fetch photos: what was asked for, or what suits where they lie."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.config.system import System
from paceline.models.datamodule import BUCKET_THREADS, choose_fetch_threads


@pytest.mark.parametrize(
    ("at_once", "asked", "threads"), [(1, 0, 0), (16, 0, BUCKET_THREADS), (1, 5, 5), (16, 5, 5), (16, 1, 1)]
)
def test_stores_that_answer_several_at_once_have_threads_that_ask(at_once: int, asked: int, threads: int) -> None:
    records = SimpleNamespace(at_once=at_once)
    assert choose_fetch_threads(records, System(io_threads=asked)) == threads  # type: ignore[arg-type]
