"""A file that --output names is written whole, in place of an earlier one of ours at most."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from shared_runs import SharedRun
from tiny_runs import command, refused

from paceline._utils.atomic_write import check_user_file, is_replaceable, write_user_file
from paceline._utils.errors import PacelineError

REFUSED = "already exists and was not written by paceline"


@pytest.mark.parametrize("name", ["preview.png", "preview.jpg"])
def test_a_preview_takes_the_place_of_an_earlier_one_and_of_no_other_picture(name, ssd_run: SharedRun, capsys, tmp_path):
    words = ["preview", "ssd-demo", "--data", ssd_run.data, "--num-images", 2, "--columns", 2, "--output", tmp_path / name]
    Image.new("RGB", (8, 8)).save(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    refused(command(capsys, *words), f"--output {tmp_path / name}", REFUSED)
    assert (tmp_path / name).read_bytes() == before
    (tmp_path / name).unlink()
    for _ in range(2):
        assert command(capsys, *words).code == 0
    with Image.open(tmp_path / name) as picture:
        assert picture.size[0] > 8
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_predictions_of_eval_take_the_place_of_earlier_ones_and_of_nothing_else(ssd_run: SharedRun, capsys, tmp_path):
    file = tmp_path / "found.json"
    for notes in ('{"my": "notes"}', '{"step": 12, "loss": 0.3}'):
        file.write_text(notes)
        said = command(capsys, "eval", ssd_run.folder, "--output", file)
        refused(said, f"--output {file}", REFUSED)
        assert said.out == "" and file.read_text() == notes
    (tmp_path / ".found.json.01234567.part").write_text("of a killed one")
    (tmp_path / ".other.json.01234567.part").write_text("of somebody else")
    file.unlink()
    for _ in range(2):
        assert command(capsys, "eval", ssd_run.folder, "--output", file, "--max-val-images", 2).code == 0
        assert next(iter(json.loads(file.read_text()))) == "paceline"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.json.01234567.part", "found.json"]


@pytest.mark.parametrize(
    "words",
    [
        "doctor",
        "bench eval",
        "bench input",
        "bench startup",
        "bench step",
        "bench comm",
        "bench comm --scheduler local --nodes 1",
        "weights convert {out} --format paceline",
    ],
)
def test_every_verb_refuses_a_file_of_the_users_before_it_begins(words, capsys, tmp_path):
    out = tmp_path / "mine.safetensors"
    out.write_text("mine")
    said = command(capsys, *words.format(out=tmp_path / "other").split(), "--output", out)
    assert said.code == 2 and out.read_text() == "mine"
    if "convert" not in words:  # the weights are not there either
        refused(said, f"--output {out}", REFUSED)


def test_a_link_of_the_users_is_neither_followed_nor_replaced(tmp_path):
    ours, link = tmp_path / "ours", tmp_path / "link"
    write_user_file(ours, '{"paceline": "answer"}')
    link.symlink_to(ours)
    for out in (link, tmp_path):
        with pytest.raises(PacelineError):
            write_user_file(out, '{"paceline": "answer"}')
    link.unlink()
    link.symlink_to("nowhere")
    with pytest.raises(PacelineError, match=REFUSED):
        check_user_file(link)
    assert is_replaceable(ours) and is_replaceable(tmp_path / "new") and link.is_symlink() and not Path("nowhere").exists()
