"""Where and how a job is started, as flags say it; and the Job that they make of words and a folder."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from paceline._utils.cache import cache_folder
from paceline._utils.errors import PacelineError
from paceline._utils.platform import count_cpus
from paceline._utils.text import escape_line, parse_duration
from paceline.config.constraints import Help
from paceline.config.system import System
from paceline.launch.containers.engines import CONTAINERS
from paceline.launch.containers.image_build import default_image
from paceline.launch.containers.mounts import choose_mounts
from paceline.launch.job import BatchOptions, EnvVariable, LaunchJob, Words
from paceline.launch.runner import USUAL_START, check_together

MAX_NODES = 65536
# Variables of ours and of Python that a rank on another node must find as they are here.
CARRIED = {
    "PYTHONPATH": "folders in which Python finds additional packages",
    "PACELINE_CACHE": "paceline: folder of built-in data, downloads, and weights",
}
# What libraries of a network read: where the loader finds EFA's and InfiniBand's plugins, then libfabric, NCCL, UCX, Open MPI and
# PRRTE, rdma-core, Gaudi's HCCL and gloo. Slurm carries a shell's environment by itself; ssh and mpirun carry what is named.
NETWORK = "LD_LIBRARY_PATH"
NETWORK_PREFIXES = ("FI_", "NCCL_", "UCX_", "OMPI_MCA_", "PRTE_MCA_", "RDMAV_", "IBV_", "HCCL_", "GLOO_")
# Slurm sends its warning up to a minute sooner than asked (sbatch(1), --signal).
SLURM_SOONER_SECONDS = 60
# What a start costs before the first step: Python and torch, the roll call, opening the data.
START_SECONDS = 20
# Months, as a number without its unit would be; no cluster gives that.
MAX_MINUTES = 60 * 24 * 365
# Named, so that each field fits on one line with its comment, which is its help.
ThroughWhom = Literal["local", "hostfile", "slurm"]
StartedBy = Literal["auto", "torchrun", "srun", "mpirun"]
Inside = Literal["none", "docker", "pyxis", "apptainer"]
# They name this machine's folders, and the image has its own.
OUTSIDE = ("PYTHONPATH", "PACELINE_CACHE")


@dataclass(frozen=True)
class LaunchConfig:
    """The flags that every launched verb has."""

    nodes: Annotated[int, Help("number of machines; each runs the ranks per node of --system")] = 1
    scheduler: Annotated[ThroughWhom, Help("source of the nodes: this machine, a list of hosts, or Slurm")] = "local"
    launcher: Annotated[StartedBy, Help("program that starts the ranks; auto: srun in Slurm, otherwise torchrun")] = "auto"
    container_runtime: Annotated[Inside, Help("container runtime of the ranks")] = "none"
    container_image: Annotated[str, Help("name or file of the image; empty: as `container build` names it")] = ""
    mount: Annotated[tuple[str, ...], Help("more folders in the container: HOST or HOST:INSIDE; :rw: writable")] = ()
    hostfile: Annotated[str, Help("hosts for --scheduler hostfile, one per line: ADDRESS slots=N")] = ""
    walltime: Annotated[str, Help("time limit of the job, such as 90m or 2h; auto: predicted, with a margin")] = ""
    master_port: Annotated[int, Help("port of rank 0; 0: automatic")] = 0
    pre_run_command: Annotated[str, Help("shell command that runs once per node before the ranks start")] = ""
    slurm: Annotated[BatchOptions, Help("options of sbatch, in addition to nodes and time")] = field(
        default_factory=BatchOptions
    )


def check_launch_config(where: LaunchConfig) -> None:
    """Refuse numbers that cannot be, and what does not go together.

    Raises PacelineError with the flag.
    """
    if not 1 <= where.nodes <= MAX_NODES:
        raise PacelineError(f"--nodes {where.nodes}: must be between 1 and {MAX_NODES:,}.")
    if not 0 <= where.master_port < 65536:
        raise PacelineError(f"--master-port {where.master_port}: must be between 1 and 65535, or 0 for automatic.")
    if where.hostfile and where.scheduler != "hostfile":
        raise PacelineError(f"--hostfile {where.hostfile}: requires --scheduler hostfile.")
    explicit = [field.name for field in fields(BatchOptions) if getattr(where.slurm, field.name) != field.default]
    if explicit and where.scheduler != "slurm":
        raise PacelineError(f"--slurm.{explicit[0].replace('_', '-')}: requires --scheduler slurm.")
    if where.container_runtime == "none" and (where.container_image or where.mount):
        raise PacelineError("--container-image and --mount require --container-runtime docker, pyxis, or apptainer.")
    check_together(where.scheduler, choose_starter(where), where.container_runtime, where.nodes)


def warn_outside_variables(where: LaunchConfig, system: System) -> str:
    """A warning about a network's variables that are set in this shell and stay outside of a container; '' where there are none."""
    if where.container_runtime == "none":
        return ""
    inside = {pair.partition("=")[0] for pair in system.env}
    if not (names := [name for name in list_network_variables() if name not in inside]):
        return ""
    return (
        f"note: the container does not get {', '.join(names)} from this shell, because its libraries differ. To set it for the ranks, "
        f"add --system.env {names[-1]}=..."
    )


def choose_starter(where: LaunchConfig) -> str:
    """Who starts the ranks, with --launcher auto too."""
    return USUAL_START[where.scheduler] if where.launcher == "auto" else where.launcher


def make_job(
    words: Words,
    folder: Path,
    *,
    name: str,
    where: LaunchConfig,
    system_name: str,
    system: System,
    minutes: int | None = None,
    reads: Words = (),
    writes: Words = (),
    again: str = "the same command",
) -> LaunchJob:
    """The Job of these words: any verb's, with all paths absolute or seen from the working directory on every node.

    folder   where launch/ is made; absolute
    minutes  the walltime; None: as `where` has it
    reads    data and weights, as flags or a run.json name them: a container sees them
    writes   folders beside the run's that are written, as flags or a run.json name them: a container may
    again    what goes on with the run, in words
    Raises PacelineError as `check_launch_config` does.
    """
    check_launch_config(where)
    network = where.scheduler == "hostfile" and where.container_runtime == "none"
    job = LaunchJob(
        words=words,
        folder=folder,
        name=re.sub(r"[^\w.-]+", "-", Path(name).name) or "paceline",
        nodes=where.nodes,
        per_node=system.ranks_per_node,
        system_name=system_name,
        system=system,
        through=where.scheduler,
        start=choose_starter(where),
        container=where.container_runtime,
        image=where.container_image,
        hostfile=Path(where.hostfile).expanduser().absolute() if where.hostfile else None,
        environ=collect_variables(system, where.master_port, local=where.scheduler == "local", network=network),
        port=where.master_port,
        batch=where.slurm,
        walltime_minutes=parse_walltime(where.walltime) if minutes is None else minutes,
        between=where.pre_run_command,
        again=again,
    )
    return apply_container(job, where.mount, reads=reads, writes=writes)


def apply_container(
    job: LaunchJob, more: Sequence[str] = (), *, reads: Sequence[str] = (), writes: Sequence[str] = ()
) -> LaunchJob:
    """The same job with its container's image, interpreter, mounts and environment; unchanged without a container.

    more    folders that it shall see, as --mount names them
    reads   data and weights that it reads, as flags name them
    writes  folders that it writes into beside its own, as flags name them
    Raises PacelineError for a mount that cannot be.
    """
    container = CONTAINERS[job.container]
    if container.python is None:
        return job
    cache = cache_folder()
    environ = tuple(variable for variable in job.environ if variable.name not in OUTSIDE)
    here = job.through == "local"
    mounts = choose_mounts(job.words, job.folder, cache, more, job.workdir, reads=reads, writes=writes, here=here)
    kept = EnvVariable("PACELINE_CACHE", str(cache), "paceline: cache of this machine, mounted at the same path")
    return replace(
        job,
        image=job.image or default_image(job.container),
        python=container.python,
        environ=(*environ, kept),
        mounts=mounts,
    )


def collect_variables(
    system: System, port: int, *, local: bool, network: bool = False, environ: Mapping[str, str] = os.environ
) -> tuple[EnvVariable, ...]:
    """The environment variables of a job's ranks. No more than they need: the rest of this shell's environment stays here.

    port   where rank 0 listens; 0: no variable for it
    local  whether the ranks run on this machine, whose cores can be counted
    network  forward what a network's libraries read in this shell: nobody else does, and no image has its own
    """
    results = [EnvVariable(name, environ[name], why) for name, why in CARRIED.items() if environ.get(name)]
    if not local and environ.get("MASTER_ADDR"):
        results.append(EnvVariable("MASTER_ADDR", environ["MASTER_ADDR"], "address of rank 0, from this shell"))
    if threads := choose_threads_per_rank(system, environ, local=local):
        # Each launcher has a default of its own, and the number of threads decides the bits of a sum.
        why = "--system.intra-op-threads" if system.intra_op_threads else "the same for every launcher"
        results.append(EnvVariable("OMP_NUM_THREADS", str(threads), f"compute threads per rank, {why}"))
    if port:
        results.append(EnvVariable("MASTER_PORT", str(port), "--master-port: port of rank 0"))
    for pair in system.env:
        name, _, value = pair.partition("=")
        results.append(EnvVariable(name, environ.get(name, value), "--system.env"))
    if network:
        there = {variable.name for variable in results}
        why = "from this shell: read by network libraries"
        results += [EnvVariable(name, environ[name], why) for name in list_network_variables(environ) if name not in there]
    return tuple(results)


def list_network_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the variables set here that a network's libraries read.

    Left out: those that do not stay on a line of a script, and those that an mpirun around this process gave it.
    """
    own = "OMPI_COMM_WORLD_RANK" in environ
    return sorted(
        name
        for name, value in environ.items()
        if (name == NETWORK or name.startswith(NETWORK_PREFIXES))
        and name.isidentifier()
        and value
        and value == escape_line(value)
        and not (own and name.startswith(("OMPI_MCA_", "PRTE_MCA_")))
    )


def choose_threads_per_rank(system: System, environ: Mapping[str, str], *, local: bool) -> int:
    """Threads of a rank: the system's own number; else OMP_NUM_THREADS; else the node's cores over its ranks; 0 = unknown cores."""
    if system.intra_op_threads:
        return system.intra_op_threads
    if environ.get("OMP_NUM_THREADS", "").isdecimal():
        return int(environ["OMP_NUM_THREADS"])
    cores = system.sockets * system.cores_per_socket or (count_cpus() if local else 0)
    return max(1, cores // system.ranks_per_node) if cores else 0


def parse_walltime(text: str) -> int:
    """Whole minutes of a duration, as `parse_duration` reads it, rounded up; 0 for ''.

    Raises PacelineError for anything else.
    """
    if not text:
        return 0
    minutes = 0 if text.isdecimal() else math.ceil(parse_duration(text) / 60)  # a bare number could mean minutes
    if not 0 < minutes <= MAX_MINUTES:
        raise PacelineError(
            f"--walltime {text!r}: must be auto or a time such as 90m, 2h, or 2:00:00 (hours:minutes:seconds)."
        )
    return minutes


def check_walltime(minutes: int, batch: BatchOptions) -> None:
    """Refuse a walltime in which Slurm would ask the run to stop before it made a step: it would be queued again for ever.

    minutes  0: none was asked for
    Raises PacelineError with the shortest walltime that makes sense.
    """
    if batch.grace_seconds < 1:
        raise PacelineError(f"--slurm.grace-seconds {batch.grace_seconds}: must be 1 or more.")
    least = math.ceil((batch.grace_seconds + SLURM_SOONER_SECONDS + START_SECONDS) / 60)
    if 0 < minutes < least:
        raise PacelineError(
            f"--walltime of {minutes} min is too short for one checkpoint. Slurm signals the run {batch.grace_seconds} s before the "
            f"end (--slurm.grace-seconds) and up to {SLURM_SOONER_SECONDS} s earlier, and a start needs {START_SECONDS} s. "
            f"Set at least {least} min:  --walltime {least}m"
        )
