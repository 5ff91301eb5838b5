"""A command of the pages, carried out up to the point where its flags are known to be right; and all flags of `train`."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main as front_door
from paceline.cli.flags import _flags_of
from paceline.cli.printing import Printer
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions
from paceline.config.system import System

PACKAGE = Path(front_door.__file__).parents[1]


def train_flags(recipe: Recipe) -> tuple[str, ...]:
    """Every flag of `paceline train` with this recipe."""
    return (*_flags_of(recipe), *_flags_of(System(), "system."), *_flags_of(RunOptions()))


class Parsed(Exception):
    """Raised where a verb has its flags and would begin to work."""


def parse(command: str, patch: pytest.MonkeyPatch, look: Callable[[Any], object] = lambda asked: None) -> None:
    """Raises what the command is refused with.

    look  at what a recipe's flags ask `launch` for, before the verb would begin
    """
    words = shlex.split(command)
    verb = front_door.find_command(words[0])
    for path in [path for path in PACKAGE.glob("cli/**/*.py") if path.name != "flags.py"]:  # which modules import from
        module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        for name in ("parse", "parse_run_args"):
            if hasattr(module, name):
                original = getattr(module, name)

                def parse_and_stop(*given, _original=original, **named):
                    asked = _original(*given, **named)
                    if named.get("verb") == "launch":
                        look(asked)
                    raise Parsed

                patch.setattr(module, name, parse_and_stop)
    with pytest.raises(Parsed):
        verb.run(Printer(), words[1:])
