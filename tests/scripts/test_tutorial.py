"""The tutorial's commands do what its page says, in order, and its picture is one of its script's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("tutorial", ROOT / "scripts" / "tutorial.py")
TUTORIAL = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(TUTORIAL)


def test_the_pages_picture_is_there_and_small():
    named = re.findall(r"!\[[^]]+\]\((pictures/\w+\.jpg)\)", (ROOT / "docs" / "tutorial-boxes.md").read_text())
    assert named == ["pictures/preview.jpg"] and len(TUTORIAL.commands()) == 6
    assert all((ROOT / "docs" / name).stat().st_size < 100_000 for name in named)


@pytest.mark.nightly("carries out a page of six commands, a training among them")
def test_the_tutorial_is_carried_out_and_makes_its_picture(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    TUTORIAL.carry_out(tmp_path / "work", tmp_path / "pictures", steps=40)
    assert (tmp_path / "work" / "shapes.safetensors").is_file()
    assert (tmp_path / "work" / "runs" / "boxes" / "report.html").is_file()
    with Image.open(tmp_path / "pictures" / "preview.jpg") as picture:
        assert max(picture.size) <= TUTORIAL.SIDE and picture.convert("RGB").getcolors(256) is None
