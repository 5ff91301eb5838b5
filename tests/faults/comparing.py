"""Is a run that a fault struck the same as one that nothing happened to? In words, what is not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import multi_path  # noqa: F401
from small_run import events, mllog

# Not a run's result: the lock, which stays, and what a resumed run keeps beside its own run.json.
BESIDE = {".lock", "run-first.json"}


def differences(run: Path, unbroken: Path, *, photos: set[Path], lost: int, saves: bool) -> list[str]:
    """In words, how `run` differs from the undisturbed one; [] if it is the same.

    photos  the folders of both runs' photos, as they are named in the predictions
    lost    so many events were damaged and left out
    saves   whether a stop may have left checkpoints, with their events, that the other run has not
    """
    found = []
    if not (run / "mllog.txt").exists() or not (run / "checkpoints").exists():
        return ["there is no finished run in the folder"]
    mine, wanted = digests(run / "checkpoints" / "last"), digests(unbroken / "checkpoints" / "last")
    if mine != wanted:
        names = sorted(name for name in mine.keys() | wanted.keys() if mine.get(name) != wanted.get(name))
        found.append(f"weights differ: {', '.join(names)}")
    left_out = ("resume", "checkpoint") if saves else ("resume",)
    got, rest = events(run, without=left_out), iter(events(unbroken, without=left_out))
    if (strange := next((event for event in got if event not in rest), None)) is not None:  # `in` moves the iterator on
        found.append(f"this event is not in its place among those of the undisturbed run: {strange}")
    elif len(got) + lost != len(events(unbroken, without=left_out)):
        found.append(f"{len(got)} events")
    keys = [key for key, _, _ in mllog(run)]
    if keys.count("run_start") != 1 or keys.count("run_stop") != 1:
        found.append(f"{keys.count('run_start')} run_start and {keys.count('run_stop')} run_stop in mllog.txt")
    if mllog(run) != mllog(unbroken):
        found.append("mllog.txt differs")
    if predictions(run, photos) != predictions(unbroken, photos):
        found.append("predictions differ")
    for link in ("last", "best"):
        if leads_to(run / "checkpoints" / link) != leads_to(unbroken / "checkpoints" / link):
            found.append(f"checkpoints/{link} is another step")
    if not saves and names_in(run / "checkpoints") != names_in(unbroken / "checkpoints"):
        found.append(f"checkpoints: {sorted(names_in(run / 'checkpoints'))}")
    hidden = hidden_names(run) - hidden_names(unbroken)
    if hidden:
        found.append(f"left behind: {', '.join(sorted(hidden))}")
    return found


def digests(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of each tensor file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


def predictions(run: Path, photos: set[Path]) -> dict[str, str]:
    """Name -> text of each evaluation's predictions, without the photos' folders."""
    texts = {path.name: path.read_text() for path in sorted((run / "predictions").glob("*.json"))}
    for folder in photos:
        texts = {name: text.replace(str(folder), "") for name, text in texts.items()}
    return texts


def leads_to(link: Path) -> str:
    """What a symbolic link names; empty where there is none."""
    return os.readlink(link) if link.is_symlink() else ""


def names_in(folder: Path) -> set[str]:
    """What stands in a folder, hidden things apart."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def hidden_names(run: Path) -> set[str]:
    """Hidden files and folders, at any depth."""
    return {str(path.relative_to(run)) for path in run.rglob(".*")} - BESIDE


def tree(run: Path) -> dict[str, str]:
    """Every file of a run with its SHA-256, and where links point: whether a refused command changed anything."""
    if not run.exists():
        return {}
    facts = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if name in BESIDE:
            continue
        if path.is_symlink():
            facts[name] = f"-> {os.readlink(path)}"
        else:
            facts[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "not a file"
    return facts
