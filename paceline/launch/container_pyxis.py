"""Pyxis: srun itself starts each task inside, unpacked once a node by enroot.

No --container-name: a container of that name that a node still has would be used as it is, whatever image is asked for.

Enroot shares the host's network, IPC and user, and brings NVIDIA's driver in where the image names NVIDIA_VISIBLE_DEVICES,
which ours does. Slurm's variables are enough for ranks to find each other, so no --mpi=pmix is asked for.
"""

from __future__ import annotations

import shlex

from paceline.config.errors import UserError
from paceline.config.printable import one_line
from paceline.launch.axes import Container
from paceline.launch.container_flags import GUARD, PYTHON, Flag, family, starts_at
from paceline.launch.job import Job, Words
from paceline.launch.shell import environment


def flags_of(job: Job) -> tuple[Flag, ...]:
    """What srun takes."""
    mounts = ",".join(f"{mount.host}:{mount.inside}{'' if mount.writable else ':ro'}" for mount in job.mounts)
    where, begins = starts_at(job)
    keep = ",".join(variable.name for variable in environment(job))
    return (
        Flag((f"--container-image={job.image}",), "a registry's image (HOST#NAME:TAG), or a .sqsh file that all nodes see"),
        Flag((f"--container-mounts={mounts}",), "each lies inside where it lies outside"),
        Flag((f"--container-workdir={where}",), begins),
        Flag((f"--container-env={keep}",), "their values here win over the image's own"),
        Flag(("--no-container-mount-home",), "no packages of ~/.local come between"),
    )  # fmt: skip


def srun(job: Job) -> Words:
    """The words alone."""
    return tuple(word for flag in flags_of(job) for word in flag.words)


def notes(job: Job) -> str:
    """Comment lines for the script that holds the srun line."""
    lines = []
    for flag in flags_of(job):
        lines.append(f"{flag.words[0].partition('=')[0]}: {flag.why}")
        if flag.words[0].startswith("--container-mounts"):
            lines += [f"    {one_line(f'{mount.inside}: {mount.why}')}" for mount in job.mounts]
    return "".join(f"# {line}\n" for line in lines)


def wrap(job: Job, command: Words) -> Words:
    """srun has the task inside already; only an image without paceline is told."""
    return ("sh", "-c", GUARD, job.image, *command)


def before(job: Job) -> str:
    """Makes the folders that the container writes into: enroot mounts only what is there."""
    written = [str(mount.host) for mount in job.mounts if mount.writable]
    return shlex.join(("mkdir", "-p", *written)) if written else ""


def check(job: Job) -> None:
    """Raises UserError without an image that nodes can find, for devices that enroot has no way for, and for odd paths."""
    if not job.image:
        raise UserError(
            "--container pyxis: name the image that the nodes import: --image registry.example.com#paceline:0.1.0"
        )
    if family(job.system) not in ("cpu", "cuda"):
        raise UserError(
            f"--container pyxis: enroot brings in NVIDIA's devices, not {family(job.system)}. Use apptainer."
        )
    for mount in job.mounts:
        if set(",:") & set(f"{mount.host}{mount.inside}"):
            raise UserError(f"{mount.host}: pyxis cannot mount a path with a comma or colon. Give it another name.")


PYXIS = Container(wrap, check, srun=srun, python=PYTHON, notes=notes, before=before)
