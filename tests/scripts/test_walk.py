"""The user's walk of scripts/walk.sh, short: every verb as a process, on a small network and a dozen rendered pictures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared_runs import SSD, rendered_boxes

ROOT = Path(__file__).resolve().parents[2]


# Each verb has its own tests, in one process; this one takes a minute of new ones.
@pytest.mark.nightly("each verb as a process for a minute; every verb has tests of its own by day")
def test_a_user_s_walk_through_every_verb(tmp_path, tmp_path_factory):
    data = rendered_boxes(tmp_path_factory)
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PACELINE_CACHE": str(tmp_path / "cache"),
        "FLAGS": f"{SSD} --system.intra-op-threads 1 --system.num-workers 1",
        "STEPS": "180",
        "SHORT": "yes",
    }
    walk = [str(ROOT / "scripts" / "walk.sh"), str(data), str(tmp_path / "walk")]
    done = subprocess.run(walk, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("walk: done"), done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stdout + done.stderr
    answers = json.loads((tmp_path / "walk" / "answers" / "predictions.json").read_text())
    assert len(answers["images"]) == 7 and all(
        (tmp_path / "walk" / "answers" / i["annotated_image"]).exists() for i in answers["images"]
    )
    events = map(json.loads, (tmp_path / "walk" / "run" / "events.jsonl").read_text().splitlines())
    assert [event["status"] for event in events if event["event"] == "end"][-1] == "stopped_early"
