"""What `paceline compare --bisect` found, for people: lines of at most WIDTH columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
        texts.append(f"and {len(fields) - MAX_FIELDS} more, which compare without --bisect lists")
    yield from _row("differs", *(texts or ["nothing in recipe, system, threads, versions and data"]))
    for name in ENDS:
        yield from _row(name, *_recorded(name, result[name]))
    if "replay" not in result:
        yield from _row("so", "No difference: all that both wrote down of the same steps is equal.")
        return
    begin, last = result["replay"]["from"], result["replay"]["at_most"]
    start = "first weights" if begin is None else f"checkpoint of step {begin:,}"
    yield from _row("repeated", f"Both are trained again here from their {start}, to step {last:,} at most.")


def _recorded(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    first, equal, count = record["first"], record["equal"], record["compared"]
    alike = "none is equal" if equal is None else f"equal up to step {equal:,}"
    if not count:
        yield f"none of the same step{'s' * (name == 'events')} in both"
    elif first is None:
        yield f"{alike}: {count:,} compared"
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
    yield from _row("so", *_verdict(parted, replay))
    if parted is not None:
        yield from _parted(parted)


def _own(record: Mapping[str, Any], shown: Mapping[str, Any]) -> Iterator[str]:
    """How a repeated run stands beside its own records; shown: the checkpoints' first difference, which stands above."""
    fitted, event, checkpoint = record["fitted"], record.get("event"), record.get("checkpoint")
    if not event and not checkpoint:
        count = f"as it was, to the bit: {len(fitted)} of its own events and checkpoints compared"
        yield count if fitted else "has no event or checkpoint of these steps to compare with"
        return
    yield f"as it was up to step {record['left'][0]:,}, then not:" if fitted else "not as it was:"
    if event:
        yield f"event of step {event['step']:,}: {event['number']} is {event['recorded']!r} there | {event['here']!r} here"
    if checkpoint:
        above = [[one["name"] for one in some.get("differing", ())] for some in (shown, checkpoint)]
        same = shown.get("step") == checkpoint["step"] and above[0] == above[1]
        yield f"checkpoint of step {checkpoint['step']:,}: {_tensors(checkpoint)}{', as above' if same else ':'}"
        yield from () if same else _foremost(checkpoint["differing"], PLACES)


def _verdict(parted: Mapping[str, Any] | None, replay: Mapping[str, Any]) -> Iterator[str]:
    odd = [index for index, record in enumerate(replay["records"]) if {"event", "checkpoint"} & record.keys()]
    if parted is not None:
        yield f"They part {_where(parted)}."
    elif not odd:
        yield "No difference: repeated, every tensor of every step is equal in both."
    else:
        yield f"Repeated, A and B are equal in every tensor up to step {replay['to']:,}: recipe and data do not part them."
    for index in odd:
        record, letter = replay["records"][index], RUNS[index]
        since, until = record["left"]
        if since == until and record.get("checkpoint", {}).get("step") == until:
            first = _farthest(record["checkpoint"]["differing"])
            yield f"{letter} itself left this way: its checkpoint of step {until:,} has other {first['kind']}, {first['name']}."
        elif since == until:
            yield f"{letter} left this way in its event of step {until:,} alone: the checkpoint of that step fits."
        else:
            yield f"{letter} itself left this way after step {since:,}, by the end of step {until:,}."
        if flip := record.get("flip"):
            yield (
                f"A flipped bit explains it, as of faulty memory: with bit {flip['bit']} of weights {flip['name']} at {flip['at']} "
                f"flipped before step {flip['step']:,}, {letter} is as it was, to the bit."
            )
        if elsewhere := [f"{key} {then} (here {now})" for key, (then, now) in replay["elsewhere"][index].items()]:
            yield f"{letter} was trained with {', '.join(elsewhere)}."
    if len(odd) == 2:
        yield "Neither comes out here as it was: other code, or another machine than theirs. Repeat it where they were trained."
    elif odd and not replay["records"][odd[0]].get("flip"):
        yield "A changed file, faulty memory or other code does that."


def _where(parted: Mapping[str, Any]) -> str:
    kind, step = parted["kind"], parted["step"]
    if kind == "start":
        photos = "" if parted["samples"][0] == parted["samples"][1] else ", and learn other photos from then on"
        return f"before step {step + 1:,}: {_tensors(parted)} in their first weights{photos}"
    if kind == "other tensors":
        names = [f"{one['kind']} {one['name']}" if one else "nothing more" for one in parted["tensors"]]
        return f"in step {step:,}, which computes {_both(names)}"
    name = ("" if parted["name"] == kind else parted["name"]) + (f" (call {parted['call']})" if parted["call"] > 1 else "")
    joined = " of" if kind in ("output", "gradient", "average of weights") else ":" if kind in ("input", "rate") else ""
    location = f"{kind}{joined} {name}".rstrip()
    return f"in step {step:,} at the {location}; all before it is equal to the bit"


def _parted(parted: Mapping[str, Any]) -> Iterator[str]:
    """Size of the difference, and the photos."""
    apart = parted.get("difference")
    if apart:
        yield from _row("by", _difference(apart, RUNS))
    elif apart is not None:
        yield from _row("by", "The same step, taken once more, is equal in both: this device does not compute alike twice.")
    rounding = parted.get("rounding")
    if apart and rounding:
        text = f"Rounding {'could make' if rounding['could'] else 'does not make'} that"
        if moves := rounding["moves"]:
            text += f": moving every weight by a unit in its last place, or other threads, change it by {moves:.2g}"
            text += f", {apart['largest'] / moves:.2g} times less" if apart["largest"] > moves else ""
        elif not rounding["draws"]:
            text += f" from equal gradients: {'few' if rounding['could'] else 'too many'} units"
        yield from _row("", f"{text}.")
    number = parted["step"] + (parted["kind"] == "start")
    ours, theirs = map(_some, parted["samples"])
    same = parted["samples"][0] == parted["samples"][1]
    texts = [f"the same in both: {ours}"] if same else [f"in A: {ours}", f"in B: {theirs}"]
    yield from _row("photos", *(f"of step {number:,}, {text}" for text in texts))


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
    count = f"{one['differing']:,} of {one['elements']:,} values; most at {one['at']}: " if one["elements"] > 1 else ""
    text = f"{count}{_both(one['values'], whose)}"
    if one["largest"] is None:
        return f"{text}, not finite"
    parts = [f"{one['largest']:.2g}"]
    parts += [] if one["relative"] is None else [f"{one['relative']:.1e} of the tensor's largest value"]
    parts += [] if one["units"] is None else [f"{one['units']:,} unit{'s'[: one['units'] != 1]} in the last place"]
    return f"{text} ({', '.join(parts)})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_PHOTOS:,} more" if len(names) > MAX_PHOTOS else ""
    return ", ".join(names[:MAX_PHOTOS]) + more


def _both(values: Sequence[Any], whose: Sequence[str] = RUNS) -> str:
    texts = (f"{value:.9g}" if isinstance(value, float) else value for value in values)  # float32 to the last bit
    return " | ".join(f"{name} {text}" for name, text in zip(whose, texts))


def _row(head: str, *texts: str) -> Iterator[str]:
    for text in texts:
        first, rest = f"{head:<{HEAD}}", " " * HEAD
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )
        head = ""
