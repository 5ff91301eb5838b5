"""One run from every container: the weights are those of the folder's, also where it began on the one and goes on from the other."""

from __future__ import annotations

import random

import obstore
import packed_sets
import pytest
from by_night import ONE_MORE
from devkit_files import write_devkit
from instance_sets import json_file, make_instances
from messages import check_line, check_text
from packed_sets import CONTAINERS, pack_both, photos_of, with_magic
from run_files import tensor_files
from tiny_runs import TINY, command, make_photos, of_its_own, train

from paceline.cli.main import main
from paceline.data.formats import published_sets
from paceline.data.formats.devkit import validation_labels
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.box_source import prepare_boxes
from paceline.data.storage.credentials import open_bucket

BY_DAY = ("deflated zip",)


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def folder(tmp_path_factory, patch):
    of_its_own(patch, tmp_path_factory)
    root = make_photos(tmp_path_factory.mktemp("set"))
    first = root / "train" / "ant" / "0.jpg"
    first.write_bytes(with_magic(first.read_bytes()))
    return root


@pytest.fixture(scope="module")
def wanted(folder, tmp_path_factory):
    """The weights of four steps from the folder, never stopped."""
    out = tmp_path_factory.mktemp("reference") / "run"
    words = ["train", "classify-demo", "--data", folder, "--output-dir", out, *TINY, "--max-steps", 4, "--quiet"]
    assert main(list(map(str, words))) == 0
    return tensor_files(out)


@pytest.mark.parametrize("container", [pytest.param(name, marks=() if name in BY_DAY else ONE_MORE) for name in CONTAINERS])
def test_a_run_goes_on_from_a_container_to_the_weights_of_the_folders(folder, wanted, container, tmp_path, capsys):
    words = pack_both(folder, container, tmp_path / "packed")
    assert command(capsys, "prepare", *words, "--output-dir", tmp_path / "set").code == 0
    # Begun on the folder, gone on with from the container; and the other way.
    for number, (first, second) in enumerate([(folder, tmp_path / "set"), (tmp_path / "set", folder)]):
        run = tmp_path / f"run-{number}"
        assert train(capsys, first, run, steps=2).code == 0
        said = train(capsys, second, run, steps=4)
        assert said.code == 0 and check_line(said.out, "resumed", "step-000002"), said
        assert tensor_files(run) == wanted


def test_a_run_from_a_bucket_has_the_weights_of_the_folders(folder, wanted, tmp_path, capsys, s3_bucket):
    photos = {split: photos_of(folder, split) for split in ("train", "val")}
    (tmp_path / "up").mkdir()
    packed_sets.webdataset(photos["train"][:9], tmp_path / "up" / "train-000.tar")
    packed_sets.webdataset(photos["train"][9:], tmp_path / "up" / "train-001.tar")
    packed_sets.webdataset(photos["val"], tmp_path / "up" / "val-000.tar")
    s3_bucket.upload(tmp_path / "up", "shards/")
    sources = ("--train", s3_bucket.url("shards/train-*.tar"), "--val", s3_bucket.url("shards/val-000.tar"))
    said = command(capsys, "prepare", "webdataset", *sources, "--output-dir", tmp_path / "set")
    assert said.code == 0, said.err
    assert train(capsys, tmp_path / "set", tmp_path / "run", steps=2).code == 0
    said = train(capsys, tmp_path / "set", tmp_path / "run", steps=4)
    assert said.code == 0 and check_line(said.out, "resumed", "step-000002"), said
    assert tensor_files(tmp_path / "run") == wanted


def test_objects_of_a_bucket_that_are_a_photo_each_are_the_folder(folder, wanted, tmp_path, capsys, s3_bucket):
    s3_bucket.upload(folder, "set/")
    sources = ("--train", s3_bucket.url("set/train/*/*"), "--val", s3_bucket.url("set/val/*/*"))
    said = command(capsys, "prepare", "photos", *sources, "--output-dir", tmp_path / "set")
    assert said.code == 0, said.err
    assert train(capsys, tmp_path / "set", tmp_path / "run", steps=4).code == 0
    assert tensor_files(tmp_path / "run") == wanted
    name = next((folder / "train").rglob("*.jpg")).relative_to(folder)
    place = open_bucket("s3", s3_bucket.name, 10.0)  # signed: over what is there
    obstore.put(place, f"set/{name}", b"other")
    said = train(capsys, tmp_path / "set", tmp_path / "other", steps=4)
    assert said.code == 2 and f"set/{name}: 5 bytes, " in said.err
    s3_bucket.put("set/train/deep/er/x.jpg", b"x")
    deeper = ("--train", s3_bucket.url("set/train/*/*"), s3_bucket.url("set/train/*/*/*"))
    said = command(capsys, "prepare", "photos", *deeper, "--output-dir", tmp_path / "deep")
    assert said.code == 2 and check_text(said.err, "class folders")


def test_boxes_of_photos_in_a_bucket_are_the_folders(tmp_path, capsys, s3_bucket):
    root = make_instances(tmp_path / "coco", train=4, val=2)
    s3_bucket.upload(root, "coco/")
    words = []
    for split, before in (("train", ""), ("val", "val-")):
        words += [f"--{split}", s3_bucket.url(f"coco/{split}2017/*.jpg"), f"--{before}annotations", json_file(root, split)]
    said = command(capsys, "prepare", "photos", *words, "--output-dir", tmp_path / "set")
    assert said.code == 0, said.err
    here = prepare_boxes(root, out=tmp_path / "here")
    assert Manifest.load(tmp_path / "set").content_hash == here.content_hash


def test_imagenets_tars_are_read_as_they_were_downloaded(folder, tmp_path, capsys, monkeypatch):

    wnids = published_sets.official_wnids()[:3]
    labels = [*wnids, *random.Random(1).choices(wnids, k=6)]
    digest = write_devkit(tmp_path / "kit.tar.gz", labels)
    monkeypatch.setattr(published_sets, "VAL_LABELS_SHA256", digest)
    assert validation_labels(tmp_path / "kit.tar.gz") == labels
    monkeypatch.setattr(published_sets, "official_wnids", lambda: wnids)
    counts = {"train": published_sets.ImagenetCounts(18, 6, 6), "val": published_sets.ImagenetCounts(9, 1, 9)}
    monkeypatch.setattr(published_sets, "IMAGENET", counts)
    monkeypatch.setattr(published_sets, "VAL_IMAGES", 9)
    renamed = [
        (wnids[number], number, f"{wnids[number]}_{i}.JPEG", data)
        for i, (_, number, _, data) in enumerate(photos_of(folder, "train"))
    ]
    packed_sets.tar_in_tar(renamed[::-1], tmp_path / "ILSVRC2012_img_train.tar")
    flat = [(f"ILSVRC2012_val_{i + 1:08d}.JPEG", data) for i, (*_, data) in enumerate(photos_of(folder, "val"))]
    with open(tmp_path / "ILSVRC2012_img_val.tar", "wb") as file:
        packed_sets.write_tar(file, [(name.encode(), data) for name, data in flat[::-1]])
    tars = ("--train-tar", tmp_path / "ILSVRC2012_img_train.tar", "--val-tar", tmp_path / "ILSVRC2012_img_val.tar")
    said = command(capsys, "prepare", "imagenet", *tars, "--output-dir", tmp_path / "out")
    assert said.code == 2 and "ILSVRC2012_devkit_t12.tar.gz" in said.err
    (tmp_path / "kit.tar.gz").rename(tmp_path / "ILSVRC2012_devkit_t12.tar.gz")
    said = command(capsys, "prepare", "imagenet", *tars, "--output-dir", tmp_path / "out")
    assert said.code == 0, said.err
    unpacked = tmp_path / "unpacked"
    for name, _, file, data in renamed:
        path = unpacked / "train" / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for (file, data), label in zip(flat, labels):
        path = unpacked / "val" / label / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert command(capsys, "prepare", "imagenet", unpacked).code == 0
    ours, plain = Manifest.load(tmp_path / "out"), Manifest.load(unpacked)
    assert (ours.content_hash, ours.expect) == (plain.content_hash, "imagenet")
    packed_sets.tar_in_tar(renamed[1:], tmp_path / "ILSVRC2012_img_train.tar")
    said = command(capsys, "prepare", "imagenet", *tars, "--output-dir", tmp_path / "out")
    assert said.code == 2 and "ILSVRC2012_img_train.tar: 17 images, but ImageNet has 18" in said.err
