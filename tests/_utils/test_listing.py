"""Folders are listed without hidden and system entries, and in the order of names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline._utils.names import glob_paths, in_system_folder, is_system_name, list_matching, scan_folder, walk_visible

SYSTEM = [
    "._01.jpg", ".DS_Store", ".ipynb_checkpoints", "__MACOSX", "@eaDir", "#recycle", "@Recycle", "lost+found",
    "$RECYCLE.BIN", "System Volume Information", "Thumbs.db", "thumbs.DB", "desktop.ini", "Desktop.ini",
]  # fmt: skip


@pytest.mark.parametrize("name", SYSTEM)
def test_a_system_name_is_known_in_text_and_in_bytes(name: str) -> None:
    assert is_system_name(name) and is_system_name(os.fsencode(name))
    assert in_system_folder(f"a/{name}/b.jpg") and in_system_folder(os.fsencode(f"a/{name}"))


@pytest.mark.parametrize("name", ["01.jpg", "lost", "eaDir", "MACOSX", "a.b", "thumbs.jpg", "recycle", "_x"])
def test_other_names_are_data(name: str) -> None:
    assert not is_system_name(name) and not in_system_folder(f"./a/../{name}")


def test_every_way_of_listing_leaves_system_entries_out(tmp_path: Path) -> None:
    for name in SYSTEM:
        if not (tmp_path / name).exists():
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.jpg").touch()
    (tmp_path / "b").mkdir()
    for name in ("c.jpg", "b/d.jpg"):
        (tmp_path / name).touch()
    entries, hidden = scan_folder(os.fspath(tmp_path))
    assert [entry.name for entry in entries] == ["b", "c.jpg"] and hidden == len(os.listdir(tmp_path)) - 2
    assert list_matching(tmp_path) == [tmp_path / "b", tmp_path / "c.jpg"]
    assert list_matching(tmp_path, "*.png", "*.jpg") == [tmp_path / "c.jpg"]
    assert list(walk_visible(tmp_path)) == [(str(tmp_path), ["b"], ["c.jpg"]), (str(tmp_path / "b"), [], ["d.jpg"])]
    assert glob_paths(f"{tmp_path}/*/*.jpg") == [str(tmp_path / "b/d.jpg")]
    assert glob_paths(f"{tmp_path}/**/*.jpg", recursive=True) == [str(tmp_path / "b/d.jpg"), str(tmp_path / "c.jpg")]
    assert glob_paths(f"{tmp_path}/@eaDir/*.jpg") == [str(tmp_path / "@eaDir/a.jpg")]  # named, so meant


def test_a_folder_that_cannot_be_listed_holds_nothing(tmp_path: Path) -> None:
    assert list_matching(tmp_path / "gone") == [] and list(walk_visible(tmp_path / "gone")) == []
    with pytest.raises(FileNotFoundError):
        scan_folder(str(tmp_path / "gone"))
