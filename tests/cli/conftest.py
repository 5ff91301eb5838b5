"""Fixtures of the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def photos(class_photos) -> Path:
    """Photos to train on, which nobody changes."""
    return class_photos
