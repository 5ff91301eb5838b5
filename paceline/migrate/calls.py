"""From shell text to the one training that it asks for: the program, its flags, nodes, accelerators, launcher, machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from paceline.config.errors import UserError
from paceline.migrate.originals import ORIGINALS
from paceline.migrate.shell import Command, Shell, commands_of, substitute
from paceline.migrate.table import Call, Original, Program, Script
from paceline.migrate.words import read_flags
from paceline.systems import SYSTEMS

STARTERS = {"mpirun": "mpirun", "mpiexec": "mpirun", "horovodrun": "mpirun", "srun": "srun", "torchrun": "torchrun"}
# A launcher's flags that count: -> what they name. Others are the launcher's own affair.
COUNTS = {
    "-np": "ranks", "--np": "ranks", "-n": "ranks", "--ntasks": "ranks", "-N": "nodes", "--nodes": "nodes", "--nnodes": "nodes",
    "--ntasks-per-node": "per_node", "-npernode": "per_node", "--npernode": "per_node", "--nproc_per_node": "per_node",
    "--nproc-per-node": "per_node", "--hostfile": "hostfile", "-hostfile": "hostfile", "-machinefile": "hostfile",
    "--machinefile": "hostfile", "-t": "time", "--time": "time",
}  # fmt: skip

Reader = Callable[[str], "str | None"]


def read_call(text: str, *, read: Reader = lambda _: None, system_of: str = "") -> tuple[Call, Original]:
    """The training that `text` asks for.

    read       the text of a file that is named there; None where it does not lie there
    system_of  an Original's name where the text cannot tell
    Raises UserError for text without a known program, for one of several systems, and for an unknown flag.
    """
    if system_of and system_of not in ORIGINALS:
        raise UserError(f"--system-of {system_of}: there is no such system. Known: {', '.join(ORIGINALS)}.")
    originals = [ORIGINALS[system_of]] if system_of else list(ORIGINALS.values())
    shell = Shell()
    commands = commands_of(text, shell, lambda name: _file(name, read, originals))
    for command in reversed(commands):
        for original, found, position in _known(command, originals):
            likely = [one for one in _known(command, originals)]
            if len({one.name for one, _, _ in likely}) > 1 and isinstance(found, Script):
                likely = [one for one in likely if _config(one[0], command.variables, read)]
                if len({one.name for one, _, _ in likely}) != 1:
                    names = " or ".join(dict.fromkeys(one.name for one, _, _ in _known(command, originals)))
                    raise UserError(f"{command.words[position]} is a file of several systems: add --system-of {names}.")
                original, found, position = likely[0]
            if isinstance(found, Script):
                return _of_script(original, found, command, position, shell, read)
            programs = [one for _, one, _ in likely if isinstance(one, Program)]
            return _of_program(original, programs, command, position, shell)
    for original in originals:
        if any(name in shell.variables for name in ("EXTRA_PARAMS", *original.per_node)) and original.call:
            nothing = Command(("run",), dict(shell.variables))
            return _of_script(original, Script(("run",), ""), nothing, 0, shell, read)
    programs = ", ".join(program.files[0] for original in originals for program in original.programs)
    raise UserError(
        f"no program of a known system is called there. Known: {programs}, and their scripts (docs/migration.md)."
    )


def _known(command: Command, originals: Sequence[Original]) -> Iterator[tuple[Original, Program | Script, int]]:
    """Programs and scripts among the words, with the word's place; the first word that is one counts."""
    for position, word in enumerate(command.words):
        name, any_found = PurePosixPath(word).name, False
        for original in originals:
            for one in (*original.programs, *original.scripts):
                if name in one.files:
                    any_found = True
                    yield original, one, position
        if any_found:
            return


def _file(name: str, read: Reader, originals: Sequence[Original]) -> str | None:
    """A sourced file's text: the one that lies there, else the known configuration of that name."""
    base = PurePosixPath(name).name
    if (text := read(name)) is not None:
        return text
    return next((one.configs[base] for one in originals if base in one.configs), None)


def _config(original: Original, variables: Mapping[str, str], read: Reader) -> tuple[str, str]:
    """(name, text) of the configuration that the variables name; two empty strings where they name none."""
    name = substitute(original.config, dict(variables))
    text = _file(name, read, [original]) if name and "$" not in name else None
    return (name, text) if text is not None else ("", "")


def _of_script(
    original: Original, script: Script, command: Command, position: int, shell: Shell, read: Reader
) -> tuple[Call, Original]:
    name, text = _config(original, command.variables, read)
    inner = Shell(dict(command.variables))
    commands_of(text, inner, lambda file: _file(file, read, [original]))
    inner.sourced += [*shell.sourced, name]
    called = commands_of(script.text or original.call, inner)
    if "EXTRA_PARAMS" not in inner.variables and "EXTRA_PARAMS" in (script.text or original.call):
        wanted = substitute(original.config, inner.variables)
        raise UserError(
            f"{script.files[0]} reads {wanted}, which is neither known nor there. Name it before: SYSTEM=..., or source the file "
            "where it lies."
        )
    program = next(found for found in _known(called[-1], [original]))
    call, _ = _of_program(original, [program[1]], called[-1], program[2], inner)  # type: ignore[list-item]
    counts = _counts(command.words[:position])
    nodes = int(counts.get("nodes", call.nodes))
    per_node = int(counts["ranks"]) // nodes if "ranks" in counts and script.through else call.per_node
    more = replace(
        call, nodes=nodes, per_node=per_node, through=script.through, start=script.start, container=script.container
    )
    return more, original


def _of_program(
    original: Original, programs: Sequence[Program], command: Command, position: int, shell: Shell
) -> tuple[Call, Original]:
    refusals, read = [], []
    for program in programs:  # files of two programs may have one name: the one that knows all flags is meant
        try:
            read.append((program, read_flags(program, command.words[position + 1 :])[0]))
        except UserError as problem:
            refusals.append(problem)
    if not read:
        raise refusals[0]
    program, given = read[0]
    before = command.words[:position]
    counts = _counts(before)
    starter = next((STARTERS[word] for word in map(_base, before) if word in STARTERS), "")
    variables = {**command.variables, **counts["x"]}
    machine = _machine(original, [*shell.sourced, variables.get("SYSTEM", ""), variables.get("DGXSYSTEM", "")])
    whole = SYSTEMS[machine]().per_node if machine else 0
    nodes = _whole(counts.get("nodes") or _first(variables, original.nodes), 1)
    ranks = _whole(counts.get("ranks"), 0)
    per_node = _whole(counts.get("per_node") or _first(variables, original.per_node), 0)
    if ranks and not per_node:
        per_node = min(ranks, whole or ranks) if nodes == 1 else ranks // nodes
    per_node = per_node or (1 if not starter else whole) or 1
    if ranks > nodes * per_node:
        nodes = -(-ranks // per_node)
    return Call(
        program=program,
        given=given,
        variables=variables,
        nodes=nodes,
        per_node=per_node,
        machine=machine,
        start=starter,
        hostfile=str(counts.get("hostfile", "")),
        through="hostfile" if "hostfile" in counts else "",
    ), original


def _counts(words: Sequence[str]) -> dict:
    """What a launcher's words say: numbers by COUNTS, and `x`: variables that `-x` and `-e` set."""
    found: dict = {"x": {}}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[position + 1] if position + 1 < len(words) else ""
        if name in COUNTS:
            found[COUNTS[name]] = value if equals else following
        elif word in ("-x", "-e", "--env") and "=" in following:
            found["x"][following.partition("=")[0]] = following.partition("=")[2]
    return found


def _whole(value: object, default: int) -> int:
    if value in (None, ""):
        return default
    try:
        return int(str(value))
    except ValueError:
        name = str(value).strip("${}")
        raise UserError(
            f"{value}: a number of nodes or accelerators that is set nowhere here. Put {name}=N before it."
        ) from None


def _first(variables: Mapping[str, str], names: Sequence[str]) -> str:
    return next((variables[name] for name in names if variables.get(name)), "")


def _machine(original: Original, names: Sequence[str]) -> str:
    """The system of ours that a configuration's name begins with; the longest prefix counts."""
    for name in names:
        bare = PurePosixPath(name).name.removeprefix("config_")
        fits = [prefix for prefix in original.machines if bare.startswith(prefix)]
        if fits:
            return original.machines[max(fits, key=len)]
    return ""


def _base(word: str) -> str:
    return PurePosixPath(word).name
