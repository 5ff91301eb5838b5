"""Choose the fastest measured form of a training step: compiled or not, captured or not, by whose kernels, in which memory layout.

Each row of the tables is a measurement, and names the page of results/ that has it. `auto` means the fastest row that this run can
use. If none fits, the step takes its plain form (FORMS of config/system.py). Nothing is timed at the start of a run, so the same
command on the same machine always chooses the same form. Forms differ in rounding only.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline._utils.errors import RecipeError
from paceline._utils.platform import count_cpus
from paceline.config.plan import BatchPlan
from paceline.config.recipe import Recipe
from paceline.config.reference_rates import find_fastest
from paceline.config.resnet import RESNET
from paceline.config.system import FORMS, System
from paceline.distributed.device.setup import set_tf32
from paceline.models.ops.dispatch import set_triton
from paceline.models.workload import WorkloadSpec


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a training step of the full-size network on two cores of a CPU, in both memory layouts."""

    task: str
    instructions: str  # of torch.backends.cpu.get_cpu_capability()
    precision: str
    channels_last: float
    contiguous: float
    measured: str = "results/layouts"

    @property
    def faster(self) -> str:
        """Value of --system.channels-last."""
        return "on" if self.channels_last <= self.contiguous else "off"


LAYOUTS = (
    StepSeconds("classification", "AVX2", "fp32", 5.25, 5.92),
    StepSeconds("classification", "AVX512", "fp32", 1.22, 1.52),
    StepSeconds("classification", "AVX512", "bf16", 0.66, 0.875),
    StepSeconds("detection", "AVX2", "fp32", 9.23, 8.2),
    StepSeconds("detection", "AVX512", "fp32", 1.75, 1.99),
    StepSeconds("detection", "AVX512", "bf16", 1, 1.1),
    StepSeconds("instance-segmentation", "AVX2", "fp32", 16.8, 10.9),
    StepSeconds("instance-segmentation", "AVX512", "fp32", 2.65, 3.04),
    StepSeconds("instance-segmentation", "AVX512", "bf16", 1.46, 1.8),
)


def choose_forms(
    recipe: Recipe,
    system: System,
    plan: BatchPlan,
    workload: WorkloadSpec,
    *,
    exact: bool,
    varied: bool,
    seconds: float = math.inf,
) -> tuple[dict[str, str], str]:
    """Choose a value for each `auto` among the system's FORMS. -> (field -> value, the choice and its reason in one line, or "")

    varied   whether the run's images have several shapes
    seconds  time budget of the run
    """
    requested = {name: getattr(system, name) for name in FORMS}
    chosen = {name: FORMS[name] for name, value in requested.items() if value == "auto"}
    if not chosen:
        return {}, ""
    why, measured = "no faster implementation was measured", getattr(recipe.model, "backbone", "") == RESNET
    if exact:
        why = "--deterministic uses one fixed implementation"
        if "kernels" in chosen and system.device == "cuda" and workload.network.no_exact:
            chosen["kernels"] = "triton"  # check_exact has refused the run if that is not enough
    # Layouts were measured on one rank. In contiguous memory, some gradients do not have the strides of data parallel's buckets.
    elif measured and plan.world_size == 1 and "channels_last" in chosen and (layout := find_layout(recipe.task, system)):
        chosen["channels_last"] = layout.faster
        why = (
            f"a full-size {recipe.task} step needed {layout.channels_last:g} s in channels_last and {layout.contiguous:g} s "
            f"contiguous, with {layout.instructions} in {layout.precision}: {layout.measured}"
        )
    elif measured and (system.device, system.precision) == ("cuda", "bf16") and torch.version.hip is None:
        more = {"varied": varied, "seconds": seconds, "builds": can_build_kernels(), "cores": count_cpus()}
        row = find_fastest(recipe.task, requested, plan, compiles=not workload.network.no_compile, **more)
        if row is not None:
            chosen |= {name: getattr(row, name) for name in chosen if name != "channels_last"}
            why = f"{row.rate:g} images/s on one H200: {row.measured}"
    words = ", ".join(f"{name} {value}" for name, value in chosen.items())
    return chosen, f"{words} ({why})"


def find_layout(task: str, system: System) -> StepSeconds | None:
    """The measurement of both memory layouts on such a CPU; None if there is none."""
    if system.device != "cpu":
        return None
    wanted = (task, torch.backends.cpu.get_cpu_capability(), system.precision)
    return next((row for row in LAYOUTS if (row.task, row.instructions, row.precision) == wanted), None)


def can_build_kernels() -> bool:
    """Whether this machine can build the kernels of Triton and of torch.compile: both call a C compiler and need Python's headers."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return importlib.util.find_spec("triton") is not None and bool(compiler) and headers.is_file()


def choose_kernels(system: System) -> None:
    """Apply --system.kernels and the precision to the rest of the process. Raises RecipeError if Triton is missing."""
    set_tf32(system)
    wanted = system.kernels == "triton"
    if wanted and importlib.util.find_spec("triton") is None:
        raise RecipeError(
            "--system.kernels triton: Triton is not installed. Install a CUDA build of torch, or set --system.kernels torch."
        )
    set_triton(wanted)
