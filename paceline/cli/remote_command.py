"""Other verbs than train on the nodes of a job: `doctor --nodes 2 --scheduler slurm`, `bench comm --nodes 2 --scheduler hostfile`.

They are started as a training is, by the same three axes, in a folder runs/VERB-001 whose launch/ keeps the files and the output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from paceline._utils.atomic_write import check_user_file, write_user_file
from paceline._utils.errors import PacelineError
from paceline._utils.names import LAUNCH_FOLDER, next_numbered_folder
from paceline.config.constraints import Help
from paceline.distributed.device.systems import choose_system
from paceline.launch.config import LaunchConfig, check_launch_config, make_job
from paceline.launch.runner import launch_job

# What the ranks leave for the one that started them: `--json` prints it, past the lines that launchers write around theirs.
ANSWER = "answer.json"
MAX_RANKS = 4096


@dataclass(frozen=True)
class RemoteFlags(LaunchConfig):
    """The flags of a verb that can be launched."""

    dry_run: Annotated[bool, Help("with launch flags such as --nodes: write and print the files, start nothing")] = False


def is_launched(arguments: Sequence[str]) -> bool:
    """Whether a flag names where and how to start ranks."""
    names = {entry.name for entry in fields(RemoteFlags)}
    words = (word[2:].partition("=")[0].partition(".")[0].replace("-", "_") for word in arguments if word.startswith("--"))
    return any(word in names for word in words)


def launch_command(name: str, words: tuple[str, ...], where: RemoteFlags, *, json: bool, out: str, **more: Any) -> int:
    """Carry out `paceline WORDS` on every rank, and hand on what rank 0 found; -> rank 0's exit code. Otherwise as
    `launch_for_answer`.

    out   also write the JSON here; "" = nowhere
    """
    check_user_file(out)
    code, text = launch_for_answer(name, words, where, json=json, **more)
    if text and json:
        print(text, end="")
    if text and out:
        write_user_file(out, text)
    return code


def launch_for_answer(
    name: str,
    words: tuple[str, ...],
    where: RemoteFlags,
    *,
    system_name: str,
    ranks: int,
    json: bool,
    writes: tuple[str, ...] = (),
) -> tuple[int, str]:
    """Carry out `paceline WORDS` on every rank; -> rank 0's exit code, and the JSON that it left; "" where it left none.

    name         of the verb: its folder is the next of runs/NAME-001, -002, ...
    words        the verb and its flags; it has flags --system and --output (where its JSON goes) beside
    system_name  whose nodes they are; "" = this machine's, with --scheduler local alone
    ranks        ranks a node; 0 = the system's
    json         nothing is printed on stdout
    writes       folders that the verb writes into: a container may
    Raises PacelineError for what cannot be started.
    """
    from paceline.cli.launch_checks import check_devices, check_port

    check_launch_config(where)
    if where.walltime == "auto":
        raise PacelineError("--walltime auto: only supported for training. Set a time, for example --walltime 10m.")
    if not 0 <= ranks <= MAX_RANKS:
        raise PacelineError(f"--nproc-per-node {ranks}: must be from 0 (as in the system) to {MAX_RANKS:,}.")
    if where.scheduler != "local" and not system_name:
        raise PacelineError(
            f"--scheduler {where.scheduler}: requires the system of the nodes. Add --system NAME (paceline list systems)."
        )
    system = choose_system(system_name or "auto")
    system = replace(system, ranks_per_node=ranks or system.ranks_per_node)
    if system.device != "cpu" and (where.scheduler, where.container_runtime) == ("local", "none"):
        from paceline.distributed.device.setup import choose_device

        choose_device(system, 0, system.ranks_per_node)  # too few devices are refused once, here
    check_devices(system_name or "auto", system, where)
    check_port(where)
    folder = next_numbered_folder(name)
    answer = folder / LAUNCH_FOLDER / ANSWER
    named = ("--system", system_name) if system_name else ()
    # A look around that was cut off is not wanted again when nobody waits for it any more.
    once = replace(where, slurm=replace(where.slurm, requeue=False)) if where.scheduler == "slurm" else where
    job = make_job(
        (*words, *named, "--output", str(answer)),
        folder,
        name=name,
        where=once,
        system_name=system_name or "auto",
        system=system,
        writes=writes,
    )
    say = (lambda text: print(text, file=sys.stderr)) if json else print
    code = launch_job(job, dry=where.dry_run, say=say)
    return code, answer.read_text() if answer.is_file() else ""
