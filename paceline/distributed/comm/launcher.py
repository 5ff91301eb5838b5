"""Which rank is this process: a Launch; read from one launcher's environment variables, all of them.

Launchers nest: torchrun inside srun, mpirun inside a Slurm allocation. The innermost one that started this process is
read, and no other; variables of two launchers are never mixed, and a contradiction between them is an error.
Nothing here imports torch or opens a socket; the machine is read only in a shell of `srun --pty` (is_pty_shell).

Sources: torch.distributed.run (environment variables), srun(1) (output environment variables), Open MPI's mpirun(1)
and PRRTE's prterun(1), MPICH's Hydra and Cray PALS (PMI); scontrol(1) for Slurm's lists of hosts.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import PacelineError

# Rank 0 listens in this range when the launcher names no port: below Linux's ephemeral ports (32768 and up).
FIRST_DERIVED_PORT, NUM_DERIVED_PORTS = 20_000, 10_000
# Slurm numbers sbatch's script, salloc's shell and the like from here up; they are no srun step (slurm.h).
FIRST_SPECIAL_STEP = 0xFFFFFFF0
THIS_HOST = "127.0.0.1"
# A launcher may hand every rank the secret that signs its messages (messages.py) in this variable.
SECRET_VARIABLE = "PACELINE_SECRET"


@dataclass(frozen=True)
class Launch:
    """One process's place among all ranks of a job, and how it was started."""

    rank: int  # which of them it is: 0 to world-1
    world: int  # how many they are
    kind: str  # the launcher's name in LAUNCHERS, or "single"
    local_rank: int  # among the processes of this host
    local_world: int  # how many those are
    node: int  # number of this host
    nodes: int  # how many hosts there are
    address: str  # where rank 0 is found
    port: int
    job: str  # a name that all ranks of this job share and no other job has
    agent_store: bool = False  # torchrun's agent already serves a store at address:port; else rank 0 does

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0: the one that writes files and prints."""
        return self.rank == 0


SINGLE = Launch(0, 1, "single", 0, 1, 0, 1, THIS_HOST, 0, "single")


def read_launch(environ: Mapping[str, str]) -> Launch:
    """The Launch that `environ` describes; `SINGLE` where no launcher left its variables.

    raise PacelineError   incomplete, impossible or contradicting variables; the message names them
    """
    result: dict[str, tuple[int, int]] = {}
    for kind, launcher in LAUNCHERS.items():
        head = _head(environ, kind, launcher.names)
        if head is not None:
            result[kind] = head
    if not result and environ.get("LOCAL_RANK"):
        _require(environ, "torchrun", ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
    if not result:
        return SINGLE
    kind = _innermost(environ, result)
    launch = LAUNCHERS[kind].read(environ)
    _check(launch)
    return launch


def _head(environ: Mapping[str, str], kind: str, names: tuple[str, str]) -> tuple[int, int] | None:
    """(rank, world) as one launcher gives them; None where it did not start this process."""
    if kind == "slurm":
        # sbatch's script has SLURM_PROCID too; only srun also numbers a step.
        step = environ.get("SLURM_STEP_ID", "")
        if not step or not environ.get("SLURM_PROCID") or _integer(environ, "SLURM_STEP_ID") >= FIRST_SPECIAL_STEP:
            return None
        tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_NTASKS_PER_NODE") or "1"
        if is_pty_shell(environ, parse_tasks_per_host("SLURM_STEP_TASKS_PER_NODE", tasks)[0]):
            return None
        if not environ.get("SLURM_STEP_NUM_TASKS"):
            names = ("SLURM_PROCID", "SLURM_NTASKS")
    elif not any(environ.get(name) for name in names):
        return None
    _require(environ, kind, names)
    return _integer(environ, names[0]), _integer(environ, names[1])


def _innermost(environ: Mapping[str, str], result: Mapping[str, tuple[int, int]]) -> str:
    """The launcher to read. Raises PacelineError where two of them cannot both be right."""
    kinds = [kind for kind in LAUNCHERS if kind in result]
    by_hand = "torchrun" in result and not environ.get("TORCHELASTIC_RUN_ID")
    if by_hand:
        # A wrapper script's `export RANK=$SLURM_PROCID`: fine where it agrees with the launcher, which knows more.
        for other in kinds[1:]:
            if result[other] == result["torchrun"]:
                kinds.remove("torchrun")
                break
            if result[other][1] > 1:
                raise PacelineError(_contradiction(result, "torchrun", other) + "\nUnset RANK and WORLD_SIZE.")
    if "pmi" in kinds and "slurm" in kinds and result["pmi"] == result["slurm"]:
        kinds.remove("pmi")  # srun --mpi=pmi2 sets both; Slurm's are complete
    inner, *outers = kinds
    for outer in outers:
        same = result[outer] == result[inner] or result[outer][1] == 1
        # One task a host that starts this host's ranks is how launchers are nested (also how mpirun uses srun itself).
        if not same and LAUNCHERS[outer].read(environ).local_world > 1:
            raise PacelineError(
                _contradiction(result, inner, outer)
                + f"\nUse only one launcher, or start {inner} from one {outer} task per host."
            )
    return inner


def _contradiction(result: Mapping[str, tuple[int, int]], inner: str, outer: str) -> str:
    both = [
        f"{' and '.join(LAUNCHERS[kind].names)} have rank {result[kind][0]} of {result[kind][1]} ({kind})"
        for kind in (inner, outer)
    ]
    return f"the variables of two launchers are inconsistent: {both[0]}, {both[1]}."


def _torchrun(environ: Mapping[str, str]) -> Launch:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    _require(environ, "torchrun", names)
    rank, world, local_rank, local_world = (_integer(environ, name) for name in names[:4])
    address, port = environ["MASTER_ADDR"], _integer(environ, "MASTER_PORT")
    nodes = _count_hosts(world, local_world)
    node = rank // max(1, local_world)
    if environ.get("GROUP_RANK") and environ.get("GROUP_WORLD_SIZE"):
        node, nodes = _integer(environ, "GROUP_RANK"), _integer(environ, "GROUP_WORLD_SIZE")
    job = environ.get("TORCHELASTIC_RUN_ID") or f"{address}:{port}"
    # After a restart the agent's store still holds the failed attempt's keys.
    job = f"{job}.{environ.get('TORCHELASTIC_RESTART_COUNT') or 0}"
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Launch(rank, world, "torchrun", local_rank, local_world, node, nodes, address, port, job, agent)


def _slurm(environ: Mapping[str, str]) -> Launch:
    world_name = _first(environ, "slurm", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    hosts_name = _first(environ, "slurm", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    tasks_name = _first(environ, "slurm", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")
    _require(environ, "slurm", ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID"))
    world, node = _integer(environ, world_name), _integer(environ, "SLURM_NODEID")
    tasks = parse_tasks_per_host(tasks_name, environ[tasks_name])
    if tasks_name == "SLURM_NTASKS_PER_NODE":
        tasks = tasks * _count_hosts(world, tasks[0])
    if not 0 <= node < len(tasks) or (sum(tasks) != world and tasks_name == "SLURM_STEP_TASKS_PER_NODE"):
        raise PacelineError(
            f"Slurm's variables are inconsistent: {tasks_name}={environ[tasks_name]}, "
            f"{world_name}={world}, SLURM_NODEID={node}."
        )
    job = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    result = THIS_HOST if len(tasks) == 1 else parse_first_host(environ[hosts_name])
    rank, local_rank = _integer(environ, "SLURM_PROCID"), _integer(environ, "SLURM_LOCALID")
    address, port = environ.get("MASTER_ADDR") or result, _port(environ, job)
    return Launch(rank, world, "slurm", local_rank, tasks[node], node, len(tasks), address, port, job)


def _openmpi(environ: Mapping[str, str]) -> Launch:
    # OMPI_COMM_WORLD_NODE_RANK is a rank within the host, over all of the user's jobs there; it is not a host's number.
    names = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    _require(environ, "openmpi", names)
    rank, world, local_rank, local_world = (_integer(environ, name) for name in names)
    job_name = _first(environ, "openmpi", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MASTER_PORT")
    job = f"openmpi-{environ[job_name]}"
    result = THIS_HOST if local_world == world else _mpirun_host(environ)
    address = environ.get("MASTER_ADDR") or result
    if not address:
        raise PacelineError(
            "mpirun started ranks on more than one host, and its variables do not contain the address of rank 0.\n"
            "Set it:  mpirun -x MASTER_ADDR=<host of rank 0> ..."
        )
    return _by_blocks(environ, "openmpi", (rank, world, local_rank, local_world), address, job)


def _mpirun_host(environ: Mapping[str, str]) -> str:
    """The host that mpirun runs on, where rank 0 is unless the host file says otherwise; '' if unknown."""
    uri = re.search(r"tcp4?://([^,:;]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    if uri:
        return uri[1]
    namespace = re.fullmatch(r"prterun-(.+)-\d+@\d+", environ.get("PMIX_NAMESPACE", ""))  # Open MPI 5 and newer
    return namespace[1] if namespace else ""


def _pmi(environ: Mapping[str, str]) -> Launch:
    _require(environ, "pmi", ("PMI_RANK", "PMI_SIZE"))
    local_rank_name = _first(environ, "pmi", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    local_world_name = _first(environ, "pmi", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
    rank, world = _integer(environ, "PMI_RANK"), _integer(environ, "PMI_SIZE")
    local_rank, local_world = _integer(environ, local_rank_name), _integer(environ, local_world_name)
    # Hydra gives its jobs no name, and without one two jobs on a host could meet at one port.
    names = ("PMI_JOBID", "PALS_APID", "PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID", "MASTER_PORT")
    job_name = next((name for name in names if environ.get(name)), None)
    if job_name is None:
        raise PacelineError("mpiexec (PMI) sets no job name and no port. Set a port:  mpiexec -genv MASTER_PORT 29511 ...")
    address = environ.get("MASTER_ADDR") or (THIS_HOST if local_world == world else "")
    if not address:
        raise PacelineError("PMI sets no address of rank 0. Set it:  mpiexec -genv MASTER_ADDR <host of rank 0> ...")
    job = f"pmi-{environ[job_name]}"
    return _by_blocks(environ, "pmi", (rank, world, local_rank, local_world), address, job)


def _by_blocks(environ: Mapping[str, str], kind: str, ranks: tuple[int, int, int, int], address: str, job: str) -> Launch:
    """A Launch of a launcher that does not number its hosts: they are taken to be filled one after the other."""
    rank, world, local_rank, local_world = ranks
    node, nodes = rank // max(1, local_world), _count_hosts(world, local_world)
    return Launch(rank, world, kind, local_rank, local_world, node, nodes, address, _port(environ, job), job)


def _check(launch: Launch) -> None:
    if not 0 <= launch.rank < launch.world:
        names = " and ".join(LAUNCHERS[launch.kind].names)
        raise PacelineError(f"{names}: rank {launch.rank} of {launch.world} is not valid ({launch.kind}).")
    if not (0 <= launch.local_rank < launch.local_world <= launch.world and 0 <= launch.node < launch.nodes):
        raise PacelineError(
            f"the variables of {launch.kind} are not valid: local rank {launch.local_rank} of {launch.local_world}, "
            f"host {launch.node} of {launch.nodes}, world {launch.world}."
        )
    if not 0 < launch.port < 65536:
        raise PacelineError(f"MASTER_PORT={launch.port}: must be a port number from 1 to 65535.")


def _require(environ: Mapping[str, str], kind: str, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        there = [name for name in names if environ.get(name)]
        raise PacelineError(
            f"{', '.join(missing)} not set, but {', '.join(there) or kind} is. {kind} sets all of them.\n"
            "Start the ranks with torchrun, srun, or mpirun, or unset variables that remain from another launch."
        )


def _first(environ: Mapping[str, str], kind: str, *names: str) -> str:
    """The first of `names` that is set: several spellings of one fact."""
    for name in names:
        if environ.get(name):
            return name
    raise PacelineError(f"{', '.join(names)}: one of them is required ({kind}), because {LAUNCHERS[kind].names[0]} is set.")


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise PacelineError(f"{name}={environ[name]!r}: must be an integer.") from None


def _port(environ: Mapping[str, str], job: str) -> int:
    return _integer(environ, "MASTER_PORT") if environ.get("MASTER_PORT") else derive_port(job)


def is_first_on_node() -> bool:
    """Whether this process is its node's first rank; True where the launcher's variables contradict each other."""
    try:
        return read_launch(os.environ).local_rank == 0
    except PacelineError:
        return True


def derive_port(job: str) -> int:
    """20000..29999 from a job's name: every rank computes the same one without talking."""
    return FIRST_DERIVED_PORT + zlib.crc32(job.encode()) % NUM_DERIVED_PORTS


def parse_tasks_per_host(name: str, text: str) -> list[int]:
    """Slurm's '2(x3),1' -> [2, 2, 2, 1]. `name` is the variable, for the error's text."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None or int(match[1]) < 1:
            raise PacelineError(f"{name}={text!r}: must have the form 8(x2),4.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def parse_first_host(nodelist: str) -> str:
    """Slurm's 'rack[2-3]n[01-16,20],login' -> 'rack2n01'."""
    head = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
    if head is None:
        raise PacelineError(f"SLURM_STEP_NODELIST={nodelist!r}: no host name found.")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", head[0])


def _count_hosts(world: int, local_world: int) -> int:
    return -(-world // max(1, local_world))


@dataclass(frozen=True)
class Launcher:
    """How one launcher gives a process its place."""

    names: tuple[str, str]  # variables that hold (rank, world); one of them set means that it started this process
    read: Callable[[Mapping[str, str]], Launch]  # all its variables; raises PacelineError where they are incomplete


# Innermost launcher first.
LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(("RANK", "WORLD_SIZE"), _torchrun),
    "openmpi": Launcher(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), _openmpi),
    "pmi": Launcher(("PMI_RANK", "PMI_SIZE"), _pmi),
    "slurm": Launcher(("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), _slurm),
}


def is_pty_shell(environ: Mapping[str, str], tasks: int) -> bool:
    """True if this process was started in the shell of `srun --pty`; tasks: of the step on this host.

    Slurm's variables say rank 0 of many there, and no other rank runs: Slurm gives only the first task of such a step a terminal.
    The others read the end of their input, and end. An `srun` in the shell starts tasks that inherit SLURM_PTY_PORT. That variable
    does not tell the two apart, so the processes of the step are looked up. Source: srun(1), --pty and SLURM_PTY_PORT.
    """
    if not environ.get("SLURM_PTY_PORT") or environ.get("SLURM_PROCID") != "0":
        return False
    if tasks == 1:
        return os.isatty(0)
    step = {f"{name}={environ.get(name)}".encode() for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")}
    for process in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with suppress(OSError):
            results = Path("/proc", process, "environ").read_bytes().split(b"\0") if process.isdecimal() else ()
            if step <= {*results} and b"SLURM_PROCID=0" not in results:
                return False
    return True


def explain_pty_shell(environ: Mapping[str, str], world: int) -> str:
    """What to do in such a shell, where `world` is 1, though Slurm has more tasks; "" elsewhere."""
    tasks = environ.get("SLURM_NTASKS", "")
    if world > 1 or not environ.get("SLURM_PTY_PORT") or tasks in ("", "1"):
        return ""
    return f"one process, because this is a shell of srun --pty. To start {tasks} ranks:  srun --overlap --ntasks {tasks} paceline ..."
