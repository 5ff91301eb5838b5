"""Which photos the report shows, and what it counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paceline.tools.report.classification_results import (
    MAX_OF_A_PAIR,
    ImageClassification,
    add_images,
    class_accuracies,
    count_classes,
    read_answers,
    select_right,
    select_wrong,
)
from paceline.tools.report.gallery import format_confusion_matrix, list_mistakes

classes = st.sampled_from("abcd")
answers = st.lists(
    st.builds(
        lambda truth, best, score: ImageClassification(
            "x", truth, ((best, score),), "abcd".index(truth) + 1, "abcd".index(best) + 1
        ),
        *(classes, classes, st.floats(0, 1)),
    )
)


@given(answers)
def test_wrong_answers_show_the_frequent_pairs_first_the_surest_of_each_and_none_fills_the_page(group):
    chosen = select_wrong(group, 12)
    shown = Counter((answer.truth, answer.best) for answer in chosen)
    there = Counter((answer.truth, answer.best) for answer in group if not answer.right)
    assert all(truth != best for truth, best in shown)
    assert len(chosen) == min(12, sum(min(count, MAX_OF_A_PAIR) for count in there.values()))
    assert all(count <= MAX_OF_A_PAIR for count in shown.values())
    first = list(dict.fromkeys((answer.truth, answer.best) for answer in chosen))
    assert [there[pair] for pair in first] == sorted((there[pair] for pair in there), reverse=True)[: len(first)]
    for pair in first:
        mine = [answer.answers[0][1] for answer in chosen if (answer.truth, answer.best) == pair]
        all_of_it = sorted((one.answers[0][1] for one in group if (one.truth, one.best) == pair), reverse=True)
        assert mine == all_of_it[: len(mine)]


@given(answers)
def test_right_answers_are_spread_over_the_classes(group):
    chosen = select_right(group, 5)
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
    counts = count_classes(group, 4)
    named = list_mistakes(counts, "abcd", 100)
    assert counts.sum() == len(group) and counts[0].sum() == counts[:, 0].sum() == 0
    for truth, taken, times, _, pair in named:
        assert times == sum((answer.truth, answer.best, answer.pair) == (truth, taken, pair) for answer in group)
    assert sum(times for _, _, times, *_ in named) == sum(not answer.right for answer in group)
    matrix = format_confusion_matrix(counts, "abcd", background=False)
    assert [[cell.text for cell in cells] for _, cells in matrix] == counts[1:, 1:].astype(str).tolist()


def test_predictions_are_read_with_names_and_an_image_without_answer_is_left_out(tmp_path):
    images = [
        {"index": 4, "file": "b.jpg", "label": 1, "top5": [{"class": 0, "score": 0.7}, {"class": 1, "score": 0.3}]},
        {"index": 5, "file": "c.jpg", "label": 1, "top5": []},
    ]
    (answer,) = read_answers({"classes": ["cat", "dog"], "images": images}, Path("/photos"))
    assert answer == ImageClassification("/photos/b.jpg", "dog", (("cat", 0.7), ("dog", 0.3)), 2, 1)
    assert answer.best == "cat" and not answer.right


@pytest.mark.parametrize("mode, size", [("RGB", (500, 200)), ("L", (9, 40)), ("CMYK", (64, 64))])
def test_every_kind_of_photo_becomes_a_small_jpeg(tmp_path, mode, size):
    Image.new(mode, size).save(tmp_path / "x.jpg")
    answer = ImageClassification(str(tmp_path / "x.jpg"), "a", (("a", 1.0),))
    ((shown, photo),) = add_images([answer], "ignore")
    assert photo.startswith("data:image/jpeg;base64,") and len(photo) < 20_000 and shown is answer
