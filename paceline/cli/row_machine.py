"""Where `show` plans a published row: on the machine that it ran on, told in flags that anyone could give."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.cli.choose import MARK
from paceline.config.errors import RecipeError
from paceline.recipes.row import LIKE, Row

# Whoever names one of these has a machine in mind.
OF_A_MACHINE = ("--system", "--nodes", "--world")


def on_its_machine(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's words, with the flags that describe a row's machine behind them, and lines about it.

    No line and the words as they are where the first is no row, help is asked, or the words name a machine or any flag of it.
    Raises RecipeError for a row whose machine no System describes.
    """
    from paceline.recipes.rows import ROWS

    row = ROWS.get(words[0]) if words and MARK in words[0] else None
    names = {word.partition("=")[0] for word in words}
    if row is None or names & {"-h", "--help", *OF_A_MACHINE} or any(name.startswith("--system.") for name in names):
        return list(words), []
    if row.chip not in LIKE:
        raise RecipeError(
            f"{row.name} was published on {row.machine}, and no system here describes a {row.chip}. Plan it elsewhere: name "
            "--system and --nodes (paceline list systems)."
        )
    flags = machine_flags(row)
    ours = f" Not published, so ours: {row.ours}." if row.ours else ""
    about = f"{row.name}: {row.source}, on {row.machine}.{ours}"
    return [*words, *flags], [about, f"planned there: {' '.join(flags)}"]


def machine_flags(row: Row) -> list[str]:
    """The flags of the machine that a row ran on, and of how it ran there."""
    system, memory = LIKE[row.chip]
    flags = {
        "--system": system,
        "--nodes": row.nodes,
        "--system.per-node": row.per_node,
        "--system.memory-gib": f"{memory:g}",
        "--system.chip": row.chip,
        "--system.images-per-forward": row.images,
        "--system.precision": row.precision,
        "--system.loss-scale": f"{row.loss_scale:g}",
    }
    return [str(word) for pair in flags.items() for word in pair]
