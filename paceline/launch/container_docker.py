"""Docker: one container a node, in which torchrun or mpirun starts that node's ranks.

The four systems' run_with_docker.sh gave their container the host's network, its IPC and an open-ended memlock; so do we, and
no more than that: it is not root, and Docker's system call filter stays on.
"""

from __future__ import annotations

import shlex
import shutil

from paceline.config.errors import UserError
from paceline.launch.axes import Container, File
from paceline.launch.container_flags import (
    PYTHON,
    Flag,
    container_script,
    device_flags,
    facts_file,
    passed_on,
    starts_at,
)
from paceline.launch.job import Job, Words

# Folders that a group may read are read as outside.
GROUPS = 'for group in $(id -G); do flags+=(--group-add "$group"); done  # every group of yours, not the first alone\n'


def flags_of(job: Job, engine: str) -> tuple[Flag, ...]:
    """Everything between `docker run` and the image."""
    flags = [
        Flag(("--rm",), "nothing of it stays behind"),
        Flag(("--init",), "a first process that passes signals on, so that Ctrl-C and preemption reach the run"),
        Flag(("--user",), "files that it writes are yours, not root's", shell='"$(id -u):$(id -g)"'),
        Flag(("--ipc", "host"), "NCCL joins a node's devices through /dev/shm; Docker's own has 64 MiB"),
        Flag(("--ulimit", "memlock=-1"), "InfiniBand and RoCE pin the memory that they send from"),
        Flag(("--ulimit", "stack=67108864"), "deep stacks of compilers: torch.compile runs them"),
        *device_flags(engine, job.system),
        Flag(("--device", "/dev/infiniband"), "InfiniBand or RoCE, where the host has it", "[ -e /dev/infiniband ]"),
    ]
    if engine == "podman":
        flags.append(Flag(("--userns", "keep-id"), "without root, ids inside are those outside", '[ "$(id -u)" != 0 ]'))
    if job.nodes > 1:
        flags.append(Flag(("--network", "host"), "ranks of other nodes find these by the node's own address"))
    if job.system.bind != "off":
        flags.append(
            Flag(("--cap-add", "SYS_NICE"), "--system.bind says where memory lies, which Docker forbids otherwise")
        )
    flags += [Flag(("--mount", _mount(str(m.host), m.inside, m.writable)), m.why) for m in job.mounts]
    where, why = starts_at(job)
    flags.append(Flag(("--workdir", where), why))
    flags += [Flag(("--env", name), why) for name, why in passed_on(job).items()]
    flags.append(Flag(("--interactive", "--tty"), "by hand, at a terminal", "[ -t 0 ] && [ -t 1 ]"))
    return tuple(flags)


def files(job: Job, engine: str = "docker") -> tuple[File, ...]:
    """container.sh, and what it reads the host's facts with."""
    image = shlex.quote(job.image)
    last = f'{engine} run "${{flags[@]}}" {image} sh -c "$guard" {image} "$@"'
    return (container_script(job, engine, flags_of(job, engine), GROUPS, last), facts_file())


def wrap(job: Job, command: Words) -> Words:
    """container.sh before the command: it lies in the run's folder, which every node sees."""
    return (str(job.launch_folder / "container.sh"), *command)


def check(job: Job, engine: str = "docker") -> None:
    """Raises UserError for paths that it cannot mount."""
    device_flags(engine, job.system)
    for mount in job.mounts:
        if "," in f"{mount.host}{mount.inside}":
            raise UserError(f"{mount.host}: {engine} cannot mount a path with a comma. Give it another name.")


def missing(job: Job) -> str:
    """docker, where this machine would run it."""
    if job.through != "local" or shutil.which("docker") is not None:
        return ""
    return "--container docker: there is no docker on this machine. Install it, or use apptainer."


def _mount(host: str, inside: str, writable: bool) -> str:
    return f"type=bind,source={host},target={inside}" + ("" if writable else ",readonly")


DOCKER = Container(wrap, check, whole=True, python=PYTHON, files=files, missing=missing)
