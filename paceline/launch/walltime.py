"""How long a job may take, in minutes; and whether that is enough for one checkpoint."""

from __future__ import annotations

import math
import re

from paceline.config.errors import UserError
from paceline.launch.job import Batch

# Slurm sends its warning up to a minute sooner than asked (sbatch(1), --signal).
SLURM_SOONER_SECONDS = 60
# What a start costs before the first step: Python and torch, the roll call, opening the data.
START_SECONDS = 20
# Months, as a number without its unit would be; no cluster gives that.
MOST_MINUTES = 60 * 24 * 365


def minutes_in(text: str) -> int:
    """Whole minutes of 90s, 30m, 2h, 1d or H:MM:SS, rounded up; 0 for ''.

    Raises UserError for anything else.
    """
    if not text:
        return 0
    clock, unit = re.fullmatch(r"(?:(\d+):)?(\d+):(\d\d)", text), re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if clock:
        seconds = int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + int(clock[3])
    else:
        seconds = float(unit[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit[2]] if unit else 0
    minutes = math.ceil(seconds / 60)
    if not 0 < minutes <= MOST_MINUTES:
        raise UserError(
            f"--walltime {text!r}: write auto, or a time such as 90m, 2h or 2:00:00 (hours:minutes:seconds)."
        )
    return minutes


def check_walltime(minutes: int, batch: Batch) -> None:
    """Refuse a walltime in which Slurm would ask the run to stop before it made a step: it would be queued again for ever.

    minutes  0: none was asked for
    Raises UserError with the shortest walltime that makes sense.
    """
    if batch.lead < 1:
        raise UserError(f"--slurm.lead {batch.lead}: seconds that the run has for its last checkpoint, 1 or more.")
    least = math.ceil((batch.lead + SLURM_SOONER_SECONDS + START_SECONDS) / 60)
    if 0 < minutes < least:
        raise UserError(
            f"--walltime of {minutes} min is too short for one checkpoint: Slurm asks the run to save {batch.lead} s before "
            f"its end (--slurm.lead) and up to {SLURM_SOONER_SECONDS} s sooner, and a start takes {START_SECONDS} s. At "
            f"least {least} min:  --walltime {least}m"
        )
