"""What ranks can run inside, by name; and what each engine is started with: words with their reasons, and the script that they make.

docker     one container a node, in which torchrun or mpirun starts that node's ranks. The four systems' run_with_docker.sh gave
           their container the host's network, its IPC and an open-ended memlock; so do we, and no more than that: it is not
           root, and Docker's system call filter stays on.
apptainer  (Singularity, as it was called before) a container around each rank, without a daemon and without root. It shares the
           host's network, IPC, processes, limits and user from the start; only devices and folders need flags.
pyxis      srun itself starts each task inside, unpacked once a node by enroot, which shares the host's network, IPC and user, and
           brings NVIDIA's driver in where the image names NVIDIA_VISIBLE_DEVICES, which ours does. Slurm's variables are enough
           for ranks to find each other, so no --mpi=pmix. No --container-name: a container of that name that a node still has
           would be used as it is, whatever image is asked for.

container.sh in RUN/launch runs any command inside the image: the ranks' when the job runs, `container.sh bash` by hand.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import PacelineError
from paceline._utils.text import escape_line
from paceline.config.system import System
from paceline.distributed.comm.exit_code import EXIT_CODE_FILE
from paceline.launch.containers import host_facts
from paceline.launch.containers.mounts import choose_working_directory
from paceline.launch.job import NODE_VARIABLES, Container, LaunchFile, LaunchJob, Words, make_environment, require_programs

# Called as in the image of containers/Dockerfile: its PATH begins with the environment that holds paceline.
PYTHON: Words = ("python3",)
# Runs inside, as `sh -c GUARD IMAGE COMMAND...`: an image without paceline ends in one line and with the run's exit code.
GUARD = f"""python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 does not contain paceline. Run paceline container build, or set another --container-image." >&2
[ -z "${{{EXIT_CODE_FILE}:-}}" ] || echo 2 >"${EXIT_CODE_FILE}"
exit 2"""


@dataclass(frozen=True)
class EngineFlag:
    """Words for the engine that stand together, and why."""

    words: Words  # as the engine gets them, unquoted; none: `why` says that none are needed
    why: str
    test: str = ""  # a shell test: the words are given where it holds; '' = always
    # Shell code of ours for one more word behind them, quotes and all; no name of a folder belongs in it.
    shell: str = ""


def device_vendor(system: System) -> str:
    """The maker of a system's devices: torch calls both NVIDIA's and AMD's cuda, and only the chip's name tells them apart."""
    if system.device == "cuda" and system.device_name.upper().startswith(("MI", "AMD", "INSTINCT")):
        return "rocm"
    return system.device


_AMD = (
    EngineFlag(("--device", "/dev/kfd"), "AMD: the compute driver"),
    EngineFlag(("--device", "/dev/dri"), "AMD: the devices themselves"),
    EngineFlag(("--security-opt", "seccomp=unconfined"), "AMD: processes share memory, which Docker's default filter blocks"),
)  # fmt: skip
# Accelerator -> engine -> how its devices come inside. An engine that is not there needs nothing for it.
DEVICES: dict[str, dict[str, tuple[EngineFlag, ...]]] = {
    "cpu": {},
    "cuda": {
        "docker": (EngineFlag(("--gpus", "all"), "NVIDIA devices and the driver library of the host (nvidia-container-toolkit)"),),
        "podman": (EngineFlag(("--device", "nvidia.com/gpu=all"), "NVIDIA devices and driver library (from their CDI description)"),),
        "apptainer": (EngineFlag(("--nv",), "NVIDIA devices and the driver library of the host"),),
    },
    "rocm": {"docker": _AMD, "podman": _AMD, "apptainer": (EngineFlag(("--rocm",), "AMD devices and the host's library"),)},
    "hpu": {
        "docker": (
            EngineFlag(("--runtime", "habana"), "Gaudi devices (habana-container-runtime)"),
            EngineFlag(("--env", "HABANA_VISIBLE_DEVICES=all"), "all Gaudi devices"),
        ),
        "apptainer": (EngineFlag((), "Gaudi devices need no flag, because /dev is shared. The image must have the libraries"),),
    },
    "xpu": {
        "docker": (EngineFlag(("--device", "/dev/dri"), "Intel devices"),),
        "podman": (EngineFlag(("--device", "/dev/dri"), "Intel devices"),),
        "apptainer": (EngineFlag((), "Intel devices need no flag, because /dev is shared. The image must have the libraries"),),
    },
}  # fmt: skip


def device_flags(engine: str, system: System) -> tuple[EngineFlag, ...]:
    """How this system's devices come inside. Raises PacelineError for Apple's, which no container sees."""
    kind = device_vendor(system)
    if kind not in DEVICES:
        raise PacelineError(f"--container-runtime {engine}: {kind} devices are not supported. Set it to none.")
    return DEVICES[kind].get(engine, ())


def choose_container_workdir(job: LaunchJob) -> tuple[str, str]:
    """(the folder inside where processes start, why)."""
    where = choose_working_directory(job.workdir, job.mounts)
    return where, "base of relative paths, as on the host" if where != "/" else "the command has no relative paths"


def list_forwarded_variables(job: LaunchJob) -> dict[str, str]:
    """Name -> purpose of the variables that go inside, with the values that they have where the container starts."""
    names = {variable.name: variable.why for variable in make_environment(job)}
    if job.nodes > 1:
        names |= NODE_VARIABLES
    return {**names, host_facts.VARIABLE: "description of the host, for `paceline doctor`"}


def container_script(job: LaunchJob, engine: str, flags: Sequence[EngineFlag], more: str, last: str) -> LaunchFile:
    """container.sh.

    more  shell lines of the engine's own after the flags
    last  the shell command that runs "$@" inside, with "${flags[@]}" and "$guard"
    """
    always = "".join(f"    {f'{_code(flag)}  # {escape_line(flag.why)}'.lstrip()}\n" for flag in flags if not flag.test)
    some = "".join(
        f"if {flag.test}; then  # {escape_line(flag.why)}\n    flags+=({_code(flag)})\nfi\n" for flag in flags if flag.test
    )
    made = "".join(
        f"mkdir -p {shlex.quote(str(mount.host))}  # {escape_line(mount.why)}\n" for mount in job.mounts if mount.writable
    )
    facts = shlex.quote(str(job.launch_folder / "host_facts.py"))
    return LaunchFile(
        "container.sh",
        f"""#!/usr/bin/env bash
# Run a command in the image {escape_line(job.image)} with {engine}:  container.sh COMMAND...  (docs/how-to/cluster/containers.md)
set -euo pipefail
{made}# `paceline doctor` in the container compares it with the host: driver, MPI, PMIx, user, and limits.
{host_facts.VARIABLE}=$(python3 {facts} 2>/dev/null || true)
export {host_facts.VARIABLE}
flags=(
{always})
{some}{more}# This runs in the container before the command; the shell in the container expands it.
# shellcheck disable=SC2016
guard={shlex.quote(GUARD)}
exec {last}
""",
        runs=True,
    )


def facts_file() -> LaunchFile:
    """The program that reads the host's facts: it needs only a Python, so it also runs where paceline is missing."""
    return LaunchFile("host_facts.py", Path(host_facts.__file__).read_text(), shown=False)


def _code(flag: EngineFlag) -> str:
    """Its words quoted for the shell, and the one that the shell fills in."""
    return " ".join([*map(_word, flag.words), *([flag.shell] if flag.shell else [])])


def _word(word: str) -> str:
    quoted = shlex.quote(word)
    # Not needed, but a reader may take a comma between an array's words for a separator.
    return f"'{word}'" if quoted == word and "," in word else quoted


# Folders that a group may read are read as outside.
GROUPS = 'for group in $(id -G); do flags+=(--group-add "$group"); done  # all groups of the user, not only the first\n'
APPTAINER_ENGINE = """engine=$(command -v apptainer || command -v singularity) || {{
    echo "paceline: $(hostname): apptainer or singularity not found. Install one, or use --container-runtime docker." >&2
    exit 2
}}
# The container inherits the environment. With these variables, Python would search packages of the host.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH
export PYTHONNOUSERSITE=1
# Without this prefix, values of the image would have priority.
case $engine in *apptainer) prefix=APPTAINERENV ;; *) prefix=SINGULARITYENV ;; esac
for name in {names}; do
    if [ -n "${{!name+set}}" ]; then export "${{prefix}}_$name=${{!name}}"; fi
done
"""


def check_docker(job: LaunchJob, engine: str = "docker") -> None:
    """Raises PacelineError for devices and paths that this engine (docker or podman) cannot bring inside."""
    device_flags(engine, job.system)
    for mount in job.mounts:
        if "," in f"{mount.host}{mount.inside}":
            raise PacelineError(f"{mount.host}: {engine} does not support a comma in a mounted path. Rename the folder.")


def docker_files(job: LaunchJob, engine: str = "docker") -> tuple[LaunchFile, ...]:
    """container.sh for docker or podman, and what it reads the host's facts with."""
    flags = [
        EngineFlag(("--rm",), "removes the container at the end"),
        EngineFlag(("--init",), "an init process that forwards signals, so that Ctrl-C and preemption reach the run"),
        EngineFlag(("--user",), "files belong to you instead of root", shell='"$(id -u):$(id -g)"'),
        EngineFlag(("--ipc", "host"), "NCCL connects the devices of a node through /dev/shm; Docker's default is 64 MiB"),
        EngineFlag(("--ulimit", "memlock=-1"), "InfiniBand and RoCE pin the memory that they send"),
        EngineFlag(("--ulimit", "stack=67108864"), "the compilers of torch.compile need a large stack"),
        *device_flags(engine, job.system),
        EngineFlag(("--device", "/dev/infiniband"), "InfiniBand or RoCE, if the host has it", "[ -e /dev/infiniband ]"),
    ]
    if engine == "podman":
        flags.append(EngineFlag(("--userns", "keep-id"), "rootless: same user id in the container", '[ "$(id -u)" != 0 ]'))
    if job.nodes > 1:
        flags.append(EngineFlag(("--network", "host"), "ranks of other nodes connect to the address of the node"))
    if job.system.cpu_bind != "off":
        why = "Open MPI binds memory to NUMA nodes, which Docker blocks by default"
        flags.append(EngineFlag(("--cap-add", "SYS_NICE"), why))
    for mount in job.mounts:
        text = f"type=bind,source={mount.host},target={mount.inside}" + ("" if mount.writable else ",readonly")
        flags.append(EngineFlag(("--mount", text), mount.why))
    where, why = choose_container_workdir(job)
    flags.append(EngineFlag(("--workdir", where), why))
    flags += [EngineFlag(("--env", name), why) for name, why in list_forwarded_variables(job).items()]
    flags.append(EngineFlag(("--interactive", "--tty"), "if started from a terminal", "[ -t 0 ] && [ -t 1 ]"))
    image = shlex.quote(job.image)
    last = f'{engine} run "${{flags[@]}}" {image} sh -c "$guard" {image} "$@"'
    return (container_script(job, engine, flags, GROUPS, last), facts_file())


def _in_script(job: LaunchJob, command: Words) -> Words:
    """container.sh before the command: it lies in the run's folder, which every node sees."""
    return (str(job.launch_folder / "container.sh"), *command)


def apptainer_files(job: LaunchJob) -> tuple[LaunchFile, ...]:
    """container.sh, and what it reads the host's facts with."""
    binds = [
        EngineFlag(("--bind", f"{mount.host}:{mount.inside}:{'rw' if mount.writable else 'ro'}"), mount.why)
        for mount in job.mounts
    ]
    where, why = choose_container_workdir(job)
    flags = (*device_flags("apptainer", job.system), *binds, EngineFlag(("--pwd", where), why))
    image = shlex.quote(job.image)
    last = f'"$engine" exec "${{flags[@]}}" {image} sh -c "$guard" {image} "$@"'
    engine = APPTAINER_ENGINE.format(names=" ".join(list_forwarded_variables(job)))
    return (container_script(job, "apptainer", flags, engine, last), facts_file())


def _check_apptainer(job: LaunchJob) -> None:
    device_flags("apptainer", job.system)
    _check_colons(job)


def _check_colons(job: LaunchJob) -> None:
    for mount in job.mounts:
        if set(",:") & set(f"{mount.host}{mount.inside}"):
            text = f"{job.container} does not support a comma or colon in a mounted path. Rename the folder."
            raise PacelineError(f"{mount.host}: {text}")


def _pyxis_flags(job: LaunchJob) -> tuple[EngineFlag, ...]:
    mounts = ",".join(f"{mount.host}:{mount.inside}{'' if mount.writable else ':ro'}" for mount in job.mounts)
    where, begins = choose_container_workdir(job)
    keep = ",".join(variable.name for variable in make_environment(job))
    return (
        EngineFlag((f"--container-image={job.image}",), "image of a registry (HOST#NAME:TAG), or a .sqsh file that all nodes share"),
        EngineFlag((f"--container-mounts={mounts}",), "the paths are the same in the container"),
        EngineFlag((f"--container-workdir={where}",), begins),
        EngineFlag((f"--container-env={keep}",), "these values have priority over values of the image"),
        EngineFlag(("--no-container-mount-home",), "ignores packages in ~/.local"),
    )  # fmt: skip


def _pyxis_notes(job: LaunchJob) -> str:
    lines = []
    for flag in _pyxis_flags(job):
        lines.append(f"{flag.words[0].partition('=')[0]}: {flag.why}")
        if flag.words[0].startswith("--container-mounts"):
            lines += [f"    {escape_line(f'{mount.inside}: {mount.why}')}" for mount in job.mounts]
    return "".join(f"# {line}\n" for line in lines)


def _before_pyxis(job: LaunchJob) -> str:
    """Make the folders that the container writes into: enroot mounts only what is there."""
    written = [str(mount.host) for mount in job.mounts if mount.writable]
    return shlex.join(("mkdir", "-p", *written)) if written else ""


def _check_pyxis(job: LaunchJob) -> None:
    if not job.image:
        raise PacelineError(
            "--container-image is required with pyxis. Example: --container-image registry.example.com#paceline:0.1.0"
        )
    if (kind := device_vendor(job.system)) not in ("cpu", "cuda"):
        raise PacelineError(f"--container-runtime pyxis: only NVIDIA devices are supported, not {kind}. Use apptainer.")
    _check_colons(job)


NO_DOCKER = "--container-runtime docker: docker not found on this machine. Install it, or use apptainer."
NO_APPTAINER = (
    "--container-runtime apptainer: apptainer or singularity not found on this machine. Install one, or use "
    "--container-runtime docker."
)
CONTAINERS: dict[str, Container] = {
    "none": Container(lambda job, command: command, check=lambda job: None),
    "docker": Container(
        _in_script,
        check_docker,
        whole=True,
        python=PYTHON,
        files=docker_files,
        missing=require_programs(NO_DOCKER, "docker", here=lambda job: job.through == "local"),
    ),
    "pyxis": Container(
        # srun has the task inside already; the guard only refuses an image without paceline.
        lambda job, command: ("sh", "-c", GUARD, job.image, *command),
        _check_pyxis,
        srun=lambda job: tuple(word for flag in _pyxis_flags(job) for word in flag.words),
        python=PYTHON,
        notes=_pyxis_notes,
        before=_before_pyxis,
    ),
    "apptainer": Container(
        _in_script,
        _check_apptainer,
        python=PYTHON,
        files=apptainer_files,
        missing=require_programs(NO_APPTAINER, "apptainer", "singularity", here=lambda job: job.through == "local"),
    ),
}
