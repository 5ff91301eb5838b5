"""--system.ram-cache: when photos are kept, how many, what is said, and that a run's results do not know of it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from messages import check_text
from run_files import facts_of, tensor_files
from tiny_runs import train, without_report

from paceline._utils.errors import RecipeError
from paceline._utils.reporter import SILENT, Lines
from paceline.config.system import System, check_system, parse_cache_bytes
from paceline.data.index.index import file_per_record_arrays, make_index
from paceline.data.index.records import CachedRecords
from paceline.data.storage import cache as memory_cache
from paceline.models.datamodule import DataModule
from paceline.training import data_cache
from paceline.training.data_cache import get_file_system, is_remote, open_memory_cache

MIB = 2**20


@dataclass
class Together:
    """What the ranks of one node share, in threads of this process."""

    ranks: int
    posted: dict[str, str] = field(default_factory=dict)
    came: threading.Event = field(default_factory=threading.Event)

    def world(self, rank: int):
        def post(key, value):
            self.posted[key] = value
            self.came.set()

        def wait_for(key):
            assert self.came.wait(20)
            return self.posted[key]

        return SimpleNamespace(
            rank=rank, world=self.ranks, local_rank=rank, local_world=self.ranks, post=post, wait_for=wait_for,
            barrier=self.barrier.wait,
        )  # fmt: skip

    def __post_init__(self):
        self.barrier = threading.Barrier(self.ranks)


def index_of(folder, photos: int, size: int = 1000):
    names = [b"%d.jpg" % number for number in range(photos)]
    for number, name in enumerate(names):
        (folder / os.fsdecode(name)).write_bytes(bytes([number % 256]) * size)
    zeros = np.zeros(photos)
    arrays = file_per_record_arrays(names, lengths=zeros + size, labels=zeros, heights=zeros, widths=zeros, extra={})
    return make_index(arrays, folder, "train")


class Reader:
    """A data module, as far as it reads photos."""

    reading = DataModule.reading

    def __init__(self, index):
        self.train_index = self.val_index = index


@pytest.fixture
def task(tmp_path):
    index = index_of(tmp_path, 30)
    return Reader(index)


def said_of(task, cache: str, monkeypatch, *, free: int | None, numbers=()) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(data_cache, "get_free_memory", lambda: free)
    with open_memory_cache(task, System(ram_cache=cache), Together(1).world(0), Lines(said.append)):
        for number in numbers:
            assert task.train_index.read(number) == bytes([number % 256]) * 1000
    return said


@pytest.mark.parametrize(
    "text, size", [("off", 0), ("auto", None), ("40GiB", 40 * 2**30), ("1.5 MiB", 3 * MIB // 2), ("2tb", 2 * 2**40)]
)
def test_sizes_in_words(text, size):
    assert parse_cache_bytes(text) == size


@pytest.mark.parametrize("text", ["", "40", "0GiB", "-1GiB", "40 GiB of it", "9" * 30 + "TiB", "on"])
def test_what_is_no_size_is_refused_by_its_flag(text):
    with pytest.raises(RecipeError, match=r"--system\.ram-cache"):
        check_system(System(ram_cache=text))


def test_a_local_folder_is_left_to_the_page_cache_unless_a_size_is_named(task, monkeypatch):
    untouched = task.train_index
    assert said_of(task, "auto", monkeypatch, free=10 * MIB, numbers=[3]) == []
    said = said_of(task, "1GiB", monkeypatch, free=10 * MIB, numbers=[3, 4, 3])
    assert check_text(said[0], "58.6 KiB of 58.6 KiB", "10.0 MiB")
    assert check_text(said[1], "2 of 60", "33%", "3 reads")
    assert task.train_index is untouched


def test_more_than_is_free_is_not_taken_and_that_is_said(task, monkeypatch):
    said = said_of(task, "1GiB", monkeypatch, free=20_000, numbers=range(30))
    assert "less than --system.ram-cache 1GiB" in said[0]
    assert check_text(said[1], "16 of 60")  # 0.8 of what is free
    said = said_of(task, "1GiB", monkeypatch, free=None, numbers=[1])
    assert check_text(said[0], "memory") and len(said) == 3


def test_far_photos_are_kept_unasked(task, monkeypatch):
    monkeypatch.setattr(data_cache, "get_file_system", lambda path: "nfs4")
    assert is_remote(task.train_index)
    said = said_of(task, "auto", monkeypatch, free=40_000, numbers=range(30))
    assert check_text(said[1], "20 of 60")  # half of what is free
    assert said_of(task, "off", monkeypatch, free=40_000) == []


def test_a_folder_s_file_system_is_that_of_the_mount_nearest_above(tmp_path):
    root = str(tmp_path)
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/x {root}/with\\040space nfs4 rw 0 0\nmnt {root}/far fuse.sshfs rw 0 0\n"
        f"/dev/sdb {root}/far/near xfs rw 0 0\n"
    )
    for folder, kind in (("with space", "nfs4"), ("far", "fuse.sshfs"), ("far/near", "xfs"), ("else", "ext4")):
        assert get_file_system(tmp_path / folder / "train" / "1.jpg", mounts) == kind
    assert get_file_system(tmp_path, tmp_path / "nothing") == ""


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "each its own"])
def test_ranks_of_a_node_share_one_room(tmp_path, monkeypatch, shared):
    if shared and not hasattr(os, "memfd_create"):
        pytest.skip("files in memory without a name are Linux's")
    if not shared:
        monkeypatch.setattr(memory_cache, "create_memory_file", lambda size: (-1, ""))
    index, together, kept = index_of(tmp_path, 40), Together(2), [0, 0]
    read, left = threading.Barrier(2), threading.Barrier(2)

    def rank(number: int) -> None:
        mine = Reader(index)
        with open_memory_cache(mine, System(ram_cache="1MiB"), together.world(number), SILENT):  # type: ignore[arg-type]
            mine.train_index.records.read_many(range(number * 20, number * 20 + 20))
            read.wait(20)
            assert isinstance(mine.train_index.records, CachedRecords)
            kept[number] = mine.train_index.records._shelf.kept()
            left.wait(20)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == ([40, 40] if shared else [20, 20])


def test_a_run_with_kept_photos_has_the_same_weights(class_photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    for name, cache in (("plain", "off"), ("kept", "1GiB")):
        said = train(capsys, class_photos, tmp_path / name, "--system.ram-cache", cache, steps=6)
        assert said.code == 0 and ("in memory" in said.out) == (cache != "off")
        assert facts_of(tmp_path / name)["system"]["ram_cache"]
    assert tensor_files(tmp_path / "plain") == tensor_files(tmp_path / "kept")
