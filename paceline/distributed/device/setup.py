"""What a rank sets on its machine before it computes: device, threads, exactness."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from paceline._utils.errors import RecipeError
from paceline._utils.platform import count_cpus
from paceline._utils.reporter import SILENT, Reporter
from paceline.config.system import MAX_THREADS, System
from paceline.distributed.comm.launcher import explain_pty_shell
from paceline.distributed.comm.world import DistContext, all_min
from paceline.distributed.device.accelerators import NAMES, count_devices, explain_unsupported

# Number formats of matrix products that autocast knows; fp32 needs none.
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(system: System, local_rank: int, local_world: int = 1) -> torch.device:
    """This rank's device.

    Raises RecipeError when torch has too few devices of the system's kind, or no code for them, on every rank of the node alike:
    only the first of them prints the message.
    """
    if system.device == "cpu":
        return torch.device("cpu")
    ranks, devices, kind = (max(local_world, local_rank + 1), count_devices(system.device), NAMES[system.device])
    if ranks > devices:
        raise RecipeError(
            f"the system uses {kind}, but torch finds {devices} {kind} devices on this machine for {ranks} rank{'s'[: ranks > 1]}. "
            f"{'Start fewer ranks' if devices else 'Use another machine'}, or set --system cpu. To list the devices:  paceline doctor"
        )
    if system.device == "cuda" and torch.version.cuda:
        capability = torch.cuda.get_device_capability(local_rank)
        if why := explain_unsupported(f"cuda:{local_rank}", capability, torch.__version__, torch.cuda.get_arch_list()):
            raise RecipeError(f"{why}.")
    if system.precision == "tf32" and (torch.version.hip or torch.cuda.get_device_capability(local_rank) < (8, 0)):
        raise RecipeError("--system.precision tf32: not supported by this GPU. Set --system.precision fp32 or fp16.")
    return torch.device(system.device, local_rank)


def set_threads(system: System, world: DistContext, reporter: Reporter = SILENT, share: int = 0) -> dict[str, int]:
    """Fix the number of compute threads, which decides the bits of a sum; -> what was chosen, for run.json.

    share  cores that this rank can count on, where it is bound to some; 0 = its part of those of the process
    All ranks call it: where nobody named a number, the smallest that a rank would take is taken by all, which is printed.
    """
    if note := explain_pty_shell(os.environ, world.world):
        reporter.warning(note)
    share = share or max(1, count_cpus() // max(1, world.local_world))
    compute, why = choose_compute_threads(system.intra_op_threads, share, world.local_world, os.environ)
    if why:
        (reporter.line if compute == 1 and not system.intra_op_threads else reporter.warning)(why)
    if not system.intra_op_threads:
        compute, most = all_min(world, compute), -all_min(world, -compute)
        if compute != most:
            reporter.warning(f"note: {compute} compute threads on every rank, the minimum over all ranks (maximum: {most})")
    torch.set_num_threads(compute)
    return {"intra_op": compute, "loader": system.num_workers or share}


def choose_compute_threads(requested: int, share: int, local_world: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """-> (compute threads of one rank, a line if OMP_NUM_THREADS is not obeyed, or leaves cores idle; else "").

    requested    --system.intra-op-threads; 0 = choose
    share        this rank's share of the cores
    local_world  ranks on this machine
    """
    text = environ.get("OMP_NUM_THREADS", "").strip()
    first = text.partition(",")[0].strip()  # OpenMP takes a list, a number for each level of nesting
    wished = int(first) if first.isascii() and first.isdigit() else 0
    if requested:
        other = wished not in (0, requested)
        return requested, f"note: --system.intra-op-threads {requested} overrides OMP_NUM_THREADS={text}" if other else ""
    if not text:
        return share, ""
    if not 0 < wished <= MAX_THREADS:
        return (
            share,
            f"warning: ignoring OMP_NUM_THREADS={text!r}, which is not a number of threads. Using {share} compute threads per rank.",
        )
    # torchrun sets 1 for its workers wherever nobody set anything, "to avoid overloading": that is nobody's wish.
    if wished == 1 < share and local_world > 1 and "TORCHELASTIC_RUN_ID" in environ:
        return share, (
            f"note: ignoring OMP_NUM_THREADS=1, the default of torchrun. Using {share} compute threads per rank, its share of the "
            "cores. To use one thread, set --system.intra-op-threads 1."
        )
    return wished, "" if wished > 1 or share == 1 else (
        f"note: OMP_NUM_THREADS=1 is set, so each rank uses 1 compute thread of its {share} cores. To use all, unset it, "
        f"or set --system.intra-op-threads {share}"
    )


def autocast_for(system: System, device: torch.device) -> Callable[[], AbstractContextManager]:
    """Return a function that makes autocast contexts for the system's precision; weights, norms, and losses stay float32.

    Also sets TF32 for the process (`set_tf32`), so that backward passes outside of the contexts use the same precision.
    """
    set_tf32(system)

    def autocast() -> AbstractContextManager:
        number = TYPES.get(system.precision)
        return nullcontext() if number is None else torch.autocast(device.type, dtype=number)

    return autocast


def set_tf32(system: System) -> None:
    """Let CUDA round the inputs of float32 convolutions and matrix products to TF32 only if the precision is tf32.

    The setting is global to the process. torch's own default is to round the inputs of convolutions.
    """
    # torch has two interfaces for this and does not allow a mix of them. torch.compile reads this one, of which torch 2.9 warns.
    warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = system.precision == "tf32"


def make_exact(exact: bool, *, varied: bool = False) -> None:
    """Allow deterministic kernels only, or set whether cuDNN searches for the fastest kernel of each convolution.

    exact    --deterministic: deterministic kernels only
    varied   True if the run's images have several shapes
    The search builds and times the kernels of each convolution once per shape. On one H200, with a search, the warm-up
    of five shapes of Mask R-CNN in fp32 took 52 s, and the peak was 73.3 GiB, while the step needs 12.5 without
    workspaces (results/gpu). torch allocates the largest workspace of all kernels that fits the free memory.
    torch.backends.cudnn.benchmark_limit bounds how many kernels are timed, but not how many are built, nor the
    workspace. If shapes vary, cuDNN therefore takes the kernel that its heuristics rank first.
    """
    if exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants it for deterministic sums
        torch.use_deterministic_algorithms(True)
    if exact or torch.cuda.is_available():
        torch.backends.cudnn.benchmark = not (exact or varied)
