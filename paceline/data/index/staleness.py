"""Check that a manifest and its index still match the files on disk.

Names are always compared, sizes of every file or of a sample. A file that was overwritten by another of the same size
is noticed when it is read (data/index/records.py). Of containers, every file's size and the bytes of some records are compared;
files of annotations by name, size and time, and by their bytes where only the times differ (a copy).
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.names import glob_paths, list_folder, scan_folder
from paceline._utils.safe_read import open_plain
from paceline._utils.threads import BackgroundThreads
from paceline.data.index.index import find_index_damage, locate_records, open_split, suggested_command
from paceline.data.index.manifest import FILES, BoxCounts, Manifest
from paceline.data.index.records import record_digest
from paceline.data.storage.object_store import open_store
from paceline.data.storage.store import FileStatus, LocalFiles, StoreError, get_scheme

# What glob.escape puts around a character.
_ESCAPED = re.compile(r"\[([*?[])\]")

# Up to so many images every file is checked: 0.2 s on a local disk.
CHECK_EVERY_FILE_UP_TO = 50_000
# Beyond, so many evenly spaced files, and each class folder that was touched since.
SAMPLED_FILES = 1_000
# Of containers, whose files are few and large: so many evenly spaced records are read.
SAMPLED_RECORDS = 16


def remote_addresses(manifest: Manifest) -> list[str]:
    """Where on a network photos lie: s3://BUCKET, https://HOST, each once, sorted. Raises DataError where the index is damaged."""
    results: set[str] = set()
    for name in manifest.splits:
        if manifest.splits[name].records != FILES:
            locations = locate_records(manifest, name)
            files = (os.fsdecode(locations.file_path(file)) for file in range(len(locations.file_sizes)))
            results.update("/".join(file.split("/", 3)[:3]) for file in files if get_scheme(file))
    return sorted(results)


def find_stale_file(manifest: Manifest, *, network: bool = True) -> str | None:
    """None where the manifest matches its files, else one line: which file or folder differs, and how.

    Up to 50,000 images: every path and size. Beyond: the modification time of every class folder, the names in those
    that were touched (so a copy with new times still matches), and the sizes of 1,000 evenly spaced files.
    network   whether containers on a network are checked too: an index from somebody else names any host
    """
    everything = sum(split.images for split in manifest.splits.values()) <= CHECK_EVERY_FILE_UP_TO
    try:
        if (damage := find_index_damage(manifest)) is not None:
            return damage
        if not network and remote_addresses(manifest):
            return None
        for name in manifest.splits:
            if (reason := _check_split(manifest, name, everything)) is not None:
                return reason
    except DataError as error:  # less the next step, which every caller names too
        return str(error).removesuffix(suggested_command(manifest)).rstrip(" .")
    except OSError as error:
        return str(error)
    return None


def refuse_stale_containers(manifest: Manifest, why: str) -> None:
    """Raises DataError, instead of a search for photos to prepare anew, where they lie in containers."""
    if manifest.again is not None:
        raise DataError(f"{manifest.folder}: {why}. Prepare it again:\n  {manifest.again}")
    if manifest.in_containers:
        raise DataError(
            f"{manifest.folder}: {why}. Its images are in containers that `paceline prepare` did not index. Write them and "
            "their manifest.json again."
        )


def _check_split(manifest: Manifest, name: str, everything: bool) -> str | None:
    split = manifest.splits[name]
    if split.boxes is not None:
        return _check_annotations(manifest, split.boxes) or _check_images(manifest, name, everything)
    if split.records != FILES:  # no class folders
        return _check_images(manifest, name, everything)
    folder = manifest.root_path / split.folder
    results = [os.fsdecode(entry) for entry in list_folder(folder).folders]
    if sorted(results) != list(manifest.classes):
        other = sorted(set(results) ^ set(manifest.classes))
        return f"{folder}: {len(results)} class folders, but {len(manifest.classes)} when prepared ({other[0]} differs)"
    # Of a folder that was split into train and val, each split has a part of the names.
    sharing = [
        (open_split(manifest, other), result) for other, result in manifest.splits.items() if result.folder == split.folder
    ]
    starts = [np.concatenate([[0], np.cumsum(other.per_class)]) for _, other in sharing]
    skipped: dict[str, set[bytes]] = {}  # class folder -> names of its files that prepare left out
    for path in (Path(entry.path) for _, other in sharing for entry in other.unreadable):
        skipped.setdefault(path.parent.name, set()).add(os.fsencode(path.name))
    for number, label in enumerate(manifest.classes):
        class_folder = folder / label
        if everything or os.stat(class_folder).st_mtime_ns != split.directory_mtimes[number]:
            expected = set(skipped.get(label, ()))
            for (part, _), first in zip(sharing, starts):
                expected.update(os.path.basename(part.relative_name(i)) for i in range(first[number], first[number + 1]))
            images = set(list_folder(class_folder).images)
            for names, what in ((expected - images, "was removed"), (images - expected, "is new")):
                if names:
                    others = f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""
                    return f"{class_folder / os.fsdecode(min(names))} {what}{others}"
    return _check_images(manifest, name, everything)


def _check_images(manifest: Manifest, name: str, everything: bool) -> str | None:
    """The sizes of a split's photos, and of those that were left out."""
    if manifest.splits[name].records != FILES:
        return _check_containers(manifest, name)
    locations = locate_records(manifest, name)
    files = len(locations.file_sizes)
    for file in np.linspace(0, files - 1, num=files if everything else min(files, SAMPLED_FILES), dtype=np.int64):
        path = os.fsdecode(locations.file_path(file))
        if (size := _size(path)) != locations.file_sizes[file]:
            if size < 0:
                return f"{path}: removed since it was prepared"
            return f"{path}: {size:,} bytes, but {locations.file_sizes[file]:,} when it was prepared"
    for entry in manifest.splits[name].unreadable:  # one of another size may have been mended
        if _size(manifest.root_path / entry.path) != entry.size:
            return f"{manifest.root_path / entry.path}: was unreadable when the dataset was prepared, and has changed"
    return None


def _check_containers(manifest: Manifest, name: str) -> str | None:
    """The size of each file that holds a split's records, and the bytes of some records, evenly spaced."""
    locations = locate_records(manifest, name)
    files = np.arange(len(locations.file_sizes))
    if len(files) == len(locations.files) > SAMPLED_FILES:  # objects that are a photo each
        files = np.linspace(0, len(files) - 1, num=SAMPLED_FILES, dtype=np.int64)
    paths = [locations.file_path(file) for file in files.tolist()]
    for path, status, was in zip(paths, _statuses(paths), locations.file_sizes[files].tolist()):
        try:
            size = status().size
        except StoreError as error:  # the file may be as it was
            raise PacelineError(f"{os.fsdecode(path)}: cannot be read ({error.strerror}).") from None
        except OSError as error:
            return f"{os.fsdecode(path)}: cannot be read ({error.strerror or error})"
        if size != was:
            return f"{os.fsdecode(path)}: {size:,} bytes, but {was:,} when it was prepared"
    index = open_split(manifest, name)
    digests = index.extra.get("digests")
    if digests is None or not len(index):
        return None
    sample = np.unique(np.linspace(0, len(index) - 1, num=SAMPLED_RECORDS, dtype=np.int64)).tolist()
    for i, data in zip(sample, index.records.unchecked().read_many(sample)):
        if record_digest(data) != int(digests[i]):
            return f"{index.name(i)}: the bytes differ from those that were prepared"
    return None


def _statuses(paths: Sequence[bytes]) -> Iterator[Callable[[], FileStatus]]:
    """A function for each file's status, or that waits for it where the store answers several requests at once."""
    store = open_store(paths[0]) if paths else LocalFiles()
    if store.at_once == 1:
        yield from (partial(store.status, path) for path in paths)
        return
    threads = BackgroundThreads(store.at_once, "status")
    yield from [threads.submit(store.status, path).result for path in paths]


def _check_annotations(manifest: Manifest, counts: BoxCounts) -> str | None:
    if not counts.files:  # a container that brings its annotations along in the index
        return None
    root = manifest.root_path
    results = annotation_files(root, counts.files)
    if annotation_stamp(root, results) == counts.stamp or annotation_digest(root, results) == counts.digest:
        return None
    which = counts.files[0] if len(counts.files) == 1 else f"{len(results):,} annotation files"
    return f"{root / which}: the annotations {'changed since they were prepared' if results else 'were removed'}"


def annotation_files(root: Path, patterns: Sequence[str]) -> list[str]:
    """Paths of the plain files that `patterns` find, relative to `root` where they lie in it, sorted."""
    results: set[str] = set()
    for pattern in patterns:
        base, below, rest = os.path.join(glob.escape(str(root)), pattern).partition("**/")
        if below:
            results.update(_plain_files(_ESCAPED.sub(r"\1", base), rest))
        else:
            results.update(path for path in glob_paths(base) if os.path.isfile(path))
    return sorted(os.path.relpath(path, root) if is_inside(path, root) else path for path in results)


def _plain_files(top: str, pattern: str) -> Iterator[str]:
    """Plain files in `top` and, links followed, below, whose last parts match `pattern` in any case. System entries are left out.

    Each folder is listed once, whatever links lead to it: two links to the folder they are in are 2^40 paths.
    """
    matches, parts = re.compile(fnmatch.translate(pattern), re.IGNORECASE).fullmatch, pattern.count("/") + 1
    seen: set[tuple[int, int]] = set()
    left = [top]
    while left:
        folder = left.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            inside = scan_folder(folder)[0][::-1]
        except OSError:
            continue  # as glob does: what cannot be listed holds no file that was read
        for entry in inside:
            try:
                if entry.is_dir():
                    left.append(entry.path)
                elif entry.is_file() and matches("/".join(entry.path.split(os.sep)[-parts:])):
                    yield entry.path
            except OSError:
                continue  # a link that leads to itself


def is_inside(path: str | Path, folder: Path) -> bool:
    """Whether `path` is spelled as something below `folder`."""
    return os.path.commonpath([os.path.abspath(path), os.path.abspath(folder)]) == os.path.abspath(folder)


def annotation_stamp(root: Path, files: Sequence[str]) -> str:
    """SHA-256 over names, sizes and times. Opens nothing."""
    digest = hashlib.sha256()
    for name in files:
        status = os.stat(root / name)
        digest.update(b"%b\0%d\0%d\n" % (os.fsencode(name), status.st_size, status.st_mtime_ns))
    return digest.hexdigest()


def annotation_digest(root: Path, files: Sequence[str]) -> str:
    """SHA-256 over names and bytes."""
    digest = hashlib.sha256()
    for name in files:
        own = hashlib.sha256()
        with open(open_plain(root / name), "rb", buffering=0) as file:
            while data := file.read(1 << 20):
                own.update(data)
        digest.update(b"%b\0%b\n" % (os.fsencode(name), own.digest()))
    return digest.hexdigest()


def _size(path: str | Path) -> int:
    """Bytes, or -1 for a file without a status (as prepare records it)."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
