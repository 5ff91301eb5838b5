"""What a failed comparison of arrays says, by tests/differences.py."""

from __future__ import annotations

from collections.abc import Callable

import differences
import numpy as np
import pytest
import torch
from safetensors.torch import save

ONES = torch.ones(2, 3)
OTHER = torch.tensor([[1.0, 1.0, 1.5], [1.0, 1.25, 1.0]])


def equal() -> None:
    assert torch.equal(ONES, OTHER)


def close() -> None:
    assert torch.allclose(ONES, OTHER, rtol=0.25, atol=0.0)


def one_of_several() -> None:
    assert all(torch.equal(left, right) for left, right in [(ONES, ONES), (ONES, OTHER)])


def compared() -> None:
    assert len(ONES) == 2 and (ONES.numpy() == OTHER.numpy()).all()


def forms() -> None:
    assert np.array_equal(np.zeros(3), np.zeros((3, 1)))


@pytest.mark.parametrize(
    ("fails", "wanted"),
    [
        (equal, ["2 of 6", "0.5 at [0, 2]", "left 1, right 1.5"]),
        (close, ["1 of 6", "0.5 at [0, 2]", "allowed 0 + 0.25 x right"]),
        (one_of_several, ["2 of 6", "0.5 at [0, 2]"]),
        (compared, ["2 of 6", "0.5 at [0, 2]"]),
        (forms, ["(3,) float64", "(3, 1) float64"]),
    ],
)
def test_the_largest_difference_its_place_and_the_bound_are_printed(fails: Callable[[], None], wanted: list[str]):
    with pytest.raises(AssertionError) as failed:
        fails()
    said = differences.explain(failed.value)
    assert said.count("\n") == 0 and all(fact in said for fact in wanted), said


def test_other_failures_have_no_such_line():
    with pytest.raises(AssertionError) as failed:
        assert len(ONES) == 3
    assert differences.explain(failed.value) == ""
    assert differences.difference(ONES, ONES) == ""


def test_of_two_checkpoints_the_tensors_that_differ_are_named():
    files = {"model.safetensors": save({"a": ONES, "b": ONES.clone()}), "optimizer.safetensors": save({"a": ONES})}
    others = {"model.safetensors": save({"a": ONES, "b": OTHER})}
    alone, differs = differences.file_differences(files, others)
    assert "optimizer.safetensors" in alone and differs.startswith("model.safetensors: b: 2 of 6 values differ")
    (header,) = differences.file_differences(others, {"model.safetensors": save({"a": ONES, "b": OTHER}, {"x": "y"})})
    assert "header" in header
    assert differences.file_differences(files, files) == differences.file_differences({}, {"a": b""}) == []
