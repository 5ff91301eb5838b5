"""Who starts ranks, by name."""

from __future__ import annotations

from paceline.launch.axes import Starter
from paceline.launch.start_mpirun import MPIRUN
from paceline.launch.start_srun import SRUN
from paceline.launch.start_torchrun import TORCHRUN

START: dict[str, Starter] = {
    "torchrun": TORCHRUN,
    "srun": SRUN,
    "mpirun": MPIRUN,
}
