"""What a run left in its folder, for tests to look at; and how a kill leaves a folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from paceline.training.logging.events import read_events


def facts_of(run: Path) -> dict[str, Any]:
    """What run.json says."""
    return json.loads((run / "run.json").read_text())


def events_of(run: Path, kind: str) -> list[dict[str, Any]]:
    """Its events of one kind."""
    return [dict(event) for event in read_events(run / "events.jsonl") if event["event"] == kind]


class TensorFile(bytes):
    """A file of tensors. pytest would compare the bytes of two of them as text, for minutes; tests/differences.py compares tensors."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, sha256 {hashlib.sha256(self).hexdigest()[:12]}>"


def tensor_files(run: Path, checkpoint: str = "last") -> dict[str, TensorFile]:
    """The bytes of every tensor file of a checkpoint, which has two at least."""
    folder = run / "checkpoints" / checkpoint
    found = {path.name: TensorFile(path.read_bytes()) for path in sorted(folder.glob("*.safetensors"))}
    assert len(found) >= 2, run
    return found


def without_card(content: bytes) -> TensorFile:
    """A file of tensors without what it says of its run, which names the data."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header.pop("__metadata__", None)
    header_bytes = json.dumps(header).encode()
    return TensorFile(len(header_bytes).to_bytes(8, "little") + header_bytes + content[end:])


def unfinished(run: Path) -> Path:
    """Take the `end` event away, as a kill just before it does; -> the same folder."""
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if '"event": "end"' not in line))
    return run


def cut_after(run: Path, step: int, *, but: tuple[str, ...] = ()) -> Path:
    """Leave what a kill leaves when all of `step` is written, but for the kinds of its events named; -> the same folder."""
    for saved in (run / "checkpoints").glob("step-*"):
        if int(saved.name[5:]) > step:
            shutil.rmtree(saved)
    for link in ("last", "best"):
        if not (run / "checkpoints" / link).exists():
            (run / "checkpoints" / link).unlink(missing_ok=True)

    def stays(line: str) -> bool:
        event = json.loads(line)
        return event["step"] <= step and not (event["step"] == step and event["event"] in but)

    lines = (unfinished(run) / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if stays(line)))
    return run
