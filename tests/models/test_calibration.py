"""Calibration against a plain loop, and of scores whose error is known."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.tools.report.curves import reliability


@examples(60)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30))
def test_bins_and_error_agree_with_a_loop(answers):
    bins, error = reliability(np.array([score for score, _ in answers]), np.array([hit for _, hit in answers], bool))
    groups: dict[int, list[tuple[float, bool]]] = {}
    for score, hit in answers:
        groups.setdefault(min(int(score * 10), 9), []).append((score, hit))
    assert [each.answers for each in bins] == [len(groups[place]) for place in sorted(groups)]
    distance = 0.0
    for each, place in zip(bins, sorted(groups)):
        mine = groups[place]
        mean, share = sum(score for score, _ in mine) / len(mine), sum(hit for _, hit in mine) / len(mine)
        assert (each.score, each.right) == (pytest.approx(mean), pytest.approx(share))
        distance += len(mine) * abs(mean - share)
    assert error is None if not answers else error == pytest.approx(distance / len(answers), abs=1e-12)


def test_answers_that_are_as_right_as_sure_have_no_error_and_boasts_have_theirs():
    scores = np.full(10, 0.85)
    assert reliability(scores, np.arange(10) < 5)[1] == pytest.approx(0.35)
    assert reliability(np.array([1.0, 0.0]), np.array([True, False]))[1] == 0.0
