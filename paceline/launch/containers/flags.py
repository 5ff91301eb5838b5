"""What a container is started with: words for its engine, each with its reason, and the readable script that they make.

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
from paceline.launch.job import NODE_VARIABLES, LaunchFile, LaunchJob, Words, make_environment

# Called as in the image of containers/Dockerfile: its PATH begins with the environment that holds paceline.
PYTHON: Words = ("python3",)
# Runs inside, as `sh -c GUARD IMAGE COMMAND...`: an image without paceline ends in one line and with the run's exit code.
GUARD = f"""python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 has no paceline in it. Build one: paceline image build; or name another with --image." >&2
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
    if system.accelerator == "cuda" and system.chip.upper().startswith(("MI", "AMD", "INSTINCT")):
        return "rocm"
    return system.accelerator


_AMD = (
    EngineFlag(("--device", "/dev/kfd"), "AMD: the compute driver"),
    EngineFlag(("--device", "/dev/dri"), "AMD: the devices themselves"),
    EngineFlag(("--security-opt", "seccomp=unconfined"), "AMD: memory is mapped between processes, which Docker's filter forbids"),
)  # fmt: skip
# Accelerator -> engine -> how its devices come inside. An engine that is not there needs nothing for it.
DEVICES: dict[str, dict[str, tuple[EngineFlag, ...]]] = {
    "cpu": {},
    "cuda": {
        "docker": (EngineFlag(("--gpus", "all"), "NVIDIA's devices and the host's driver library (nvidia-container-toolkit)"),),
        "podman": (EngineFlag(("--device", "nvidia.com/gpu=all"), "NVIDIA's devices and driver library (their CDI description)"),),
        "apptainer": (EngineFlag(("--nv",), "NVIDIA's devices and the host's driver library"),),
    },
    "rocm": {"docker": _AMD, "podman": _AMD, "apptainer": (EngineFlag(("--rocm",), "AMD's devices and the host's library"),)},
    "hpu": {
        "docker": (
            EngineFlag(("--runtime", "habana"), "Gaudi's devices (habana-container-runtime)"),
            EngineFlag(("--env", "HABANA_VISIBLE_DEVICES=all"), "all of them"),
        ),
        "apptainer": (EngineFlag((), "Gaudi's devices need no flag: /dev is the host's. Its libraries must be in the image"),),
    },
    "xpu": {
        "docker": (EngineFlag(("--device", "/dev/dri"), "Intel's devices"),),
        "podman": (EngineFlag(("--device", "/dev/dri"), "Intel's devices"),),
        "apptainer": (EngineFlag((), "Intel's devices need no flag: /dev is the host's. Its libraries must be in the image"),),
    },
}  # fmt: skip


def device_flags(engine: str, system: System) -> tuple[EngineFlag, ...]:
    """How this system's devices come inside. Raises PacelineError for Apple's, which no container sees."""
    kind = device_vendor(system)
    if kind not in DEVICES:
        raise PacelineError(f"--container {engine}: no container sees {kind} devices. Use --container none.")
    return DEVICES[kind].get(engine, ())


def choose_container_workdir(job: LaunchJob) -> tuple[str, str]:
    """(the folder inside where processes start, why)."""
    where = choose_working_directory(job.workdir, job.mounts)
    return where, "relative paths begin here, as outside" if where != "/" else "no path of the command is relative"


def list_forwarded_variables(job: LaunchJob) -> dict[str, str]:
    """Name -> purpose of the variables that go inside, with the values that they have where the container starts."""
    names = {variable.name: variable.why for variable in make_environment(job)}
    if job.nodes > 1:
        names |= NODE_VARIABLES
    return {**names, host_facts.VARIABLE: "the host's facts, for `paceline doctor`"}


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
# Runs a command inside the image {escape_line(job.image)} with {engine}:  container.sh COMMAND...  (docs/images.md)
set -euo pipefail
{made}# What `paceline doctor` inside compares with the container: driver, MPI, PMIx, user, limits.
{host_facts.VARIABLE}=$(python3 {facts} 2>/dev/null || true)
export {host_facts.VARIABLE}
flags=(
{always})
{some}{more}# Inside, before the command; the shell there fills it in.
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
