"""A set whose files were named one by one is called by the folder that --output-dir named, in every message and every printed
command.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from instance_sets import make_instances
from messages import check_text, raises
from PIL import Image
from tiny_runs import make_photos

from paceline._utils.errors import DataError
from paceline.cli.main import main
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos/ and my.json side by side in the working folder, with no masks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for i in range(10):
        Image.new("RGB", (48, 40), (20 * i, 90, 9)).save(tmp_path / "photos" / f"{i}.jpg")
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 48, "height": 40} for i in range(10)]
    objects = [{"id": i, "image_id": i, "category_id": 1, "bbox": [4, 4, 24, 24], "area": 576} for i in range(10)]
    record = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "cell"}]}
    (tmp_path / "my.json").write_text(json.dumps(record))
    return tmp_path


# So few photos are planned by hand alone.
FEW = ["--global-batch-size", "2", "--bn-batch-size", "2", "--optim.lr", "1e-3", "--epochs", "30"]
PREPARE = ["prepare", "coco", "--images-dir", "photos", "--annotations", "my.json"]


def test_a_refused_prepare_prints_a_command_that_writes_to_the_same_place(
    named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PREPARE, "--output-dir", "my set"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("paceline: my.json: validation images")
    assert main(shlex.split(said.splitlines()[1])[1:]) == 0, capsys.readouterr().err
    assert Manifest.load(Path("my set")).splits.keys() == {"train", "val"}


def test_so_does_a_refused_prepare_of_class_folders(
    tmp_path: Path, class_photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(class_photos / "train", "classes")
    assert main(["prepare", "folder", "--data", "classes", "--output-dir", "mine"]) == 2
    assert main(shlex.split(capsys.readouterr().err.splitlines()[1])[1:]) == 0
    assert Manifest.load(Path("mine")).splits.keys() == {"train", "val"}


def test_a_set_of_named_files_is_called_by_its_own_folder(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PREPARE, "--val-fraction", "0.2", "--output-dir", "mine"]) == 0
    assert str(named / "mine") in (named / "mine" / "check.html").read_text()
    capsys.readouterr()
    assert main(["train", "maskrcnn-demo", "--data", "mine", "--output-dir", "runs/masks"]) == 2
    command = capsys.readouterr().err.splitlines()[1].partition("  ")[2]
    assert command == f"paceline train fasterrcnn-finetune --data {named / 'mine'} --weights fasterrcnn"
    assert main(["plan", *shlex.split(command)[2:5], *FEW]) == 0


def test_a_pack_may_lie_beside_the_files_of_a_set_and_not_among_its_photos(
    named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PREPARE, "--val-fraction", "0.2", "--output-dir", "mine"]) == 0
    for inside in ("mine", "photos/packed"):
        assert main(["data", "pack", "mine", "--format", "webdataset", "--output-dir", inside]) == 2
        check_text(capsys.readouterr().err, "--output-dir", "packed dataset")
    assert main(["data", "pack", "mine", "--format", "webdataset", "--output-dir", "packed"]) == 0, capsys.readouterr().err


def test_a_classifier_on_it_gets_the_command_of_a_detector(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PREPARE, "--val-fraction", "0.2", "--output-dir", "mine"]) == 0
    capsys.readouterr()
    assert main(["train", "classify-demo", "--data", "mine", "--output-dir", "run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("paceline: mine: ") and check_text(said, "boxes", "class folders")
    assert main(["plan", *shlex.split(said.splitlines()[1])[2:5], *FEW]) == 0


def test_data_of_the_other_kind_get_the_command_that_trains_on_them(
    named: Path, class_photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (named / "boxes" / "train").mkdir(parents=True)
    (named / "my.json").rename(named / "boxes" / "train" / "_annotations.coco.json")
    shutil.copytree(named / "photos", named / "boxes" / "train", dirs_exist_ok=True)
    shutil.copytree(named / "boxes" / "train", named / "boxes" / "valid")
    for recipe, data, other in (
        ("classify-demo", named / "boxes", "ssd-finetune"),
        ("ssd-demo", class_photos, "classify-demo"),
        ("maskrcnn-demo", class_photos, "classify-demo"),
    ):
        assert main(["train", recipe, "--data", str(data), "--output-dir", "run"]) == 2
        command = capsys.readouterr().err.splitlines()[1]
        assert command.split()[:3] == ["paceline", "train", other]
        assert main(["plan", *shlex.split(command)[2:5], *FEW]) == 0
        capsys.readouterr()


def test_each_kind_of_data_for_the_other_kind_of_recipe_gets_the_command_of_its_own(tmp_path):
    folders, boxes = make_photos(tmp_path / "folders"), make_instances(tmp_path / "boxes", train=2, val=1)
    with raises(DataError, "boxes", "paceline train classify-demo --data"):
        prepare_if_needed(folders, kind="boxes")
    with raises(DataError, "class folders", "paceline train ssd-finetune --data"):
        prepare_if_needed(boxes, kind="class-folder")
