"""A prepared data set from somebody else: arrays that cannot be are one sentence, and commands from it are quoted."""

from __future__ import annotations

import shlex
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coco_sets import make_set
from listed_photos import list_photos
from messages import check_text
from tiny_runs import TINY, command, refused

from paceline._utils.errors import DataError
from paceline.data.index.box_split import open_boxes
from paceline.data.index.index import describe_arrays, open_split, write_index
from paceline.data.index.manifest import Manifest, repeat_command
from paceline.data.prepare.auto_prepare import prepare_if_needed

Change = Callable[[np.ndarray], object]


def forged(manifest: Manifest, folder: Path, split: str, name: str, change: Change) -> Manifest:
    """The same data set in `folder` with another array, its checksums right, as a stranger would write it."""
    arrays = {
        one: {key: np.load(manifest.folder / manifest.index / f"{one}.{key}.npy") for key in manifest.splits[one].arrays}
        for one in manifest.splits
    }
    found = arrays[split][name].copy()
    arrays[split][name] = found if (made := change(found)) is None else np.asarray(made)
    folder.mkdir(exist_ok=True)
    splits = {one: replace(manifest.splits[one], arrays=describe_arrays(arrays[one])) for one in manifest.splits}
    made = replace(manifest, folder=folder, root=str(manifest.root_path), index=write_index(folder, arrays), splits=splits)
    made.save()
    return Manifest.load(folder)


def put(place: int, value: int) -> Change:
    return lambda array: array.__setitem__(place, value)


@pytest.fixture
def classes(class_photos, tmp_path) -> Manifest:
    return Manifest.load(prepare_if_needed(class_photos))


@pytest.mark.parametrize(
    ("name", "change", "wrong"),
    [
        ("labels", put(1, 100), "label 100 is out of range; expected 0 to 2"),
        ("labels", put(1, 3), "label 3"),
        ("labels", put(1, -1), "label -1"),
        ("labels", put(1, -100), "label -100"),  # torch's word for a label that is left out
        ("files", put(1, 1 << 30), "files 1,073,741,824"),
        ("files", put(1, -1), "files -1"),
        ("lengths", put(1, -1), "lengths -1"),
        ("name_starts", put(1, 1 << 40), "name_starts"),
        ("name_starts", put(1, -5), "name_starts"),
        ("heights", lambda array: array[:-1], "heights"),
        ("labels", lambda array: array.astype(np.float32), "labels.*integers"),
        ("flags", lambda array: array[:1], "flags"),
    ],
)
def test_an_array_of_class_folders_that_cannot_be_is_refused_in_words(classes, tmp_path, name, change, wrong) -> None:
    made = forged(classes, tmp_path / "forged", "train", name, change)
    with pytest.raises(DataError, match=f"index.* train.*{wrong}"):
        open_split(made, "train")


def test_a_verb_says_so_in_a_sentence(classes, tmp_path, capsys) -> None:
    forged(classes, tmp_path / "forged", "val", "labels", put(0, -100))
    refused(command(capsys, "data", "info", tmp_path / "forged"), "label -100 ... 0 to 2")
    words = [
        "train",
        "classify-demo",
        "--data",
        tmp_path / "forged",
        "--output-dir",
        tmp_path / "run",
        *TINY,
        "--max-steps",
        1,
    ]
    assert command(capsys, *words).code == 0  # the photos are class folders, whose own index is taken


@pytest.mark.parametrize(
    ("name", "change", "wrong"),
    [
        ("classes", put(0, 100), "label 100 is out of range; expected 1 to "),
        ("classes", put(0, 0), "label 0"),
        ("classes", put(0, -100), "label -100"),
        ("object_starts", put(1, 1 << 40), "object_starts"),
        ("object_starts", put(-1, 10**6), "object_starts"),
        ("object_polygons", put(1, -3), "object_polygons"),
        ("polygon_starts", put(-1, 1 << 40), "polygon_starts"),
        ("object_rles", put(-1, 9), "object_rles"),
        ("boxes", lambda array: array[:, :3], "boxes"),
        ("boxes", lambda array: array.__setitem__((0, 0), np.nan), "boxes.*finite"),
        ("image_ids", lambda array: array[:1], "image_ids.*shape"),
    ],
)
def test_an_array_of_boxes_that_cannot_be_is_refused_in_words(tmp_path, name, change, wrong) -> None:
    root = make_set(tmp_path / "set")
    manifest = Manifest.load(prepare_if_needed(root, kind="boxes"))
    open_boxes(manifest, "train")
    made = forged(manifest, tmp_path / "forged", "train", name, change)
    with pytest.raises(DataError, match=f"index.* train.*{wrong}"):
        open_boxes(made, "train")


def test_a_command_from_somebodys_manifest_holds_no_second_command(classes, tmp_path) -> None:
    evil = "webdataset; touch PWN #"
    for request in (
        {"layout": evil, "train": ["a b; touch PWN.tar"], "val": ["$(touch PWN)"]},
        {"layout": evil, "images_dir": "", "annotations": "`touch PWN`"},
    ):
        kind = "boxes" if "images_dir" in request else "class-folder"
        splits = classes.splits if kind == "boxes" else {"train": replace(classes.splits["train"], records="ranges")}
        made = repeat_command(replace(classes, request=request, kind=kind, splits=splits, folder=tmp_path))
        words = shlex.split(made, comments=True)
        assert words[2] == evil and shlex.join(words) == shlex.join(shlex.split(made)), made
        lexer = shlex.shlex(made, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        assert not {";", "&", "|", "(", ")", "<", ">"} & set(lexer), made


@pytest.mark.parametrize(
    "request_",
    [{"x; touch PWN": 1}, {"layout": ["coco"]}, {"layout": "coco", "images_dir": {"a": 1}}, ["coco"], {"train": [[1]]}],
)
def test_a_request_that_nobody_can_have_made_is_damage(classes, tmp_path, request_) -> None:
    shutil.copytree(classes.folder, tmp_path / "copy")
    replace(classes, folder=tmp_path / "copy", root=str(classes.root_path), request=request_).save()
    with pytest.raises(DataError, match="damaged"):
        Manifest.load(tmp_path / "copy")


def test_what_only_describes_a_set_asks_no_host_that_its_index_names(tmp_path, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/of/somebody.tar"
        list_photos(tmp_path, [url])
        made = Manifest.load(tmp_path)
        arrays = {name: np.load(tmp_path / made.index / f"val.{name}.npy") for name in made.splits["val"].arrays}
        arrays["file_sizes"] = np.array([4096])
        split = replace(made.splits["val"], arrays=describe_arrays(arrays), records="ranges")
        replace(made, index=write_index(tmp_path, {"val": arrays}), splits={"val": split}).save()
        said = command(capsys, "data", "info", tmp_path)
        assert said.code == 0 and check_text(said.out, url[:-16]), said
        with pytest.raises(BlockingIOError):
            server.accept()
