"""The lines of a job's script that look at all its nodes before training, and end the job where one of them is bad.

One process a node (paceline/launch/preflight/node.py), started as the job's ranks are. They meet in RUN/launch/preflight, a
folder that all see, because a network that does not work is one of the things to find out. The first of them leaves a verdict there,
which holds the name of this start.
"""

from __future__ import annotations

import shlex

from paceline.distributed.comm.exit_code import FAILED
from paceline.launch.containers.engines import CONTAINERS
from paceline.launch.job import LaunchJob, Words, choose_store_port, format_command_lines
from paceline.launch.starters import STARTERS


def node_program(job: LaunchJob, names: Words = ()) -> Words:
    """One node's process; its caller appends --number, and --name where the launcher knows it.

    names  of all hosts, where they are known before
    """
    words: Words = ("--folder", str(job.preflight_folder), "--nodes", str(job.nodes), "--ranks", str(job.per_node))
    if job.system_name not in ("", "auto"):
        words += ("--system", job.system_name)
    if port := job.port or (STARTERS[job.start].reach == "node" and job.nodes > 1 and choose_store_port(job)):
        words += ("--port", str(port))
    if job.system.interface:
        words += ("--interface", job.system.interface)
    for path in job.preflight_reads:
        words += ("--reads", path)
    for path in job.preflight_writes:
        words += ("--writes", path)
    if names:
        words += ("--names", ",".join(names))
    return CONTAINERS[job.container].wrap(job, (*job.python, "-m", "paceline.launch.preflight.node", *words))


def preflight_lines(job: LaunchJob, start: str) -> str:
    """Shell lines: `start` runs the programs on every node; where the verdict is not good the script ends with 3."""
    quote = shlex.quote
    return f"""
# Before training, doctor and bench comm on every node.
preflight={quote(str(job.preflight_folder))}
mkdir -p "$preflight"
preflight_start=${{SLURM_JOB_ID:-here}}-$$-$(date +%s)-$RANDOM$RANDOM
rm -f "$preflight/start"  # whatever lies there is not written through
echo "$preflight_start" >"$preflight/start"
{start} || true
if [ "$(cat "$preflight/verdict" 2>/dev/null)" != "$preflight_start good" ]; then
    [ "$(cat "$preflight/verdict" 2>/dev/null)" = "$preflight_start refused" ] || echo "paceline: the preflight came to no end"
    echo {FAILED} >{quote(str(job.exit_code_file))}
    exit {FAILED}
fi
"""


def with_node_number(job: LaunchJob, number: str, *, name: str = "", names: Words = ()) -> str:
    """Through a shell that fills in the node's own number (and name): `sh -c 'exec "$@" --number ...' sh PROGRAM`."""
    text = f'exec "$@" --number {number}' + (f" --name {name}" if name else "")
    return format_command_lines(("sh", "-c", text, "sh", *node_program(job, names)))
