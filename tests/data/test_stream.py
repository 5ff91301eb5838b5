"""The sample stream: every sample once an epoch, the same order however the batch is cut."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._utils.errors import RecipeError
from paceline.data.loader import sampler
from paceline.data.loader.sampler import batch_indices, evaluation_shard, permutation, stream_positions

GOLDEN = [7, 5, 2, 3, 8, 0, 9, 4, 1, 6]


def _slow_stream(n: int, seed: int, start: int, count: int) -> list[tuple[int, int]]:
    """The obvious loop: concatenate permutations, cut out a piece."""
    pairs: list[tuple[int, int]] = []
    epoch = 0
    while len(pairs) < start + count:
        pairs += [(epoch, index) for index in permutation(n, seed=seed, epoch=epoch).tolist()]
        epoch += 1
    return pairs[start : start + count]


def _pairs(n: int, *, seed: int, **where: int) -> list[tuple[int, int]]:
    epochs, indices = batch_indices(n, stream_positions(**where), seed=seed)
    assert epochs.dtype == indices.dtype == np.int64
    return list(zip(epochs.tolist(), indices.tolist()))


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_a_permutation_holds_every_sample_once_and_differs_by_epoch_and_seed(n):
    orders = [permutation(n, seed=seed, epoch=epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order) == list(range(n))
    if n == 1000:
        assert len({tuple(order) for order in orders}) == 4


def test_permutations_are_uniform():
    # Where sample 0 of 8 lands over 4,000 epochs: chi-square with 7 degrees of freedom.
    places = [permutation(8, seed=3, epoch=epoch).tolist().index(0) for epoch in range(4000)]
    counts = np.bincount(places, minlength=8)
    assert ((counts - 500) ** 2 / 500).sum() < 7 + 5 * np.sqrt(14)


def test_the_permutation_golden_values_never_change():
    assert permutation(10, seed=1, epoch=0).tolist() == GOLDEN


@given(
    n=st.integers(1, 30),
    seed=st.integers(0, 5),
    step=st.integers(0, 20),
    world=st.sampled_from([1, 2, 3, 4, 6]),
    forwards=st.sampled_from([1, 2, 4]),
    each=st.integers(1, 4),
    data=st.data(),
)
def test_ranks_together_take_the_streams_next_batch(n, seed, step, world, forwards, each, data):
    join = data.draw(st.sampled_from([j for j in (1, 2, 3, 6) if world % j == 0]))
    batch = world * forwards * each
    where = {"seed": seed, "step": step, "world": world, "global_batch_size": batch, "forwards": forwards, "join": join}
    together = [pair for rank in range(world) for pair in _pairs(n, rank=rank, **where)]
    assert sorted(together) == sorted(_slow_stream(n, seed, step * batch, batch))


@given(world=st.sampled_from([1, 2, 4, 8]), forwards=st.sampled_from([1, 2, 4]), join=st.sampled_from([1, 2, 4]))
def test_images_that_share_batchnorm_statistics_are_the_same_for_every_cut(world, forwards, join):
    batch, span = 64, 16
    each = batch // world // forwards
    if world % join or join * each != span:
        return  # another cut, another span
    order = _slow_stream(100, 0, 5 * batch, batch)
    wanted = [sorted(order[i : i + span]) for i in range(0, batch, span)]
    groups = []
    for first in range(0, world, join):
        for forward in range(forwards):
            group: list[tuple[int, int]] = []
            for rank in range(first, first + join):
                mine = _pairs(
                    100, seed=0, step=5, rank=rank, world=world, global_batch_size=batch, forwards=forwards, join=join
                )
                group += mine[forward * each : (forward + 1) * each]
            groups.append(sorted(group))
    assert sorted(groups) == sorted(wanted)


def test_every_sample_is_taken_once_an_epoch_when_steps_span_epochs():
    n, batch = 10, 4
    taken: dict[int, list[int]] = {}
    for step in range(10):
        for epoch, index in _pairs(n, seed=2, step=step, global_batch_size=batch):
            taken.setdefault(epoch, []).append(index)
    assert {epoch: sorted(indices) for epoch, indices in taken.items()} == {e: list(range(n)) for e in range(4)}
    assert len({e for e, _ in _pairs(n, seed=2, step=2, global_batch_size=batch)}) == 2  # positions 8..11


def test_a_batch_larger_than_the_data_set_spans_many_epochs():
    pairs = _pairs(3, seed=0, step=1, global_batch_size=10)
    assert pairs == _slow_stream(3, 0, 10, 10)
    assert {epoch for epoch, _ in pairs} == {3, 4, 5, 6}


def test_a_step_is_found_without_walking_to_it():
    last = 10**12
    epochs, indices = batch_indices(1000, stream_positions(step=last, global_batch_size=256), seed=0)
    assert epochs.min() == last * 256 // 1000
    assert ((indices >= 0) & (indices < 1000)).all()


def test_a_batch_that_does_not_divide_is_refused_with_the_numbers():
    with pytest.raises(RecipeError, match=r"--global-batch-size 10: .*multiple of 6 .3 ranks x 2 micro-batches"):
        stream_positions(step=0, world=3, global_batch_size=10, forwards=2)
    with pytest.raises(RecipeError, match="cannot share BatchNorm"):
        stream_positions(step=0, world=3, global_batch_size=12, join=2)
    with pytest.raises(RecipeError, match="training images"):
        batch_indices(0, stream_positions(step=0, global_batch_size=12), seed=0)


@given(n=st.integers(0, 200), world=st.integers(1, 40))
def test_evaluation_shards_cover_every_sample_once(n, world):
    shards = [evaluation_shard(n, rank, world) for rank in range(world)]
    assert [sample for part in shards for sample in part] == list(range(n))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_every_permutation_is_sorted_by_the_same_thread(monkeypatch):
    sorted_by = []

    def sort(n, seed, epoch):
        sorted_by.append(threading.get_ident())
        return np.arange(n)

    monkeypatch.setattr(sampler, "_permutation", sort)
    callers = [threading.Thread(target=lambda: sampler.permutation(3, seed=0, epoch=0)) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(sorted_by) == 3 and len(set(sorted_by)) == 1


def test_the_order_of_an_epoch_is_that_of_every_earlier_version():
    """Runs that were begun by one version are gone on with by another."""
    assert permutation(12, seed=5, epoch=3).tolist() == [9, 2, 6, 8, 11, 0, 10, 7, 5, 3, 4, 1]
