"""`paceline compare A B --bisect`: the first step, and the first tensor of it, at which two runs part.

Three looks, each nearer: what their events have, what their checkpoints have, and both trained again side by side from the last
checkpoint that is the same in both, or from their first weights (tools/compare/replay.py).

Rounding could make a difference of few units in the last place, and of few times what the same tensor moves by on other threads, or
where gradients are found with every weight moved by such a unit.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError
from paceline._utils.text import WORDS, join_names
from paceline.config.run import read_run, run_folder
from paceline.models.registry import load_saved_recipe

if TYPE_CHECKING:
    from paceline.config.recipe import Recipe
    from paceline.data.batch import Batch
    from paceline.tools.compare.replay import Follow, Replay, RunPair
    from paceline.tools.compare.step_trace import TracedTensor


# Of run.json, what can change the arithmetic or what it is done on.
ARITHMETIC = ("recipe.", "system.", "threads.", "versions.", "world_size", "data.hash", "host.cpu", "options.weights")
# Steps repeated with moved weights. Rounding could make so many times their largest effect, and from equal gradients so many units.
DRAWS, MAX_TIMES, MAX_UNITS = 2, 10.0, 4


def print_bisection(
    say: Callable[[str], object],
    waiting: Callable[[str], AbstractContextManager],
    names: Sequence[str],
    *,
    data: str = "",
    workload: str = "",
    in_json: bool = False,
) -> int:
    """Print where two runs part, as text or as one JSON object.

    say       prints a line
    waiting   shows what is being done, inside
    names     of the two runs' folders
    data      where their data lie now; "" = where run.json has them
    workload  the file of a workload of one's own, ./file.py:name
    Raises PacelineError for what cannot be compared.
    """
    if len(names) != 2:
        raise PacelineError(f"--bisect: requires two runs, got {len(names)}. Use:  paceline compare RUN RUN --bisect")
    folders = [run_folder(Path(name).expanduser()) for name in names]
    facts = [read_run(folder) for folder in folders]
    tasks = [str(one.recipe.get("task")) for one in facts]
    if tasks[0] != tasks[1]:
        raise PacelineError(
            f"--bisect: the runs have different tasks ({names[0]}: {tasks[0]}, {names[1]}: {tasks[1]}) and no common tensors."
        )

    def again(name: str) -> str:
        return format_command("compare", *names, "--bisect", "--task-file", name)

    recipes = [load_saved_recipe(one, folder, named=workload, again=again) for folder, one in zip(folders, facts)]
    with waiting("reading events and checkpoints"):
        from paceline.tools.compare.replay import RunPair

        runs = [RunPair(folder, one) for folder, one in zip(folders, facts)]
        differences = _differences([one.as_dict() for one in facts])
        result = {"runs": list(map(str, names)), "differences": differences, **_recorded(*runs)}
    apart = [result[name]["first"]["step"] for name in ("events", "checkpoints") if result[name]["first"]]
    if apart or not (result["events"]["compared"] or result["checkpoints"]["compared"]):
        last = max(apart, default=min(run.last for run in runs))
        result["replay"] = {"from": result["checkpoints"]["equal"], "at_most": last}
    for line in () if in_json else format_recorded(result):
        say(line)
    if "replay" in result:
        with waiting("repeating the training of both runs"):
            result |= _replayed(runs, recipes, data, result["replay"])
        for line in () if in_json else format_replayed(result):
            say(line)
    if in_json:
        print(json.dumps(result, indent=1))
    return 0


def _differences(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    from paceline.tools.report.run_report import fact_rows

    each = [dict(fact_rows(one)) for one in facts]
    keys = [key for key in dict.fromkeys(key for one in each for key in one) if key.startswith(ARITHMETIC)]
    return {key: [one.get(key, "-") for one in each] for key in keys if each[0].get(key) != each[1].get(key)}


def _recorded(one: RunPair, other: RunPair) -> dict[str, Any]:
    """The first differences that the files have, without any computing."""
    from paceline.tools.compare.replay import find_differing_number
    from paceline.tools.compare.step_trace import compare_states

    spans = [{step: before for before, step in pairwise([0, *run.events])} for run in (one, other)]
    steps = [step for step, before in spans[0].items() if spans[1].get(step) == before]  # means over the same steps

    def events_apart(step: int) -> dict[str, Any]:
        apart = find_differing_number(one.events[step], other.events[step])
        return {"number": apart[0], "values": list(apart[1:])} if apart else {}

    def checkpoints_apart(step: int) -> dict[str, Any]:
        count, differing = compare_states(one.checkpoint(step).tensors, other.checkpoint(step).tensors)
        return {"tensors": count, "differing": differing} if differing else {}

    common = sorted(set(one.steps) & set(other.steps))
    return {"events": _first_apart(steps, events_apart), "checkpoints": _first_apart(common, checkpoints_apart)}


def _first_apart(steps: Sequence[int], compare: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"compared": len(steps), "equal": None, "first": None}
    for step in steps:
        if apart := compare(step):
            return {**result, "first": {"step": step, **apart}}
        result["equal"] = step
    return result


def _replayed(
    runs: Sequence[RunPair], recipes: Sequence[Recipe], data: str, requested: Mapping[str, Any]
) -> dict[str, Any]:
    """Train both again, until they part and each has met a record of its own, or to the last step asked."""
    from paceline.tools.compare.replay import Replay, find_flip, open_single_rank
    from paceline.tools.compare.step_trace import compare_states, find_first_difference

    begin, last = requested["from"], requested["at_most"]
    with open_single_rank(runs) as world:
        starts = [None if begin is None else run.checkpoint(begin) for run in runs]
        sides = [Replay(run, recipe, data, start, world) for run, recipe, start in zip(runs, recipes, starts)]
        step, parted = begin or 0, None
        count, differing = compare_states(*(side.tensors() for side in sides))
        if differing:
            parted = {"step": step, "kind": "start", "tensors": count, "differing": differing}
            parted["samples"] = [side.photos(step) for side in sides]
        # Steps cut into other forwards have no output or gradient in common, but lead to the same state.
        follow = "all" if sides[0].run.plan.micro_batches == sides[1].run.plan.micro_batches else "state"
        with sides[0].loader() as first, sides[1].loader() as second:
            for (_, ours), (_, theirs) in zip(first, second):
                moments = [side.moment() for side in sides]
                pairs = list(zip(sides, (ours, theirs)))
                entries = [side.take(batches, follow="nothing" if parted else follow).entries for side, batches in pairs]
                step += 1
                if (index := find_first_difference(*entries)) is not None:
                    parted = _examined(pairs, moments, index, entries, follow)
                for side in sides:
                    side.compare()
                if step >= last or (parted and all(side.fitted or side.misfits for side in sides)):
                    break
        records: list[dict[str, Any]] = [{"fitted": side.fitted, **side.misfits} for side in sides]
        odd = [position for position, side in enumerate(sides) if side.misfits]
        for index in odd:
            records[index]["left"] = span = _left(records[index], begin)
            if parted is None and len(odd) == 1 and "checkpoint" in sides[index].misfits:
                after = runs[index].checkpoint(records[index]["checkpoint"]["step"])
                again = Replay(runs[index], recipes[index], data, starts[index], world)
                records[index]["flip"] = find_flip(again, range(*span), after)
    elsewhere = [run.elsewhere() for run in runs]
    return {"replay": {**requested, "to": step, "records": records, "elsewhere": elsewhere}, "parted": parted}


def _left(record: Mapping[str, Any], begin: int | None) -> list[int]:
    """The last step whose records fit, and the first one of which one does not: the same, where only its checkpoint does not."""
    until = min(record[kind]["step"] for kind in ("event", "checkpoint") if kind in record)
    return [max((step for step in record["fitted"] if step <= until), default=begin or 0), until]


def _examined(
    pairs: Sequence[tuple[Replay, Sequence[Batch]]],
    moments: Sequence[Any],
    index: int,
    entries: Sequence[Sequence[TracedTensor]],
    follow: Follow,
) -> dict[str, Any]:
    """The entries at `index` of a step that both sides have taken, in numbers; it is taken again, and stands as it was."""
    from paceline.tools.compare.step_trace import compare_tensors

    ours, batches = pairs[0]
    step = ours.state.step
    tops = [rows[index] if index < len(rows) else None for rows in entries]
    result: dict[str, Any] = {"step": step, "samples": [side.photos(step - 1) for side, _ in pairs]}
    if tops[0] is None or tops[1] is None or tops[0][:2] != tops[1][:2]:
        names = [None if top is None else {"kind": top.kind, "name": top.name} for top in tops]
        return result | {"kind": "other tensors", "tensors": names}
    noisy = follow == "state" or tops[0].kind in ("output", "loss", "gradient")
    moved = []
    for other in [*map(ours.nudged, range(DRAWS)), ours.other_threads()] if noisy else ():
        ours.go_back(moments[0])
        with other:
            moved.append(ours.take(batches, index, follow=follow).kept)
    kept = []
    for (side, own), moment in zip(pairs, moments):
        side.go_back(moment)
        kept.append(side.take(own, index, follow=follow).kept)
    apart = compare_tensors(*kept)
    call = sum(row[:2] == tops[0][:2] for row in entries[0][: index + 1])
    result |= {"kind": tops[0].kind, "name": tops[0].name, "call": call, "difference": apart}
    moves = [compare_tensors(kept[0], one) for one in moved]
    sizes = [move["largest"] if move else 0.0 for move in moves if not move or move.get("largest") is not None]
    if tops[0].kind not in ("rate", "input") and apart.get("largest") is not None:
        few = apart["most_units"] is not None and apart["most_units"] <= (1 if moved else MAX_UNITS)
        could = few or (bool(sizes) and apart["largest"] <= MAX_TIMES * max(sizes))
        result["rounding"] = {"moves": max(sizes, default=None), "draws": len(moved), "could": could}
    return result


# What was found, for people: lines of at most WIDTH columns.

WIDTH, HEAD = 80, 13
RUNS, PLACES = ("A", "B"), ("there", "here")
MAX_PHOTOS, MAX_FIELDS = 4, 8
ENDS = ("events", "checkpoints")


def format_recorded(result: Mapping[str, Any]) -> Iterator[str]:
    """What run.json, events and checkpoints of both have."""
    for letter, name in zip(RUNS, result["runs"]):
        yield from _row(letter, name)
    fields = list(result["differences"].items())
    texts = [f"{name}: {_both(values)}" for name, values in fields[:MAX_FIELDS]]
    if len(fields) > MAX_FIELDS:
        texts.append(f"and {len(fields) - MAX_FIELDS} more; list them with compare without --bisect")
    yield from _row("differs", *(texts or ["nothing in the recipe, system, threads, versions, and data"]))
    for name in ENDS:
        yield from _row(name, *_format_record(name, result[name]))
    if "replay" not in result:
        yield from _row("result", "No difference: all recorded values of common steps are equal.")
        return
    begin, last = result["replay"]["from"], result["replay"]["at_most"]
    start = "initial weights" if begin is None else f"checkpoint of step {begin:,}"
    yield from _row("repeated", f"Both runs are trained again on this machine from their {start}, up to step {last:,}.")


def _format_record(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    first, equal, count = record["first"], record["equal"], record["compared"]
    alike = "none are equal" if equal is None else f"equal up to step {equal:,}"
    if not count:
        yield f"no common step{'s' * (name == 'events')} recorded in both"
    elif first is None:
        yield f"{alike} ({count:,} compared)"
    elif name == "events":
        yield f"{alike}; at step {first['step']:,} {first['number']} is {_both(list(map(repr, first['values'])))}"
    else:
        yield f"{alike}; at step {first['step']:,} {_tensors(first)}:"
        yield from _foremost(first["differing"], RUNS)


def format_replayed(result: Mapping[str, Any]) -> Iterator[str]:
    """What the repeated steps have shown."""
    replay, parted = result["replay"], result["parted"]
    for letter, record in zip(RUNS, replay["records"]):
        yield from _row(f"  {letter}", *_own(record, result["checkpoints"]["first"] or {}))
    yield from _row("result", *_verdict(parted, replay))
    if parted is not None:
        yield from _parted(parted)


def _own(record: Mapping[str, Any], shown: Mapping[str, Any]) -> Iterator[str]:
    """How a repeated run stands beside its own records; shown: the checkpoints' first difference, which stands above."""
    fitted, event, checkpoint = record["fitted"], record.get("event"), record.get("checkpoint")
    if not event and not checkpoint:
        count = f"bitwise identical to the run: {len(fitted)} of its events and checkpoints compared"
        yield count if fitted else "the run has no event or checkpoint of these steps"
        return
    yield (
        f"identical to the run up to step {record['left'][0]:,}, different after it:"
        if fitted
        else "different from the run:"
    )
    if event:
        yield f"event of step {event['step']:,}: {event['number']} is {event['recorded']!r} in the run | {event['here']!r} repeated"
    if checkpoint:
        above = [[one["name"] for one in some.get("differing", ())] for some in (shown, checkpoint)]
        same = shown.get("step") == checkpoint["step"] and above[0] == above[1]
        yield f"checkpoint of step {checkpoint['step']:,}: {_tensors(checkpoint)}{', as above' if same else ':'}"
        yield from () if same else _foremost(checkpoint["differing"], PLACES)


def _verdict(parted: Mapping[str, Any] | None, replay: Mapping[str, Any]) -> Iterator[str]:
    odd = [index for index, record in enumerate(replay["records"]) if {"event", "checkpoint"} & record.keys()]
    if parted is not None:
        yield f"The runs diverge {_where(parted)}."
    elif not odd:
        yield "No difference: in the repetition, every tensor of every step is equal."
    else:
        yield f"The repeated A and B are equal in every tensor up to step {replay['to']:,}, so recipe and data are not the cause."
    for index in odd:
        record, letter = replay["records"][index], RUNS[index]
        since, until = record["left"]
        if since == until and record.get("checkpoint", {}).get("step") == until:
            first = _farthest(record["checkpoint"]["differing"])
            yield f"{letter} differs from its repetition: the checkpoint of step {until:,} has other {first['kind']}: {first['name']}."
        elif since == until:
            yield f"{letter} differs from its repetition only in its event of step {until:,}; the checkpoint is identical."
        else:
            yield f"{letter} differs from its repetition after step {since:,}, at the latest in step {until:,}."
        if flip := record.get("flip"):
            yield (
                f"A flipped bit (faulty memory) explains it: with bit {flip['bit']} of weights {flip['name']} at {flip['at']} "
                f"flipped before step {flip['step']:,}, the repetition of {letter} is bitwise identical."
            )
        if elsewhere := [f"{key} {then} (now {now})" for key, (then, now) in replay["elsewhere"][index].items()]:
            yield f"{letter} was trained with {', '.join(elsewhere)}."
    if len(odd) == 2:
        yield "Neither run is reproduced, because the code or the machine differs. Repeat this on the machine where they were trained."
    elif odd and not replay["records"][odd[0]].get("flip"):
        yield "Possible causes: a changed file, faulty memory, or other code."


def _where(parted: Mapping[str, Any]) -> str:
    kind, step = parted["kind"], parted["step"]
    if kind == "start":
        photos = "" if parted["samples"][0] == parted["samples"][1] else ", and train on different images from then on"
        return f"before step {step + 1:,}: {_tensors(parted)} in the initial weights{photos}"
    if kind == "other tensors":
        names = [f"{one['kind']} {one['name']}" if one else "nothing else" for one in parted["tensors"]]
        return f"in step {step:,}, which computes {_both(names)}"
    name = ("" if parted["name"] == kind else parted["name"]) + (f" (call {parted['call']})" if parted["call"] > 1 else "")
    joined = " of" if kind in ("output", "gradient", "average of weights") else ":" if kind in ("input", "rate") else ""
    location = f"{kind}{joined} {name}".rstrip()
    return f"in step {step:,} at the {location}; everything before it is bitwise identical"


def _parted(parted: Mapping[str, Any]) -> Iterator[str]:
    """Size of the difference, and the photos."""
    apart = parted.get("difference")
    if apart:
        yield from _row("by", _difference(apart, RUNS))
    elif apart is not None:
        yield from _row("by", "The step is equal when repeated, so the results of this device are not reproducible.")
    rounding = parted.get("rounding")
    if apart and rounding:
        text = f"Rounding {'can' if rounding['could'] else 'does not'} explain this difference"
        if moves := rounding["moves"]:
            text += f": changing each weight by one unit in the last place, or the number of threads, changes the value by {moves:.2g}"
            text += f", {apart['largest'] / moves:.2g} times less" if apart["largest"] > moves else ""
        elif not rounding["draws"]:
            text += f": for equal gradients, the number of units is {'small' if rounding['could'] else 'too large'}"
        yield from _row("", f"{text}.")
    number = parted["step"] + (parted["kind"] == "start")
    ours, theirs = (join_names(names, MAX_PHOTOS) for names in parted["samples"])
    same = parted["samples"][0] == parted["samples"][1]
    texts = [f"the same in both: {ours}"] if same else [f"in A: {ours}", f"in B: {theirs}"]
    yield from _row("images", *(f"of step {number:,}, {text}" for text in texts))


def _tensors(record: Mapping[str, Any]) -> str:
    count, differing = record["tensors"], len(record["differing"])
    return f"{differing:,} of {count:,} tensors {'differs' if differing == 1 else 'differ'}"


def _farthest(differing: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The tensor that differs most beside its own size."""
    return max(differing, key=lambda one: one.get("relative") or 0.0)


def _foremost(differing: Sequence[Mapping[str, Any]], whose: Sequence[str]) -> Iterator[str]:
    one = _farthest(differing)
    yield f"{one['kind']} {one['name']}: {_difference(one, whose)}"
    if len(differing) > 1:
        yield f"and {len(differing) - 1:,} more"


def _difference(one: Mapping[str, Any], whose: Sequence[str]) -> str:
    if "shapes" in one:
        return f"shape {_both([str(shape or 'none') for shape in one['shapes']], whose)}"
    count = f"{one['differing']:,} of {one['elements']:,} values, largest at {one['at']}: " if one["elements"] > 1 else ""
    text = f"{count}{_both(one['values'], whose)}"
    if one["largest"] is None:
        return f"{text}, not finite"
    parts = [f"{one['largest']:.2g}"]
    parts += [] if one["relative"] is None else [f"{one['relative']:.1e} of the largest value of the tensor"]
    parts += [] if one["units"] is None else [f"{one['units']:,} unit{'s'[: one['units'] != 1]} in the last place"]
    return f"{text} ({', '.join(parts)})"


def _both(values: Sequence[Any], whose: Sequence[str] = RUNS) -> str:
    texts = (f"{value:.9g}" if isinstance(value, float) else value for value in values)  # float32 to the last bit
    return " | ".join(f"{name} {text}" for name, text in zip(whose, texts))


def _row(head: str, *texts: str) -> Iterator[str]:
    for text in texts:
        first, rest = f"{head:<{HEAD}}", " " * HEAD
        yield from textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, **WORDS)
        head = ""
