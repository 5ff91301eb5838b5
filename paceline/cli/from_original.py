"""`paceline from 'ORIGINAL COMMAND' [--system-of NAME] [--json]`: our command for one of the four systems' own."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.cli.flags import parse, parse_recipe
from paceline.cli.voice import say
from paceline.config.errors import UserError
from paceline.config.plan import make_plan, shorten
from paceline.config.recipe import DATA_IMAGES

ABOUT = """Our command for an original's: a command line in one quoted argument (its variables, mpirun, sbatch, source and && with it), a
script, or a configuration file. It is read, never run. The first line printed is ours; then what carries over, what is dead and why,
what differs (rows of docs/deviations.md), and what both compute: batch, steps, rates. docs/migration.md has all flags in tables."""
WIDTH = 80


@dataclass(frozen=True)
class FromFlags:
    """How to read and print."""

    system_of: str = ""  # mxnet-ssd, mxnet-resnet, gaudi-ssd or gluoncv-maskrcnn, where the command cannot tell
    json: bool = False  # print one JSON object instead of text


def run(arguments: Sequence[str]) -> int:
    """Translate, and return 0."""
    if not arguments or arguments[0] in ("-h", "--help"):
        parse(["--help"], FromFlags(), prog="from 'ORIGINAL COMMAND'", description=ABOUT)
    text, *words = arguments
    flags = parse(words, FromFlags(), prog="from 'ORIGINAL COMMAND'", description=ABOUT)
    from paceline.migrate.translate import as_dict, translate

    folder = Path()
    path = Path(text).expanduser()
    if "\n" not in text and len(text) < 4096 and path.is_file():
        folder, text = path.parent, f"source {path.name}" if path.name.startswith("config") else _text(path)
    found = translate(text, read=lambda name: _beside(folder, name), system_of=flags.system_of)
    ours = ours_of(found.words, found.devices)
    facts = {"theirs": as_dict(found.facts), "ours": as_dict(ours)}
    if flags.json:
        parts = asdict(found)
        print(
            json.dumps(
                {name: parts[name] for name in ("command", "system_of", "carries", "dead", "differs")}
                | {"facts": facts},
                indent=1,
            )
        )
        return 0
    print(found.command)
    for title, rows in (("carries over", found.carries), ("dead", found.dead), ("differs", found.differs)):
        if rows:
            say("")
            say(title)
        for row in rows:
            cells = list(row.values())
            lines = textwrap.wrap(
                f"{cells[0]}  ->  {': '.join(cell for cell in cells[1:] if cell)}", WIDTH - 2, subsequent_indent="    "
            )
            for line in lines:
                say(f"  {line}")
    say("")
    say(f"{'facts':<18}{'theirs':>30}{'ours':>30}")
    for name, theirs in facts["theirs"].items():
        say(f"{name:<18}{_cell(theirs):>30}{_cell(facts['ours'][name]):>30}")
    return 0


def ours_of(words: Sequence[str], devices: int):
    """The facts of a command of ours, by parsing it as its verb does and planning it for so many accelerators."""
    from paceline.cli.launch import LaunchFlags
    from paceline.config.run import Controls
    from paceline.migrate.translate import facts_of

    asked = parse_recipe(words[1:], LaunchFlags() if words[0] == "launch" else Controls(), verb=words[0])
    recipe, controls = asked.recipe, asked.controls
    train, val = DATA_IMAGES[recipe.target_data]
    plan = make_plan(
        recipe,
        asked.system_flags,
        world=devices,
        most=recipe.global_batch,
        train_images=controls.limit_train or train,
        val_images=controls.limit_val or val,
    )
    return facts_of(recipe, shorten(plan, steps=controls.steps), controls.weights)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{path}: cannot be read as a script ({problem}).") from None


def _beside(folder: Path, name: str) -> str | None:
    """The text of a file that a script names: where it says, or beside the script."""
    for path in (folder / name, folder / Path(name).name):
        if path.is_file():
            return _text(path)
    return None
