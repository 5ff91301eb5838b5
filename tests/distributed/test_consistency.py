"""What ranks compare, and what is said of a difference: many ranks as threads over one store."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from messages import check_lines, check_text

from paceline._utils.errors import RankMismatchError
from paceline._utils.user_code import load_from_file
from paceline._utils.version import PACKAGE
from paceline.cli.flags import parse_run_args
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.distributed.comm.consistency import assert_equal_on_ranks
from paceline.distributed.comm.messages import Messages
from paceline.distributed.device.systems import SYSTEMS
from paceline.training.rank_consistency import request_fingerprint, source_digests


def said_by(all_facts: list[dict[str, Any]]) -> list[str]:
    """The error of each rank; '' for one that agrees."""
    store, key = dist.HashStore(), os.urandom(32)
    said = ["no answer"] * len(all_facts)

    def one(rank: int) -> None:
        try:
            assert_equal_on_ranks(Messages(store, key, rank), len(all_facts), all_facts[rank], "test")
            said[rank] = ""
        except RankMismatchError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(all_facts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return said


def test_equal_facts_pass() -> None:
    assert said_by([{"a": 1, "b": [1, 2]}] * 5) == [""] * 5


def test_the_first_field_that_differs_is_named_with_all_ranks_that_hold_its_values() -> None:
    alike, other = {"a": 1, "b": 0.5, "c": "x", "d": 1}, {"a": 1, "b": 0.25, "c": "y", "d": 1}
    third = {"a": 1, "b": 0.5, "c": "x", "e": 1}
    said = said_by([alike, alike, other, alike, other, third, alike])
    assert len(set(said)) == 1
    assert check_lines(
        said[0].splitlines()[:3], ("b is 0.5 on ranks 0, 1, 3, 6 and 0.25 on ranks 2, 4",), ("c",), ("rank 5",)
    )


@pytest.mark.parametrize("value, shown", [(None, "null"), ("\x1b[2J\n", '"\\u001b[2J\\n"'), ((1, 2), "[1, 2]")])
def test_values_are_shown_on_one_line_without_control_characters(value, shown) -> None:
    said = said_by([{"a": 7}, {"a": value}])
    assert check_text(said[1].splitlines()[0], f"a is 7 on rank 0 and {shown} on rank 1")


def test_a_field_that_only_one_rank_has_is_absent_on_the_other() -> None:
    said = said_by([{"a": 1}, {"a": 1, "version of numpy": "2.0"}])
    assert check_text(said[0], "numpy", "rank 0", '"2.0" on rank 1')


def test_a_file_of_an_older_checkout_is_named(tmp_path) -> None:
    package = PACKAGE
    copy = Path(shutil.copytree(package, tmp_path / "paceline", ignore=shutil.ignore_patterns("__pycache__")))
    recipe = RECIPES["classify-demo"]()
    assert source_digests(copy, recipe) == source_digests(package, recipe)
    with (copy / "training" / "step.py").open("a") as file:
        file.write("# older\n")
    said = said_by([source_digests(package, recipe), source_digests(copy, recipe)])
    assert check_text(said[0], "SHA-256 of paceline/training/step.py")


def test_paths_and_a_machines_memory_are_no_difference() -> None:
    recipe, system = RECIPES["ssd-demo"](), SYSTEMS["cpu"]()
    here = request_fingerprint("train", recipe, system, RunOptions(data="a", output_dir="runs/a", keep_checkpoints=2))
    there = request_fingerprint("train", recipe, system, RunOptions(data="b", output_dir="./runs/a", keep_checkpoints=3))
    assert here == there
    names = list(here)
    assert {"optim.lr", "seed", "system.precision", "eval-every", "version of torch"} <= set(names)
    assert "system.memory-gib" not in names


def test_what_a_workload_of_ones_own_imports_is_compared_too(tmp_path, monkeypatch):
    for number, text in enumerate(
        ("import json, numpy\nfrom own_loss_weights import SHARE", "from own_shares import SHARE")
    ):
        (tmp_path / ("work.py", "own_loss_weights.py")[number]).write_text(text)
    (tmp_path / "own_shares.py").write_text("SHARE = 0.5")
    (tmp_path / "not_imported.py").write_text("SHARE = 0.5")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_from_file(f"{tmp_path}/work.py:SHARE", "share")
    recipe = replace(RECIPES["ssd-demo"](), task=f"{tmp_path}/work.py:SHARE")
    here = source_digests(tmp_path / "none", recipe)
    assert len(here) == 3
    (tmp_path / "own_shares.py").write_text("SHARE = 0.6")
    text = said_by([here, source_digests(tmp_path / "none", recipe)])[0]
    assert check_text(text, "SHA-256 of own_shares")


@pytest.mark.parametrize(
    ("flag", "values", "named"),
    [
        ("--seed", ("1", "9"), "seed is 1 on rank 0 and 9 on rank 1."),
        ("--system.precision", ("fp32", "bf16"), 'system.precision is "fp32" on rank 0 and "bf16" on rank 1.'),
        ("--max-steps", ("18", "12"), "steps is 18 on rank 0 and 12 on rank 1."),
        ("--eval-every", ("6", "5"), "eval-every is 6 on rank 0 and 5 on rank 1."),
        ("--model.width", ("8", "16"), "model.width is 8 on rank 0 and 16 on rank 1."),
        ("--system.intra-op-threads", ("1", "2"), "system.intra-op-threads is 1 on rank 0 and 2 on rank 1."),
    ],
)
def test_a_flag_that_differs_is_named_with_both_values(flag, values, named) -> None:
    asked = [
        parse_run_args(["classify-demo", "--system", "cpu", flag, value], RunOptions(), verb="train") for value in values
    ]
    said = said_by([request_fingerprint("train", one.recipe, one.system, one.options) for one in asked])
    assert check_text(said[0].splitlines()[0], named)
