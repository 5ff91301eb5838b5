"""Apptainer, and Singularity as it was called before: a container around each rank, without a daemon and without root.

It shares the host's network, IPC, processes, limits and user from the start, so devices and folders are all there is to say.
"""

from __future__ import annotations

import shlex
import shutil

from paceline.config.errors import UserError
from paceline.launch.axes import Container, File
from paceline.launch.container_docker import wrap
from paceline.launch.container_flags import (
    PYTHON,
    Flag,
    container_script,
    device_flags,
    facts_file,
    passed_on,
    starts_at,
)
from paceline.launch.job import Job

ENGINE = """engine=$(command -v apptainer || command -v singularity) || {{
    echo "paceline: $(hostname) has neither apptainer nor singularity. Install one, or use --container docker." >&2
    exit 2
}}
# The host's environment comes inside; these would have the image's Python look for packages on the host.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH
export PYTHONNOUSERSITE=1
# Where the image has a value of its own it would win, but for this prefix.
case $engine in *apptainer) prefix=APPTAINERENV ;; *) prefix=SINGULARITYENV ;; esac
for name in {names}; do
    if [ -n "${{!name+set}}" ]; then export "${{prefix}}_$name=${{!name}}"; fi
done
"""


def flags_of(job: Job) -> tuple[Flag, ...]:
    """Everything between `apptainer exec` and the image."""
    binds = [
        Flag(("--bind", f"{mount.host}:{mount.inside}:{'rw' if mount.writable else 'ro'}"), mount.why)
        for mount in job.mounts
    ]
    where, why = starts_at(job)
    return (*device_flags("apptainer", job.system), *binds, Flag(("--pwd", where), why))


def files(job: Job) -> tuple[File, ...]:
    """container.sh, and what it reads the host's facts with."""
    image = shlex.quote(job.image)
    last = f'"$engine" exec "${{flags[@]}}" {image} sh -c "$guard" {image} "$@"'
    return (
        container_script(job, "apptainer", flags_of(job), ENGINE.format(names=" ".join(passed_on(job))), last),
        facts_file(),
    )


def check(job: Job) -> None:
    """Raises UserError for paths that it cannot mount."""
    device_flags("apptainer", job.system)
    for mount in job.mounts:
        if set(",:") & set(f"{mount.host}{mount.inside}"):
            raise UserError(f"{mount.host}: apptainer cannot mount a path with a comma or colon. Give it another name.")


def missing(job: Job) -> str:
    """Apptainer or Singularity, where this machine would run it."""
    if job.through != "local" or shutil.which("apptainer") or shutil.which("singularity"):
        return ""
    return (
        "--container apptainer: there is neither apptainer nor singularity on this machine. Install one, or use "
        "--container docker."
    )


APPTAINER = Container(wrap, check, python=PYTHON, files=files, missing=missing)
