"""Where `show` plans a published row: on the machine that it ran on, told in flags that anyone could give."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.cli.choose import MARK
from paceline.config.errors import RecipeError
from paceline.recipes.row import LIKE, Row

# Flags, and what of a row's machine gives way to them beside their own place: ranks are told instead of nodes, and a loss scale
# belongs to its number format.
GIVES_WAY = {"--world": "--nodes", "--system.precision": "--system.loss-scale"}


def on_its_machine(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's words, with the flags that describe a row's machine behind them, and lines about it.

    A flag among the words takes its own place alone; --system NAME that of the whole machine, which a line says. No
    line and the words as they are where the first is no row or help is asked.
    Raises RecipeError for a row whose machine no System describes.
    """
    from paceline.recipes.rows import ROWS

    row = ROWS.get(words[0]) if words and MARK in words[0] else None
    names = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")}
    if row is None or names & {"-h", "--help"}:
        return list(words), []
    if "--system" in names:
        return list(words), [f"{row.name}: planned on your --system; its own machine, {row.machine}, is not taken."]
    if row.chip not in LIKE:
        raise RecipeError(
            f"{row.name} was published on {row.machine}, and no system here describes a {row.chip}. Plan it elsewhere: name "
            "--system and --nodes (paceline list systems)."
        )
    flags = machine_flags(row)
    yours = sorted(names & (flags.keys() | GIVES_WAY.keys()))
    replaced = {*yours, *(GIVES_WAY[name] for name in yours if name in GIVES_WAY)}
    kept = {name: value for name, value in flags.items() if name not in replaced}
    told = [word for pair in kept.items() for word in pair]
    ours = f" Not published, so ours: {row.ours}." if row.ours else ""
    about = f"{row.name}: {row.source}, on {row.machine}.{ours}"
    there = f"planned there but for your {' and '.join(yours)}" if yours else "planned there"
    return [*words, *told], [about, f"{there}: {' '.join(told)}"]


def machine_flags(row: Row) -> dict[str, str]:
    """The flags of the machine that a row ran on, and of how it ran there, with their values."""
    system, memory = LIKE[row.chip]
    return {
        "--system": system,
        "--nodes": str(row.nodes),
        "--system.per-node": str(row.per_node),
        "--system.memory-gib": f"{memory:g}",
        "--system.chip": row.chip,
        "--system.images-per-forward": str(row.images),
        "--system.precision": row.precision,
        "--system.loss-scale": f"{row.loss_scale:g}",
    }
