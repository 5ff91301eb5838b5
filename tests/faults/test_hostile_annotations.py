"""Annotations of strangers: refused in one sentence that names the file, or taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import judge, parameters
from hostile_coco import COCO
from hostile_labels import VOC, YOLO


@parameters(COCO)
def test_a_strangers_coco_json_is_refused_or_taken(name: str, tmp_path: Path) -> None:
    judge(COCO, name, tmp_path / "set")


@parameters(YOLO)
def test_a_strangers_yolo_set_is_refused_or_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judge(YOLO, name, tmp_path / "set")
    assert not list(tmp_path.rglob("PWNED"))


@parameters(VOC)
def test_a_strangers_voc_set_is_refused_or_taken(name: str, tmp_path: Path) -> None:
    judge(VOC, name, tmp_path / "set")
