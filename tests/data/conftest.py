"""The loopback server of downloads; and what tests of prepare begin with: class folders, and the names of what is decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_site import Site, serving, small_blocks
from photo_folders import make_photos

import paceline.data.prepare.verify_images as verify_images
from paceline.data.prepare.verify_image import ImageInfo


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The server, small blocks, and no pauses between attempts."""
    small_blocks(monkeypatch)
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unpacking asks for all of the machine's writes, which takes seconds where others write too."""
    monkeypatch.setattr("os.sync", lambda: None)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


@pytest.fixture
def verified(monkeypatch) -> list[str]:
    """Names of the files that are decoded from here on."""
    names: list[str] = []
    real = verify_images.verify

    def counting(path: bytes) -> ImageInfo:
        names.append(os.fsdecode(os.path.basename(path)))
        return real(path)

    monkeypatch.setattr(verify_images, "verify", counting)
    return names
