"""Which folders a container's processes see. Each lies inside where it lies outside, so a command's paths mean the same there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline._utils.errors import PacelineError
from paceline.launch.job import Mount, Words

ROOT = Path("/")


def choose_mounts(
    words: Words,
    folder: Path,
    cache: Path,
    more: Sequence[str],
    workdir: Path,
    *,
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    here: bool = True,
) -> tuple[Mount, ...]:
    """The run's folder, the cache, what the command names, and what was asked for; a folder before those inside it.

    words  of the command: what they name that is there is read; a file brings its folder, where its neighbors are
    more   HOST, HOST:INSIDE, each with :rw at the end where it is written
    reads  values of flags that are known to name data or weights, also those that a run.json brings; "" = not given
    writes values of flags that name a folder to write into, which is made on each node; "" = not given
    here   whether the processes run on this machine; other machines may have what this one lacks
    Raises PacelineError for a mount that is not there or not absolute inside.
    """
    results = [
        Mount(folder, str(folder), "run folder: checkpoints, events, and launch files", writable=True),
        Mount(cache, str(cache), "cache of paceline: indexes, built-in data, and weights", writable=True),
    ]
    results += [parse_mount(text, here=here) for text in more]
    for text in filter(None, writes):
        if (path := _absolute(text, workdir)) != ROOT:
            results.append(Mount(path, str(path), f"{text}: writable", writable=True))
    named_paths = [*_read(reads, workdir, here=here), *list_named_folders(words, workdir)]
    results += [Mount(path, str(path), f"used by {text}") for text, path in named_paths]
    relative = any(
        not Path(text).expanduser().is_absolute() for text in (*writes, *(text for text, _ in named_paths)) if text
    )
    if relative and choose_working_directory(workdir, results) != str(workdir):  # every word begins with ..
        results.append(Mount(workdir, str(workdir), "base of relative paths"))
    # The first one of a place counts: it may be writable, and what a command only names is not.
    locations: dict[str, Mount] = {}
    for mount in results:
        locations.setdefault(mount.inside, mount)
    kept: list[Mount] = []
    for mount in sorted(locations.values(), key=lambda mount: Path(mount.inside).parts):
        if not _brought_by(mount, kept):
            kept.append(mount)
    return tuple(kept)


def choose_working_directory(workdir: Path, mounts: Sequence[Mount]) -> str:
    """Where a container's processes start: as outside where that folder is seen inside, else at / (no path is relative then)."""
    seen = any(Path(mount.inside).is_relative_to(workdir) or workdir.is_relative_to(mount.inside) for mount in mounts)
    return str(workdir) if seen else "/"


def parse_mount(text: str, *, here: bool = True) -> Mount:
    """One --mount. What is absolute may be on other machines alone, where the processes run there.

    Raises PacelineError.
    """
    plain = text.removesuffix(":rw")
    host, _, inside = plain.partition(":")
    path = Path(host).expanduser()
    elsewhere = not here and path.is_absolute()
    path = path.absolute()
    if not host or not (elsewhere or path.exists()):
        raise PacelineError(f"--mount {text}: {path} not found. Use HOST or HOST:INSIDE, with :rw to make it writable.")
    inside = inside or str(path)
    if not inside.startswith("/") or inside == "/" or path == ROOT:
        raise PacelineError(f"--mount {text}: must be a folder other than /, and an absolute path in the container.")
    return Mount(path, inside, "--mount", writable=text.endswith(":rw"))


def _read(texts: Sequence[str], workdir: Path, *, here: bool) -> Iterable[tuple[str, Path]]:
    """(the text, the folder to mount) of each data set and each file of weights on disk, here or perhaps on other machines."""
    for text in texts:
        if not text or "://" in text:
            continue
        path = _absolute(text, workdir)
        elsewhere = not here and Path(text).expanduser().is_absolute() and not path.exists()
        if path.is_file() or (elsewhere and path.suffix and path.parent != ROOT):
            path = path.parent  # nobody here knows whether a name with a dot is a file's; its neighbors do no harm
        if (elsewhere or path.is_dir()) and path != ROOT:
            yield text, path


def list_named_folders(words: Words, workdir: Path) -> Iterable[tuple[str, Path]]:
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
        path = _absolute(value.partition(".py:")[0] + ".py" if ".py:" in value else value, workdir)
        if path.is_file():
            path = path.parent
        if path.is_dir() and path != ROOT:
            yield value, path


def _absolute(text: str, workdir: Path) -> Path:
    """Without `..`, which engines read in ways of their own."""
    return Path(os.path.normpath(workdir / Path(text).expanduser()))


def _brought_by(mount: Mount, others: Sequence[Mount]) -> bool:
    """Whether the innermost mount around it brings it already, at the same place and with no fewer rights."""
    around = [other for other in others if Path(mount.inside).is_relative_to(other.inside)]
    if not around:
        return False
    other = around[-1]
    same = mount.host == other.host / Path(mount.inside).relative_to(other.inside)
    return same and (other.writable or not mount.writable)
