"""Annotations of strangers: refused in one sentence that names the file, or taken."""

from __future__ import annotations

from pathlib import Path

from hostile import judge, parameters
from hostile_coco import COCO


@parameters(COCO)
def test_a_strangers_coco_json_is_refused_or_taken(name: str, tmp_path: Path) -> None:
    judge(COCO, name, tmp_path / "set")
