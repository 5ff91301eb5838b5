"""Where the cache lies, and what is remembered in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline._utils.cache import cache_folder, cached_answer
from paceline._utils.errors import PacelineError


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
    with pytest.raises(PacelineError, match="PACELINE_CACHE"):
        cache_folder()


# What is remembered ---------------------------------------------------------------------------------------------------


class Counting:
    """Works an answer out, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> dict[str, int]:
        self.times += 1
        return {"answer": 40 + self.times}


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_same_question_is_worked_out_once_and_another_one_anew(cache):
    work = Counting()
    assert (
        cached_answer("kind", {"a": 1, "b": [2]}, work) == cached_answer("kind", {"b": [2], "a": 1}, work) == {"answer": 41}
    )
    assert cached_answer("kind", {"a": 1, "b": [3]}, work) == {"answer": 42}
    assert cached_answer("other", {"a": 1, "b": [2]}, work) == {"answer": 43}
    assert len(list(cache.rglob("*.json"))) == 3 and not list(cache.rglob("*.part"))


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"answer": {"answer": 7}}', b"\xff\xfe"])
def test_a_damaged_answer_is_worked_out_again_and_replaced(cache, damage):
    work = Counting()
    cached_answer("kind", {}, work)
    (file,) = cache.rglob("*.json")
    file.write_bytes(damage)
    assert cached_answer("kind", {}, work) == cached_answer("kind", {}, work) == {"answer": 42}


def test_without_a_cache_that_can_be_written_answers_are_worked_out_anew(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    work = Counting()
    assert [cached_answer("kind", {}, work)["answer"] for _ in range(2)] == [41, 42]
