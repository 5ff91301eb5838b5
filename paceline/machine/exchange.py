"""How long gradients travel between nodes: an alpha-beta model of one all-reduce, and what of it a backward hides.

Letters: N nodes   G bytes of gradients   B bytes a second that a node's links to other nodes carry   alpha seconds a hop
What ranks of one node exchange among themselves is part of a rate that was measured on whole nodes, so it is not counted here.
Seconds and bytes throughout. Source of the form: Thakur, Rabenseifner and Gropp 2005 (ring for the bytes, tree for the hops).
Where the two constants come from: results/estimate.
"""

from __future__ import annotations

import math

# Seconds of one hop of the tree, software included. Rows of 8 and 64 devices cannot tell it from a step's fixed cost; an order
# of magnitude of today's fabrics, which results/estimate varies: at 448 nodes it is 0.2 ms of a step.
HOP_SECONDS = 10e-6
# What is left of a link's nominal rate: one Omni-Path adapter a node beside two, eight A100 in two nodes (results/estimate).
LINK_SHARE = 0.68
# The backward's part of a step's computing: two products where the forward has one.
BACKWARD_SHARE = 2 / 3
# A node's links to others in Gbit/s, by system: eight NDR400 (the submission's systems/*.json), and the makers' data sheets:
# eight HDR adapters of 200 in a DGX A100, eight EDR of 100 in a DGX-2, four in a DGX-1, one of 100 in a p3dn.
LINK_GBIT = {"dgx-h100": 3200.0, "dgx-a100": 1600.0, "dgx2": 800.0, "dgx1": 400.0, "dgx1-16gb": 400.0, "p3dn": 100.0}


def exchange_seconds(nodes: int, gradient_bytes: float, link_gbit: float) -> float:
    """One all-reduce over `nodes` nodes: 2 (N-1)/N G/B + 2 ceil(log2 N) alpha. One node: 0."""
    if nodes <= 1:
        return 0.0
    bytes_per_second = LINK_SHARE * link_gbit * 1e9 / 8
    hops = 2 * math.ceil(math.log2(nodes))
    return 2 * (nodes - 1) / nodes * gradient_bytes / bytes_per_second + hops * HOP_SECONDS


def exposed_seconds(
    nodes: int, gradient_bytes: float, link_gbit: float, *, compute_seconds: float, bucket_bytes: float
) -> float:
    """What of the exchange a step waits for, where gradients travel in buckets while the backward goes on.

    compute_seconds  of the forward and backward that the exchange runs beside: of several accumulated ones the last alone
    bucket_bytes     0 = one exchange after the backward, which hides nothing
    The last bucket is complete when the backward ends, so it is never hidden; the others hide behind what comes before it.
    """
    whole = exchange_seconds(nodes, gradient_bytes, link_gbit)
    if not bucket_bytes:
        return whole
    last = min(bucket_bytes, gradient_bytes)
    hidden = BACKWARD_SHARE * compute_seconds * (1 - last / gradient_bytes)
    return max(exchange_seconds(nodes, last, link_gbit), whole - hidden)
