"""Every weight file of a stranger is refused in one sentence, and nothing in it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import judge, parameters
from hostile_weights import WEIGHTS


@parameters(WEIGHTS)
def test_a_strangers_weight_file_is_refused_and_runs_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    judge(WEIGHTS, name, tmp_path / "folder")
    assert not list(tmp_path.rglob("PWNED"))
