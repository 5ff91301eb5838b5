"""The grouped stream: every sample once an epoch, the same for any cut, and like shapes together."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import RecipeError
from paceline.data.loader.sample_rng import hash_keys
from paceline.data.loader.sampler import (
    batch_indices,
    group_batches,
    grouped_order,
    grouped_permutation,
    list_run_shapes,
    stream_positions,
)

# Others may share the machine: no deadline.
FEW = examples(30)
GOLDEN = [2, 8, 0, 4, 6, 7, 5, 3, 9, 1]


def _groups(n: int, kinds: int, key: int = 0) -> np.ndarray:
    return np.random.default_rng(key).integers(0, kinds, n)


def _indices(groups: np.ndarray, *, seed: int, global_batch_size: int, **where: int) -> tuple[np.ndarray, np.ndarray]:
    order = grouped_order(groups, seed=seed, global_batch_size=global_batch_size)
    return batch_indices(
        len(groups), stream_positions(global_batch_size=global_batch_size, **where), seed=seed, order=order
    )


def _slow_stream(groups: np.ndarray, seed: int, batch: int, start: int, count: int) -> list[tuple[int, int]]:
    """The obvious loop: concatenate the epochs, cut out a piece."""
    pairs: list[tuple[int, int]] = []
    epoch = 0
    while len(pairs) < start + count:
        order = grouped_permutation(len(groups), seed=seed, epoch=epoch, groups=groups, global_batch_size=batch)
        pairs += [(epoch, index) for index in order.tolist()]
        epoch += 1
    return pairs[start : start + count]


@FEW
@given(n=st.integers(1, 60), kinds=st.integers(1, 5), batch=st.integers(1, 20), epoch=st.integers(0, 9))
def test_an_epoch_holds_every_sample_once(n, kinds, batch, epoch):
    order = grouped_permutation(n, seed=1, epoch=epoch, groups=_groups(n, kinds), global_batch_size=batch)
    assert sorted(order.tolist()) == list(range(n)) and not order.flags.writeable


def test_orders_differ_by_epoch_and_seed_and_agree_with_themselves():
    groups = _groups(500, 4)
    where = {"groups": groups, "global_batch_size": 16}
    orders = {(s, e): grouped_permutation(500, seed=s, epoch=e, **where).tolist() for s in (0, 1) for e in (0, 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    assert grouped_permutation(500, seed=0, epoch=0, groups=groups.copy(), global_batch_size=16).tolist() == orders[0, 0]
    assert grouped_permutation(500, seed=0, epoch=0, groups=groups * 0, global_batch_size=16).tolist() != orders[0, 0]


def test_the_order_of_an_epoch_never_changes():
    order = grouped_permutation(10, seed=1, epoch=0, groups=np.array([0, 1] * 5), global_batch_size=4)
    assert order.tolist() == GOLDEN


@FEW
@given(
    n=st.integers(1, 40),
    kinds=st.integers(1, 4),
    step=st.integers(0, 9),
    world=st.sampled_from([1, 2, 3]),
    forwards=st.sampled_from([1, 2]),
    each=st.integers(1, 4),
)
def test_ranks_and_forwards_together_take_the_streams_next_batch(n, kinds, step, world, forwards, each):
    groups, batch = _groups(n, kinds), world * forwards * each
    together = []
    for rank in range(world):
        epochs, indices = _indices(
            groups, seed=5, step=step, rank=rank, world=world, global_batch_size=batch, forwards=forwards
        )
        assert epochs.dtype == indices.dtype == np.int64
        together += list(zip(epochs.tolist(), indices.tolist()))
    assert sorted(together) == sorted(_slow_stream(groups, 5, batch, step * batch, batch))


@FEW
@given(n=st.integers(1, 90), kinds=st.integers(1, 6), batch=st.integers(1, 30))
def test_steps_are_of_one_group_but_for_one_at_each_border_between_groups(n, kinds, batch):
    groups = _groups(n, kinds, key=n)
    steps = n * 3 // batch
    mixed = 0
    for step in range(steps):
        _, indices = _indices(groups, seed=0, step=step, global_batch_size=batch)
        kind = groups[indices]
        mixed += len(set(kind.tolist())) > 1
        if step * batch // n == ((step + 1) * batch - 1) // n:  # within one epoch
            assert (np.diff(kind) >= 0).all()
    if batch <= n:  # in each of the epochs; and where the groups at the high end are smaller than the run and the rest
        small = sum(np.sum(groups >= kind) <= 2 * batch for kind in range(kinds))
        assert mixed <= 4 * (kinds - 1) + 4 * small


def test_a_step_between_two_epochs_is_of_one_group_too():
    groups, batch = _groups(1000, 3), 16
    for step in (62, 187):
        epochs, indices = _indices(groups, seed=0, step=step, global_batch_size=batch)
        assert set(groups[indices].tolist()) == {2}
        assert len(set(epochs.tolist())) == 2


def test_a_step_is_found_without_walking_to_it():
    epochs, indices = _indices(_groups(1000, 3), seed=0, step=10**12, global_batch_size=256)
    assert epochs.min() == 10**12 * 256 // 1000
    assert ((indices >= 0) & (indices < 1000)).all()


def test_an_empty_set_and_a_batch_that_does_not_divide_are_refused():
    with pytest.raises(RecipeError, match="training images"):
        _indices(np.zeros(0, np.int64), seed=0, step=0, global_batch_size=4)
    with raises(RecipeError, "multiple of 2"):
        _indices(np.zeros(9, np.int64), seed=0, step=0, global_batch_size=5, world=2)


@FEW
@given(n=st.integers(1, 40), kinds=st.integers(1, 4), batch=st.integers(1, 16), steps=st.integers(1, 12))
def test_the_shapes_of_a_run_are_known_before_it(n, kinds, batch, steps):
    groups = _groups(n, kinds, key=n)
    sizes = np.array([(10 + group, 20 - 2 * group) for group in groups])
    taken = set()
    for step in range(steps):
        _, indices = _indices(groups, seed=2, step=step, global_batch_size=batch)
        taken.add(tuple(sizes[indices].max(axis=0).tolist()))
    found = list_run_shapes(groups, sizes, lambda h, w: (h, w), global_batch_size=batch, steps=steps)
    assert taken <= set(found)
    areas = [h * w for h, w in found]
    assert areas == sorted(areas, reverse=True)
    long = list_run_shapes(groups, sizes, lambda h, w: (h, w), global_batch_size=batch, steps=10 * n)
    if steps * batch >= 40 * n:
        assert set(long) == set(found)


def test_a_single_odd_photo_is_found_by_the_memory_plan():
    groups, sizes = np.array([0] * 63 + [1]), np.array([(8, 8)] * 63 + [(4, 99)])
    found = list_run_shapes(groups, sizes, lambda h, w: (h, w), global_batch_size=8, steps=1000)
    assert found == ((8, 99), (8, 8))
    alone = list_run_shapes(groups, sizes, lambda h, w: (h, w), global_batch_size=1, steps=1000)
    assert alone == ((4, 99), (8, 8))


def test_the_step_between_two_epochs_is_in_the_memory_plan_with_the_photos_it_takes():
    """Steps of 3 out of 8: the third takes the epoch's last two and one of the next epoch, all of the widest group."""
    groups = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    sizes = np.array([(10 + group, 20 - 2 * group) for group in groups])
    two, three = (list_run_shapes(groups, sizes, lambda h, w: (h, w), global_batch_size=3, steps=steps) for steps in (2, 3))
    assert two == ((11, 20), (10, 20)) and three == ((11, 20), (10, 20), (12, 16))
    _, indices = _indices(groups, seed=0, step=2, global_batch_size=3)
    assert set(groups[indices].tolist()) == {2}


@FEW
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 6))
def test_an_evaluation_sees_every_sample_once_in_batches_of_one_group(groups, batch):
    batches = group_batches(np.array(groups, np.int64), batch)
    assert sorted(int(place) for part in batches for place in part) == list(range(len(groups)))
    assert all(0 < len(part) <= batch and len({groups[place] for place in part}) == 1 for part in batches)
    wanted = sum(-(-groups.count(group) // batch) for group in set(groups))
    assert len(batches) == wanted


def test_runs_are_ordered_by_the_keys_of_samples_that_no_set_has():
    """Else a run's place would follow from the place of the sample of its number."""
    order = grouped_permutation(40, seed=3, epoch=0, groups=np.arange(40) // 4, global_batch_size=4)
    keys = hash_keys(3, 0, np.array([2**62 + run for run in range(10)]))
    assert (order.reshape(10, 4) // 4).tolist() == [[run] * 4 for run in np.argsort(keys).tolist()]
