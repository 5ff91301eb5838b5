"""Slurm gives the nodes: a job in its hands is submitted, watched and stopped here; its script is made at the end."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.names import STOP_FILE
from paceline._utils.safe_read import read_entry
from paceline._utils.text import escape_line
from paceline.launch.containers.engines import CONTAINERS
from paceline.launch.job import (
    LaunchFile,
    LaunchJob,
    RunningJob,
    Scheduler,
    Words,
    format_command_lines,
    format_exports,
    format_node_exports,
    make_environment,
    require_programs,
)
from paceline.launch.preflight.node import preflight_lines, with_node_number
from paceline.launch.starters import STARTERS

JOB_NUMBER = "job-number"
MAX_BYTES = 1 << 20
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
        return f"is waiting ({self._reason})" if self._state == "PENDING" else ""

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


def _check(job: LaunchJob) -> None:
    if "%" in str(job.log) or "\\" in str(job.log):
        raise PacelineError(f"{job.folder}: must not contain % or \\, which Slurm expands. Choose another --output-dir.")


def _begin(job: LaunchJob, paths: tuple[Path, ...]) -> RunningJob:
    """Hand the script to sbatch.

    Raises PacelineError with Slurm's own reason where it takes no such job: too many nodes, an unknown partition, ...
    """
    done = _quiet("sbatch", "--parsable", str(paths[0]))
    if done.returncode != 0:
        # The last line is the conclusion of those before it.
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        why = escape_line(last.strip().removeprefix("sbatch: error: ").rstrip(".")[:300])
        raise PacelineError(f"sbatch rejected {paths[0]}: {why}. To list the resources of the cluster, run `sinfo`.")
    submitted = SlurmJob(done.stdout.strip().partition(";")[0])
    atomic_write(job.launch_folder / JOB_NUMBER, f"{submitted.number}\n")
    return submitted


def _earlier(job: LaunchJob, files: tuple[LaunchFile, ...]) -> RunningJob | None:
    """The job of an earlier launch that still waits or runs for this folder, with the same files.

    Its walltime may be another: --walltime auto changes with what is known of the run's speed.
    Raises PacelineError where it was submitted with other files: those would be replaced under it, and what is new would not count.
    """
    number = _text(job.launch_folder / JOB_NUMBER).strip()
    if not number.isdecimal() or shutil.which("squeue") is None:
        return None
    answer = _quiet("squeue", "--noheader", "--format=%T", f"--jobs={number}")
    if answer.returncode != 0 or not answer.stdout.strip() or answer.stdout.strip() in ENDED:
        return None
    for file in files:
        if _without_time(_text(job.launch_folder / file.name)) != _without_time(file.text):
            raise PacelineError(
                f"{job.folder}: job {number} still exists, and its {file.name} differs from this command. To follow the job, run "
                f"its own command. Or wait until it ends, or cancel it:  scancel {number}"
            )
    running = SlurmJob(number)
    running.name += " (submitted before, still exists; following it)"
    return running


def _text(path: Path) -> str:
    """What an earlier launch wrote; "" where there is none, or anything else than a small text."""
    try:
        return read_entry(path, MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _without_time(script: str) -> str:
    return "".join(line for line in script.splitlines(keepends=True) if not line.startswith("#SBATCH --time="))


NO_SBATCH = "--scheduler slurm: sbatch not found on this machine. Use a login node of the cluster, or --scheduler hostfile."
SLURM = Scheduler(
    lambda job, command: (LaunchFile("job.sbatch", make_sbatch_script(job, command), runs=True),),
    _check,
    _begin,
    _earlier,
    by_hand=("sbatch",),
    missing=require_programs(NO_SBATCH, "sbatch"),
)


# The sbatch script: what is asked of Slurm, the environment, the ranks, and how the job continues when its time is up.

# A step of its own on every node: its number goes to torchrun by the variable that it reads.
ON_EVERY_NODE = 'export PET_NODE_RANK=$SLURM_NODEID; exec "$@"'
WATCHED = "# if this file exists, the ranks save a checkpoint and exit with 75"


def make_sbatch_script(job: LaunchJob, command: Words) -> str:
    """The text of job.sbatch. `command` starts all ranks; or one node's, and then srun carries it to each node."""
    starter, container = STARTERS[job.start], CONTAINERS[job.container]
    parts = [
        "#!/usr/bin/env bash\n",
        f"# {job.name}: {job.ranks} ranks on {job.nodes} node{'s'[: job.nodes > 1]}, started by {job.start}.\n",
        _sbatch_lines(job),
        f"\nset -uo pipefail\n\n{format_exports(make_environment(job))}\n",
        f"stop_file={shlex.quote(str(job.folder / STOP_FILE))}  {WATCHED}\n",
        f'code_file={shlex.quote(str(job.exit_code_file))}\nrm -f "$code_file" "$stop_file"\n',
    ]
    every = ("--nodes", str(job.nodes), "--ntasks", str(job.nodes), "--ntasks-per-node", "1")  # a process on each node
    if starter.reach == "node":
        each = ("srun", *every, "--export=ALL", "--cpu-bind=none", "--kill-on-bad-exit=0", "--label")
        command = (*each, *container.srun(job), "sh", "-c", ON_EVERY_NODE, "sh", *command)
    if line := container.before(job):
        parts.append(_once("Create the folders of the container", line, "creating a folder on a node failed", every))
    if job.preflight:
        # --wait: whoever hangs when the others have ended is ended.
        words = ("srun", *every, "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=30", *container.srun(job))
        own = with_node_number(job, '"$SLURM_NODEID"', name='"$SLURMD_NODENAME"')
        parts.append(preflight_lines(job, f"{format_command_lines(words)} \\\n    {own}"))
    if job.between:
        failed = f"--pre-run-command failed on a node: {escape_line(job.between)}"
        parts.append(_once("Before the ranks start", job.between, failed, every))
    if starter.reach == "node" and job.nodes > 1:
        names = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
        parts.append("\n" + format_node_exports(job, f"${{MASTER_ADDR:-$({names} | head -n 1)}}"))
    return "".join([*parts, _ranks_and_end(job, command)])


def _once(why: str, line: str, failed: str, on: Words) -> str:
    """A shell line once on every node that srun's words `on` name."""
    return (
        f"\n# {why}, once on every node.\n{format_command_lines(('srun', *on, 'sh', '-c', line))} || {{\n"
        f"    echo {shlex.quote(f'paceline: {failed}')}\n"
        '    echo 3 >"$code_file"\n'
        "    exit 3\n}\n"
    )


def _sbatch_lines(job: LaunchJob) -> str:
    batch = job.batch
    lines = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.per_node}",
        f"--chdir={job.workdir}",
        f"--output={job.log}",
        "--open-mode=append",
    ]
    if job.walltime_minutes:
        lines += [f"--time={job.walltime_minutes}", f"--signal=B:USR1@{batch.grace_seconds}"]
    lines += ["--requeue" if batch.requeue else "--no-requeue"]
    lines += ["--exclusive"] * batch.exclusive
    for name in ("partition", "account", "qos", "gres", "reservation", "constraint", "network"):
        if value := getattr(batch, name):
            lines.append(f"--{name}={value}")
    return "".join(f"#SBATCH {shlex.quote(line)}\n" for line in (*lines, *batch.extra))


def _ranks_and_end(job: LaunchJob, command: Words) -> str:
    """The ranks run in the background, because a shell acts on a signal only between commands."""
    last, quote = job.folder / "checkpoints" / "last", shlex.quote
    goes_on, notes = job.batch.requeue, CONTAINERS[job.container].notes(job) + STARTERS[job.start].notes(job)
    return f"""
last_checkpoint={quote(str(last))}
# Slurm sends USR1 {job.batch.grace_seconds} s before the walltime. TERM also stops the run after a checkpoint.
time_is_up=0
trap 'time_is_up=1; touch "$stop_file"' USR1
trap 'touch "$stop_file"' TERM
checkpoint_before=$(readlink "$last_checkpoint")

{notes}{format_command_lines(command)} &
starter=$!
while kill -0 "$starter" 2>/dev/null; do wait "$starter"; done
rm -f "$stop_file"

# The exit code of the run, or 3 if the ranks died before they wrote one.
code=$(cat "$code_file" 2>/dev/null || echo 3)
if [ "$time_is_up" = 1 ] && [ "$code" = 75 ]; then
    if [ "$(readlink "$last_checkpoint")" = "$checkpoint_before" ]; then
        echo "paceline: the walltime was too short for one checkpoint. Set a longer --walltime."
    else
        echo "paceline: the walltime is over; {"job $SLURM_JOB_ID" if goes_on else "the same command"} resumes from here."
{'        scontrol requeue "$SLURM_JOB_ID"' if goes_on else "        # --slurm.requeue is off"}
    fi
fi
exit "$code"
"""
