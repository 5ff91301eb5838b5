"""Kinds of a detector's errors and what they cost: against a slow loop, and against numbers that tidecv 1.0.1 gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.models.metrics.coco import Detections, GroundTruth, no_detections
from paceline.models.metrics.detection_errors import KINDS, RIGHT, UNCOUNTED, classify_errors, error_costs

Scene = tuple[list[tuple], list[tuple]]  # of one image: (box, class, crowd) and (box, class, score)


def arrays(scenes: list[Scene], classes: int = 3) -> tuple[GroundTruth, Detections]:
    real, seen = [one for there, _ in scenes for one in there], [one for _, found in scenes for one in found]
    boxes = np.array([box for box, _, _ in real], float).reshape(-1, 4)
    truth = GroundTruth(
        *(np.arange(len(scenes)), np.full(len(scenes), 60), np.full(len(scenes), 60)),
        np.cumsum([0, *(len(there) for there, _ in scenes)]),
        *(boxes, np.array([label for _, label, _ in real], int), np.array([crowd for *_, crowd in real], np.uint8)),
        *(boxes[:, 2] * boxes[:, 3], classes),
    )
    found = Detections(
        np.repeat(np.arange(len(scenes)), [len(found) for _, found in scenes]),
        np.array([box for box, _, _ in seen], float).reshape(-1, 4),
        *(np.array([one[place] for one in seen], kind) for place, kind in ((1, int), (2, float))),
    )
    return truth, found


def iou(one, other, crowd=False) -> float:
    wide = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    high = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    shared = max(wide, 0) * max(high, 0)
    return shared / (one[2] * one[3] + (0 if crowd else other[2] * other[3] - shared))


def by_hand(scenes: list[Scene]) -> tuple[list[str], list[bool], float, dict[str, float]]:
    """Kinds, missed, AP50 and gains, all with plain loops; a detection is [class, score, kind, object]."""
    found_all: list[list[Any]] = []
    missed: list[bool] = []
    unfound: list[bool] = []
    labels: list[int] = []
    for there, found in scenes:
        first = len(labels)
        labels += [label for _, label, _ in there]
        free = [not crowd for *_, crowd in there]
        rows = [[label, score, "", None] for _, label, score in found]
        for d in sorted(range(len(found)), key=lambda d: -found[d][2]):
            box, label, _ = found[d]
            best, most = None, 0.0
            for o, (other, its, crowd) in enumerate(there):
                if its == label and not crowd and free[o] and iou(box, other) >= 0.5 and iou(box, other) > most:
                    best, most = o, iou(box, other)
            if best is not None:
                free[best], rows[d][2:] = False, ["right", first + best]
        asked = [not crowd and free[o] for o, (*_, crowd) in enumerate(there)]
        for d, (box, label, _) in enumerate(found):
            if rows[d][2]:
                continue
            own, other = (0.0, None), (0.0, None)
            for o, (its_box, its, crowd) in enumerate(there):
                if not crowd and its == label and iou(box, its_box) > own[0]:
                    own = iou(box, its_box), first + o
                if not crowd and its != label and iou(box, its_box) > other[0]:
                    other = iou(box, its_box), first + o
            if any(crowd and its == label and iou(box, its_box, True) >= 0.5 for its_box, its, crowd in there):
                rows[d][2] = "uncounted"
            elif 0.1 <= own[0] <= 0.5:
                rows[d][2:] = "localisation", own[1]
            elif other[0] >= 0.5:
                rows[d][2:] = "classification", other[1]
            elif own[0] > 0.5:
                rows[d][2:] = "duplicate", own[1]
            else:
                rows[d][2] = "background" if max(own[0], other[0]) <= 0.1 else "both"
        found_all += rows
        unfound += asked
        near = {row[3] for row in rows if row[2] in ("localisation", "classification")}
        missed += [one and first + o not in near for o, one in enumerate(asked)]
    crowds = [bool(crowd) for there, _ in scenes for *_, crowd in there]
    before, gains = ap50(found_all, labels, crowds, [False] * len(labels)), {}
    for kind in KINDS:
        rows = []
        for label, score, is_, about in found_all:
            if is_ != kind:
                rows.append((label, score, is_, about))
                continue
            rivals = [row for row in found_all if row[3] == about and row[2] in ("localisation", "classification")]
            if about is not None and unfound[about] and score == max(row[1] for row in rivals):
                rows.append((labels[about], score, "right", about))
        gains[kind] = max(0.0, ap50(rows, labels, crowds, missed if kind == "missed" else [False] * len(labels)) - before)
    return [row[2] for row in found_all], missed, before, gains


def ap50(rows, labels, crowds, left_out) -> float:
    values = []
    for label in {one for one, crowd in zip(labels, crowds) if not crowd}:
        wanted = sum(its == label and not (c or gone) for its, c, gone in zip(labels, crowds, left_out))
        mine = sorted((row for row in rows if row[0] == label and row[2] != "uncounted"), key=lambda row: -row[1])
        if not wanted:
            values += [0.0] if mine else []
            continue
        points, hits = [], 0
        for place, row in enumerate(mine, 1):
            hits += row[2] == "right"
            points.append((hits / wanted, hits / place))
        values.append(
            sum(max((precision for recall, precision in points if recall >= r / 100), default=0) for r in range(101)) / 101
        )
    return sum(values) / len(values) if values else 0.0


box = st.tuples(st.integers(0, 16), st.integers(0, 16), st.integers(1, 20), st.integers(1, 20))
label = st.integers(1, 3)


@st.composite
def photos(draw: Any) -> list[Scene]:
    scenes, scores = [], iter(draw(st.permutations([place / 100 for place in range(1, 100)])))
    for _ in range(draw(st.integers(0, 3))):
        there = draw(st.lists(st.tuples(box, label, st.sampled_from([0, 0, 0, 1])), max_size=5))
        found = draw(
            st.lists(st.tuples(box | st.sampled_from([one[0] for one in there] or [(0, 0, 9, 9)]), label), max_size=7)
        )
        scenes.append((there, [(*one, next(scores)) for one in found]))
    return scenes


@examples(40)
@given(photos())
def test_kinds_and_costs_agree_with_the_obvious_loops(scenes):
    truth, found = arrays(scenes)
    errors = classify_errors(truth, found)
    kinds, missed, before, gains = by_hand(scenes)
    names = {RIGHT: "right", UNCOUNTED: "uncounted", **dict(enumerate(KINDS))}
    assert [names[kind] for kind in errors.kinds.tolist()] == kinds and errors.missed.tolist() == missed
    ours, mended = error_costs(truth, found, errors)
    assert ours == pytest.approx(before, abs=1e-12)
    assert mended == pytest.approx(gains, abs=1e-12)


def planted() -> list[Scene]:
    """Twenty objects of each of three classes, found right, but for one error of each kind."""
    there = [((40 * place, 0, 20, 20), 1 + place % 3, 0) for place in range(60)]
    found = [(box, label, 0.5 - place / 1000) for place, (box, label, _) in enumerate(there)]
    found[0] = ((8, 0, 20, 20), 1, 0.9)  # 12 of 28 columns shared
    found[1] = ((40, 0, 20, 20), 3, 0.91)  # a 2 taken for a 3
    found[2] = ((97, 0, 10, 20), 2, 0.92)  # beside a 3, and taken for a 2
    found += [((160, 0, 20, 20), 2, 0.4), ((4000, 0, 20, 20), 1, 0.93)]
    return [(there, found)]


def test_each_planted_error_is_named_and_costs_something():
    truth, found = arrays(planted())
    errors = classify_errors(truth, found)
    assert errors.counts() == dict.fromkeys(KINDS, 1)  # the object that "both" was about is the missed one
    assert np.flatnonzero(errors.kinds >= 0).tolist() == [0, 1, 2, 60, 61]
    assert errors.partners[[0, 1, 60]].tolist() == [0, 1, 4] and errors.missed.nonzero()[0].tolist() == [2]
    _, gains = error_costs(truth, found, errors)
    assert all(gains[kind] > 0.004 for kind in KINDS if kind != "duplicate"), gains


def test_numbers_are_those_of_tidecv():
    """As TIDE().evaluate(truth, found, mode=TIDE.BOX) of tidecv 1.0.1 counts and fixes them, with these boxes."""
    random = np.random.default_rng(7)
    scenes: list[Scene] = []
    for _ in range(40):
        there = [((*random.uniform(0, 40, 2), *random.uniform(8, 30, 2)), int(random.integers(1, 4)), 0) for _ in range(6)]
        found = [
            (tuple(np.add(box, random.normal(0, 3, 4))), int(label if random.random() < 0.8 else random.integers(1, 4)),
             random.random())
            for box, label, _ in there + there[:3]
        ]  # fmt: skip
        scenes.append((there, found))
    truth, found = arrays(scenes)
    errors = classify_errors(truth, found)
    before, gains = error_costs(truth, found, errors)
    assert errors.counts() == TIDE_COUNTS
    assert 100 * before == pytest.approx(TIDE_AP, abs=1e-9)
    assert {kind: 100 * gain for kind, gain in gains.items()} == pytest.approx(TIDE_GAINS, abs=1e-9)


TIDE_AP = 36.62928602260822
TIDE_COUNTS = {"classification": 27, "localisation": 121, "both": 12, "duplicate": 40, "background": 4, "missed": 14}
TIDE_GAINS = {
    "classification": 6.894765158288273,
    "localisation": 37.107132620668075,
    "both": 0.8971575783923527,
    "duplicate": 1.9656581127942232,
    "background": 0.4273232061865002,
    "missed": 2.222397870084187,
}


@pytest.mark.parametrize("scenes", [[], [([], [])], [([], [((0, 0, 9, 9), 1, 0.5)])], [([((0, 0, 9, 9), 1, 1)], [])]])
def test_nothing_to_find_costs_nothing(scenes):
    truth, found = arrays(scenes)
    errors = classify_errors(truth, found)
    assert error_costs(truth, found, errors) == (0.0, dict.fromkeys(KINDS, 0.0))
    assert not errors.missed.any() and errors.counts()["background"] == len(found.scores)


def test_where_nothing_was_found_everything_is_missed():
    truth, _ = arrays(planted())
    errors = classify_errors(truth, no_detections())
    assert errors.missed.all() and error_costs(truth, no_detections(), errors)[1]["missed"] == 0.0
