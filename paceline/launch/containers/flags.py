"""What a container is started with: words for its engine, each with its reason, and the readable script that they make.

container.sh in RUN/launch runs any command inside the image: the ranks' when the job runs, `container.sh bash` by hand.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import UserError
from paceline._utils.text import one_line
from paceline.config.system import System
from paceline.distributed.comm.exit_code import EXIT_CODE_FILE
from paceline.launch.containers import host_facts
from paceline.launch.containers.mounts import working_directory
from paceline.launch.job import NODE_VARIABLES, File, Job, Words, environment

# Called as in the image of containers/Dockerfile: its PATH begins with the environment that holds paceline.
PYTHON: Words = ("python3",)
# Runs inside, as `sh -c GUARD IMAGE COMMAND...`: an image without paceline ends in one line and with the run's exit code.
GUARD = f"""python3 -c "import paceline" 2>/dev/null && exec "$@"
echo "paceline: the image $0 has no paceline in it. Build one: paceline image build; or name another with --image." >&2
[ -z "${{{EXIT_CODE_FILE}:-}}" ] || echo 2 >"${EXIT_CODE_FILE}"
exit 2"""


@dataclass(frozen=True)
class Flag:
    """Words for the engine that stand together, and why."""

    words: Words  # as the engine gets them, unquoted; none: `why` says that none are needed
    why: str
    test: str = ""  # a shell test: the words are given where it holds; '' = always
    # Shell code of ours for one more word behind them, quotes and all; no name of a folder belongs in it.
    shell: str = ""


def family(system: System) -> str:
    """The maker of a system's devices: torch calls both NVIDIA's and AMD's cuda, and only the chip's name tells them apart."""
    if system.accelerator == "cuda" and system.chip.upper().startswith(("MI", "AMD", "INSTINCT")):
        return "rocm"
    return system.accelerator


_AMD = (
    Flag(("--device", "/dev/kfd"), "AMD: the compute driver"),
    Flag(("--device", "/dev/dri"), "AMD: the devices themselves"),
    Flag(("--security-opt", "seccomp=unconfined"), "AMD: memory is mapped between processes, which Docker's filter forbids"),
)  # fmt: skip
# Accelerator -> engine -> how its devices come inside. An engine that is not there needs nothing for it.
DEVICES: dict[str, dict[str, tuple[Flag, ...]]] = {
    "cpu": {},
    "cuda": {
        "docker": (Flag(("--gpus", "all"), "NVIDIA's devices and the host's driver library (nvidia-container-toolkit)"),),
        "podman": (Flag(("--device", "nvidia.com/gpu=all"), "NVIDIA's devices and driver library (their CDI description)"),),
        "apptainer": (Flag(("--nv",), "NVIDIA's devices and the host's driver library"),),
    },
    "rocm": {"docker": _AMD, "podman": _AMD, "apptainer": (Flag(("--rocm",), "AMD's devices and the host's library"),)},
    "hpu": {
        "docker": (
            Flag(("--runtime", "habana"), "Gaudi's devices (habana-container-runtime)"),
            Flag(("--env", "HABANA_VISIBLE_DEVICES=all"), "all of them"),
        ),
        "apptainer": (Flag((), "Gaudi's devices need no flag: /dev is the host's. Its libraries must be in the image"),),
    },
    "xpu": {
        "docker": (Flag(("--device", "/dev/dri"), "Intel's devices"),),
        "podman": (Flag(("--device", "/dev/dri"), "Intel's devices"),),
        "apptainer": (Flag((), "Intel's devices need no flag: /dev is the host's. Its libraries must be in the image"),),
    },
}  # fmt: skip


def device_flags(engine: str, system: System) -> tuple[Flag, ...]:
    """How this system's devices come inside. Raises UserError for Apple's, which no container sees."""
    kind = family(system)
    if kind not in DEVICES:
        raise UserError(f"--container {engine}: no container sees {kind} devices. Use --container none.")
    return DEVICES[kind].get(engine, ())


def starts_at(job: Job) -> tuple[str, str]:
    """(the folder inside where processes start, why)."""
    where = working_directory(job.workdir, job.mounts)
    return where, "relative paths begin here, as outside" if where != "/" else "no path of the command is relative"


def passed_on(job: Job) -> dict[str, str]:
    """Name -> purpose of the variables that go inside, with the values that they have where the container starts."""
    names = {variable.name: variable.why for variable in environment(job)}
    if job.nodes > 1:
        names |= NODE_VARIABLES
    return {**names, host_facts.VARIABLE: "the host's facts, for `paceline doctor`"}


def container_script(job: Job, engine: str, flags: Sequence[Flag], more: str, last: str) -> File:
    """container.sh.

    more  shell lines of the engine's own after the flags
    last  the shell command that runs "$@" inside, with "${flags[@]}" and "$guard"
    """
    always = "".join(f"    {f'{_code(flag)}  # {one_line(flag.why)}'.lstrip()}\n" for flag in flags if not flag.test)
    some = "".join(
        f"if {flag.test}; then  # {one_line(flag.why)}\n    flags+=({_code(flag)})\nfi\n" for flag in flags if flag.test
    )
    made = "".join(
        f"mkdir -p {shlex.quote(str(mount.host))}  # {one_line(mount.why)}\n" for mount in job.mounts if mount.writable
    )
    facts = shlex.quote(str(job.launch_folder / "host_facts.py"))
    return File(
        "container.sh",
        f"""#!/usr/bin/env bash
# Runs a command inside the image {one_line(job.image)} with {engine}:  container.sh COMMAND...  (docs/images.md)
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


def facts_file() -> File:
    """The program that reads the host's facts: it needs only a Python, so it also runs where paceline is missing."""
    return File("host_facts.py", Path(host_facts.__file__).read_text(), shown=False)


def _code(flag: Flag) -> str:
    """Its words quoted for the shell, and the one that the shell fills in."""
    return " ".join([*map(_word, flag.words), *([flag.shell] if flag.shell else [])])


def _word(word: str) -> str:
    quoted = shlex.quote(word)
    # Not needed, but a reader may take a comma between an array's words for a separator.
    return f"'{word}'" if quoted == word and "," in word else quoted
