"""The rule for numbers of nodes: which published recipe is for how many machines, and what is refused."""

from __future__ import annotations

import math

from paceline.config.errors import RecipeError
from paceline.config.plan import split_batch
from paceline.machine.published import Pairing, pairings_of, published_for


def recipe_for_nodes(workload: str, system_name: str, nodes: int) -> Pairing | None:
    """The pairing published for `nodes` machines, or the nearest one whose batch can be cut over them.

    Nearest of the two neighbours (the next smaller and the next larger published number of nodes), by ratio; of two equally
    near ones the smaller. Its recipe is to be taken as it is: only the cut of the batch changes.
    return             None where nothing of the workload was published on the system: then any recipe whose batch divides will do
    raise RecipeError  neither neighbour's batch can be cut; the message names both
    """
    if nodes < 1:
        raise RecipeError(f"--nodes {nodes}: must be 1 or more.")
    found = pairings_of(system_name, workload)
    if not found:
        return None
    # Where one number of nodes has several (one card of a node, and all), the one with more accelerators.
    by_nodes = {pairing.nodes: pairing for pairing in found}
    if nodes in by_nodes:
        return by_nodes[nodes]
    fewer, more = [n for n in by_nodes if n < nodes][-1:], [n for n in by_nodes if n > nodes][:1]
    neighbours = [by_nodes[n] for n in fewer + more]
    for pairing in sorted(neighbours, key=lambda pairing: (abs(math.log(nodes / pairing.nodes)), pairing.nodes)):
        if can_be_cut(pairing, nodes):
            return pairing
    raise RecipeError(
        f"--nodes {nodes}: nothing of {workload} was published for {nodes} {system_name}, and the batches of its neighbours "
        f"cannot be cut over {nodes * ranks_per_node(neighbours[0])} ranks: {' and '.join(map(_in_words, neighbours))}. "
        "Take one of these numbers of nodes, or a recipe whose --global-batch divides."
    )


def check_nodes(recipe_name: str, system_name: str, nodes: int) -> str:
    """Refuse a number of nodes over which a recipe that was published on the system cannot be cut; -> what to say where it can.

    return             "" where the recipe was published on so many nodes, or nothing of it on this system
    raise RecipeError  naming the recipe that can be cut there, or both neighbours where none can; or how many ranks only
                       evaluated, where it was published on so many nodes and can be cut over the others alone
    """
    found = pairings_of(system_name, recipe_name=recipe_name)
    if not found:
        return ""
    if there := published_for(recipe_name, system_name, nodes):
        if there.evaluation_ranks and not can_be_cut(there, nodes):
            raise RecipeError(
                f"--nodes {nodes}: {recipe_name} was published there with {there.evaluation_ranks} of "
                f"{nodes * ranks_per_node(there)} ranks that only evaluate, and its batch cannot be cut over all of them. Add "
                f"--eval-ranks {there.evaluation_ranks}."
            )
        return ""
    fits = any(can_be_cut(pairing, nodes) for pairing in found)
    try:
        other = recipe_for_nodes(found[0].workload, system_name, nodes)
    except RecipeError:
        if fits:
            return ""
        raise
    if other is None or other.recipe == recipe_name:
        return f"--nodes {nodes}: {recipe_name} is the nearest of those published on {system_name}"
    is_there = "published there is" if other.nodes == nodes else "the nearest that was published is"
    if fits:
        return f"--nodes {nodes}: {is_there} {_in_words(other)}"
    raise RecipeError(
        f"--nodes {nodes}: the batch of {recipe_name} ({found[0].global_batch:,} images) cannot be cut over "
        f"{nodes * ranks_per_node(found[-1])} ranks; {is_there} {_in_words(other)}."
    )


def ranks_per_node(pairing: Pairing) -> int:
    """Accelerators of one node, those that only evaluate included."""
    return -(-(pairing.accelerators + pairing.evaluation_ranks) // pairing.nodes)


def can_be_cut(pairing: Pairing, nodes: int) -> bool:
    """Whether a pairing's batch, BatchNorm span and loss groups can be reached on another number of nodes, all of them training."""
    images = pairing.images_per_forward
    try:
        split_batch(
            pairing.global_batch, nodes * ranks_per_node(pairing), images, images * pairing.bn_ranks, pairing.loss_group
        )
    except RecipeError:
        return False
    return True


def _in_words(pairing: Pairing) -> str:
    count = f"{pairing.nodes} node{'s'[: pairing.nodes > 1]}"
    return f"{count} ({pairing.recipe}, {pairing.global_batch:,} images a step)"
