"""Which photos the report shows, and what it counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paceline.pages.classified import (
    MOST_OF_A_PAIR,
    Answer,
    class_accuracies,
    confidently_wrong,
    confusions,
    read_answers,
    right_of_each_class,
    with_photos,
)

classes = st.sampled_from("abcd")
answers = st.lists(
    st.builds(lambda truth, best, score: Answer("x", truth, ((best, score),)), classes, classes, st.floats(0, 1))
)


@given(answers)
def test_wrong_answers_come_surest_first_and_no_pair_fills_the_page(group):
    chosen = confidently_wrong(group, 12)
    scores = [answer.answers[0][1] for answer in chosen]
    pairs = Counter((answer.truth, answer.best) for answer in chosen)
    assert all(truth != best for truth, best in pairs)
    assert scores == sorted(scores, reverse=True)
    assert len(chosen) <= 12 and all(count <= MOST_OF_A_PAIR for count in pairs.values())
    wrong = [answer for answer in group if not answer.right]
    if wrong:
        assert scores[0] == max(answer.answers[0][1] for answer in wrong)


@given(answers)
def test_right_answers_are_spread_over_the_classes(group):
    chosen = right_of_each_class(group, 5)
    available = Counter(answer.truth for answer in group if answer.right)
    shown = Counter(answer.truth for answer in chosen)
    assert all(answer.right for answer in chosen)
    assert len(chosen) == min(5, sum(available.values()))
    for name, count in available.items():  # a class is short of another's share only when it has no more
        assert shown[name] == count or shown[name] >= max(shown.values()) - 1


@given(answers)
def test_counts_equal_the_obvious_loop(group):
    rows = class_accuracies(group)
    for name, right, images in rows:
        assert images == sum(answer.truth == name for answer in group)
        assert right == sum(answer.truth == name and answer.best == name for answer in group)
    assert sum(images for _, _, images in rows) == len(group)
    assert [right / images for _, right, images in rows] == sorted(right / images for _, right, images in rows)
    mistakes = confusions(group, 100)
    assert sum(times for _, _, times in mistakes) == sum(not answer.right for answer in group)
    assert [times for _, _, times in mistakes] == sorted((times for _, _, times in mistakes), reverse=True)


def test_predictions_are_read_with_names_and_an_image_without_answer_is_left_out(tmp_path):
    images = [
        {"index": 4, "file": "b.jpg", "label": 1, "top5": [{"class": 0, "score": 0.7}, {"class": 1, "score": 0.3}]},
        {"index": 5, "file": "c.jpg", "label": 1, "top5": []},
    ]
    (answer,) = read_answers({"classes": ["cat", "dog"], "images": images}, Path("/photos"))
    assert answer == Answer("/photos/b.jpg", "dog", (("cat", 0.7), ("dog", 0.3)))
    assert answer.best == "cat" and not answer.right


@pytest.mark.parametrize("mode, size", [("RGB", (500, 200)), ("L", (9, 40)), ("CMYK", (64, 64))])
def test_every_kind_of_photo_becomes_a_small_jpeg(tmp_path, mode, size):
    Image.new(mode, size).save(tmp_path / "x.jpg")
    answer = Answer(str(tmp_path / "x.jpg"), "a", (("a", 1.0),))
    ((shown, photo),) = with_photos([answer], "ignore")
    assert photo.startswith("data:image/jpeg;base64,") and len(photo) < 20_000 and shown is answer
