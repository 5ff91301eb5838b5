"""Encoded photos in the memory of a node (`--system.ram-cache`), which its ranks share: as far as the memory allows, and only where
they lie in a bucket or on a network file system, unless the flag says otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.errors import PacelineError
from paceline._utils.formatting import format_bytes
from paceline._utils.reporter import Reporter
from paceline.config.system import System, parse_cache_bytes
from paceline.data.index.index import Index
from paceline.data.index.records import CachedRecords
from paceline.data.storage.store import get_scheme
from paceline.distributed.comm.world import DistContext
from paceline.distributed.device.affinity import get_node_name
from paceline.distributed.device.host_memory import get_free_memory
from paceline.models.datamodule import DataModule
from paceline.models.dummy_data import DummyDataModule

if TYPE_CHECKING:
    from paceline.data.storage.cache import SharedMemoryCache

# Shares of the memory that is free when a run begins. The rest is for training itself and for other processes.
AUTO_SHARE, MAX_SHARE = 0.5, 0.8
# File systems whose server is asked at every open, whatever the kernel caches.
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "afs", "fuse")


@contextmanager
def open_memory_cache(data: DataModule, system: System, world: DistContext, reporter: Reporter) -> Iterator[None]:
    """While this is open, the task's photos are kept in memory as they are read, as far as `system.ram_cache` and the memory allow.

    Every rank calls it. Reports how much is kept, and in the end how many reads that saved.
    """
    indexes = [] if isinstance(data, DummyDataModule) else [data.train_index, data.val_index]
    counts = [len(index) for index in indexes]
    room = _room(indexes, system, world, reporter)
    shelf = _shared_shelf(sum(counts), room, world, reporter)
    if shelf is None:
        yield
        return
    train, val = (CachedRecords(index.records, shelf, first) for index, first in zip(indexes, (0, counts[0])))
    try:
        with data.reading(train, val):
            yield
    finally:
        if shelf.reads:
            rank = "" if world.world == 1 else f" of rank {world.rank}"
            reporter.line(
                f"image cache in memory: {shelf.kept():,} of {sum(counts):,} images; {shelf.hits / shelf.reads:.0%} of "
                f"{shelf.reads:,} reads{rank} were hits"
            )


def _room(indexes: list[Index], system: System, world: DistContext, reporter: Reporter) -> int:
    """Bytes of this node's memory for photos."""
    args = parse_cache_bytes(system.ram_cache)
    if args == 0 or not indexes or (args is None and not any(is_remote(index) for index in indexes)):
        return 0
    everything = sum(int(index.lengths.sum()) for index in indexes)
    free = get_free_memory()
    if free is None:
        if args is None:
            return 0
        reporter.line(f"--system.ram-cache {system.ram_cache}: the operating system does not report its free memory")
        free = everything + args
    share = free * (AUTO_SHARE if args is None else MAX_SHARE)
    # Ranks fill their parts alike, but not to the byte.
    spare = everything // 20 if world.local_world > 1 else 0
    room = min(everything + spare, int(share), everything + spare if args is None else args)
    by = f", shared by {world.local_world} ranks per node" if world.local_world > 1 else ""
    reporter.line(
        f"image cache: up to {format_bytes(min(room, everything))} of {format_bytes(everything)} of encoded images in memory{by} "
        f"({format_bytes(free)} are free"
        f"{'' if args is None or args <= share or everything <= share else f'; less than --system.ram-cache {system.ram_cache}'})"
    )
    return room


def is_remote(index: Index) -> bool:
    """Whether a split's photos lie where the page cache does not help: in an object store, or on a network file system."""
    if not len(index):
        return False
    path = index.records.path(0)
    return bool(get_scheme(path)) or get_file_system(Path(path)).split(".")[0] in NETWORK


def get_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Linux's name of the file system that a file is on; "" where that is not known."""
    try:
        rows = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
        real = path.resolve()
    except OSError:
        return ""
    # A space in a mount's path stands there as \040.
    results = [(row[1].encode().decode("unicode_escape"), row[2]) for row in rows if len(row) > 2]
    holding = [(len(Path(where).parts), kind) for where, kind in results if real.is_relative_to(where)]
    # Of two mounts on one place, the later one hides the other.
    return max(enumerate(holding), key=lambda entry: (entry[1][0], entry[0]))[1][1] if holding else ""


def _shared_shelf(photos: int, room: int, world: DistContext, reporter: Reporter) -> SharedMemoryCache | None:
    """The node's shelf, which its first rank makes and the others open; None where nothing is kept."""
    part, parts = world.local_rank, world.local_world
    file, name = _own_file(photos, room) if part == 0 and room else (-1, "")
    if parts > 1:
        key = f"photos in memory/{get_node_name()}"
        if part == 0:
            world.post(key, json.dumps({"process": os.getpid(), "file": file, "name": name, "room": room}))
        else:
            from paceline.data.storage.cache import open_memory_file

            made = json.loads(world.wait_for(key))
            room, name = made["room"], made["name"]
            try:
                file = open_memory_file(made["process"], made["file"], name) if name else -1
            except OSError:  # the ranks are in containers of their own
                name = ""
        world.barrier()  # the first rank's file is open until all have opened it
        if room and not name:
            part, parts, room = 0, 1, room // parts
            reporter.line(f"the ranks of a node cannot share memory here; each rank caches up to {format_bytes(room)}")
            file, _ = _own_file(photos, room)
    if not room:
        return None
    from paceline.data.storage.cache import SharedMemoryCache

    shelf = SharedMemoryCache(file, photos, room, part=part, parts=parts)
    if file >= 0:
        os.close(file)  # the memory lives as long as somebody maps it
    return shelf


def _own_file(photos: int, room: int) -> tuple[int, str]:
    from paceline.data.storage.cache import cache_file_size, create_memory_file

    try:
        return create_memory_file(cache_file_size(photos, room))
    except OSError as problem:
        raise PacelineError(
            f"--system.ram-cache: allocating a memory file of {format_bytes(room)} failed ({problem.strerror}). "
            "Set --system.ram-cache off."
        ) from None
