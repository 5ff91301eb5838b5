"""The sbatch script: what is asked of Slurm, the environment, the ranks, and how the job goes on when its time is up."""

from __future__ import annotations

import shlex

from paceline._utils.names import STOP_FILE
from paceline._utils.text import one_line
from paceline.launch import preflight
from paceline.launch.containers import CONTAINER
from paceline.launch.job import Job, Words, environment, exports, in_lines, node_exports
from paceline.launch.starters import START

# A step of its own on every node: its number goes to torchrun by the variable that it reads.
ON_EVERY_NODE = 'export PET_NODE_RANK=$SLURM_NODEID; exec "$@"'
WATCHED = "# the ranks of a run look for it: they save a checkpoint and end with 75"


def script(job: Job, command: Words) -> str:
    """The text of job.sbatch. `command` starts all ranks; or one node's, and then srun carries it to each node."""
    starter, container = START[job.start], CONTAINER[job.container]
    parts = [
        "#!/usr/bin/env bash\n",
        f"# {job.name}: {job.ranks} ranks on {job.nodes} node{'s'[: job.nodes > 1]}, started by {job.start}.\n",
        _sbatch_lines(job),
        f"\nset -uo pipefail\n\n{exports(environment(job))}\n",
        f"stop_file={shlex.quote(str(job.folder / STOP_FILE))}  {WATCHED}\n",
        f'code_file={shlex.quote(str(job.exit_code_file))}\nrm -f "$code_file" "$stop_file"\n',
    ]
    if starter.reach == "node":
        each = ("srun", *_one_a_node(job.nodes))
        each = (*each, "--export=ALL", "--cpu-bind=none", "--kill-on-bad-exit=0", "--label", *job.on_chosen)
        command = (*each, *container.srun(job), "sh", "-c", ON_EVERY_NODE, "sh", *command)
    every = _one_a_node(job.nodes + job.spares)
    if line := container.before(job):
        parts.append(_once("Folders that the container writes into", line, "a folder cannot be made on a node", every))
    if job.preflight:
        # --wait: whoever hangs when the others have ended is ended.
        words = ("srun", *every, "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=30", *container.srun(job))
        own = preflight.numbered(job, '"$SLURM_NODEID"', name='"$SLURMD_NODENAME"')
        parts.append(preflight.lines(job, f"{in_lines(words)} \\\n    {own}"))
    if job.between:
        failed = f"the command of --between failed on a node: {one_line(job.between)}"
        on = (*_one_a_node(job.nodes), *job.on_chosen) if job.on_chosen else every
        parts.append(_once("Before the ranks start", job.between, failed, on))
    if starter.reach == "node" and job.nodes > 1:
        names = 'cat "$preflight/nodes"' if job.preflight else 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
        parts.append("\n" + node_exports(job, f"${{MASTER_ADDR:-$({names} | head -n 1)}}"))
    return "".join([*parts, _ranks_and_end(job, command)])


def _one_a_node(count: int) -> Words:
    """srun's words for a process on each of `count` nodes."""
    return ("--nodes", str(count), "--ntasks", str(count), "--ntasks-per-node", "1")


def _once(why: str, line: str, failed: str, on: Words) -> str:
    """A shell line once on every node that srun's words `on` name."""
    return (
        f"\n# {why}, once on every node.\n{in_lines(('srun', *on, 'sh', '-c', line))} || {{\n"
        f"    echo {shlex.quote(f'paceline: {failed}')}\n"
        '    echo 3 >"$code_file"\n'
        "    exit 3\n}\n"
    )


def _sbatch_lines(job: Job) -> str:
    batch = job.batch
    lines = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes + job.spares}",
        f"--ntasks-per-node={job.per_node}",
        f"--chdir={job.workdir}",
        f"--output={job.log}",
        "--open-mode=append",
    ]
    if job.walltime_minutes:
        lines += [f"--time={job.walltime_minutes}", f"--signal=B:USR1@{batch.lead}"]
    lines += ["--requeue" if batch.requeue else "--no-requeue"]
    lines += ["--exclusive"] * batch.exclusive
    for name in ("partition", "account", "qos", "gres", "reservation", "constraint", "network"):
        if value := getattr(batch, name):
            lines.append(f"--{name}={value}")
    return "".join(f"#SBATCH {shlex.quote(line)}\n" for line in (*lines, *batch.extra))


def _ranks_and_end(job: Job, command: Words) -> str:
    """The ranks run in the background, because a shell acts on a signal only between commands."""
    last, quote = job.folder / "checkpoints" / "last", shlex.quote
    goes_on, notes = job.batch.requeue, CONTAINER[job.container].notes(job) + START[job.start].notes(job)
    return f"""
last_checkpoint={quote(str(last))}
# USR1 comes from Slurm {job.batch.lead} s before the walltime's end, TERM from whoever wants the run to save and end.
time_is_up=0
trap 'time_is_up=1; touch "$stop_file"' USR1
trap 'touch "$stop_file"' TERM
checkpoint_before=$(readlink "$last_checkpoint")

{notes}{in_lines(command)} &
starter=$!
while kill -0 "$starter" 2>/dev/null; do wait "$starter"; done
rm -f "$stop_file"

# The run's own exit code; 3 where the ranks died before one was left.
code=$(cat "$code_file" 2>/dev/null || echo 3)
if [ "$time_is_up" = 1 ] && [ "$code" = 75 ]; then
    if [ "$(readlink "$last_checkpoint")" = "$checkpoint_before" ]; then
        echo "paceline: the walltime was too short for one checkpoint; ask for a longer one with --walltime."
    else
        echo "paceline: the walltime is up; {"job $SLURM_JOB_ID" if goes_on else "the same command"} goes on from here."
{'        scontrol requeue "$SLURM_JOB_ID"' if goes_on else "        # --requeue was not asked for"}
    fi
fi
exit "$code"
"""
