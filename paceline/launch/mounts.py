"""Which folders a container's processes see. Each lies inside where it lies outside, so a command's paths mean the same there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline.config.errors import UserError
from paceline.launch.job import Mount, Words

ROOT = Path("/")


def mounts_of(words: Words, folder: Path, cache: Path, more: Sequence[str], workdir: Path) -> tuple[Mount, ...]:
    """The run's folder, the cache, what the command names, and what was asked for; a folder before those inside it.

    words  of the command: what they name that is there is read; a file brings its folder, where its neighbours are
    more   HOST, HOST:INSIDE, each with :rw at the end where it is written
    Raises UserError for a mount that is not there or not absolute inside.
    """
    found = [
        Mount(folder, str(folder), "the run's folder: checkpoints, events, launch files", writable=True),
        Mount(cache, str(cache), "paceline's cache: indexes, built-in data, weights", writable=True),
    ]
    found += [asked_for(text) for text in more]
    found += [Mount(path, str(path), f"named by {word}") for word, path in named(words, workdir)]
    # The first one of a place counts: it may be writable, and what a command only names is not.
    places: dict[str, Mount] = {}
    for mount in found:
        places.setdefault(mount.inside, mount)
    kept: list[Mount] = []
    for mount in sorted(places.values(), key=lambda mount: Path(mount.inside).parts):
        if not _brought_by(mount, kept):
            kept.append(mount)
    return tuple(kept)


def asked_for(text: str) -> Mount:
    """One --mount.

    Raises UserError.
    """
    plain = text.removesuffix(":rw")
    host, _, inside = plain.partition(":")
    path = Path(host).expanduser().absolute()
    if not host or not path.exists():
        raise UserError(f"--mount {text}: {path} is not there. Write HOST or HOST:INSIDE, and :rw to write into it.")
    inside = inside or str(path)
    if not inside.startswith("/") or inside == "/" or path == ROOT:
        raise UserError(f"--mount {text}: name a folder below /, and its place inside by an absolute path.")
    return Mount(path, inside, "--mount", writable=text.endswith(":rw"))


def named(words: Words, workdir: Path) -> Iterable[tuple[str, Path]]:
    """(the word, the folder to mount) of each word that names something on disk: --data DIR, --weights FILE, ./mine.py:recipe.

    A word without a slash counts only behind a flag: `ssd` is a recipe, whatever the working directory holds.
    """
    behind_a_flag = False
    for word in words:
        flag, is_joined, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if flag and not is_joined:
            behind_a_flag = True
            continue
        counts = bool(flag) or behind_a_flag or "/" in value
        behind_a_flag = False
        if not counts or not value or "://" in value:
            continue
        path = workdir / Path(value.partition(".py:")[0] + ".py" if ".py:" in value else value).expanduser()
        if path.is_file():
            path = path.parent
        if path.is_dir() and path != ROOT:
            yield value, Path(path).absolute()


def _brought_by(mount: Mount, others: Sequence[Mount]) -> bool:
    """Whether the innermost mount around it brings it already, at the same place and with no fewer rights."""
    around = [other for other in others if Path(mount.inside).is_relative_to(other.inside)]
    if not around:
        return False
    other = around[-1]
    same = mount.host == other.host / Path(mount.inside).relative_to(other.inside)
    return same and (other.writable or not mount.writable)
