"""The container that docs/how-to/extend/archive-format.md shows: a run on it is a run on the folder."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

from tiny_runs import TINY, command, without_report

from paceline.data.index import records
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed

PAGE = Path(__file__).parents[1] / "docs/how-to/extend/archive-format.md"


def test_the_container_of_the_page_trains_as_the_folder_does(class_photos, tmp_path, monkeypatch, capsys):
    without_report(monkeypatch)
    monkeypatch.setattr(records, "RECORDS", dict(records.RECORDS))
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    (tmp_path / "zipped.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    prepared = Manifest.load(prepare_if_needed(class_photos))
    runpy.run_path("zipped.py")["pack"](prepared, tmp_path / "packed")
    flags = [*TINY, "--bn-batch-size", "8", "--max-steps", "2", "--log-every", "1"]
    losses = []
    for data, more in ((class_photos, []), ("packed", ["--system.io-threads", 2])):
        out = tmp_path / f"run-{len(losses)}"
        said = command(capsys, "train", "./zipped.py:demo", "--data", data, "--output-dir", out, *flags, *more)
        assert said.code == 0, said
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        losses.append([event["loss"] for event in events if event["event"] == "train"])
    assert losses[0] == losses[1] and len(losses[0]) == 2
