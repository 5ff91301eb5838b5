"""The commands of each section of the tutorial do what the page says, in order, and the script makes its pictures."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("tutorial", ROOT / "scripts" / "tutorial.py")
TUTORIAL = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(TUTORIAL)
PICTURES = ("preview.jpg", "loss.svg", "answers.jpg")


@pytest.mark.parametrize("name", TUTORIAL.NAMES)
def test_the_pages_pictures_are_there_and_small(name):
    named = re.findall(r"!\[[^]]+\]\(\.\./(pictures/[\w-]+\.\w+)\)", TUTORIAL.section(name))
    assert f"pictures/{name}-preview.jpg" in named and len(TUTORIAL.commands(name)) == 6
    for file in (ROOT / "docs" / one for one in named):
        assert file.name in {f"{name}-{what}" for what in PICTURES} and file.stat().st_size < 100_000
        assert file.suffix != ".svg" or "var(" not in file.read_text()


def test_every_picture_is_on_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert not [path.name for path in (ROOT / "docs" / "pictures").iterdir() if f"pictures/{path.name})" not in pages]


@pytest.mark.nightly("carries out pages of six commands, a training among them")
@pytest.mark.parametrize("name", TUTORIAL.NAMES)
def test_a_tutorial_is_carried_out_and_makes_its_pictures(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    TUTORIAL.carry_out(name, tmp_path / "work", tmp_path / "pictures", steps=40)
    assert (tmp_path / "work" / "shapes.safetensors").is_file()
    assert (tmp_path / "work" / "runs" / name / "report.html").is_file()
    for what in ("preview", "answers"):
        with Image.open(tmp_path / "pictures" / f"{name}-{what}.jpg") as picture:
            assert max(picture.size) <= TUTORIAL.SIDE and picture.convert("RGB").getcolors(256) is None
    ElementTree.parse(tmp_path / "pictures" / f"{name}-loss.svg")
