"""Other verbs than train on the nodes of a job: `doctor --nodes 2 --through slurm`, `bench comm --nodes 2 --through hostfile`.

They are started as a training is, by the same three axes, in a folder runs/VERB-001 whose launch/ keeps the files and the output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from paceline._utils.atomic_write import check_output, write_output
from paceline._utils.errors import UserError
from paceline._utils.names import LAUNCH_FOLDER, numbered
from paceline.config.constraints import Help
from paceline.launch.config import Where, check_where, job_of
from paceline.launch.runner import launch
from paceline.training.select import choose_system

# What the ranks leave for the one that started them: `--json` prints it, past the lines that launchers write around theirs.
ANSWER = "answer.json"
MOST_RANKS = 4096


@dataclass(frozen=True)
class Elsewhere(Where):
    """The flags of a verb that can be launched."""

    dry_run: Annotated[bool, Help("with --nodes and the like: write and print the files, start nothing")] = False


def is_launched(arguments: Sequence[str]) -> bool:
    """Whether a flag names where and how to start ranks."""
    names = {entry.name for entry in fields(Elsewhere)}
    words = (word[2:].partition("=")[0].partition(".")[0].replace("-", "_") for word in arguments if word.startswith("--"))
    return any(word in names for word in words)


def launch_verb(name: str, words: tuple[str, ...], where: Elsewhere, *, json: bool, out: str, **more: Any) -> int:
    """Carry out `paceline WORDS` on every rank, and hand on what rank 0 found; -> rank 0's exit code. Otherwise as `launched_answer`.

    out   also write the JSON here; "" = nowhere
    """
    check_output(out)
    code, text = launched_answer(name, words, where, json=json, **more)
    if text and json:
        print(text, end="")
    if text and out:
        write_output(out, text)
    return code


def launched_answer(
    name: str,
    words: tuple[str, ...],
    where: Elsewhere,
    *,
    system_name: str,
    ranks: int,
    json: bool,
    writes: tuple[str, ...] = (),
) -> tuple[int, str]:
    """Carry out `paceline WORDS` on every rank; -> rank 0's exit code, and the JSON that it left; "" where it left none.

    name         of the verb: its folder is the next of runs/NAME-001, -002, ...
    words        the verb and its flags; it has flags --system and --out (where its JSON goes) beside
    system_name  whose nodes they are; "" = this machine's, with --through local alone
    ranks        ranks a node; 0 = the system's
    json         nothing is printed on stdout
    writes       folders that the verb writes into: a container may
    Raises UserError for what cannot be started.
    """
    from paceline.cli.launch_checks import check_devices, check_port

    check_where(where)
    if where.walltime == "auto":
        raise UserError("--walltime auto predicts trainings alone: name a time, e.g. --walltime 10m.")
    if not 0 <= ranks <= MOST_RANKS:
        raise UserError(f"--ranks {ranks}: must lie in 0 (the system's) to {MOST_RANKS:,}.")
    if where.through != "local" and not system_name:
        raise UserError(
            f"--through {where.through}: name the nodes' system: --system NAME (paceline list systems), or cpu."
        )
    system = choose_system(system_name or "auto")
    system = replace(system, per_node=ranks or system.per_node)
    if system.accelerator != "cpu" and (where.through, where.container) == ("local", "none"):
        from paceline.distributed.device.setup import choose_device

        choose_device(system, 0, system.per_node)  # too few devices are refused once, here
    check_devices(system_name or "auto", system, where)
    check_port(where)
    folder = numbered(name)
    answer = folder / LAUNCH_FOLDER / ANSWER
    named = ("--system", system_name) if system_name else ()
    # A look around that was cut off is not wanted again when nobody waits for it any more.
    once = replace(where, slurm=replace(where.slurm, requeue=False)) if where.through == "slurm" else where
    job = job_of(
        (*words, *named, "--out", str(answer)),
        folder,
        name=name,
        where=once,
        system_name=system_name or "auto",
        system=system,
        writes=writes,
    )
    say = (lambda text: print(text, file=sys.stderr)) if json else print
    code = launch(job, dry=where.dry_run, say=say)
    return code, answer.read_text() if answer.is_file() else ""
