"""From a training of an original to our command, and what carries over, is dead, differs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from paceline._utils.errors import PacelineError
from paceline._utils.names import flatten
from paceline._utils.text import format_count
from paceline.config.published import published_for, system_for
from paceline.config.recipe import differing_fields
from paceline.config.recipes import RECIPES
from paceline.config.recipes.published_rows import LIKE, ROWS
from paceline.config.system import System
from paceline.distributed.device.systems import SYSTEMS
from paceline.tools.migrate import ORIGINALS
from paceline.tools.migrate.calls import HOSTS, NoProgramError, Reader, read_call
from paceline.tools.migrate.table import FlagTranslation, ReferenceSystem, TrainingCall, TrainingSize

DEFAULT = "default in paceline"
UNREAD = "the batches are synthetic, so no data is read"
Rows = list[dict[str, str]]
Met = tuple[FlagTranslation, str, Any]  # what a table has of a flag or variable, its text in the line, its value


@dataclass(frozen=True)
class Translation:
    """What `paceline translate` prints, but for our facts."""

    command: str  # ours, as it is pasted
    words: tuple[str, ...]  # of it, from the verb on
    system_of: str
    carries: tuple[dict[str, str], ...]  # theirs, ours, remark
    dead: tuple[dict[str, str], ...]  # theirs, kind (dead, fixed, automatic, none, left out), why
    devices: int = 0  # accelerators that train
    differs: tuple[dict[str, str], ...] = ()  # what, row of docs/reference/known-differences.md
    facts: TrainingSize | None = None  # of theirs; None where the line asks for other work than training
    explains: Mapping[str, str] = field(default_factory=dict)  # fact -> row that says why ours may have another number


def translate(text: str, *, read: Reader = lambda _: None, system_of: str = "") -> Translation:
    """Our command for a line, a script's text or a configuration's.

    read       the text of a file that is named there; None where it does not lie there
    Raises PacelineError as read_call does.
    """
    try:
        call, original = read_call(text, read=read, system_of=system_of)
    except NoProgramError:
        if (tool := _tool(text, system_of)) is not None:
            return tool
        raise
    if other := call.program.formulas.instead(call):
        met = list(_met(call, original, other[0]))
        words = (*other, *_merged(_straight(call, met), {}))
        carries, dead, _ = _rows(call, met, words, "", {})
        command = " ".join(map(_quoted, ("paceline", *words)))
        return Translation(command, words, original.name, tuple(carries), tuple(dead), call.devices)
    try:
        facts, (name, changes) = call.program.formulas.facts(call), find_nearest(call)
    except ArithmeticError:
        raise PacelineError(
            f"{call.program.files[0]}: no steps with these values. Check the batch size, epochs, and ranks."
        ) from None
    there = system_for(name, call.machine, SYSTEMS[call.machine](), set(changes)) if call.machine else None
    met = list(_met(call, original, "train"))
    wanted = {f"system.{field}": value for field, value in call.program.formulas.system(call).items()}
    if there is None and wanted.get("system.precision") == "fp32":
        wanted.pop("system.loss_scale", None)
    same = {field for field, value in wanted.items() if there and getattr(there, field.removeprefix("system.")) == value}
    requested = [word for field, value in wanted.items() if field not in same for word in format_flag(field, value).split()]
    known = dict(_spelt(there)) if there else {}
    words = (
        *_opening(call, name),
        *(word for field, value in changes.items() for word in shlex.split(format_flag(field, value))),
        *_merged(_straight(call, met), known),
        *requested,
    )
    carries, dead, differs = _rows(call, met, words, name, known)
    differs += [{"what": what, "row": row} for what, row in (*call.program.differs, *call.program.formulas.also(call))]
    command = " ".join(map(_quoted, (*_prefix(call), *words)))
    parts = (original.name, tuple(carries), tuple(dead), call.devices, tuple(differs), facts, call.program.explains)
    return Translation(command, words, *parts)


def _straight(call: TrainingCall, met: Sequence[Met]) -> list[str]:
    """Our flags for what needs no formula."""
    counts = [(entry, value) for entry, _, value in met if not entry.slurm or call.through == "slurm"]
    cells = [entry.flags(value) for entry, value in counts if value != entry.default]
    return [word for cell in cells if "$" not in cell for word in shlex.split(cell)]


def _rows(
    call: TrainingCall, met: Sequence[Met], words: Sequence[str], name: str, known: Mapping[str, str]
) -> tuple[Rows, Rows, Rows]:
    """One row per flag and variable of the line, in one of the first two: (carries over, does not carry over, differs).

    words  our command
    name   its recipe; empty = it does not train
    known  flags of its system
    """
    carries, dead, differs = [], [], []
    for entry, shown, value in met:
        if entry.status != "carries":
            dead.append({"theirs": shown, "kind": entry.status, "why": entry.reason})
            continue
        if ours := _ours(call, entry, value, words, name, known):
            carries.append({"theirs": shown, "ours": ours, "remark": entry.remark})
        else:
            unread = entry.by == "data" and not translate_data(call)
            why = (UNREAD,) if unread else (f"nearest: {entry.cell(value)}", *filter(None, (entry.remark,)))
            dead.append({"theirs": shown, "kind": "left out", "why": "; ".join(why)})
        differs += [{"what": shown, "row": entry.row}] if entry.row else []
    if call.hostfile == HOSTS:
        remark = "a file with one line per host: ADDRESS slots=N"
        carries.append({"theirs": "-H", "ours": f"--hostfile {HOSTS}", "remark": remark})
    return carries, dead, differs


def _ours(
    call: TrainingCall, entry: FlagTranslation, value: Any, words: Sequence[str], name: str, known: Mapping[str, str]
) -> str:
    """The part of our command that an entry of the line decides, or what has the same effect; empty: neither exists."""
    known_value = entry.values is None or str(value) in entry.values
    cell, parts = entry.cell(value), _parts(words) if known_value else {}
    shown = {} if (separate := cell.startswith("paceline ")) else _parts(shlex.split(cell))
    if (entry.values or {}).get(str(value)) == "":
        return DEFAULT
    if here := [parts[flag] for flag in [_positive(f"--{one}") for one in entry.fields] or shown if flag in parts]:
        return " ".join(here)
    if entry.fields:
        return f"as in {name}"
    if value == entry.default:
        return DEFAULT
    if entry.by == "system":
        return f"as in {call.machine}" if call.machine else DEFAULT
    if entry.by and {*str(value).split(",")} <= {*words}:
        return "in the command"
    if separate:
        return "" if entry.by == "data" and not translate_data(call) else cell
    system = _parts(word for flag, text in known.items() for word in (flag, *text.split()))
    if any(system.get(flag) == text for flag, text in shown.items()):
        return f"as in {call.machine}"
    return format_count(call.devices, "rank") if entry.by == "ranks" else ""


def _grouped(words: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Each flag of a command, as it is written, with its values."""
    result: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            result.append((word, []))
        elif result:
            result[-1][1].append(word)
    return result


def _parts(words: Iterable[str]) -> dict[str, str]:
    """Each flag of a command, or variable of --system.env, as text with its values; keys have no "no-"."""
    result: dict[str, str] = {}
    for flag, values in _grouped(words):
        if flag == "--system.env":
            result |= {value: f"{flag} {_quoted(value)}" for value in values}
        else:
            result[_positive(flag)] = " ".join((flag, *map(_quoted, values)))
    return result


def _positive(flag: str) -> str:
    return re.sub(r"(^--|\.)no-", r"\1", flag.replace("_", "-"))


def _tool(text: str, system_of: str) -> Translation | None:
    """What stands for a program of theirs that does not train."""
    words = [PurePosixPath(word).name for word in text.split()]
    for original in ORIGINALS:
        for line in original.tools if system_of in ("", original.name) else ():
            if index := next((at for at, word in enumerate(words, 1) if word in line.files), 0):
                command = line.ours.split("`")[1]
                theirs = line.theirs.replace("`", "")
                carries = {"theirs": theirs, "ours": line.ours.replace("`", ""), "remark": line.remark}
                why = f"flags of this program are not translated; see `{' '.join(command.split()[:2])} --help`"
                flags = [word for word in text.split()[index:] if word.startswith("-") and word not in theirs.split()]
                dead = [{"theirs": flag, "kind": "left out", "why": why} for flag in flags]
                return Translation(command, (), original.name, (carries,), tuple(dead))
    return None


def find_nearest(call: TrainingCall) -> tuple[str, dict[str, Any]]:
    """The recipe or row that takes the fewest changes to become what the line asks for, and these: dotted field -> value.

    Of several the one that was published on the line's machine, else the first.
    """
    wanted = call.program.formulas.recipe(call)
    names: list[str] = []
    for name in call.program.candidates:
        names += [row for row in ROWS if row.startswith(name)] if name.endswith("@") else [name]
    makers = {name: RECIPES[name] if name in RECIPES else ROWS[name].make for name in names}
    changes = {
        name: {field: theirs for field, (theirs, _) in differing_fields(wanted, make()).items()}
        for name, make in makers.items()
    }
    name = min(changes, key=lambda one: (len(changes[one]), not _published_there(one, call)))
    if "global_batch_size" in changes[name] and "optim.lr" not in changes[name]:
        changes[name]["optim.lr"] = wanted.optim.lr  # a changed batch wants its rate said anew
    return name, changes[name]


def _published_there(name: str, call: TrainingCall) -> bool:
    if name in ROWS:
        row = ROWS[name]
        return (LIKE.get(row.chip, ("",))[0], row.nodes, row.per_node) == (call.machine, call.nodes, call.per_node)
    return bool(call.machine and published_for(name, call.machine, call.nodes))


def format_flag(dotted: str, value: Any) -> str:
    """A field of ours as its flag and value: `--schedule.milestones 44 55`."""
    group, dot, name = f"--{dotted}".replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"{group}{dot}{name}" if value else f"{group}{dot}no-{name}" if dot else f"--no-{name[2:]}"
    parts = value if isinstance(value, tuple) else (value,)
    flat = [part for one in parts for part in (one if isinstance(one, tuple) else (one,))]
    return " ".join([f"{group}{dot}{name}", *map(format_number, flat)])


def format_number(value: Any) -> str:
    """A number as people write it, without losing a step: twelve digits where they say the same."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.12g}"
    return short if abs(float(short) - value) <= 1e-15 * abs(value) else repr(value)


def _met(call: TrainingCall, original: ReferenceSystem, verb: str) -> Iterator[Met]:
    """Flags and variables of the line, as `verb` of ours knows them: a program of that name has what counts for it."""
    work = next((one for one in original.programs if one.code == verb), call.program)
    entries = {name: entry for entry in (*call.program.flags, *work.flags) for name in entry.names}
    for name in {**call.line, **call.given}:
        entry, typed = entries[name], call.line.get(name, True)
        text = " ".join(map(format_number, typed if isinstance(typed, tuple) else (typed,)))
        if entry not in work.flags and entry.status == "carries":
            entry = replace(entry, ours=f"dead: `{verb}` does not use it")
        yield entry, name if typed is True else f"{name} {text}", call[name]
    for entry, shown, value in _around(call, original):
        trains = verb == "train" or entry.status != "carries"
        yield entry if trains else replace(entry, ours=f"none: `paceline {verb}` has no such flag"), shown, value


def _around(call: TrainingCall, original: ReferenceSystem) -> Iterator[Met]:
    """Variables, and words before the program."""
    for entry in original.variables:
        for name in entry.names:
            bare = name.partition("=")[0]
            if bare in call.variables:
                yield entry, f"{bare}={call.variables[bare]}", call.variables[bare]
    for entry in original.launcher:
        for index, word in enumerate(call.before):
            if word in entry.names:
                following = call.before[index + 1] if index + 1 < len(call.before) else ""
                yield entry, word if entry.kind == "bool" else f"{word} {following}", entry.kind == "bool" or following


def _opening(call: TrainingCall, name: str) -> list[str]:
    """Verb, recipe, machine, nodes, launcher, data, weights."""
    launched = bool(call.through or call.container or (call.machine and call.devices > 1))
    words = ["launch" if launched else "train", name]
    words += ["--system", call.machine] if call.machine else []
    if SYSTEMS[call.machine]().ranks_per_node != call.per_node if call.machine else launched:
        words += ["--system.ranks-per-node", str(call.per_node)]
    if launched:
        nodes = str(call.nodes) if call.nodes > 1 else ""
        image = call.container == "pyxis" and "IMAGE"
        requested = {"--nodes": nodes, "--scheduler": call.through, "--hostfile": call.hostfile, "--launcher": call.start}
        requested |= {"--container-runtime": call.container, "--container-image": image}
        words += [word for flag, value in requested.items() if value for word in (flag, str(value))]
    data = ["--data", translate_data(call)] if translate_data(call) else []
    return [*words, *data, "--weights", call.program.formulas.weights(call) or "none", *call.more]


def translate_data(call: TrainingCall) -> str:
    """For --data: the original's path, a word to fill in, or "" where batches are made up."""
    made_up = "--synthetic" in call.more or any("--synthetic" in call.program.entry(name).ours for name in call.given)
    path = call.program.formulas.data(call)
    inside = max((folder for folder in call.mounts if path.startswith(folder)), key=len, default="")
    return "" if made_up else (path.replace(inside, call.mounts[inside], 1) if inside else path) or "DIR"


def _prefix(call: TrainingCall) -> list[str]:
    """What starts our ranks: `launch` does; where no machine is named their own launcher, under which we run as we are."""
    if call.machine or call.through or call.container or call.devices == 1:
        return ["paceline"]
    if call.start == "mpirun":
        return ["mpirun", "-np", str(call.devices), "paceline"]
    more = ["--nnodes", str(call.nodes)] if call.nodes > 1 else []
    return ["torchrun", *more, "--nproc-per-node", str(call.per_node), "-m", "paceline"]


def _merged(words: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Flags with their values, each flag once: the last counts, but --system.env gathers; what the system has already is left out."""
    result: dict[str, list[str]] = {}
    for flag, values in _grouped(words):
        result[flag] = [*result.get(flag, ()), *values] if flag == "--system.env" else values
    if variables := result.pop("--system.env", []):
        there = known.get("--system.env", "").split()
        result |= {"--system.env": more} if (more := [one for one in variables if one not in there]) else {}
    return [word for flag, values in result.items() if known.get(flag) != " ".join(values) for word in (flag, *values)]


def _quoted(word: str) -> str:
    """As a shell takes it: one with a variable of the user's keeps it."""
    plain = re.fullmatch(r"[\w$/.:=,+{}@%-]+", word)
    return f'"{word}"' if plain and "$" in word else shlex.quote(word)


def _spelt(system: System) -> Iterator[tuple[str, str]]:
    """A system's fields as flags and values."""
    for name, one in flatten(system, "system.").items():
        flag, *value = format_flag(name, one).split()
        yield flag, " ".join(value)
