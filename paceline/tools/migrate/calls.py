"""From shell text to the one training that it asks for: the program, its flags, nodes, accelerators, launcher, machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from paceline._utils.errors import PacelineError
from paceline._utils.text import suggest_name
from paceline.distributed.device.systems import SYSTEMS
from paceline.tools.migrate import ORIGINALS
from paceline.tools.migrate.shell import ShellCommand, ShellState, parse_commands, substitute_variables
from paceline.tools.migrate.table import FlagTranslation, ReferenceProgram, ReferenceScript, ReferenceSystem, TrainingCall

STARTERS = {"mpirun": "mpirun", "mpiexec": "mpirun", "horovodrun": "mpirun", "srun": "srun", "torchrun": "torchrun"}
CONTAINERS = {"docker": "docker", "nvidia-docker": "docker", "singularity": "apptainer", "apptainer": "apptainer"}
# A launcher's flags that count: -> what they name. Others are the launcher's own affair.
COUNTS = {
    "-np": "ranks", "--np": "ranks", "-n": "ranks", "--ntasks": "ranks", "-N": "nodes", "--nodes": "nodes", "--nnodes": "nodes",
    "--ntasks-per-node": "per_node", "-npernode": "per_node", "--npernode": "per_node", "--nproc_per_node": "per_node",
    "--nproc-per-node": "per_node", "--hostfile": "hostfile", "-hostfile": "hostfile", "-machinefile": "hostfile",
    "--machinefile": "hostfile", "-H": "hosts", "--host": "hosts", "-host": "hosts",
}  # fmt: skip
# A file of hosts that a line names one by one.
HOSTS = "HOSTS"
UNSET = re.compile(r"\$\{?(\w+)")
# A configuration's name without a command.
BARE_CONFIG = re.compile(r"(\S*/)?config_[\w.-]+\.sh")

# A refusal that another system's may be better than: as many strange flags as this.
FAR = 9


class NoProgramError(PacelineError):
    """Text that calls no program of a known system."""


Reader = Callable[[str], "str | None"]


def read_call(text: str, *, read: Reader = lambda _: None, system_of: str = "") -> tuple[TrainingCall, ReferenceSystem]:
    """The training that `text` asks for, and whose it is.

    read       the text of a file that is named there; None where it does not lie there
    system_of  an Original's name where the text cannot tell
    Raises PacelineError for text without a known program, for one that may be of several systems, and for an unknown flag.
    """
    names = list(dict.fromkeys(one.name for one in ORIGINALS))
    if system_of and system_of not in names:
        raise PacelineError(f"--source-system {system_of}: system not found. Choose one of {', '.join(names)}.")
    if BARE_CONFIG.fullmatch(text.strip()):
        text = f"source {text.strip()}"
    results: list[tuple[TrainingCall, ReferenceSystem]] = []
    refused: list[tuple[ReferenceSystem, PacelineError]] = []
    for original in ORIGINALS:
        if system_of not in ("", original.name):
            continue
        try:
            if (call := _attempt(original, text, read, named=bool(system_of))) is not None:
                results.append((call, original))
        except PacelineError as problem:
            refused.append((original, problem))
    # A configuration that is one of an original's own tells whose the line is.
    results = [(call, one) for call, one in results if one.configs.keys() & set(call.sourced)] or results
    several = list(dict.fromkeys(original.name for _, original in results))
    if len(several) > 1:
        raise PacelineError(f"the command may belong to {' or '.join(several)}. Add --source-system NAME.")
    if results:
        return results[0]
    if refused:
        raise min((problem for _, problem in refused), key=lambda problem: getattr(problem, "unknown", 0))
    files = [file for one in ORIGINALS for program in (*one.programs, *one.scripts) for file in program.files]
    words = [PurePosixPath(word).name for word in text.split()]
    hint = next((suggest_name(word, files) for word in words if suggest_name(word, files)), "")
    programs = dict.fromkeys(file for one in ORIGINALS for program in one.programs for file in program.files)
    raise NoProgramError(
        f"the input calls no known program. {hint or 'Known: ' + ', '.join(programs) + ', and their scripts.'} "
        "For the complete list, see docs/migration.md."
    )


def _attempt(original: ReferenceSystem, text: str, read: Reader, *, named: bool) -> TrainingCall | None:
    """The training of this original that the text asks for; None where it names none of its files.

    named  whether --source-system names it: a script whose name others have too needs no variable of its own then
    """
    shell = ShellState()
    commands = parse_commands(text, shell, lambda name: _sourced(name, read, original))
    for command in reversed(commands):
        for position, word in enumerate(command.words):
            name = PurePosixPath(word).name
            if any(name in program.files for program in original.programs):
                return _of_program(original, command, position, shell.sourced)
            for script in original.scripts:
                if name in script.files:
                    call = _of_script(original, script, command, position, shell, read)
                    if named or script.text or not original.marks or set(original.marks) & call.variables.keys():
                        return call
                    raise FlagError(f"{name} belongs to more than one system. Add --source-system {original.name}.", FAR)
    if set(original.marks) & shell.variables.keys():  # a configuration alone
        start = ShellCommand(("run",), dict(shell.variables))
        call = _of_script(original, ReferenceScript(("run",)), start, 0, shell, read)
        return replace(call, through="slurm") if call.nodes > 1 else call
    return None


def _file(name: str, read: Reader, original: ReferenceSystem) -> str | None:
    """A sourced file's text: the one that lies there, else the known configuration of that name."""
    text = read(name)
    return original.configs.get(PurePosixPath(name).name) if text is None else text


def _sourced(name: str, read: Reader, original: ReferenceSystem) -> str | None:
    """The same of a `source` line; a configuration that is not there is refused, another file (a venv's) decides nothing."""
    text = _file(name, read, original)
    if text is None and PurePosixPath(name).name.startswith("config"):
        if (unset := UNSET.search(name)) and unset[1] != "BASH_SOURCE" and f"${{{unset[1]}}}" in name:
            raise FlagError(f"source {name}: {unset[1]} is not set. Put {unset[1]}=NAME before the command.", FAR)
        raise FlagError(f"source {name}: {_unknown_config(name)} Pass the file: paceline translate FILE.", FAR)
    return text


def _unknown_config(name: str) -> str:
    """The problem with a configuration that is neither a file nor published, with the nearest published names."""
    near = suggest_name(PurePosixPath(name).name, (config for one in ORIGINALS for config in one.configs))
    return f"not found, and not a published configuration. {near}".rstrip()


def _of_script(
    original: ReferenceSystem,
    script: ReferenceScript,
    command: ShellCommand,
    position: int,
    shell: ShellState,
    read: Reader,
) -> TrainingCall:
    """The training that one of its scripts starts."""
    counts = _counts(command.words[:position])
    inner = ShellState({**command.variables, **counts["x"]}, sourced=list(shell.sourced))
    if script.defaults:
        parse_commands(script.defaults, inner)
    config = substitute_variables(original.config, inner.variables)
    if config and "$" not in config and (text := _file(config, read, original)) is not None:
        inner.sourced.append(config)
        parse_commands(text, inner, lambda file: _sourced(file, read, original))
    called = parse_commands(script.text or original.call, inner)[-1]
    unset = [match[1] for word in called.words if (match := UNSET.search(word))]
    if unset:
        raise FlagError(
            f"{script.files[0]} reads {unset[0]} from a configuration. "
            f"{f'{config}: {_unknown_config(config)} ' if config and '$' not in config else ''}Before the command, put "
            "`source config_NAME.sh;` or the variable that selects the configuration.",
            FAR,
        )
    index = next(at for at, word in enumerate(called.words) if any(word in program.files for program in original.programs))
    call = replace(
        _of_program(original, called, index, inner.sourced), before=(*command.words[:position], *called.words[:index])
    )
    bases = [PurePosixPath(word).name for word in command.words[:position]]
    container = next((CONTAINERS[word] for word in bases if word in CONTAINERS), "")
    nodes = _whole(counts.get("nodes"), call.nodes)
    per_node = _whole(counts.get("ranks"), 0) // nodes if script.through else 0
    return replace(
        call,
        nodes=nodes,
        per_node=per_node or call.per_node,
        through=script.through or call.through,
        start=script.start or ("" if script.through else call.start),
        container=script.container or call.container or container,
        mounts={**call.mounts, **counts["mounts"]},
    )


def _of_program(original: ReferenceSystem, command: ShellCommand, position: int, sourced: Sequence[str]) -> TrainingCall:
    """The training of a command whose word at `position` is a program of this original."""
    name = PurePosixPath(command.words[position]).name
    program = next(one for one in original.programs if name in one.files)
    overrides = read_flags(program, command.words[position + 1 :])
    before = command.words[:position]
    counts = _counts(before)
    bases = [PurePosixPath(word).name for word in before]
    starter = next((STARTERS[word] for word in bases if word in STARTERS), "")
    variables = {**command.variables, **counts["x"]}
    named = [*sourced, variables.get("SYSTEM", ""), variables.get("DGXSYSTEM", "")]
    prefix = _machine(original, named)
    machine = original.machines.get(prefix, "")
    whole = SYSTEMS[machine]().ranks_per_node if machine else 0
    hosts = str(counts.get("hosts", "")).count(",") + 1
    counts |= {"nodes": str(hosts)} if hosts > 1 else {}
    nodes = _whole(counts.get("nodes") or original.started_on.get(prefix) or _first(variables, original.nodes), 1)
    ranks = _whole(counts.get("ranks"), 0)
    per_node = _whole(counts.get("per_node") or _first(variables, original.per_node), 0)
    if ranks and not counts.get("per_node"):
        per_node = ranks // nodes if "nodes" in counts else min(ranks, per_node or whole or ranks)
    per_node = per_node or (whole if starter else 1) or 1
    if ranks > nodes * per_node:
        nodes = -(-ranks // per_node)
    through = "hostfile" if "hostfile" in counts else "slurm" if "sbatch" in bases or "srun" in bases else ""
    elsewhere = through == "" and starter == "mpirun" and nodes > 1
    call = TrainingCall(
        program=program,
        given=overrides,
        line=overrides,
        sourced=tuple(PurePosixPath(name).name for name in sourced),
        variables=variables,
        before=tuple(before),
        nodes=nodes,
        per_node=per_node,
        machine=machine,
        start=starter,
        through="hostfile" if elsewhere else through,
        container=next((CONTAINERS[word] for word in bases if word in CONTAINERS), "pyxis" if counts["pyxis"] else ""),
        mounts=counts["mounts"],
        hostfile=str(counts.get("hostfile", HOSTS if elsewhere else "")),
    )
    return program.formulas.settle(call)


def _counts(words: Sequence[str]) -> dict[str, Any]:
    """What a launcher's words say: numbers by COUNTS, `x`: variables that -x, -e and --export set, `mounts`: a container's folders,
    `pyxis`: whether srun has a container."""
    result: dict[str, Any] = {"x": {}, "mounts": {}, "pyxis": any(word.startswith("--container-") for word in words)}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[position + 1] if position + 1 < len(words) else ""
        if name in COUNTS:
            result[COUNTS[name]] = value if equals else following
        elif word in ("-x", "-e", "--env") and following:
            variable, explicit, text = following.partition("=")
            result["x"][variable] = text if explicit else f"${variable}"
        elif name in ("--export", "--env"):
            result["x"] |= dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)
        elif name in ("-v", "--volume", "-B", "--bind") and (value or following):
            host, _, inside = (value or following).partition(":")
            result["mounts"][inside.partition(":")[0] or host] = host
    return result


def _whole(value: object, default: int) -> int:
    if value in (None, ""):
        return default
    try:
        return int(str(value))
    except ValueError:
        unset = UNSET.search(str(value))
        hint = f" Put {unset[1]}=N before the command." if unset else ""
        raise FlagError(f"{value}: must be a number of nodes, ranks, or accelerators.{hint}") from None


def _first(variables: Mapping[str, str], names: Sequence[str]) -> str:
    return next((variables[name] for name in names if variables.get(name)), "")


def _machine(original: ReferenceSystem, names: Sequence[str]) -> str:
    """The longest of `machines` that a configuration's name begins with; else the one for lines that name none."""
    for name in names:
        bare = PurePosixPath(name).name.removeprefix("config_")
        fits = [prefix for prefix in original.machines if prefix and bare.startswith(prefix)]
        if fits:
            return max(fits, key=len)
    return ""


# A program's command line by its own table, with argparse's habits: unique prefixes, `--flag=value`, `-j6`, several values.


class FlagError(PacelineError):
    """A line of an original that its own program would refuse."""

    def __init__(self, text: str, unknown: int = 1) -> None:
        super().__init__(text)
        self.unknown = unknown  # flags of the line that the program does not have


def _numbers(text: str) -> str:
    """GluonCV's texts of numbers and commas, in parentheses or not, stay texts."""
    for part in text.strip("()").split(","):
        float(part or 0)
    return text


def _shape(text: str) -> str:
    channels, height, width = map(int, text.split(","))
    if min(channels, height, width) < 1 or height != width:
        raise ValueError(text)
    return text


# Each raises ValueError for a text that is no such value; their results are the values in a Call.
KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "ints": int,
    "float": float,
    "str": str,
    "number": lambda text: float(text) if text else None,  # an empty text of GluonCV's is the default
    "list of numbers": _numbers,
    "pow2 or list of epochs": lambda text: text if "pow" in text else _numbers(text),
    "channels and two equal sides": _shape,
}


def read_flags(program: ReferenceProgram, words: Sequence[str]) -> dict[str, Any]:
    """-> first name of each flag on the line -> its value. Words that belong to no flag are left out, as the programs do.

    Raises PacelineError for an unknown flag, one that may be several, or a value of another type.
    """
    overrides: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or _is_number(word):
            if any(word in one.names for one in program.flags):  # a subcommand
                overrides[word] = True
            continue
        name, equals, value = word.partition("=")
        entry = _find(program, name, words) if name.startswith("--") else None
        if entry is None:
            short = next((one for one in program.flags if word[:2] in one.names), None)
            entry = next((one for one in program.flags if name in one.names), short)
            if entry is None:
                raise _unknown(program, name, words)
            if name not in entry.names:  # -j6
                value, equals = word[2:].removeprefix("="), "="
        if entry.kind == "bool":
            overrides[entry.names[0]] = True
            continue
        several = entry.kind == "ints"
        values = [value] if equals else []
        while waiting and not equals and (several or not values):
            if waiting[0].startswith("-") and not _is_number(waiting[0]):
                break
            values.append(waiting.pop(0))
        if not values and not several:
            raise FlagError(f"{name}: requires a value.")
        read = tuple(_typed(entry.kind, one, name) for one in values)
        overrides[entry.names[0]] = read if several else read[0]
    return overrides


def _find(program: ReferenceProgram, name: str, words: Sequence[str]) -> FlagTranslation:
    """The flag of that name or unique prefix. Raises FlagError for an unknown one, naming its neighbors."""
    names = {one: entry for entry in program.flags for one in entry.names}
    if name in names:
        return names[name]
    result = {one: entry for one, entry in names.items() if one.startswith(name)}
    if len({entry.names for entry in result.values()}) == 1:
        return next(iter(result.values()))
    if result:
        raise FlagError(f"{name}: ambiguous in {program.files[0]}. Write {' or '.join(sorted(result))}.")
    raise _unknown(program, name, words)


def _unknown(program: ReferenceProgram, name: str, words: Sequence[str]) -> FlagError:
    names = [one for entry in program.flags for one in entry.names]
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = 1 + sum(not any(one.startswith(flag) for one in names) for flag in flags)
    return FlagError(
        f"{name}: not a flag of {program.files[0]} ({program.of}). {suggest_name(name, names)}".rstrip(), unknown
    )


def _typed(kind: str, text: str, name: str) -> Any:
    try:
        return KINDS[kind](text)
    except ValueError:
        unset = f" {text} is not set in the input. Put {text.strip('${}')}=VALUE before it." if "$" in text else ""
        raise FlagError(f"{name} {text}: must be of type {'int' if kind == 'ints' else kind}.{unset}") from None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
