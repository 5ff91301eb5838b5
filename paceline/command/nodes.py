"""How many nodes and ranks the flags of `show` and `launch` name, and what was published there."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from paceline.config.errors import RecipeError
from paceline.machine.published import check_nodes

if TYPE_CHECKING:  # flags.py asks this file
    from paceline.command.flags import Asked

# Flags after which a batch is cut in another way than it was published.
CUTTING = {"global_batch", "bn_span", "system.per_node"}


def published_there(asked: Asked) -> str:
    """What to say of the nodes that --nodes names; "" where nothing, or where flags cut the batch in another way.

    Raises RecipeError where the recipe cannot be cut over them, naming what was published.
    """
    if asked.controls.eval_ranks or asked.given & CUTTING:
        return ""
    return check_nodes(asked.name, asked.system_name, asked.controls.nodes)


def ranks_of(flags: Any, given: Collection[str], per_node: int) -> int:
    """All ranks of a plan: --world, or --nodes times a node's; a run's own number gives way to a --nodes that was given.

    given  names of the flags that were set by hand
    Raises RecipeError where both were given and disagree.
    """
    world, of_nodes = getattr(flags, "world", 0), flags.nodes * per_node
    if "nodes" not in given:
        return world or of_nodes
    if "world" in given and world not in (0, of_nodes):
        raise RecipeError(
            f"--nodes {flags.nodes} and --world {world} disagree: {flags.nodes} x {per_node} ranks a node are {of_nodes}. Leave one "
            "away, or name --system.per-node."
        )
    return of_nodes


def nodes_of(flags: Any, given: Collection[str], per_node: int) -> int:
    """The machines that so many ranks take; 0 for the flags of a verb that learns them from its launcher."""
    return math.ceil(ranks_of(flags, given, per_node) / per_node) if hasattr(flags, "nodes") else 0
