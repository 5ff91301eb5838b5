"""Top-k accuracy against the obvious loop; ties, non-finite logits, no images, any cut into ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.batch import Batch
from paceline.models.metrics import is_better
from paceline.models.metrics.top_k import TopKScore, check_every_image_once, top_classes, unpack_top_k


def numbered(indices: torch.Tensor, labels: torch.Tensor) -> Batch:
    return Batch(images=torch.zeros(len(indices), 3, 1, 1, dtype=torch.uint8), labels=labels, indices=indices)


def obvious_hits(row: list[float], label: int, k: int) -> bool:
    order = sorted(range(len(row)), key=lambda index: (-row[index], index))
    return label in order[:k]


@examples(60)
@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 2**31 - 1))
def test_accuracy_agrees_with_the_obvious_loop(images: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (images, classes), generator=generator).float()  # integers, so ties are common
    labels = torch.randint(0, classes, (images,), generator=generator)
    score = TopKScore()
    if images:
        score.add(numbered(torch.arange(images), labels), logits)
    result = score.joined()
    for k in (1, 5):
        hits = sum(obvious_hits(row, int(label), k) for row, label in zip(logits.tolist(), labels))
        assert result.accuracy(k) == pytest.approx(hits / max(1, images))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_any_number_of_ranks_gives_the_same_result(ranks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(23, 9, generator=generator), torch.randint(0, 9, (23,), generator=generator)
    packed = []
    for rank in range(ranks):
        score = TopKScore()
        mine = list(range(23 * rank // ranks, 23 * (rank + 1) // ranks))
        for image in mine:
            score.add(numbered(torch.tensor([image]), labels[image : image + 1]), logits[image : image + 1])
        packed.append(score.pack())
    joined, whole = unpack_top_k(packed[::-1]), TopKScore()
    whole.add(numbered(torch.arange(23), labels), logits)
    np.testing.assert_array_equal(joined.classes, whole.joined().classes)
    np.testing.assert_array_equal(joined.indices, np.arange(23))
    assert joined.accuracy(1) == whole.joined().accuracy(1)


def test_a_photo_with_nan_logits_is_wrong_even_for_class_0() -> None:
    score = TopKScore()
    score.add(numbered(torch.arange(1), torch.tensor([0])), torch.full((1, 4), float("nan")))
    assert score.joined().accuracy(5) == 0


def test_scores_are_probabilities_best_first() -> None:
    classes, scores = top_classes(torch.tensor([[0.0, 2.0, 1.0]]))
    assert classes.tolist() == [[1, 2, 0]]
    torch.testing.assert_close(scores[0], torch.softmax(torch.tensor([2.0, 1.0, 0.0]), 0))


@pytest.mark.parametrize("scored", [[0, 1, 1], [0, 1], [0, 1, 3], []])
def test_an_evaluation_that_misses_or_repeats_an_image_is_refused(scored: list[int]) -> None:
    with pytest.raises(RuntimeError, match="scored"):
        check_every_image_once(np.array(scored, np.int64), np.arange(3))


def test_a_rank_without_images_packs_and_joins() -> None:
    assert unpack_top_k([TopKScore().pack()]).accuracy(1) == 0


def test_only_more_is_better():
    assert is_better(0.5, None) and is_better(0.5, 0.4)
    assert not is_better(0.5, 0.5) and not is_better(0.4, 0.5) and not is_better(float("nan"), None)
