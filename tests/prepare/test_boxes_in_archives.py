"""An archive of annotated boxes, as Roboflow gives them out, is never taken for class folders called train, valid and test."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from paceline.cli.main import main

YAML = "train: train/images\nval: valid/images\nnames: [cell]\n"


def photo(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), (shade, 9, 90)).save(file, "JPEG")
    return file.getvalue()


def members(kind: str) -> dict[str, bytes]:
    """A small export of the kind: two splits of four photos, an object on each."""
    found: dict[str, bytes] = {}
    for s, split in enumerate(("train", "valid")):
        names = [f"{i}_jpg.rf.jpg" for i in range(4)]
        folder = f"{split}/images" if kind == "yolo" else split
        found |= {f"{folder}/{name}": photo(20 * i + 100 * s) for i, name in enumerate(names)}
        if kind == "yolo":
            found |= {f"{split}/labels/{Path(name).stem}.txt": b"0 0.5 0.5 0.4 0.4\n" for name in names}
        elif kind == "coco":
            content = {
                "images": [{"id": i, "file_name": name, "width": 48, "height": 32} for i, name in enumerate(names)],
                "annotations": [
                    {"id": i, "image_id": i, "category_id": 1, "bbox": [4, 4, 20, 20], "area": 400} for i in range(4)
                ],
                "categories": [{"id": 1, "name": "cell"}],
            }
            found[f"{split}/_annotations.coco.json"] = json.dumps(content).encode()
    return found | ({"data.yaml": YAML.encode()} if kind == "yolo" else {})


def packed(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        with tarfile.open(path, "w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
@pytest.mark.parametrize("kind", ["coco", "yolo"])
def test_an_archive_of_boxes_is_refused_with_commands_that_prepare_them(
    kind: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = packed(tmp_path / f"Cells v1{suffix}", members(kind))
    assert main(["prepare", suffix[1:], "--train", str(archive), "--out", str(tmp_path / "set")]) == 2
    unpack, prepare = capsys.readouterr().err.splitlines()[1:3]
    assert not (tmp_path / "set" / "manifest.json").exists()
    subprocess.run(unpack, shell=True, check=True)
    assert main(shlex.split(prepare)[1:]) == 0, capsys.readouterr().err
    assert "cell" in (tmp_path / "Cells v1" / "manifest.json").read_text()


def test_splits_without_class_folders_are_no_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: data for name, data in members("").items() if name.endswith(".jpg")}
    archive = packed(tmp_path / "photos.zip", files)
    assert main(["prepare", "zip", "--train", str(archive), "--out", str(tmp_path / "set")]) == 2
    assert "train and valid are splits, not classes" in capsys.readouterr().err
