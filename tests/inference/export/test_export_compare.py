"""Answers are matched one to one: what differs is found, and what may end a list on either side is no difference."""

from __future__ import annotations

import numpy as np

from paceline.inference.export.verification import BOX, SCORE, compare_predictions


def photo(rows: list[tuple[float, float, int]], places: int = 4, masks: bool = False) -> list[np.ndarray]:
    """Answers with boxes of 10 px from `left` on: (left, score, label)."""
    boxes, scores, labels = (np.zeros((places, 4), np.float32), np.zeros(places, np.float32), -np.ones(places, np.float32))
    for place, (left, score, label) in enumerate(rows):
        boxes[place], scores[place], labels[place] = (left, 0, left + 10, 10), score, label
    return [boxes, scores, labels, *([np.full((places, 4, 4), 0.75, np.float32)] if masks else [])]


ROWS = [(0, 0.9, 0), (100, 0.8, 1), (200, 0.7, 0)]


def test_equal_answers_differ_in_nothing_whatever_their_order():
    found = compare_predictions([photo(ROWS)], [photo(ROWS[::-1])])
    assert found.small and (found.found, found.alone, found.score, found.box) == (3, 0, 0.0, 0.0)


def test_the_largest_differences_are_found():
    moved = [(0.005, 0.9, 0), (100, 0.8 + 2 * SCORE, 1), (200 + 3 * BOX, 0.7, 0)]
    found = compare_predictions([photo(ROWS), photo(ROWS)], [photo(ROWS), photo(moved)])
    assert not found.small and found.alone == 0
    np.testing.assert_allclose((found.score, found.box), (2 * SCORE, 3 * BOX), rtol=0.01)


def test_an_object_of_another_class_or_place_has_no_partner():
    assert compare_predictions([photo(ROWS)], [photo([(0, 0.9, 1), *ROWS[1:]])]).alone == 2
    assert compare_predictions([photo(ROWS)], [photo([(8, 0.9, 0), *ROWS[1:]])]).alone == 2
    assert compare_predictions([photo(ROWS)], [photo(ROWS[1:])]).alone == 1
    twice = [ROWS[0], ROWS[0]]
    assert (
        compare_predictions([photo(twice)], [photo(twice)]).alone == 0
        and compare_predictions([photo(twice)], [photo(ROWS[:1])]).alone == 1
    )


def test_where_a_list_may_end_an_object_may_be_missing():
    at_the_threshold = [*ROWS, (300, 0.5 + SCORE / 2, 0)]
    assert compare_predictions([photo(ROWS)], [photo(at_the_threshold)], 0.5).small
    assert not compare_predictions([photo(ROWS)], [photo(at_the_threshold)], 0.4).small
    full, other = [*ROWS, (300, 0.6, 0)], [*ROWS, (400, 0.6 + SCORE / 2, 0)]
    assert compare_predictions([photo(full)], [photo(other)]).small
    assert compare_predictions([photo(full, 5)], [photo(other, 5)]).alone == 2  # a place is left in these


def test_masks_are_compared_by_their_probabilities_and_their_overlap():
    one, other = photo(ROWS, masks=True), photo(ROWS, masks=True)
    other[3][1, :2] = 0.25
    found = compare_predictions([one], [other])
    assert not found.small and (found.mask, found.overlap) == (0.5, 0.5)


def test_no_object_anywhere_is_no_difference_and_one_is():
    assert compare_predictions([photo([])], [photo([])]).small
    assert compare_predictions([photo([])], [photo(ROWS[:1])]).alone == 1


def test_a_classifier_s_best_class_counts():
    one, other = np.array([0.6, 0.4], np.float32), np.array([0.4, 0.6], np.float32)
    assert compare_predictions([[one]], [[one]]).small
    found = compare_predictions([[one]], [[other]])
    assert found.alone == 1 and not found.small
