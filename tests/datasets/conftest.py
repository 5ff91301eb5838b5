"""What several tests of prepare begin with: a small set of class folders, and the names of what is decoded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from photo_folders import make_photos

import paceline.datasets.inspection as inspection
from paceline.datasets.verify import Facts


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


@pytest.fixture
def verified(monkeypatch) -> list[str]:
    """Names of the files that are decoded from here on."""
    names: list[str] = []
    real = inspection.verify

    def counting(path: bytes) -> Facts:
        names.append(os.fsdecode(os.path.basename(path)))
        return real(path)

    monkeypatch.setattr(inspection, "verify", counting)
    return names
