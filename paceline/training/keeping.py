"""Whether a run keeps encoded photos in memory (`--system.cache`), how many of them, and what it says of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.system import System, cache_bytes
from paceline.machine.host_memory import free_memory
from paceline.machine.placing import node_name
from paceline.ranks.world import World
from paceline.store.byte_cache import CachedRecords, Shelf, bytes_of, file_of, new_file
from paceline.store.index import Index
from paceline.store.stores import scheme_of
from paceline.tasks.synthetic import SyntheticTask
from paceline.tasks.task import Task

GIB = 2**30
# Of the memory that is free when a run begins. The rest is for what training itself, and everybody else, will take.
AUTO_SHARE, MOST_SHARE = 0.5, 0.8
# File systems whose server is asked at every open, whatever the kernel keeps.
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "afs", "fuse")
Say = Callable[[str], None]


@contextmanager
def kept_photos(task: Task, system: System, world: World, say: Say) -> Iterator[None]:
    """While this is open, the task's photos are kept in memory as they are read, where `system.cache` and the memory have it so.

    Every rank calls it. Says how much is kept, and in the end how many reads that saved.
    """
    indexes = [] if isinstance(task, SyntheticTask) else [task.train_index, task.val_index]
    counts = [len(index) for index in indexes]
    room = _room(indexes, system, world, say)
    shelf = _shared_shelf(sum(counts), room, world, say)
    if shelf is None:
        yield
        return
    train, val = (CachedRecords(index.records, shelf, first) for index, first in zip(indexes, (0, counts[0])))
    try:
        with task.reading(train, val):
            yield
    finally:
        if shelf.reads:
            rank = "" if world.world == 1 else f" of rank {world.rank}"
            say(
                f"photos in memory: {shelf.kept():,} of {sum(counts):,}; {shelf.hits / shelf.reads:.0%} of {shelf.reads:,} "
                f"reads{rank} came from there"
            )


def _room(indexes: list[Index], system: System, world: World, say: Say) -> int:
    """Bytes that this node keeps photos in."""
    asked = cache_bytes(system.cache)
    if asked == 0 or not indexes or (asked is None and not any(is_far(index) for index in indexes)):
        return 0
    everything = sum(int(index.lengths.sum()) for index in indexes)
    free = free_memory()
    if free is None:
        if asked is None:
            return 0
        say(f"--system.cache {system.cache}: this operating system does not say how much memory is free")
        free = everything + asked
    share = free * (AUTO_SHARE if asked is None else MOST_SHARE)
    # Ranks fill their parts alike, but not to the byte.
    spare = everything // 20 if world.local_world > 1 else 0
    room = min(everything + spare, int(share), everything + spare if asked is None else asked)
    by = f"by the {world.local_world} ranks of a node together, " if world.local_world > 1 else ""
    say(
        f"keeps up to {_gib(min(room, everything))} of {_gib(everything)} of encoded photos in memory, {by}{_gib(free)} being free"
        f"{'' if asked is None or asked <= share or everything <= share else f': less than --system.cache {system.cache} asks for'}"
    )
    return room


def is_far(index: Index) -> bool:
    """Whether a split's photos lie where the page cache does not help: in an object store, or on a network file system."""
    if not len(index):
        return False
    path = index.records.path(0)
    return bool(scheme_of(path)) or file_system(Path(path)).split(".")[0] in NETWORK


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The kind of file system that a file lies on, as Linux calls it; "" where that is not known."""
    try:
        rows = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
        real = path.resolve()
    except OSError:
        return ""
    # A space in a mount's path stands there as \040.
    found = [(row[1].encode().decode("unicode_escape"), row[2]) for row in rows if len(row) > 2]
    holding = [(len(Path(where).parts), kind) for where, kind in found if real.is_relative_to(where)]
    # Of two mounts on one place, the later one hides the other.
    return max(enumerate(holding), key=lambda entry: (entry[1][0], entry[0]))[1][1] if holding else ""


def _shared_shelf(photos: int, room: int, world: World, say: Say) -> Shelf | None:
    """The node's shelf, which its first rank makes and the others open; None where nothing is kept."""
    parts = world.local_world
    if parts == 1:
        return _shelf(_own_file(photos, room)[0], photos, room) if room else None
    key = f"photos in memory/{node_name()}"
    if world.local_rank == 0:
        file, name = _own_file(photos, room) if room else (-1, "")
        world.post(key, json.dumps({"process": os.getpid(), "file": file, "name": name, "room": room}))
    else:
        made = json.loads(world.wait_for(key))
        room, name, file = made["room"], made["name"], -1
        if name:
            try:
                file = file_of(made["process"], made["file"], name)
            except OSError:  # the ranks are in containers of their own
                name = ""
    world.barrier()  # the first rank's file is open until all have opened it
    if not room:
        return None
    if name:
        return _shelf(file, photos, room, part=world.local_rank, parts=parts)
    say(f"the ranks of a node cannot share that memory here: each has {_gib(room // parts)} of its own")
    return _shelf(_own_file(photos, room // parts)[0], photos, room // parts)


def _shelf(file: int, photos: int, room: int, *, part: int = 0, parts: int = 1) -> Shelf:
    shelf = Shelf(file, photos, room, part=part, parts=parts)
    if file >= 0:
        os.close(file)  # the memory lives as long as somebody maps it
    return shelf


def _own_file(photos: int, room: int) -> tuple[int, str]:
    try:
        return new_file(bytes_of(photos, room))
    except OSError as problem:
        raise UserError(
            f"--system.cache: no memory file of {_gib(room)} can be made ({problem.strerror}). Turn it off: --system.cache off"
        ) from None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
