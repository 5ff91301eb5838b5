"""From a training of an original to our command, and what carries over, is dead, differs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from paceline.config.recipe import Recipe
from paceline.migrate.calls import Reader, read_call
from paceline.migrate.table import Call, Entry, Facts, Original
from paceline.recipes import RECIPES
from paceline.recipes.rows import ROWS
from paceline.systems import SYSTEMS
from paceline.systems.published import system_for


@dataclass(frozen=True)
class Translation:
    """What `paceline from` prints, but for our facts."""

    command: str  # ours, as it is pasted
    words: tuple[str, ...]  # of it, from the verb on
    system_of: str
    carries: tuple[dict[str, str], ...]  # theirs, ours, remark
    dead: tuple[dict[str, str], ...]  # theirs, kind (dead, fixed, automatic, none), why
    differs: tuple[dict[str, str], ...]  # what, row of docs/deviations.md
    facts: Facts  # of theirs
    devices: int  # accelerators that train


def translate(text: str, *, read: Reader = lambda _: None, system_of: str = "") -> Translation:
    """Our command for a line, a script's text or a configuration's.

    read       the text of a file that is named there; None where it does not lie there
    Raises UserError as read_call does.
    """
    call, original = read_call(text, read=read, system_of=system_of)
    name, changes = nearest(call)
    flags = {field: _flag(field, value) for field, value in changes.items()}
    carries, dead, differs, straight = [], [], [], []
    for entry, shown, value in _met(call, original):
        ours = entry.flags(value)
        if entry.status != "carries":
            dead.append({"theirs": shown, "kind": entry.status, "why": entry.reason})
            continue
        if value != entry.default and ours:
            straight += shlex.split(ours)
        if entry.fields:
            ours = " ".join(flags[field] for field in entry.fields if field in flags) or f"{name} has it"
        carries.append({"theirs": shown, "ours": ours or "the default", "remark": entry.remark})
        if entry.row:
            differs.append({"what": shown, "row": entry.row})
    pairs = (*call.program.differs, *call.program.differences(call))
    differs += [{"what": what, "row": row} for what, row in pairs]
    words = _words(call, name, [word for text in flags.values() for word in shlex.split(text)] + straight, set(changes))
    prefix = _prefix(call)
    command = (
        shlex.join([*prefix, "paceline", *words])
        if not prefix or prefix[0] != "torchrun"
        else shlex.join([*prefix, *words])
    )
    return Translation(
        command,
        tuple(words),
        original.name,
        tuple(carries),
        tuple(dead),
        tuple(differs),
        call.program.facts(call),
        call.devices,
    )


def nearest(call: Call) -> tuple[str, dict[str, Any]]:
    """The recipe or row that takes the fewest changes to become what the line asks for, and these: dotted field -> value."""
    wanted = call.program.recipe(call)
    makers = {name: RECIPES[name] if name in RECIPES else ROWS[name].make for name in call.program.candidates}
    changes = {name: dict(_differing(make(), wanted)) for name, make in makers.items()}
    name = min(changes, key=lambda one: len(changes[one]))
    if "global_batch" in changes[name] and "optim.lr" not in changes[name]:
        changes[name]["optim.lr"] = wanted.optim.lr  # a changed batch wants its rate said anew
    return name, changes[name]


def _differing(base: Any, wanted: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for entry in fields(wanted):
        ours, theirs = getattr(base, entry.name, None), getattr(wanted, entry.name)
        if is_dataclass(theirs):
            yield from _differing(ours, theirs, f"{above}{entry.name}.")
        elif ours != theirs:
            yield f"{above}{entry.name}", theirs


def _flag(dotted: str, value: Any) -> str:
    name = "--" + dotted.replace("_", "-")
    if isinstance(value, bool):
        return (
            name
            if value
            else f"{'.'.join((*name.split('.')[:-1], ''))}no-{name.rpartition('.')[2]}".replace("--no---", "--no-")
        )
    if isinstance(value, tuple):
        flat = [part for one in value for part in (one if isinstance(one, tuple) else (one,))]
        return " ".join([name, *map(_shown, flat)])
    return f"{name} {_shown(value)}"


def _shown(value: Any) -> str:
    """A number as people write it, without losing a digit."""
    if isinstance(value, float):
        short = f"{value:.12g}"
        return short if float(short) == value or abs(float(short) - value) <= 1e-15 * abs(value) else repr(value)
    return str(value)


def _met(call: Call, original: Original) -> Iterator[tuple[Entry, str, Any]]:
    """Flags and variables of the line: what the table says, how they stand there, the value."""
    for name, value in call.given.items():
        entry = call.program.entry(name)
        text = "" if value is True else f" {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        yield entry, f"{name}{text}", value
    for entry in original.variables:
        for name in entry.names:
            bare = name.partition("=")[0]
            if bare in call.variables:
                yield entry, f"{bare}={call.variables[bare]}", call.variables[bare]


def _words(call: Call, name: str, flags: list[str], changed: set[str]) -> list[str]:
    """Verb, recipe, machine, data, weights, flags."""
    launched = bool(call.machine or call.through or call.container)
    words = ["launch" if launched else "train", name]
    wanted = call.program.system(call)
    if call.machine:
        there = system_for(name, call.machine, SYSTEMS[call.machine](), changed)
        words += ["--system", call.machine]
        if there.per_node != call.per_node:
            words += ["--system.per-node", str(call.per_node)]
        wanted = {field: value for field, value in wanted.items() if getattr(there, field) != value}
    elif wanted.get("precision") == "fp32":
        wanted = {field: value for field, value in wanted.items() if field != "loss_scale"}
    if launched:
        for flag, value in (("--nodes", call.nodes if call.nodes > 1 else ""), ("--through", call.through), ("--hostfile", call.hostfile),
                            ("--start", call.start), ("--container", call.container)):  # fmt: skip
            words += [flag, str(value)] if value else []
        words += ["--image", call.variables.get("CONT", "IMAGE")] if call.container == "pyxis" else []
    words += ["--data", call.program.data(call) or "DIR"] if "--synthetic" not in flags else []
    words += ["--weights", call.program.weights(call) or "none"]
    return [
        *words,
        *flags,
        *call.more,
        *(word for field, value in wanted.items() for word in _flag(f"system.{field}", value).split()),
    ]


def _prefix(call: Call) -> list[str]:
    """What starts the ranks where no machine of ours is named: their own launcher, which we run under as we are."""
    if call.machine or call.through or call.container or call.devices == 1:
        return []
    if call.start in ("mpirun", "srun"):
        return [call.start, "-np" if call.start == "mpirun" else "-n", str(call.devices)]
    more = ["--nnodes", str(call.nodes)] if call.nodes > 1 else []
    return ["torchrun", *more, "--nproc-per-node", str(call.per_node), "-m", "paceline"]


def as_dict(facts: Facts) -> dict[str, Any]:
    """Facts as JSON has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(facts).items()}


def facts_of(recipe: Recipe, plan: Any, weights: str) -> Facts:
    """The same numbers of ours, from a recipe and its plan."""
    schedule = recipe.schedule
    ends = (
        plan.boundaries if schedule.kind == "steps" else () if schedule.kind == "constant" else (plan.schedule_steps,)
    )
    target = " ".join(f"{name} {value:g}" for name, value in recipe.quality.targets)
    return Facts(
        global_batch=plan.global_batch,
        batch_per_device=plan.images_per_rank,
        devices=plan.world,
        steps_per_epoch=plan.steps_per_epoch,
        epochs=recipe.epochs,
        steps=plan.stop_after,
        lr=recipe.optim.lr,
        warmup_steps=plan.warmup_steps,
        decay=schedule.kind,
        decay_steps=tuple(ends),
        weight_decay=recipe.optim.weight_decay,
        weights=weights or "none",
        target=target or "none",
    )
