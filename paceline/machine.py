"""What a rank sets on its machine before it computes: device, threads, exactness."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from paceline.config.errors import RecipeError
from paceline.config.system import System
from paceline.dist.world import World
from paceline.systems.detect import cpu_cores

# Number formats of matrix products that autocast knows; fp32 needs none.
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(system: System, local_rank: int, local_world: int = 1) -> torch.device:
    """This rank's device.

    Raises RecipeError when the system wants CUDA and torch has too few devices, on every rank of the node alike: only the
    first of them prints the message.
    """
    if system.accelerator == "cpu":
        return torch.device("cpu")
    ranks, devices = max(local_world, local_rank + 1), torch.cuda.device_count()
    if not torch.cuda.is_available() or ranks > devices:
        raise RecipeError(
            f"this system computes on CUDA, but torch sees {devices} CUDA devices here for {ranks} rank{'s'[: ranks > 1]}. "
            "Start fewer ranks, or use --system cpu; `paceline doctor` says what torch sees."
        )
    return torch.device("cuda", local_rank)


def set_threads(system: System, world: World) -> dict[str, int]:
    """Fix the number of compute threads, which decides the bits of a sum; -> what was chosen, for run.json."""
    share = max(1, cpu_cores() // max(1, world.local_world))
    compute = system.intra_op_threads or share
    torch.set_num_threads(compute)
    return {"intra_op": compute, "loader": system.loader_threads or share}


def autocast_for(system: System, device: torch.device) -> Callable[[], AbstractContextManager]:
    """Makes contexts in which matrix products have the system's number format; weights, norms and losses stay float32."""

    def autocast() -> AbstractContextManager:
        number = TYPES.get(system.precision)
        return nullcontext() if number is None else torch.autocast(device.type, dtype=number)

    return autocast


def make_exact(exact: bool) -> None:
    """--exact: deterministic kernels only."""
    if exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants it for deterministic sums
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    elif torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True
