"""`paceline container build | shell`: the container image of this checkout, and a shell or a command inside it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from paceline._utils.errors import PacelineError
from paceline.cli.flags import parse
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.distributed.device.systems import choose_system
from paceline.launch.job import Words

KINDS = """usage: paceline container KIND ...

  build [-- ENGINE ARGUMENTS]   build the image of this checkout, with the name in containers/TAG
  shell [-- COMMAND]            open a shell in the image, or run a command: paceline container shell -- paceline doctor

Both have --help. To copy the image to other machines:  docker push NAME:TAG . docs/how-to/cluster/containers.md explains the flags."""


# Named, so that the fields fit on one line with their comments.
Builder = Literal["auto", "docker", "podman", "buildah", "apptainer"]
Runner = Literal["auto", "docker", "podman", "apptainer"]


@dataclass(frozen=True)
class ContainerBuildFlags:
    """What to build, and with what."""

    container_runtime: Annotated[Builder, Help("docker, podman, buildah, or apptainer; auto: first installed")] = "auto"
    tag: Annotated[str, Help("NAME:TAG of the image; empty: from containers/TAG")] = ""
    base: Annotated[str, Help("base image: Debian or Ubuntu with Python 3.11 or 3.12")] = ""
    torch: Annotated[str, Help("build of torch: cpu, cu130, rocm7.0, ...; empty: from PyPI, with CUDA")] = ""
    system: Annotated[str, Help("target system; V100s (c4140, p3dn, dgx1) require an older torch; empty: any")] = ""
    dry_run: Annotated[bool, Help("print the command, build nothing")] = False


@dataclass(frozen=True)
class ContainerShellFlags:
    """Where the shell runs, and what it sees."""

    container_runtime: Annotated[Runner, Help("docker, podman, or apptainer; auto: first installed")] = "auto"
    container_image: Annotated[str, Help("name of the image, or file of apptainer; empty: from containers/TAG")] = ""
    system: Annotated[str, Help("system whose devices are mounted (paceline list systems)")] = "auto"
    mount: Annotated[tuple[str, ...], Help("folders to mount: HOST or HOST:CONTAINER, with :rw for write access")] = ()
    dry_run: Annotated[bool, Help("print the script, start nothing")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Carry out one of them; -> the engine's exit code."""
    if not arguments or arguments[0] in HELP:
        print(KINDS)
        return 0 if arguments else 2
    kind, rest = arguments[0], list(arguments[1:])
    cut = rest.index("--") if "--" in rest else len(rest)
    if kind == "build":
        return _build(printer, rest[:cut], tuple(rest[cut + 1 :]))
    if kind == "shell":
        return _shell(printer, rest[:cut], tuple(rest[cut + 1 :]) or ("bash",))
    raise PacelineError(
        f"container {kind!r}: not found. Use build or shell. "
        "To push or pull, use the container engine: docker push NAME:TAG"
    )


def _build(printer: Printer, arguments: Sequence[str], extra: Words) -> int:
    """`extra`: the words behind `--`, for the engine as they are."""
    flags = parse(printer, arguments, ContainerBuildFlags(), "container build", "Build the image of this checkout.")
    from paceline.distributed.device.provenance import get_git_commit
    from paceline.launch.containers.image_build import (
        ENGINES,
        ImageBuild,
        build_command,
        choose_engine,
        image_tag,
        require_checkout,
    )

    root = require_checkout()
    name = flags.tag or image_tag()
    engine = choose_engine(flags.container_runtime, ENGINES)
    constraints = _constraints(printer, flags.system, flags.torch)
    command = build_command(engine, ImageBuild(name, flags.base, flags.torch, get_git_commit(), extra, constraints), root)
    print(shlex.join(command))
    if flags.dry_run:
        return 0
    (root / "build").mkdir(exist_ok=True)
    code = _carry_out(command, root)
    if code == 0:
        printer.say(f"built {name}; to check it:  paceline container shell -- paceline doctor")
    return code


def _constraints(printer: Printer, system_name: str, torch: str) -> str:
    """The file of versions that a system needs, a path in the checkout; '' for the usual one.

    Raises PacelineError where no torch of PyPI computes on it, or where it needs another than --torch names.
    """
    if not system_name:
        return ""
    from paceline.distributed.device.accelerators import find_torch_pin

    system = choose_system(system_name)
    if system.device not in ("cpu", "cuda"):
        raise PacelineError(
            f"--system {system_name}: {system.device_name or system.device} requires its vendor's build of torch. "
            "Build an image FROM the vendor's image, with `RUN pip install .` in the checkout (docs/how-to/cluster/containers.md)."
        )
    if system.device_name.startswith("MI") and not torch.startswith("rocm"):
        raise PacelineError(f"--system {system_name}: {system.device_name} requires torch for ROCm. Add --torch rocm7.0.")
    pin = find_torch_pin(system.device_name)
    if pin is None:
        return ""
    if torch:
        raise PacelineError(
            f"--torch {torch}: --system {system_name} needs PyPI's torch {pin.torch} ({pin.why}). Remove --torch."
        )
    printer.say(f"torch {pin.torch}, from {pin.constraints}: {pin.why}")
    return pin.constraints


def _shell(printer: Printer, arguments: Sequence[str], command: Words) -> int:
    """`command`: the words behind `--`, or a shell."""
    flags = parse(
        printer, arguments, ContainerShellFlags(), "container shell", "Open a shell in the image or run a command."
    )
    from paceline._utils.cache import cache_folder
    from paceline.launch.config import apply_container
    from paceline.launch.containers.engines import apptainer_files, check_docker, docker_files
    from paceline.launch.containers.image_build import choose_engine
    from paceline.launch.job import LaunchJob
    from paceline.launch.runner import write_files

    engine = choose_engine(flags.container_runtime, ("docker", "podman", "apptainer"))
    kind = "apptainer" if engine == "apptainer" else "docker"
    job = LaunchJob(
        words=command,
        folder=cache_folder() / "image-shell",
        name="shell",
        container=kind,
        image=flags.container_image,
        system=choose_system(flags.system),
    )
    job = apply_container(job, (f"{Path.cwd()}:rw", *flags.mount))
    if kind == "docker":
        check_docker(job, engine)
        files = docker_files(job, engine)
    else:
        files = apptainer_files(job)
    script = write_files(job, files)[0]
    print(script.read_text())
    if flags.dry_run:
        return 0
    return _carry_out((str(script), *command), Path.cwd())


def _carry_out(command: Words, folder: Path) -> int:
    """Run it here, with this terminal; -> its exit code, and 3 for one that a signal ended."""
    sys.stdout.flush()
    code = subprocess.run(command, cwd=folder, env=os.environ, check=False).returncode
    return code if code >= 0 else 3
