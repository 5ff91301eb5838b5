"""Containers that were compressed as a whole: unpacked once into the cache, or refused with nothing left."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
from pathlib import Path

import packed_sets
import pytest
import zstandard
from messages import check_text
from packed_sets import photos_of
from tiny_runs import command, make_photos

from paceline.data.containers import split_files
from paceline.data.index.manifest import Manifest
from paceline.data.index.staleness import find_stale_file
from paceline.data.prepare.class_source import prepare_folder

COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    # Of two frames, as appended files are; each with its checksum, as the program writes it.
    ".zst": lambda data: b"".join(map(zstandard.ZstdCompressor(write_checksum=True).compress, (data[:5000], data[5000:]))),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Manifest:
    return prepare_folder(make_photos(tmp_path_factory.mktemp("set"), ("a", "b"), train=3, val=2))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "unpacked"


def write(folder: Manifest, kind: str, place: Path, suffix: str) -> list[str]:
    """Both splits in a container of `kind`, compressed; -> the command's words."""
    words = [kind]
    for split in ("train", "val"):
        ending = {"tar": ".tar", "tfrecord": ".tfrecord", "webdataset": ".tar"}[kind]
        plain = place / f"{split}{ending}"
        getattr(packed_sets, kind)(photos_of(folder.root_path, split), plain)
        packed = Path(f"{plain}{suffix}")
        packed.write_bytes(COMPRESS[suffix](plain.read_bytes()))
        plain.unlink()
        words += [f"--{split}", str(packed)]
    return words


@pytest.mark.parametrize("kind", ["tar", "webdataset", "tfrecord"])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_container_is_the_container(folder, kind, suffix, cache, tmp_path, capsys):
    words = write(folder, kind, tmp_path, suffix)
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "out")
    assert said.code == 0, said.err
    assert f"unpacked into {cache} (" in said.out
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.content_hash == folder.content_hash and find_stale_file(manifest) is None
    there = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(there) == 2
    assert command(capsys, "prepare", *words, "--output-dir", tmp_path / "again").code == 0
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == there  # not once more


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_one_that_is_damaged_is_refused_and_nothing_is_kept(folder, suffix, damage, cache, tmp_path, capsys):
    words = write(folder, "tar", tmp_path, suffix)
    file = Path(words[2])
    data = bytearray(file.read_bytes())
    if damage == "cut":
        del data[-20:]
    else:
        data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "out")
    assert said.code == 2 and said.err.count("\n") == 1, said.err
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert check_text(said.err, file, "download")
    assert not any("train" in name for name in os.listdir(cache))


def test_one_that_was_changed_is_unpacked_anew(folder, cache, tmp_path, capsys):
    words = write(folder, "tar", tmp_path, ".gz")
    assert command(capsys, "prepare", *words, "--output-dir", tmp_path / "out").code == 0
    Path(words[2]).write_bytes(Path(words[4]).read_bytes())
    assert command(capsys, "prepare", *words, "--output-dir", tmp_path / "other").code == 0
    assert Manifest.load(tmp_path / "other").splits["train"].images == folder.splits["val"].images


def test_what_grows_beyond_measure_or_beyond_the_disk_is_refused(folder, cache, tmp_path, capsys, monkeypatch):
    words = write(folder, "tar", tmp_path, ".gz")
    monkeypatch.setattr(split_files, "SPARE_BYTES", 1 << 62)
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "out")
    assert said.code == 2 and "unpacked" in said.err and "PACELINE_CACHE=DIR" in said.err
    monkeypatch.undo()
    monkeypatch.setenv("PACELINE_CACHE", str(cache.parent))
    monkeypatch.setattr(split_files, "SMALL", 0)
    Path(words[2]).write_bytes(gzip.compress(bytes(10 << 20)))
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "out")
    assert said.code == 2 and check_text(said.err, "1,022,100 bytes")
    assert not list(cache.glob(".*"))


def test_without_its_library_zstd_is_refused_with_both_ways(folder, cache, tmp_path, capsys, monkeypatch):
    words = write(folder, "tar", tmp_path, ".zst")
    monkeypatch.setattr(split_files, "find_spec", lambda name: None)
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "out")
    assert said.code == 2 and "pip install 'zstandard>=0.22'" in said.err and "zstd -d FILE -o UNPACKED" in said.err
    assert "zstandard" in sys.modules
