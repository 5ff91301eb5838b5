"""A run's copy in a bucket: whose it is, and what is downloaded from there before a run resumes.

The names below the URL of --sync-to are those of the run's folder. A checkpoint's index.json is written there last and deleted
first: without it there is no checkpoint. mirror.json is the first object of all:

    {"run": the run's own number, "writer": the process that mirrors now, "name": its recipe, "folder", "host"}

The run's folder has the same number in its own mirror.json. At every moment a download is in a state that a kill could have left.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import atomic_write, sync_folder
from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.names import CHECKPOINTS, MIRROR_FILE, PREDICTIONS
from paceline._utils.reporter import Reporter
from paceline._utils.safe_read import read_entry
from paceline.data.storage.object_store import BucketFolder
from paceline.training.checkpoint.layout import BEST, INDEX, list_steps, parse_step, step_name
from paceline.training.checkpoint.read import check_file, read_index
from paceline.training.checkpoint.write import delete_path

EVENTS = "events.jsonl"
# Beside checkpoints and events; run.json is first, so that the rest of a killed download is known for a run of ours.
TEXTS = ("run.json", "run-first.json", "mllog.txt", "report.html")
# Most bytes of mirror.json, which has five short lines.
MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class RemoteRunFolder:
    """The bucket's folder of a run.

    run      the run's own number
    there    whether the bucket has the run already
    """

    bucket: BucketFolder
    run: str
    there: bool


def open_remote_folder(url: str, folder: Path, reporter: Reporter) -> RemoteRunFolder:
    """Check whose the bucket's folder is, and download what it has newer than `folder`, a run's or an empty one.

    Raises PacelineError where the bucket cannot be read, holds another run or things of somebody else; CheckpointError where all its
    checkpoints are damaged and the folder has none.
    """
    try:
        bucket = BucketFolder(url)
        owner, own = read_owner(bucket), _own_number(folder)
        if owner is None:
            if strange := bucket.names()[:1]:
                raise PacelineError(
                    f"--sync-to {url}: the folder contains {strange[0]} and is not a paceline run. Choose an empty folder."
                )
            return RemoteRunFolder(bucket, own or secrets.token_hex(8), there=False)
        if (folder / "run.json").exists() and own != owner["run"]:
            raise PacelineError(
                f"--sync-to {url}: the folder contains another run ({owner['name']}, {owner['folder']} on {owner['host']}). "
                "Choose another folder of the bucket. To resume that run, use an empty --output-dir."
            )
        _download(bucket, owner, folder, reporter)
        return RemoteRunFolder(bucket, owner["run"], there=True)
    except OSError as problem:
        raise PacelineError(f"--sync-to {url}: {problem.strerror or problem}") from None


def read_owner(bucket: BucketFolder) -> dict[str, str] | None:
    """The bucket's mirror.json; None where there is none. Raises OSError, and PacelineError where it is none of ours."""
    text = bucket.read(MIRROR_FILE)
    if text is None:
        return None
    try:
        owner = json.loads(text)
        return {name: str(owner[name]) for name in ("run", "writer", "name", "folder", "host")}
    except (ValueError, KeyError, TypeError):
        raise PacelineError(f"--sync-to {bucket.url}: {MIRROR_FILE} is not valid. Choose another folder.") from None


def download_step(bucket: BucketFolder, step: int, checkpoints: Path) -> None:
    """Download one checkpoint, and compare every byte with its checksums; it appears whole or not at all.

    Raises CheckpointError where it is damaged or not there, OSError where it cannot be read or written.
    """
    name = step_name(step)
    there = f"{bucket.url}/{CHECKPOINTS}/{name}"
    checkpoints.mkdir(exist_ok=True)
    part = checkpoints / f".{name}.{os.urandom(4).hex()}.part"  # a killed process's is swept as a checkpoint's is
    part.mkdir()
    try:
        bucket.download(f"{CHECKPOINTS}/{name}/{INDEX}", part / INDEX)
        index = read_index(part)
        if index["step"] != step:
            raise CheckpointError(f"the index has step {index['step']}.")
        for file in index["files"]:
            bucket.download(f"{CHECKPOINTS}/{name}/{file}", part / file)
            check_file(part / file)
        sync_folder(part)
        if (checkpoints / name).exists():
            delete_path(checkpoints / name)  # an older run's, or damaged: the caller has checked
        os.rename(part, checkpoints / name)
        sync_folder(checkpoints)
    except FileNotFoundError as problem:
        raise CheckpointError(f"{there}: damaged checkpoint: {os.fsdecode(problem.filename or '')} not found.") from None
    except CheckpointError as problem:
        raise CheckpointError(str(problem).replace(str(part), there)) from None
    finally:
        if part.exists():
            delete_path(part)


def list_remote_steps(names: list[str]) -> list[int]:
    """Steps of the checkpoints among the names of a bucket's folder, oldest first."""
    parts = [name.split("/") for name in names]
    result = (
        parse_step(step)
        for folder, step, *file in (p for p in parts if len(p) == 3)
        if folder == CHECKPOINTS and file == [INDEX]
    )
    return sorted(step for step in result if step is not None)


def _download(bucket: BucketFolder, owner: Mapping[str, Any], folder: Path, reporter: Reporter) -> None:
    """Where the bucket has a newer checkpoint than `folder`: download events, texts, and the newest and the best checkpoint."""
    names, checkpoints = bucket.names(), folder / CHECKPOINTS
    there, here = list_remote_steps(names), list_steps(checkpoints)
    if "run.json" not in names or ((folder / "run.json").exists() and (there or [-1])[-1] <= (here or [-1])[-1]):
        return
    atomic_write(folder / MIRROR_FILE, json.dumps({"run": owner["run"]}))
    for name in (*TEXTS, EVENTS, *(name for name in names if name.startswith(f"{PREDICTIONS}/"))):
        if name in names and name.count("/") <= 1 and (content := bucket.read(name)) is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            atomic_write(folder / name, content, sync=True)
    newest, problems = None, []
    for step in reversed([step for step in there if step > (here or [-1])[-1]]):
        try:
            download_step(bucket, step, checkpoints)
        except CheckpointError as problem:
            problems.append(f"\n  {problem}")
            reporter.warning(f"warning: skipping {step_name(step)} of {bucket.url}: {problem}")
            continue
        newest = step
        break
    if problems and newest is None and not here:
        raise CheckpointError(f"--sync-to {bucket.url}: all checkpoints are damaged.{''.join(problems)}")
    best = parse_step((bucket.read(f"{CHECKPOINTS}/{BEST}") or b"").decode("ascii", "replace"))
    if best is not None and newest is not None and best < newest and best in there and best not in here:
        try:
            download_step(bucket, best, checkpoints)
        except CheckpointError as problem:
            reporter.warning(f"warning: skipping {step_name(best)} of {bucket.url}, the best checkpoint: {problem}")
    what = step_name(newest) if newest is not None else "no checkpoint yet"
    reporter.warning(f"downloaded from {bucket.url}: {what}, run.json, and events (uploaded by {owner['host']})")


def _own_number(folder: Path) -> str:
    try:
        return str(json.loads(read_entry(folder / MIRROR_FILE, MAX_BYTES))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
