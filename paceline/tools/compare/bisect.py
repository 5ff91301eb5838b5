"""`paceline compare A B --bisect`: the first step, and the first tensor of it, at which two runs part.

Three looks, each nearer: what their events have, what their checkpoints have, and both trained again side by side from the last
checkpoint that is the same in both, or from their first weights (tools/compare/replay.py).

Rounding could make a difference of few units in the last place, and of few times what the same tensor moves by on other threads, or
where gradients are found with every weight moved by such a unit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError
from paceline.config.run import RunRecord, read_run, run_folder
from paceline.models.registry import load_saved_recipe
from paceline.tools.compare.bisect_text import format_recorded, format_replayed

if TYPE_CHECKING:
    from paceline.config.recipe import Recipe
    from paceline.data.batch import Batch
    from paceline.tools.compare.replay import Follow, Replay, RunPair
    from paceline.tools.compare.step_trace import TracedTensor

# Of run.json, what can change the arithmetic or what it is done on.
ARITHMETIC = ("recipe.", "system.", "threads.", "versions.", "world", "data.hash", "host.cpu", "controls.weights")
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
        raise PacelineError(f"--bisect compares two runs, and {len(names)} are named: paceline compare RUN RUN --bisect")
    folders = [run_folder(Path(name).expanduser()) for name in names]
    facts = [read_run(folder) for folder in folders]
    tasks = [str(one.recipe.get("task")) for one in facts]
    if tasks[0] != tasks[1]:
        raise PacelineError(
            f"{names[0]} is a run of {tasks[0]}, {names[1]} one of {tasks[1]}: they have no tensor in common."
        )
    recipes = [_recipe(folder, one, workload, names) for folder, one in zip(folders, facts)]
    with waiting("reading events and checkpoints"):
        from paceline.tools.compare.replay import RunPair

        runs = [RunPair(folder, one) for folder, one in zip(folders, facts)]
        result = {"runs": list(map(str, names)), "differences": _differences([one.as_dict() for one in facts])} | _recorded(
            *runs
        )
    apart = [result[name]["first"]["step"] for name in ("events", "checkpoints") if result[name]["first"]]
    if apart or not (result["events"]["compared"] or result["checkpoints"]["compared"]):
        last = max(apart, default=min(run.last for run in runs))
        result["replay"] = {"from": result["checkpoints"]["equal"], "at_most": last}
    _say(say, format_recorded(result), in_json)
    if "replay" in result:
        with waiting("training both again"):
            result |= _replayed(runs, recipes, data, result["replay"])
        _say(say, format_replayed(result), in_json)
    if in_json:
        print(json.dumps(result, indent=1))
    return 0


def _say(say: Callable[[str], object], lines: Iterator[str], in_json: bool) -> None:
    for line in () if in_json else lines:
        say(line)


def _recipe(folder: Path, facts: RunRecord, workload: str, names: Sequence[str]) -> Recipe:
    def again(name: str) -> str:
        return format_command("compare", *names, "--bisect", "--workload", name)

    return load_saved_recipe(facts, folder, named=workload, again=again)


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
    events: dict[str, Any] = {"compared": len(steps), "equal": None, "first": None}
    for step in steps:
        if apart := find_differing_number(one.events[step], other.events[step]):
            events["first"] = {"step": step, "number": apart[0], "values": list(apart[1:])}
            break
        events["equal"] = step
    common = sorted(set(one.steps) & set(other.steps))
    checkpoints: dict[str, Any] = {"compared": len(common), "equal": None, "first": None}
    for step in common:
        count, differing = compare_states(one.checkpoint(step).tensors, other.checkpoint(step).tensors)
        if differing:
            checkpoints["first"] = {"step": step, "tensors": count, "differing": differing}
            break
        checkpoints["equal"] = step
    return {"events": events, "checkpoints": checkpoints}


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
            parted["samples"] = [_photos(side, step) for side in sides]
        # Steps cut into other forwards have no output or gradient in common, but lead to the same state.
        follow = "all" if sides[0].run.plan.forwards == sides[1].run.plan.forwards else "state"
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
    elsewhere = [_elsewhere(run.facts) for run in runs]
    return {"replay": {**requested, "to": step, "records": records, "elsewhere": elsewhere}, "parted": parted}


def _left(record: Mapping[str, Any], begin: int | None) -> list[int]:
    """The last step whose records fit, and the first one of which one does not: the same, where only its checkpoint does not."""
    until = min(record[kind]["step"] for kind in ("event", "checkpoint") if kind in record)
    return [max((step for step in record["fitted"] if step <= until), default=begin or 0), until]


def _photos(side: Replay, step: int) -> list[str]:
    """The photos of 0-based `step`, by their files below the data folder."""
    step = 0 if side.controls.overfit_one_batch else step
    return [name.removeprefix(f"{side.task.facts['root']}/") for name in side.task.data.images_of_step(step)]


def _elsewhere(facts: RunRecord) -> dict[str, list[str]]:
    """What the machine of a run had otherwise than this one: name -> [there, here]."""
    from paceline.distributed.device.provenance import collect_versions, describe_host

    compiled = {"compilation": "on"} if facts.system.get("compile") else {}
    there = {**facts.versions, **facts.host, **compiled}
    here = (
        collect_versions()
        | {"compilation": "off"}
        | {name: value for name, value in describe_host().items() if name in ("cpu", "cpu_capability")}
    )
    return {
        name: [str(there[name]), str(now)] for name, now in here.items() if name in there and str(there[name]) != str(now)
    }


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
    result: dict[str, Any] = {"step": step, "samples": [_photos(side, step - 1) for side, _ in pairs]}
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
