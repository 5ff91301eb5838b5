"""What the tests of whole commands share: a small class-folder set, flags of a network that trains in a blink, one command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from messages import check_text
from PIL import Image

from paceline._utils.safe_read import SEAL, with_checksum
from paceline.cli.main import main

CLASSES = ("ant", "bee", "cat")
NET = [
    "--model.depth", "10", "--model.width", "8",
    "--input.image-size", "32", "--input.eval-crop-size", "32", "--input.eval-resize-size", "36",
]  # fmt: skip
TINY = [*NET, "--global-batch-size", "8", "--optim.lr", "0.01"]
# The same for the Python call.
TINY_CHANGES = {
    "model.depth": 10, "model.width": 8, "input.image_size": 32, "input.eval_crop_size": 32, "input.eval_resize_size": 36,
    "global_batch_size": 8, "optim.lr": 0.01,
}  # fmt: skip


def make_photos(root: Path, classes: tuple[str, ...] = CLASSES, *, train: int = 6, val: int = 3, kind: str = "jpg") -> Path:
    """root/{train,val}/CLASS/N.kind: noise with a tint for each class."""
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for number, label in enumerate(classes):
            folder = root / split / label
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(0, 255, (40, 48, 3), dtype=np.uint8)
                pixels[..., number % 3] //= 4
                Image.fromarray(pixels).save(folder / f"{index}.{kind}")
    return root


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *words: object) -> Said:
    """Carry out `paceline WORDS` in this process."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return Said(code, said.out, said.err)


def train(capsys: pytest.CaptureFixture[str], data: Path, out: Path, *more: object, steps: int = 2) -> Said:
    """`paceline train classify-demo` with the small network."""
    return command(
        capsys, "train", "classify-demo", "--data", data, "--output-dir", out, *TINY, "--max-steps", steps, *more
    )


def forge(run: Path, changes: Mapping[str, object]) -> None:
    """Give RUN/run.json other values, as a stranger would: dotted keys, and a checksum that fits again; None removes."""
    facts = json.loads((run / "run.json").read_text())
    del facts[SEAL]
    for dotted, value in changes.items():
        node, (*above, last) = facts, dotted.split(".")
        for key in above:
            node = node[key]
        node[last] = value
        if value is None:
            del node[last]
    (run / "run.json").write_text(json.dumps(with_checksum(facts)))


def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the report out: it takes longer than the run, and has tests of its own."""
    monkeypatch.setattr("paceline.api.report_run", lambda *_: None)


def of_its_own(patch: pytest.MonkeyPatch, factory: pytest.TempPathFactory) -> None:
    """For fixtures that serve a whole module, which the fixtures of single tests do not reach: a cache, and no report."""
    patch.setenv("PACELINE_CACHE", str(factory.mktemp("cache")))
    without_report(patch)


def refused(said: Said, *wanted: str, lines: int = 4) -> None:
    """The command ended as a user error: exit code 2, one message of few lines with all `wanted` in it, no traceback."""
    assert said.code == 2, said
    message = said.err.strip()
    assert message.startswith("paceline: ") and message.count("paceline: ") == 1, said.err
    assert "Traceback" not in said.err and len(message.splitlines()) <= lines, said.err
    check_text(message, *wanted)
