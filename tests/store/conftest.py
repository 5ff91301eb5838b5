"""The loopback server, for every test of downloads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loopback_site import Site, serving, small_blocks


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
