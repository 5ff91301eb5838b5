"""Groups founded without the lines that gloo prints.

In torch 2.9 and 2.10 gloo prints a line on stdout for each group that it connects ("[Gloo] Rank 0 is connected to 1 peer ranks ..."),
with no switch to turn it off (pytorch/gloo#462): between a command's own lines, and into its --json.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

STDOUT = 1
PRINTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11)


@contextmanager
def without_gloo_lines(backend: str, prints: bool = PRINTS) -> Iterator[None]:
    """Nothing that is written to the process's stdout inside the block arrives; what Python buffers meanwhile does, later.

    backend  of the group that the block founds; another than gloo keeps what it prints (NCCL_DEBUG=INFO)
    prints   whether this torch's gloo prints; where it does not, nothing is done
    """
    if not prints or backend != "gloo":
        yield
        return
    try:
        kept = os.dup(STDOUT)
    except OSError:  # it is closed: nothing can arrive there
        yield
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, STDOUT)
        os.close(nowhere)
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
