"""Find and read checkpoints: checked against their checksums, newest whole one first, damage named.

Nothing is unpickled: safetensors and JSON only.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from paceline.checkpoint.layout import BEST, FORMAT, INDEX, LAST, STATE, link_step, list_steps, step_name, step_of
from paceline.checkpoint.snapshot import Snapshot, with_strides
from paceline.config.errors import CheckpointError, UserError
from paceline.config.plain_file import open_plain_sized, read_entry
from paceline.config.sealed import is_whole, parse

SUFFIX = ".safetensors"
# A training beside a reader may delete what `last` and `best` led to; so many times they are followed anew.
MOST_TRIES = 20
# Of a file of tensors, the optimiser's of the largest network that timm has among them; and of JSON.
MOST_TENSORS, MOST_TEXT = 16 << 30, 64 << 20
# Differences of two recipes that a message lists.
MOST_KEYS = 5


def load_checkpoint(path: Path, check: Callable[[Snapshot], None] | None = None) -> Snapshot:
    """Read the checkpoint folder `path`; tensors come on the CPU with the strides they were saved with.

    check   raises CheckpointError where the content is not what the caller needs
    raise CheckpointError   names the file that is missing, damaged or not ours
    """
    try:
        snapshot = _load(path)
        if check is not None:
            check(snapshot)
    except UserError as error:
        text = str(error)
        raise CheckpointError(text if text.startswith(str(path)) else f"{path}: {text.rstrip('.')}.") from None
    except MemoryError:
        raise  # says nothing of the checkpoint
    except Exception as error:  # whatever a stranger's bytes bring about: it is this checkpoint that cannot be read
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from None
    return snapshot


def load_found(find: Callable[[], Path], check: Callable[[Snapshot], None] | None = None) -> tuple[Path, Snapshot]:
    """-> the checkpoint that `find` finds, loaded; it is asked again where that one was deleted while it was read.

    Raises CheckpointError as `load_checkpoint`, and whatever `find` raises.
    """
    for _ in range(MOST_TRIES - 1):
        path = find()
        try:
            return path, load_checkpoint(path, check)
        except CheckpointError:
            if path.exists():
                raise
    path = find()
    return path, load_checkpoint(path, check)


def check_file(path: Path) -> None:
    """Where `path` is a file of a checkpoint of ours, compare it with its checksum.

    raise CheckpointError   it is not what was written, or the checkpoint's index is damaged
    """
    if (path.parent / INDEX).is_file():
        entry = read_index(path.parent)["files"].get(path.name)
        if entry is not None:
            _checked(path, entry)


def _load(path: Path) -> Snapshot:
    index = read_index(path)
    facts = read_facts(path, index)
    tensors: dict[str, dict[str, Tensor]] = {}
    for name in sorted(set(index["files"]) - {STATE}):
        group = name.removesuffix(SUFFIX)
        try:
            loaded = safetensors.torch.load(_checked(path / name, index["files"][name]))
        except (safetensors.SafetensorError, ValueError) as error:
            raise CheckpointError(f"{path / name}: not a safetensors file ({error}).") from None
        strides = index["strides"].get(group, {})
        tensors[group] = {key: with_strides(tensor, strides.get(key)) for key, tensor in sorted(loaded.items())}
    return Snapshot(tensors, facts)


def read_facts(path: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the checkpoint at `path`, whose index is read. raise CheckpointError   damaged, or of another step"""
    try:
        facts = parse(_checked(path / STATE, index["files"][STATE]))
        if facts.get("step", index["step"]) != index["step"]:
            raise ValueError(f"step {facts['step']} where the index has {index['step']}")
    except (KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path / STATE}: damaged ({error!r}).") from None
    return facts


def read_index(path: Path) -> dict[str, Any]:
    """index.json of the checkpoint at `path`, if it is as it was written. raise CheckpointError"""
    try:
        index = parse(read_entry(path / INDEX, MOST_TEXT))
        if index["format"] != FORMAT:
            raise CheckpointError(f"{path}: written in format {index['format']}; this paceline reads format {FORMAT}.")
        if not is_whole(index):
            raise CheckpointError(f"{path / INDEX}: damaged, its content is not what was written (checksum).")
        if type(index["step"]) is not int or index["step"] < 0:
            raise ValueError("impossible step")
        if step_of(path.resolve().name) not in (None, index["step"]):
            raise CheckpointError(f"{path}: its index says step {index['step']}. Was the folder renamed?")
        # A name from a file never leads out of the folder.
        if any(Path(name).name != name for name in index["files"]) or not isinstance(index["strides"], dict):
            raise ValueError("impossible file names")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no checkpoint there ({INDEX} is missing).") from None
    except OSError as error:
        raise CheckpointError(f"{path / INDEX}: cannot be read ({error.strerror or error}).") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / INDEX}: damaged ({error!r}).") from None
    return index


def _checked(path: Path, entry: Mapping[str, Any]) -> bytes:
    """A file's content, if it is what the index says."""
    most, said = MOST_TENSORS if path.suffix == SUFFIX else MOST_TEXT, entry["bytes"]
    try:
        descriptor, size = open_plain_sized(path, links=False)
        os.close(descriptor)
        content = read_entry(path, most) if size == said else b""
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error}).") from None
    if size != said:
        raise CheckpointError(f"{path}: damaged, {size:,} bytes where {said:,} were written.")
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{path}: damaged, its content is not what was written (checksum).")
    return content


def newest_valid(
    folder: Path, say: Callable[[str], None], check: Callable[[Snapshot], None] | None = None
) -> tuple[Path, Snapshot] | None:
    """The newest checkpoint in `folder` that is whole; `say` is told of every one that was skipped, and why.

    check   as for load_checkpoint
    return None             there is none at all
    raise CheckpointError   there are some, and all are damaged: going on from nothing would lose the run silently
    """
    problems = []
    for step in reversed(list_steps(folder)):
        path = folder / step_name(step)
        try:
            snapshot = load_checkpoint(path, check)
        except CheckpointError as error:
            problems.append(str(error))
            say(f"skipping {path.name}: {error}")
            continue
        return path, snapshot
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise CheckpointError(f"{folder}: every checkpoint is damaged.{listed}\nStart anew with another --out.")
    return None


def find_checkpoint(folder: Path, which: str, say: Callable[[str], object] = warnings.warn) -> Path:
    """The folder of 'last', 'best' or 'step-N'; of 'last' where no evaluation has chosen a best one yet.

    say                     told of that in words
    raise CheckpointError   there is no such checkpoint; the message lists those there are
    """
    step, steps = None, []
    for _ in range(MOST_TRIES):
        step = link_step(folder, which) if which in (LAST, BEST) else step_of(which)
        steps = list_steps(folder)
        if step is None or step in steps or which not in (LAST, BEST):
            break  # else the link was moved on, and what it led to is deleted
    if which == BEST and step not in steps and steps:
        path = find_checkpoint(folder, LAST)
        say(f"{folder} has no best checkpoint yet (no evaluation is finished): its last is taken, {path.name}")
        return path
    if which == LAST and step not in steps and steps:
        step = steps[-1]
    if step is None or step not in steps:
        known = ", ".join(
            [*(link for link in (LAST, BEST) if link_step(folder, link) is not None), *map(step_name, steps)]
        )
        raise CheckpointError(f"{folder} has no checkpoint {which!r}. There: {known or 'none'}.")
    return folder / step_name(step)


def check_same_recipe(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    ignore: tuple[str, ...] = (),
    summary: str = "",
    go_on: str = "Go on with the recipe it was written by.",
) -> None:
    """Refuse to go on with another recipe than the checkpoint's.

    saved, now   recipes as nested dicts; tuples and lists count as equal
    ignore       dotted keys, with all that is below them, that may differ
    summary      what to say in place of the keys where more than MOST_KEYS differ; empty lists the first of them
    go_on        how the run goes on with its own recipe
    raise CheckpointError   lists differing keys with both values
    """
    was, want = _flat(json.loads(json.dumps(saved))), _flat(json.loads(json.dumps(now)))
    lines = []
    for key in sorted(was.keys() | want.keys()):
        skipped = any(key == name or key.startswith(f"{name}.") for name in ignore)
        if not skipped and (key not in was or key not in want or was[key] != want[key]):
            lines.append(f"\n  {key}: {_show(was, key)} in the checkpoint, {_show(want, key)} now")
    if not lines:
        return
    if len(lines) > MOST_KEYS and summary:
        raise CheckpointError(f"{summary} {go_on}")
    more = f"\n  and {len(lines) - MOST_KEYS} more" if len(lines) > MOST_KEYS else ""
    raise CheckpointError(
        f"the checkpoint belongs to another recipe.{''.join(lines[:MOST_KEYS])}{more}\n{go_on}\n"
        "Or start a new run (another --out) from its weights alone: --weights RUN/checkpoints/last"
    )


def _flat(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{above}{key}.") if isinstance(item, dict) and item else {f"{above}{key}": item}
    return flat


def _show(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "absent"
