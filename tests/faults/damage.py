"""What is done to a run's folder, or to photos, between two commands. Each is named by its first word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Scene:
    """The folders of one fault."""

    folder: Path
    run: Path
    data: Path
    cache: Path
    untouched_data: Path | None = None  # what `data` is a copy of
    begun: Path | None = None  # what `run` is a copy of


def carry_out(do: str, scene: Scene) -> None:
    """`do`: a damage's name and what it is told."""
    name, _, told = do.partition(" ")
    DAMAGES[name](scene, told)


def mend(scene: Scene, told: str) -> None:
    """Photos as they were, room on the disk, a folder that can be written."""
    if scene.untouched_data is not None and scene.data != scene.untouched_data:
        shutil.rmtree(scene.data)
        shutil.copytree(scene.untouched_data, scene.data)
    if os.path.ismount(scene.run.parent):
        subprocess.run(["mount", "-o", "remount,rw,size=64m", scene.run.parent], check=True)
    (scene.run.parent / "filler").unlink(missing_ok=True)


def read_only(scene: Scene, told: str) -> None:
    """Nothing can be written to the file system of the run's folder."""
    subprocess.run(["mount", "-o", "remount,ro", scene.run.parent], check=True)


def restore(scene: Scene, told: str) -> None:
    """The run's folder as it was before it was damaged."""
    assert scene.begun is not None
    shutil.rmtree(scene.run)
    shutil.copytree(scene.begun, scene.run, symlinks=True)


def _file(scene: Scene, name: str) -> Path:
    """A file of the run; "newest/" and "older/" are its checkpoints."""
    saved = sorted((scene.run / "checkpoints").glob("step-*"))
    for word, folder in (("newest", saved[-1]), ("older", saved[-2])):
        if name.partition("/")[0] == word:
            return folder / name.removeprefix(word).lstrip("/")
    return scene.run / name


def flip(scene: Scene, told: str) -> None:
    """FILE SHARE: one bit of the byte at this share of the file (0..1)."""
    name, share = told.split()
    path = _file(scene, name)
    content = bytearray(path.read_bytes())
    bit = int(float(share) * len(content) * 8)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def cut(scene: Scene, told: str) -> None:
    """FILE BYTES: so many bytes at its end are gone; without a number, half of it."""
    name, _, count = told.partition(" ")
    path = _file(scene, name)
    size = path.stat().st_size
    os.truncate(path, size - int(count) if count else size // 2)


def empty(scene: Scene, told: str) -> None:
    """FILE without a byte."""
    os.truncate(_file(scene, told), 0)


def remove(scene: Scene, told: str) -> None:
    """FILE or folder is gone."""
    path = _file(scene, told)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def link(scene: Scene, told: str) -> None:
    """NAME TARGET: a symbolic link in the name's place."""
    name, target = told.split()
    remove(scene, name)
    _file(scene, name).symlink_to(target)


def folder(scene: Scene, told: str) -> None:
    """A folder in FILE's place."""
    path = _file(scene, told)
    path.unlink(missing_ok=True)
    path.mkdir()


def text(scene: Scene, told: str) -> None:
    """FILE TEXT: its content is this text; "NESTED" is 100,000 opening brackets."""
    name, _, content = told.partition(" ")
    path = _file(scene, name)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # it may be a link
    path.write_text("[" * 100_000 if content == "NESTED" else content)


def append(scene: Scene, told: str) -> None:
    """FILE TEXT: one more line; "NESTED" as above, "LATIN" bytes that are no UTF-8."""
    name, _, content = told.partition(" ")
    line = {"NESTED": b"[" * 100_000, "LATIN": b"\xff\xfe\xe9"}.get(content, content.encode())
    with _file(scene, name).open("ab") as file:
        file.write(line + b"\n")


def edit(scene: Scene, told: str) -> None:
    """FILE KEY.KEY VALUE: one value of a JSON file; "absent" takes the key away, "~" in it is a dot."""
    name, keys, value = told.split(" ", 2)
    path = _file(scene, name)
    whole: Any = json.loads(path.read_text())
    *above, last = keys.split(".")
    last, inner = last.replace("~", "."), whole
    for key in above:
        inner = inner[key]
    if value == "absent":
        del inner[last]
    else:
        inner[last] = json.loads(value)
    path.write_text(json.dumps(whole, indent=2) + "\n")


def photo(scene: Scene, told: str) -> None:
    """HOW: the first training photo is removed, changed, or another one is there beside it."""
    first = sorted(path for path in scene.data.rglob("*.jpg") if "train" in str(path.relative_to(scene.data)))[0]
    if told == "removed":
        first.unlink()
    elif told == "added":
        shutil.copy(first, first.with_name("another.jpg"))
    else:
        shutil.copy(sorted(first.parent.glob("*.jpg"))[1], first)


DAMAGES: dict[str, Callable[[Scene, str], None]] = {
    damage.__name__.replace("_", "-"): damage
    for damage in (mend, read_only, restore, flip, cut, empty, remove, link, folder, text, append, edit, photo)
}
