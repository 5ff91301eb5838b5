"""Where the cache lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.cache import cache_folder
from paceline.config.errors import UserError


def test_the_variable_names_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "not yet there"))
    assert cache_folder() == tmp_path / "not yet there"
    assert not cache_folder().exists()


def test_a_relative_folder_is_meant_from_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", "near")
    assert cache_folder() == tmp_path / "near"


@pytest.mark.parametrize("unset", [True, False])
def test_without_the_variable_it_is_in_the_home_folder(monkeypatch, tmp_path, unset):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PACELINE_CACHE", "")
    if unset:
        monkeypatch.delenv("PACELINE_CACHE")
    assert cache_folder() == tmp_path / ".cache" / "paceline"


def test_a_user_without_a_home_is_told_of_the_variable(monkeypatch):
    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(UserError, match="PACELINE_CACHE"):
        cache_folder()
