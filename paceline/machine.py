"""What a rank sets on its machine before it computes: device, threads, exactness."""

from __future__ import annotations

import os

import torch

from paceline.config.errors import RecipeError
from paceline.config.system import System
from paceline.dist.world import World
from paceline.systems.detect import cpu_cores


def choose_device(system: System, local_rank: int) -> torch.device:
    """This rank's device.

    Raises RecipeError when the system wants CUDA and torch has none for this rank.
    """
    if system.accelerator == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        raise RecipeError(
            f"this system computes on CUDA, but torch sees {torch.cuda.device_count()} CUDA devices here and this is local "
            f"rank {local_rank}. Start fewer ranks, or use --system cpu; `paceline doctor` says what torch sees."
        )
    return torch.device("cuda", local_rank)


def set_threads(system: System, world: World) -> dict[str, int]:
    """Fix the number of compute threads, which decides the bits of a sum; -> what was chosen, for run.json."""
    share = max(1, cpu_cores() // max(1, world.local_world))
    compute = system.intra_op_threads or share
    torch.set_num_threads(compute)
    return {"intra_op": compute, "loader": system.loader_threads or share}


def make_exact(exact: bool) -> None:
    """--exact: deterministic kernels only."""
    if exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants it for deterministic sums
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    elif torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True
