"""Packing class folders: bytes, labels, order and classes are the source's; what is named otherwise is so by rule."""

from __future__ import annotations

import io
import json
import shlex
import tarfile

import numpy as np
import pytest
from messages import check_text
from PIL import Image
from sets_to_pack import class_set, photo, photos_and_labels

from paceline._utils.errors import PacelineError
from paceline.cli.main import main
from paceline.data.containers.recordio import MAGIC, read_recordio
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.loader.sampler import permutation
from paceline.data.pack.pack import pack
from paceline.data.pack.plan import FORMS, SUFFIX, PackRequest, open_sources, parse_bytes, plan_shards
from paceline.data.prepare.class_source import prepare_folder

# (height, width) of the set's photos -> what torchvision's Resize(24) makes of them.
SMALLER = {(30, 40): (24, 32), (50, 25): (48, 24), (33, 33): (24, 24), (32, 48): (24, 36)}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Manifest:
    return class_set(tmp_path_factory.mktemp("classes"), tmp_path_factory.mktemp("index"))


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("cut", [{}, {"num_shards": 3}, {"shard_bytes": 3000}], ids=["whole", "shards", "sizes"])
def test_photos_and_labels_are_the_sources_to_the_last_byte(source, to, cut, tmp_path):
    packed, notes = pack(source, PackRequest(to, **cut), tmp_path / "out")
    for split in ("train", "val"):
        assert photos_and_labels(packed, split) == photos_and_labels(source, split)
        assert packed.splits[split].rotated == source.splits[split].rotated
    assert (packed.classes, packed.class_names) == (source.classes, ("tom cat", "Zalophus"))
    assert notes == []
    files = len(list((tmp_path / "out").glob(f"train*{SUFFIX[to]}")))
    assert (files == 1) if not cut else (files == 3) if "num_shards" in cut else (files > 3)


@pytest.mark.parametrize("to", FORMS)
def test_plain_names_in_kept_order_keep_the_content_hash(to, tmp_path):
    for split in ("train", "val"):
        for number, label in enumerate(("a b", "n02")):
            photo(tmp_path / "set" / split / label / f"{split}_{number}.JPEG", seed=number, format="JPEG")
    source = prepare_folder(tmp_path / "set", out=tmp_path / "index")
    packed, _ = pack(source, PackRequest(to), tmp_path / "out")
    assert packed.content_hash == source.content_hash
    again, _ = pack(
        packed,
        PackRequest("recordio" if to == "webdataset" else "tfrecord" if to == "recordio" else "webdataset"),
        tmp_path / "other",
    )
    assert again.content_hash == source.content_hash


def test_a_packed_folder_moves_with_its_manifest(source, tmp_path):
    pack(source, PackRequest("recordio"), tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    assert photos_and_labels(Manifest.load(tmp_path / "moved"), "val") == photos_and_labels(source, "val")


@pytest.mark.parametrize("name", ["x{0..1}y", "x[1]", "a*b?", "{a,b}"])
def test_a_folder_called_like_a_pattern_is_that_folder(source, name, tmp_path, capsys):
    for other in ("x0y", "x1", "aXbX"):
        (tmp_path / other).mkdir()
    out = tmp_path / name
    packed, _ = pack(source, PackRequest("webdataset", num_shards=2), out)
    assert photos_and_labels(packed, "train") == photos_and_labels(source, "train")
    words = shlex.split(packed.again or "")
    assert words[:3] == ["paceline", "prepare", "webdataset"]
    assert main(words[1:]) == 0, capsys.readouterr()
    assert Manifest.load(out).content_hash == packed.content_hash


def test_webdataset_keys_are_unique_and_end_at_the_first_dot(source, tmp_path):
    pack(source, PackRequest("webdataset"), tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "train-00000.tar") as archive:
        names = archive.getnames()
    photos, labels = names[::2], names[1::2]
    assert [name.split(".")[0] for name in photos] == [name.split(".")[0] for name in labels]
    assert len({name.split(".")[0] for name in photos}) == 10
    assert photos[:5] == ["cat/a_b.jpg", "cat/a_b-1.jpg", "cat/c.png", "cat/d.jpg", "cat/n1_10.JPEG"]
    assert {name.split(".", 1)[1] for name in labels} == {"cls"}


def test_recordio_has_its_idx_and_lst(source, tmp_path):
    pack(source, PackRequest("recordio"), tmp_path / "out")
    data = (tmp_path / "out" / "train.rec").read_bytes()
    records = list(read_recordio(io.BytesIO(data), len(data), "train.rec"))
    listed = [line.split("\t") for line in (tmp_path / "out" / "train.lst").read_text().splitlines()]
    offsets = [tuple(map(int, line.split())) for line in (tmp_path / "out" / "train.idx").read_text().splitlines()]
    assert [(record.id, record.start) for record in records] == offsets
    assert [(record.id, float(record.labels[0])) for record in records] == [(int(i), float(k)) for i, k, _ in listed]
    assert listed[1][2] == "cat/a_b.jpg" and listed[0][2] == "cat/a.b.jpg"


def test_a_shuffled_order_is_the_seeds_and_loses_nothing(source, tmp_path):
    packed, _ = pack(source, PackRequest("webdataset", order="shuffled", seed=7, num_shards=2), tmp_path / "out")
    wanted = photos_and_labels(source, "train")
    order = permutation(len(wanted), seed=7, epoch=0)
    assert photos_and_labels(packed, "train") == [wanted[i] for i in order]
    assert not np.array_equal(order, np.arange(len(wanted)))


def test_files_are_cut_by_the_bytes_of_the_records_that_they_get(source):
    request = PackRequest("recordio", order="shuffled", seed=2, shard_bytes=4000)
    sources = open_sources(source, request)
    shards = plan_shards(sources, request)
    for shard in shards:
        rows = sources[shard.split].order[shard.first : shard.last]
        lengths = sources[shard.split].index.lengths[rows]
        assert shard.estimate == lengths.sum() + 128 * len(rows)
        assert shard.estimate <= 4000 or len(rows) == 1
    assert max(shard.last - shard.first for shard in shards) > 1


@pytest.mark.parametrize("to", FORMS)
def test_a_class_whose_name_is_no_folders_and_one_without_photos_come_back(source, to, tmp_path):
    names = ("cat", "sea lion", "none / of these")
    odd = Manifest(**{**vars(source), "classes": names, "class_names": None})
    packed, _ = pack(odd, PackRequest(to), tmp_path / "out")
    assert packed.classes == names
    assert photos_and_labels(packed, "train") == photos_and_labels(source, "train")


def test_photos_are_made_smaller_as_pillow_does(source, tmp_path):
    packed, notes = pack(source, PackRequest("webdataset", resize_shorter_side=24, jpeg_quality=60), tmp_path / "out")
    index, old = open_split(packed, "train"), open_split(source, "train")
    anew = 0
    for i in range(len(old)):
        data, before = index.read(i), old.read(i)
        picture = Image.open(io.BytesIO(before))
        if min(picture.size) <= 24:
            assert data == before
            continue
        anew += 1
        height, width = SMALLER[picture.height, picture.width]
        gray = picture.mode == "L"
        smaller = picture.convert("L" if gray else "RGB").resize((width, height), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        smaller.save(out, "JPEG", quality=60)
        assert data == out.getvalue()
        assert (index.heights[i], index.widths[i]) == (height, width)
    assert anew == 8
    assert packed.splits["train"].not_jpeg == packed.splits["train"].cmyk == 0
    assert len(notes) == 1 and check_text(notes[0], "12 images")


def test_a_turned_photo_stays_as_stored_and_stays_noted(source, tmp_path):
    packed, _ = pack(source, PackRequest("recordio", resize_shorter_side=20), tmp_path / "out")
    index = open_split(packed, "val")
    assert index.orientations.tolist() == [6, 1, 6, 1]
    assert (index.heights[0], index.widths[0]) == (20, 30)
    assert dict(Image.open(io.BytesIO(index.read(0))).getexif()) == {0x0112: 6}


def test_quality_alone_writes_every_photo_anew_at_its_size(source, tmp_path):
    packed, _ = pack(source, PackRequest("webdataset", jpeg_quality=30), tmp_path / "out")
    index, old = open_split(packed, "train"), open_split(source, "train")
    assert np.array_equal(index.heights, old.heights) and np.array_equal(index.widths, old.widths)
    assert packed.splits["train"].not_jpeg == 0
    assert packed.splits["train"].grayscale == source.splits["train"].grayscale == 2
    tables = {tuple(Image.open(io.BytesIO(index.read(i))).quantization[0]) for i in range(len(index))}
    assert len(tables) == 1


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--format", "lmdb"], "--format lmdb"),
        (["--jpeg-quality", "101"], "--jpeg-quality 101"),
        (["--jpeg-quality", "-1"], "--jpeg-quality -1"),
        (["--resize-shorter-side", "3"], "--resize-shorter-side 3"),
        (["--order", "random"], "--order random"),
        (["--num-shards", "2", "--shard-size", "1GB"], "Remove one"),
        (["--num-shards", "-2"], "--num-shards -2"),
        (["--shard-size", "big"], "--shard-size big"),
    ],
    ids=["form", "quality", "negative", "short", "order", "both", "shards", "size"],
)
def test_flags_that_cannot_be_are_refused_in_a_line(flags, reason, source, tmp_path, capsys):
    assert main(["data", "pack", str(source.folder), "--output-dir", str(tmp_path / "out"), *flags]) == 2
    said = capsys.readouterr().err
    assert check_text(said, reason) and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_packs_what_it_is_given_and_says_so(source, tmp_path, capsys):
    assert main(["data", "pack", str(source.folder), "--format", "recordio", "--output-dir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "train: 10 images" in said and f"--data {tmp_path / 'out'}" in said
    assert main(["data", "info", str(tmp_path / "out"), "--json"]) == 0
    mine = json.loads(capsys.readouterr().out)
    assert main(["data", "info", str(source.folder), "--json"]) == 0
    theirs = json.loads(capsys.readouterr().out)
    for split in ("train", "val"):
        assert mine["splits"][split]["labels_sha256"] == theirs["splits"][split]["labels_sha256"]
    assert main(["data", "pack", str(tmp_path / "nowhere"), "--output-dir", str(tmp_path / "b")]) == 2
    assert main(["pack"]) == 2


def test_class_folders_that_nobody_prepared_are_prepared_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    for split in ("train", "val"):
        for label in "ab":
            photo(tmp_path / "set" / split / label / "1.jpg", seed=ord(label))
    assert main(["data", "pack", str(tmp_path / "set"), "--output-dir", str(tmp_path / "out")]) == 0
    assert "verifying its 4 images once" in capsys.readouterr().out
    assert sorted(entry.name for entry in (tmp_path / "set").iterdir()) == ["train", "val"]


@pytest.mark.parametrize(
    "text, size", [("1GiB", 1 << 30), ("500MB", 500_000_000), ("2kib", 2048), ("1.5 MiB", 1572864), ("77", 77), ("", 0)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text, "--shard-size") == size


@pytest.mark.parametrize("text", ["0", "-1", "1XB", "GiB", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(PacelineError, match="--shard-size"):
        parse_bytes(text, "--shard-size")


def test_a_photo_that_holds_recordios_magic_word_comes_back(tmp_path):
    for split in ("train", "val"):
        for label in "ab":
            path = tmp_path / "set" / split / label / "1.jpg"
            photo(path, seed=ord(label))
            with open(path, "ab") as file:
                file.write(bytes(-path.stat().st_size % 4) + MAGIC * 3)
    source = prepare_folder(tmp_path / "set", out=tmp_path / "index")
    packed, _ = pack(source, PackRequest("recordio"), tmp_path / "out")
    assert packed.splits["train"].records == "recordio"
    assert photos_and_labels(packed, "train") == photos_and_labels(source, "train")
    again, _ = pack(packed, PackRequest("webdataset"), tmp_path / "again")
    assert again.content_hash == packed.content_hash == source.content_hash
