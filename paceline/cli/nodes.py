"""How many nodes and ranks the flags of `show` and `launch` name."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from paceline.config.errors import RecipeError


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
