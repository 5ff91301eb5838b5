"""Find and read checkpoints: checked against their checksums, newest whole one first, damage named.

Nothing is unpickled: safetensors and JSON only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.hashing import sha256
from paceline._utils.reporter import LOGGED, Reporter
from paceline._utils.safe_read import has_valid_checksum, open_plain_sized, parse_json, read_entry
from paceline.training.checkpoint.layout import (
    BEST,
    FORMAT,
    INDEX,
    LAST,
    STATE,
    link_step,
    list_steps,
    parse_step,
    step_name,
)
from paceline.training.checkpoint.write import Snapshot, with_strides

SUFFIX = ".safetensors"
# A training beside a reader may delete what `last` and `best` pointed to; they are followed again so many times.
MAX_TRIES = 20
# Most bytes of a file of tensors (the optimizer's of timm's largest network fits), and of JSON.
MAX_TENSORS, MAX_TEXT = 16 << 30, 64 << 20


def load_checkpoint(path: Path, check: Callable[[Snapshot], None] | None = None) -> Snapshot:
    """Read the checkpoint folder `path`; tensors are on the CPU, with the strides they were saved with.

    check   raises CheckpointError where the content is not what the caller needs
    Raises CheckpointError naming the file that is missing, damaged or not ours.
    """
    try:
        snapshot = _load(path)
        if check is not None:
            check(snapshot)
    except PacelineError as error:
        text = str(error)
        raise CheckpointError(text if text.startswith(str(path)) else f"{path}: {text.rstrip('.')}.") from None
    except MemoryError:
        raise  # says nothing of the checkpoint
    except Exception as error:  # whatever a stranger's bytes bring about: it is this checkpoint that cannot be read
        raise CheckpointError(f"{path}: the checkpoint is not readable ({type(error).__name__}: {error}).") from None
    return snapshot


def load_checkpoint_with_retry(
    find: Callable[[], Path], check: Callable[[Snapshot], None] | None = None
) -> tuple[Path, Snapshot]:
    """Load the checkpoint that `find` returns; it is called again where that one was deleted while it was read.

    Raises CheckpointError as `load_checkpoint`, and whatever `find` raises.
    """
    for _ in range(MAX_TRIES - 1):
        path = find()
        try:
            return path, load_checkpoint(path, check)
        except CheckpointError:
            if path.exists():
                raise
    path = find()
    return path, load_checkpoint(path, check)


def check_file(path: Path) -> None:
    """Compare a file of a checkpoint of ours with its checksum; others pass.

    Raises CheckpointError where it is not what was written, or the checkpoint's index is damaged.
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
    """The facts of the checkpoint at `path`, by its index. Raises CheckpointError for damage, or another step."""
    try:
        facts = parse_json(_checked(path / STATE, index["files"][STATE]))
        if facts.get("step", index["step"]) != index["step"]:
            raise ValueError(f"expected step {index['step']} as in the index, got {facts['step']}")
    except (KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path / STATE}: the file is damaged ({error!r}).") from None
    return facts


def read_index(path: Path) -> dict[str, Any]:
    """index.json of the checkpoint at `path`. Raises CheckpointError where it is not as it was written."""
    try:
        index = parse_json(read_entry(path / INDEX, MAX_TEXT))
        if index["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {index['format']} is not supported. This version reads format {FORMAT}.")
        if not has_valid_checksum(index):
            raise CheckpointError(f"{path / INDEX}: checksum mismatch. The file is damaged or was edited.")
        if type(index["step"]) is not int or index["step"] < 0:
            raise ValueError("invalid step")
        if parse_step(path.resolve().name) not in (None, index["step"]):
            raise CheckpointError(f"{path}: the index has step {index['step']}. Restore the original name of the folder.")
        # A name from a file never leads out of the folder.
        if any(Path(name).name != name for name in index["files"]) or not isinstance(index["strides"], dict):
            raise ValueError("invalid file names")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: checkpoint not found ({INDEX} is missing).") from None
    except OSError as error:
        raise CheckpointError(f"{path / INDEX}: the file is not readable ({error.strerror or error}).") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / INDEX}: the file is damaged ({error!r}).") from None
    return index


def _checked(path: Path, entry: Mapping[str, Any]) -> bytes:
    """A file's content. Raises CheckpointError where it does not fit its entry in the index."""
    most, expected = MAX_TENSORS if path.suffix == SUFFIX else MAX_TEXT, entry["bytes"]
    try:
        descriptor, size = open_plain_sized(path, links=False)
        os.close(descriptor)
        content = read_entry(path, most) if size == expected else b""
    except OSError as error:
        raise CheckpointError(f"{path}: the file is not readable ({error.strerror or error}).") from None
    if size != expected:
        raise CheckpointError(f"{path}: the file is damaged. Expected {expected:,} bytes, got {size:,}.")
    if sha256(content) != entry["sha256"]:
        raise CheckpointError(f"{path}: checksum mismatch. The file is damaged or was edited.")
    return content


def find_newest_valid(
    folder: Path, reporter: Reporter, check: Callable[[Snapshot], None] | None = None
) -> tuple[Path, Snapshot] | None:
    """The newest whole checkpoint in `folder`, with a warning for each that was skipped; None where there is none at all.

    check   as for load_checkpoint
    Raises CheckpointError where all are damaged: starting over would lose the run silently.
    """
    problems = []
    for step in reversed(list_steps(folder)):
        path = folder / step_name(step)
        try:
            snapshot = load_checkpoint(path, check)
        except CheckpointError as error:
            problems.append(str(error))
            reporter.warning(f"warning: skipping {path.name}: {error}")
            continue
        return path, snapshot
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise CheckpointError(f"{folder}: all checkpoints are damaged.{listed}\nStart a new run with another --output-dir.")
    return None


def find_checkpoint(folder: Path, which: str, reporter: Reporter = LOGGED) -> Path:
    """The folder of 'last', 'best' or 'step-N'; of 'last', with a message, where no evaluation has chosen a best one yet.

    Raises CheckpointError, listing the checkpoints, where there is no such one.
    """
    step, steps = None, []
    for _ in range(MAX_TRIES):
        step = link_step(folder, which) if which in (LAST, BEST) else parse_step(which)
        steps = list_steps(folder)
        if step is None or step in steps or which not in (LAST, BEST):
            break  # else the link was moved on, and what it led to is deleted
    if which == BEST and step not in steps and steps:
        path = find_checkpoint(folder, LAST)
        reporter.warning(f"warning: {folder} has no best checkpoint yet (no evaluation is complete). Using {path.name}.")
        return path
    if which == LAST and step not in steps and steps:
        step = steps[-1]
    if step is None or step not in steps:
        known = ", ".join([*(link for link in (LAST, BEST) if link_step(folder, link) is not None), *map(step_name, steps)])
        raise CheckpointError(f"{folder}: checkpoint {which!r} not found. Available: {known or 'none'}.")
    return folder / step_name(step)
