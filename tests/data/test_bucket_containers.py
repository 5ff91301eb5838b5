"""Containers in a bucket: the same records as on a disk, and what is wrong with the bucket is no word against the photos."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_server import FaultyServer
from messages import check_text
from packed_sets import CONTAINERS, pack_both
from tiny_runs import command, make_photos

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.index.staleness import find_stale_file
from paceline.data.prepare.auto_prepare import EvalSplit, prepare_eval_split, prepare_source
from paceline.data.prepare.class_source import prepare_folder

pytest.importorskip("obstore", reason="the extra paceline[remote] is not installed")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return prepare_folder(make_photos(tmp_path_factory.mktemp("set"), ("a", "b"), train=3, val=2))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        server.be_reached(monkeypatch)
        yield server


def upload(bucket: FaultyServer, folder: Path, words: list[str]) -> list[str]:
    """The words of a command line, their files in the bucket."""
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.files[f"/bucket/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return [word.replace(f"{folder}/", "s3://bucket/") for word in words]


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_bucket_gives_the_records_that_a_disk_gives(photos, bucket, container, tmp_path, capsys) -> None:
    words = [str(word) for word in pack_both(photos.root_path, container, tmp_path / "packed")]
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "local")
    assert said.code == 0, said.err
    words = upload(bucket, tmp_path / "packed", words)
    assert any(word.startswith("s3://bucket/") for word in words)
    bucket.faults = [500, "cut", "half"]  # which is no news to a bucket's user
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "remote")
    assert said.code == 0, said.err
    local, remote = Manifest.load(tmp_path / "local"), Manifest.load(tmp_path / "remote")
    assert remote.content_hash == local.content_hash
    assert find_stale_file(remote) is None
    for split in local.splits:
        ours, theirs = open_split(remote, split), open_split(local, split)
        assert ours.records.read_many(range(len(ours))) == [theirs.read(i) for i in range(len(theirs))]


@pytest.mark.parametrize("container", ["tar", "webdataset", "zip"])
def test_the_kind_of_files_in_a_bucket_is_found(photos, bucket, container, tmp_path, capsys) -> None:
    words = [str(word) for word in pack_both(photos.root_path, container, tmp_path / "packed")]
    kind, _, train, *val = upload(bucket, tmp_path / "packed", words)
    said = command(capsys, "prepare", train, *val, "--output-dir", tmp_path / "remote")
    assert said.code == 0 and check_text(said.out.splitlines()[0], kind, Path(train).name), said
    assert Manifest.load(tmp_path / "remote").content_hash == photos.content_hash
    said = command(capsys, "prepare", "s3://bucket/nothing.tar", "--output-dir", tmp_path / "none")
    assert said.code == 2 and check_text(said.err, "s3://bucket/nothing.tar")


def test_a_bucket_that_is_shut_is_told_from_files_that_changed(photos, bucket, tmp_path, capsys) -> None:
    words = upload(bucket, tmp_path, [str(word) for word in pack_both(photos.root_path, "tar", tmp_path)])
    assert command(capsys, "prepare", *words, "--output-dir", tmp_path / "out").code == 0
    manifest = Manifest.load(tmp_path / "out")
    train = next(key for key in bucket.files if "train" in key)
    was, bucket.files[train] = bucket.files[train], bucket.files[train] + bytes(512)
    assert re.search(r"s3:/.*: [\d,]+ bytes, but [\d,]+ when it was prepared", find_stale_file(manifest) or "")
    bucket.files[train] = was.replace(b"JFIF", b"FJIF")
    check_text(find_stale_file(manifest) or "", "s3://bucket/train.tar", "train/a/0.jpg", "bytes")
    del bucket.files[train]
    check_text(find_stale_file(manifest) or "", "s3://bucket/train.tar", "404")
    bucket.always = 403
    with pytest.raises(PacelineError, match=r"no permission \(403\)"):
        find_stale_file(manifest)
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "again")
    assert said.code == 2 and said.err.count("\n") == 1 and "no permission (403)" in said.err
    assert not (tmp_path / "again").exists()


def test_packing_and_scoring_name_the_bucket_that_an_index_names_before_they_ask_it(
    photos, bucket, tmp_path, capsys
) -> None:
    words = [str(word) for word in pack_both(photos.root_path, "tar", tmp_path / "packed")]
    words = upload(bucket, tmp_path / "packed", words)
    assert command(capsys, "prepare", *words, "--output-dir", tmp_path / "set").code == 0
    for use in (
        prepare_source,
        lambda folder, reporter: prepare_eval_split(EvalSplit(data=folder), "class-folder", reporter=reporter),
    ):
        asked, said = len(bucket.requests), []

        def say(line: str, asked=asked, said=said) -> None:
            assert len(bucket.requests) == asked, "it was asked before it was named"
            said.append(line)

        use(str(tmp_path / "set"), Lines(say))
        assert "s3://bucket" in said[0] and len(bucket.requests) > asked
