"""From the ranks' shares to a result, in a thread; and what of it is written down."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.world import open_distributed
from paceline.models.task import EvalResult
from paceline.training.evaluate import EvalPass, iterate_json

FOUND = EvalResult({"top1": 0.25}, 4, {"images": [1, 2]})


class Share:
    """What one rank collected."""

    def pack(self) -> bytes:
        return b"share"


class Summary:
    """The part of a task that scores."""

    def __init__(self, summarize: Callable[[Sequence[bytes]], EvalResult]) -> None:
        self.summarize = summarize


def scoring(summarize: Callable[[Sequence[bytes]], EvalResult], keep=None) -> EvalPass:
    with open_distributed(SINGLE, device=torch.device("cpu")) as world:
        return EvalPass(Summary(summarize), world, Share(), "one", keep)  # type: ignore[arg-type]


def test_it_is_made_before_the_score_is_and_its_result_waits():
    go, seen = threading.Event(), []

    def slow(packed):
        assert go.wait(30)
        seen.append((list(packed), threading.current_thread() is threading.main_thread()))
        return FOUND

    under_way = scoring(slow)
    assert seen == []
    go.set()
    assert under_way.result() == FOUND and seen == [([b"share"], False)]
    assert 0 < under_way.seconds < 30  # not since the machine started


def test_predictions_are_kept_in_the_thread_and_then_released():
    kept = []
    assert scoring(lambda packed: FOUND, kept.append).result() == EvalResult(FOUND.metrics, 4, {})
    assert kept == [FOUND]


@pytest.mark.parametrize("late", [False, True])
def test_what_scoring_or_keeping_raises_is_raised_where_the_result_is_asked_for(late):
    def broken(_):
        raise ZeroDivisionError("scored twice")

    under_way = scoring((lambda packed: FOUND) if late else broken, broken if late else None)
    with pytest.raises(ZeroDivisionError, match="scored twice"):
        under_way.result()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), anything, min_size=1, max_size=4))
def test_json_in_pieces_is_the_json(facts):
    assert "".join(iterate_json(facts)) == json.dumps(facts)
