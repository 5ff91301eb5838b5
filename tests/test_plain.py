"""examples/plain.py is the whole of training: its weights are those of `paceline train` in the same memory layout, bit for bit."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from by_night import ONE_MORE
from instance_sets import make_instances
from run_files import without_card
from tiny_runs import command, make_photos

PLAIN = Path(__file__).parents[1] / "examples" / "plain.py"
pytestmark = pytest.mark.usefixtures("no_report")


def test_it_is_read_in_a_minute():
    lines = PLAIN.read_text().splitlines()
    assert len(lines) <= 60
    # From its own parts: nothing private, nothing of a verb.
    assert not any("cli" in line or " _" in line for line in lines if line.startswith(("from", "import")))


BY_NIGHT = pytest.param("maskrcnn-demo", marks=ONE_MORE)  # eight seconds


@pytest.mark.parametrize("recipe", ["classify-demo", "ssd-demo", BY_NIGHT])
def test_its_weights_are_those_of_train(recipe, tmp_path, monkeypatch, capsys):
    if recipe == "classify-demo":
        data = make_photos(tmp_path / "set", train=9, val=3)
    else:
        data = make_instances(tmp_path / "set", train=8, val=2)
    words = [recipe, "--data", str(data), "--max-steps", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["plain.py", *words, "--output-dir", str(tmp_path / "plain")])
        runpy.run_path(str(PLAIN), run_name="__main__")
    plain = tensor_files_of(tmp_path / "plain" / "step-000003")
    said = command(capsys, "train", *words, "--system.channels-last", "on", "--output-dir", tmp_path / "run", "--quiet")
    assert said.code == 0, said.err
    trained = tensor_files_of(tmp_path / "run" / "checkpoints" / "step-000003")
    assert plain.keys() == trained.keys() >= {"model.safetensors", "optimizer.safetensors"}
    assert plain == trained


def tensor_files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: without_card(path.read_bytes()) for path in folder.glob("*.safetensors")}
