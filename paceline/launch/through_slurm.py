"""Slurm gives the nodes: a job in its hands is submitted, watched and stopped here; slurm_script.py is what it runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from paceline._utils.atomic_write import write_whole
from paceline._utils.errors import UserError
from paceline._utils.safe_read import read_entry
from paceline._utils.text import one_line
from paceline.launch.job import File, Job, Running, Through, needs
from paceline.launch.slurm_script import script

JOB_NUMBER = "job-number"
MOST_BYTES = 1 << 20
# Job states that nothing follows (squeue(1), JOB STATE CODES). A requeued job is PENDING again.
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
)
ASK_SECONDS = 2.0


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

    def waiting_for(self) -> str:
        """Slurm's reason while it waits."""
        self._ask()
        return f"waits ({self._reason})" if self._state == "PENDING" else ""

    def _ask(self) -> None:
        if time.monotonic() - self._asked < ASK_SECONDS:
            return
        self._asked = time.monotonic()
        answer = _quiet("scontrol", "show", "job", "--oneliner", self.number)
        if answer.returncode != 0:
            # The controller forgets a job some minutes after its end; a controller that is away gives another error.
            self._ends += "Invalid job id" in answer.stderr
            return
        facts = dict(re.findall(r"(\w+)=(\S+)", answer.stdout))
        self._state, self._reason = facts.get("JobState", ""), facts.get("Reason", "")
        self._code = int(facts.get("ExitCode", "0:0").partition(":")[0])
        # Twice: between its end and its being queued again a job may look ended.
        self._ends = self._ends + 1 if self._state in ENDED else 0


def _quiet(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _check(job: Job) -> None:
    if "%" in str(job.log) or "\\" in str(job.log):
        raise UserError(
            f"{job.folder}: Slurm reads % and \\ in the name of a log as its own signs. Choose another --out."
        )


def _begin(job: Job, paths: tuple[Path, ...]) -> Running:
    """Hand the script to sbatch.

    Raises UserError with Slurm's own reason where it takes no such job: too many nodes, an unknown partition, ...
    """
    done = _quiet("sbatch", "--parsable", str(paths[0]))
    if done.returncode != 0:
        # The last line is the conclusion of those before it.
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        why = one_line(last.strip().removeprefix("sbatch: error: ").rstrip(".")[:300])
        raise UserError(f"sbatch refused {paths[0]}: {why}. `sinfo` shows what the cluster has.")
    submitted = SlurmJob(done.stdout.strip().partition(";")[0])
    write_whole(job.launch_folder / JOB_NUMBER, f"{submitted.number}\n")
    return submitted


def _earlier(job: Job, files: tuple[File, ...]) -> Running | None:
    """The job of an earlier launch that still waits or runs for this folder, with the same files.

    Its walltime may be another: --walltime auto changes with what is known of the run's speed.
    Raises UserError where it was submitted with other files: those would be replaced under it, and what is new would not count.
    """
    number = _text(job.launch_folder / JOB_NUMBER).strip()
    if not number.isdecimal() or shutil.which("squeue") is None:
        return None
    answer = _quiet("squeue", "--noheader", "--format=%T", f"--jobs={number}")
    if answer.returncode != 0 or not answer.stdout.strip() or answer.stdout.strip() in ENDED:
        return None
    for file in files:
        if _without_time(_text(job.launch_folder / file.name)) != _without_time(file.text):
            raise UserError(
                f"{job.folder}: job {number} is still there with another {file.name} than this command's. Give its own "
                f"command again to follow it, wait for its end, or take it away: scancel {number}"
            )
    running = SlurmJob(number)
    running.name += " (submitted before; it is still there and is followed)"
    return running


def _text(path: Path) -> str:
    """What an earlier launch wrote; "" where there is none, or anything else than a small text."""
    try:
        return read_entry(path, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _without_time(script: str) -> str:
    return "".join(line for line in script.splitlines(keepends=True) if not line.startswith("#SBATCH --time="))


NO_SBATCH = "--through slurm: there is no sbatch on this machine. Run this on a login node of the cluster, or use --through hostfile."
SLURM = Through(
    lambda job, command: (File("job.sbatch", script(job, command), runs=True),),
    _check,
    _begin,
    _earlier,
    by_hand=("sbatch",),
    missing=needs(NO_SBATCH, "sbatch"),
)
