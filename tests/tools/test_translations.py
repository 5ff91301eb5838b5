"""`paceline translate` on every line of the originals that is known and on twenty that are not: both sides' numbers by an oracle.

What the original does is computed by `originals` from values typed beside each line; what ours does by parsing and planning
our command. Where the two differ, the translation says so.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from corpus import CORPUS
from lines import Line
from originals import SYSTEMS
from unseen import UNSEEN

from paceline.cli.commands.launch import LaunchFlags
from paceline.cli.commands.translate import translation_record
from paceline.cli.flags import parse_run_args
from paceline.config.plan import lr_at, make_plan
from paceline.config.recipe import DATA_IMAGES
from paceline.config.run import RunOptions
from paceline.tools.migrate.translate import translate

CONFIGS = Path(__file__).parent / "configs"
# Names that paceline's facts have for the oracle's.
NAMES = ("global_batch_size", "batch_per_device", "steps_per_epoch", "epochs", "steps", "lr", "warmup_steps",
    "decay_steps", "weight_decay",
         "weights", "target")  # fmt: skip
TRAINING = [line for line in CORPUS if line.ranks]


def wanted(line: Line) -> dict[str, Any]:
    """The oracle's numbers."""
    more = {"environment": True} if line.environment else {}
    return asdict(SYSTEMS[line.system](line.given, line.ranks, **more))


def same(left: Any, right: Any) -> bool:
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == pytest.approx(right, rel=1e-9, abs=1e-9)
    return left == right


def name_of(line: Line) -> str:
    return f"{line.folder or line.system}: {' '.join(line.command.split())[-70:]}"


def check_theirs(line: Line, facts: dict[str, Any]) -> None:
    oracle = wanted(line)
    found = {name: facts[name] for name in NAMES}
    assert {name: value for name, value in found.items() if not same(value, oracle[name])} == {}, oracle
    assert facts["devices"] == line.ranks


def check_ours(line: Line, found: dict[str, Any]) -> None:
    """Our command's numbers are the oracle's, or the difference is said."""
    oracle = wanted(line)
    assert all(row["row"] for row in found["differs"]), (
        "a difference that no row of docs/reference/known-differences.md tells of"
    )
    said = {row["what"].partition(":")[0] for row in found["differs"]}
    for name in NAMES:
        assert same(found["facts"]["ours"][name], oracle[name]) or name in said, (name, found["command"])
    words = shlex.split(found["command"])
    words = words[words.index("train" if "train" in words else "launch") :]
    asked = parse_run_args(words[1:], LaunchFlags() if words[0] == "launch" else RunOptions(), verb=words[0])
    train, val = DATA_IMAGES[asked.recipe.target_data]
    plan = make_plan(
        asked.recipe,
        asked.system_flags,
        world=line.ranks,
        most=asked.recipe.global_batch_size,
        train_images=train,
        val_images=val,
    )
    assert asked.recipe.optim.momentum == oracle["momentum"]
    form = asked.recipe.optim.momentum_style.replace("torch", "outside").replace("mxnet", "inside").replace("-", " ")
    assert f"{asked.recipe.optim.name} {form}" == oracle["optimizer"]
    first = lr_at(asked.recipe, plan, 0)
    assert same(first, oracle["first_lr"]) or "warmup_steps" in said, (first, oracle["first_lr"])


@pytest.mark.parametrize("line", TRAINING, ids=name_of)
def test_what_a_published_line_does_is_told_as_the_oracle_computes_it(line, monkeypatch):
    monkeypatch.chdir(CONFIGS / line.folder)
    found = translate(line.command if not line.command.startswith("config") else f"source {line.command}", read=beside)
    assert found.facts is not None
    check_theirs(line, asdict(found.facts))


def beside(name: str) -> str | None:
    path = Path(Path(name).name)
    return path.read_text() if path.is_file() else None


@pytest.mark.parametrize("line", UNSEEN, ids=name_of)
def test_an_unseen_line_becomes_a_command_that_does_the_same(line, monkeypatch):
    monkeypatch.chdir(CONFIGS / line.folder)
    found = translation_record(line.command)
    check_theirs(line, found["facts"]["theirs"])
    check_ours(line, found)


@pytest.mark.nightly("translates and plans every line of the corpus; unseen lines run by day")
@pytest.mark.parametrize("line", TRAINING, ids=name_of)
def test_a_published_line_becomes_a_command_that_does_the_same(line, monkeypatch):
    monkeypatch.chdir(CONFIGS / line.folder)
    found = translation_record(line.command)
    check_ours(line, found)


@pytest.mark.parametrize("line", [line for line in CORPUS if not line.ranks], ids=name_of)
def test_a_line_that_does_not_train_becomes_the_verb_that_does_its_work(line):
    command = translation_record(line.command)["command"]
    assert command.split()[1] in ("eval", "predict"), command


FILES = [path for path in sorted(CONFIGS.rglob("config_*.sh")) if not path.stem.endswith("common")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_published_configuration_is_known_where_its_file_does_not_lie(path, monkeypatch):
    """What the tables say of it comes to what its own variables come to."""
    monkeypatch.chdir(path.parent)
    of = "mxnet-resnet" if "resnet" in path.parent.name else "mxnet-ssd"
    read, known = (translate(f"source {path.name}", read=reader, system_of=of) for reader in (beside, lambda _: None))
    assert read.facts is not None
    # NVIDIA has four of its own under names that Dell has too: the folder tells.
    assert known.facts == read.facts
    assert known.command == read.command
