"""The number of ranks and nodes that a command line names, and what was published for so many."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from paceline._utils.errors import RecipeError
from paceline.config.published import check_nodes

if TYPE_CHECKING:
    from paceline.cli.flags import ParsedArgs

# Flags that cut a batch in another way than it was published.
CUTTING = {"global_batch", "bn_span", "system.per_node"}


def note_published(args: ParsedArgs) -> str:
    """A note on what was published for --nodes; "" where nothing was, or where flags cut the batch in another way.

    Raises RecipeError where the recipe cannot be cut over them, naming what was published.
    """
    if args.controls.eval_ranks or args.given & CUTTING:
        return ""
    return check_nodes(args.name, args.system_name, args.controls.nodes)


def count_ranks(flags: Any, explicit: Collection[str], per_node: int) -> int:
    """All ranks of a plan: --world, or --nodes times a node's; a run's own number gives way to a --nodes that was given.

    explicit  names of the flags that were set by hand
    Raises RecipeError where both were explicit and disagree.
    """
    world, of_nodes = getattr(flags, "world", 0), flags.nodes * per_node
    if "nodes" not in explicit:
        return world or of_nodes
    if "world" in explicit and world not in (0, of_nodes):
        raise RecipeError(
            f"--nodes {flags.nodes} and --world {world} disagree: {flags.nodes} x {per_node} ranks a node are {of_nodes}. Leave one "
            "away, or name --system.per-node."
        )
    return of_nodes


def count_nodes(flags: Any, explicit: Collection[str], per_node: int) -> int:
    """Number of nodes of the plan; 0 for the flags of a verb whose launcher decides it."""
    return math.ceil(count_ranks(flags, explicit, per_node) / per_node) if hasattr(flags, "nodes") else 0
