"""One line beside a field says its bounds: what is refused, in which words, and what --help prints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated

import pytest
from messages import check_text

from paceline._utils.errors import RecipeError
from paceline.cli.main import main
from paceline.config.constraints import AboveZero, BelowOne, Finite, Ge, Gt, Le, Lt, MinLen, MultipleOf, Whole, check_bounds


@dataclass(frozen=True)
class Inner:
    whole: Whole = 0
    lengths: Annotated[tuple[Annotated[int, Ge(32)], ...], MinLen(1)] = (800,)


@dataclass(frozen=True)
class Fields:
    below_one: BelowOne = 0.5
    rate: AboveZero = 0.1
    mean: tuple[Finite, Finite] = (0.0, 0.0)
    open_: Annotated[float, Gt(0), Lt(1)] = 0.5
    threads: Annotated[int, Ge(0), Le(4096)] = 0
    channels: Annotated[int, Ge(0), MultipleOf(8)] = 0
    most: Annotated[int, Le(65536)] = 0
    free: float = math.inf
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"below_one": 0.0}, None),
        ({"below_one": 1.0}, "--below-one 1: must be in [0, 1)."),
        ({"below_one": -0.5}, "--below-one -0.5: must be in [0, 1)."),
        ({"below_one": math.nan}, "--below-one nan: must be in [0, 1)."),
        ({"rate": 0.0}, "--rate 0: must be above 0 and finite."),
        ({"rate": math.inf}, "--rate inf: must be above 0 and finite."),
        ({"mean": (0.0, -math.inf)}, "--mean 0 -inf: must be finite."),
        ({"open_": 0.0}, "--open 0: must be in (0, 1)."),
        ({"open_": 1.0}, "--open 1: must be in (0, 1)."),
        ({"threads": 4096}, None),
        ({"threads": 4097}, "--threads 4097: must be from 0 to 4,096."),
        ({"channels": 16}, None),
        ({"channels": 12}, "--channels 12: must be a multiple of 8, 0 or more."),
        ({"channels": -8}, "--channels -8: must be a multiple of 8, 0 or more."),
        ({"most": 65537}, "--most 65537: must be 65,536 or less."),
        ({"inner": Inner(whole=-1)}, "--inner.whole -1: must be 0 or more."),
        ({"inner": Inner(lengths=())}, "--inner.lengths : must be 1 or more values, each 32 or more."),
        ({"inner": Inner(lengths=(64, 31))}, "--inner.lengths 64 31: must be 1 or more values, each 32 or more."),
    ],
)
def test_a_value_outside_the_bounds_of_its_annotation_is_refused_in_one_line(changes, refused):
    node = replace(Fields(), **changes)
    if refused is None:
        check_bounds(node)
        return
    with pytest.raises(RecipeError) as caught:
        check_bounds(node)
    assert str(caught.value) == refused


def test_help_and_the_refusal_have_the_bounds_of_one_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plan", "classify-demo", "--help-all"]) == 0
    text = capsys.readouterr().out
    assert "gradient's average; in [0, 1) (default:" in text
    assert main(["plan", "classify-demo", "--optim.momentum", "1"]) == 2
    check_text(capsys.readouterr().err, "--optim.momentum 1", "[0, 1)")
