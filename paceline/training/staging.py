"""`--stage DIR`: the run's photos copied to a disk of each node before training, and read from there.

The data set stays what it is: the same manifest, hash, order and names, so a run that was begun with a copy goes on without one
and back. Each node's first rank copies, all nodes at once; the others wait on the store, in no collective whose time could end.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.config.commands import command
from paceline.config.printable import counted
from paceline.log.console import Console
from paceline.ranks.world import World
from paceline.store.index import Index
from paceline.store.manifest import prepare_again
from paceline.store.staged_copy import StagedCopy, Wanted, staged_records, wanted_files
from paceline.store.transfer import in_words
from paceline.tasks.task import Task

# Records of the copy that are read and compared before training: as many as of a container that is opened.
SAMPLED_RECORDS = 16
# Where there is no terminal, a line on how far it is every so many seconds.
LINE_EVERY = 30.0
Say = Callable[[str], None]


@contextmanager
def staged_photos(task: Task, stage: str, world: World, console: Console, say: Say) -> Iterator[None]:
    """While this is open, the task's photos are read from a copy below `stage`; "" stages nothing. Every rank calls it.

    Raises UserError where the disk has too little room or cannot be written, DataError where a photo's file cannot be read or is
    not what the index says.
    """
    if not stage:
        yield
        return
    folder = Path(stage).expanduser().absolute() / f"paceline-{key_of(task)}"
    again = f"Prepare the data again:  {prepare_again(task.manifest)}"
    with ExitStack() as held:
        copy = StagedCopy(folder, {"from": str(task.manifest.root_path), "hash": task.manifest.content_hash}, again)
        held.callback(copy.close)
        remedy = f"Remove the copy, and it is made anew:  {command('data', 'clear', folder.parent)}"
        if world.local_rank == 0:
            _bring(copy, task, _Teller(console, say, folder.parent))
        _wait_for_all(world)
        splits = _splits(task)
        near = {
            split: staged_records(index.records, task.manifest.splits[split].records, folder, remedy)
            for split, (index, _) in splits.items()
        }
        for split, (index, numbers) in splits.items():
            if world.local_rank == 0:
                _compare_some(replace(index, records=near[split]), numbers)
        held.enter_context(task.reading(near[task.manifest.learnt], near["val"]))
        yield


def key_of(task: Task) -> str:
    """16 hex digits: equal exactly where the data set is, with the names and sizes of its files."""
    digest = hashlib.sha256(task.manifest.content_hash.encode())
    for split, (index, _) in _splits(task).items():
        places = index.records.places
        digest.update(f"{split} {task.manifest.splits[split].records} {len(places.name_bytes)}".encode())
        for array in (places.name_bytes, places.name_starts, places.file_sizes):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def _splits(task: Task) -> dict[str, tuple[Index, np.ndarray]]:
    """Split -> its index, and the numbers of the photos that this run reads."""
    return {task.manifest.learnt: (task.train_index, task.train_numbers), "val": (task.val_index, task.val_numbers)}


def _bring(copy: StagedCopy, task: Task, teller: _Teller) -> None:
    wanted: dict[bytes, Wanted] = {}  # a container may hold photos of both splits
    for split, (index, numbers) in _splits(task).items():
        wanted |= {one.name: one for one in wanted_files(index, task.manifest.splits[split].records, numbers)}
    began = time.monotonic()
    copied = copy.copy(list(wanted.values()), progress=teller.progress, waits=teller.waits)
    if copied.changed:
        teller.say(f"{counted(copied.changed, 'file')} of the copy changed after being written: copied again")
    there = f", {copied.kept:,} were there" if copied.kept else ""
    teller.say(
        f"data on {copy.folder.parent}: {copied.files:,} files copied ({in_words(copied.bytes)} in "
        f"{time.monotonic() - began:.0f} s){there}"
    )


def _wait_for_all(world: World) -> None:
    """Go on when every node has its copy. Copying may take hours: no collective is waited in."""
    if world.world == 1:
        return
    world.post(f"staged/{world.rank}", "")
    if world.is_main:
        for rank in range(1, world.world):
            world.wait_for(f"staged/{rank}")
        world.post("staged/all", "")
    else:
        world.wait_for("staged/all")


def _compare_some(index: Index, numbers: np.ndarray) -> None:
    """Their digests too, whatever the system says of later reads."""
    if len(numbers):
        index.records.read_many(
            numbers[np.unique(np.linspace(0, len(numbers) - 1, num=SAMPLED_RECORDS, dtype=np.int64))].tolist()
        )


class _Teller:
    """What a person sees of it: a line that counts on a terminal, elsewhere a line now and then."""

    def __init__(self, console: Console, say: Say, stage: Path) -> None:
        self._console, self.say, self._stage = console, say, stage
        self._counted, self._said = -1, time.monotonic()

    def waits(self) -> None:
        self._console.doing("waiting for another process's copy")
        self.say(f"another process is copying this data set to {self._stage}: waiting for it")

    def progress(self, copied: int, total: int) -> None:
        if self._counted < 0:
            self._console.doing("copying the data (MiB)", total >> 20)
            self._counted = 0
        self._console.done((copied >> 20) - self._counted)
        self._counted = copied >> 20
        if not self._console.is_live and time.monotonic() - self._said > LINE_EVERY:
            self._said = time.monotonic()
            self.say(f"copied {in_words(copied)} of {in_words(total)} to {self._stage}")
