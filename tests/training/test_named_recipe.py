"""--recipe 'NAME --flags' of a file of weights gives the recipe that the command line's parser gives."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import pytest
from messages import raises

from paceline._utils.errors import RecipeError
from paceline.cli.flags import parse_run_args
from paceline.training.run_arguments import parse_named_recipe


@dataclass(frozen=True)
class NoControls:
    """No flags except the recipe's."""


@pytest.mark.parametrize(
    "words",
    [
        "ssd",
        "ssd --model.depth 18",
        "ssd --optim.lr=0.02",
        "maskrcnn-finetune --input.min-size 128 --model.detect.score-threshold 0.4",
        "maskrcnn-finetune --model.no-masks",
        "maskrcnn --model.bn-eps 0 --model.rpn.anchor-sizes 12 24 36 48 64",
        "classify-demo --model.backbone timm/mobilenetv3_small_100",
    ],
)
def test_it_is_the_parsers(words: str) -> None:
    parsed = parse_run_args(shlex.split(words), NoControls(), verb="weights inspect FILE --recipe")
    recipes, given = parse_named_recipe(words)
    assert recipes == {words: parsed.recipe}
    assert given == {name.replace("no_", "") for name in parsed.given}


def test_nothing_named_is_no_recipe() -> None:
    assert parse_named_recipe("") == ({}, frozenset())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("ssd stray", "stray"),
        ("ssd --model.dept 3", "depth"),
        ("ssd --model.depth eighteen", "model.depth"),
        ("ssd 'open", "open"),
        ("sdd", "ssd"),
    ],
)
def test_a_mistake_is_named(words: str, named: str) -> None:
    with raises(RecipeError, named):
        parse_named_recipe(words)
