"""A job in Slurm's hands: submitted, watched, stopped."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.printable import one_line

# Job states that nothing follows (squeue(1), JOB STATE CODES). A requeued job is PENDING again.
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
ASK_SECONDS = 2.0


def submit(script: Path) -> SlurmJob:
    """Hand the script to sbatch.

    Raises UserError with Slurm's own reason where it takes no such job: too many nodes, an unknown partition, ...
    """
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        # The last line says what came of those before it.
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        why = one_line(last.strip().removeprefix("sbatch: error: ").rstrip(".")[:300])
        raise UserError(f"sbatch refused {script}: {why}. `sinfo` shows what the cluster has.")
    return SlurmJob(done.stdout.strip().partition(";")[0])


def still_there(number: str) -> SlurmJob | None:
    """The job of this number where it waits or runs; None where it has ended, and where Slurm knows of none."""
    if not number.isdecimal() or shutil.which("squeue") is None:
        return None
    told = _quiet("squeue", "--noheader", "--format=%T", f"--jobs={number}")
    if told.returncode != 0 or not told.stdout.strip() or told.stdout.strip() in ENDED:
        return None
    job = SlurmJob(number)
    job.name += " (submitted before; it is still there and is followed)"
    return job


class SlurmJob:
    """One job; asks the controller every few seconds at most."""

    def __init__(self, number: str):
        self.number = number
        self.name = f"job {number}"
        self._asked, self._state, self._reason, self._code, self._ends = 0.0, "PENDING", "", 0, 0

    def poll(self) -> int | None:
        """None while it waits or runs; then the exit code of its script."""
        self._ask()
        return self._code if self._ends >= 2 else None

    def stop(self) -> None:
        """Waiting: take it back. Running: the script lets the run save and end."""
        if self._state == "PENDING":
            self.kill()
        else:
            _quiet("scancel", "--batch", "--signal=TERM", self.number)

    def kill(self) -> None:
        """Take it away now."""
        _quiet("scancel", self.number)

    def standing(self) -> str:
        """Slurm's reason while it waits."""
        self._ask()
        return f"waits ({self._reason})" if self._state == "PENDING" else ""

    def _ask(self) -> None:
        if time.monotonic() - self._asked < ASK_SECONDS:
            return
        self._asked = time.monotonic()
        told = _quiet("scontrol", "show", "job", "--oneliner", self.number)
        if told.returncode != 0:
            # Forgotten by the controller, which is some minutes after its end; a controller that is away says otherwise.
            self._ends += "Invalid job id" in told.stderr
            return
        facts = dict(re.findall(r"(\w+)=(\S+)", told.stdout))
        self._state, self._reason = facts.get("JobState", ""), facts.get("Reason", "")
        self._code = int(facts.get("ExitCode", "0:0").partition(":")[0])
        # Twice: between its end and its being queued again a job may look ended.
        self._ends = self._ends + 1 if self._state in ENDED else 0


def _quiet(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
