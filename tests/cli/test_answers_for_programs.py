"""--json of verbs that answer in lines: what a program wants of the answer has a field of its own beside them."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_runs import command


def answer(capsys, *words: object) -> dict:
    said = command(capsys, *words, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_prepare_and_pack_give_what_data_takes_its_classes_and_counts(class_photos, tmp_path, capsys):
    found = answer(capsys, "prepare", "folder", class_photos, "--output-dir", tmp_path / "set")
    assert (found["verb"], found["exit_code"], found["kind"]) == ("prepare", 0, "class-folder")
    assert found["data"] == str(tmp_path / "set") and Path(found["manifest"]).is_file()
    photos = {name: sorted(class_photos.glob(f"{name}/*/*")) for name in ("train", "val")}
    assert found["classes"] == sorted({path.parent.name for path in photos["train"]})
    for name, split in found["splits"].items():
        assert (split["images"], split["left_out"]) == (len(photos[name]), 0)
        assert split["bytes"] == sum(path.stat().st_size for path in photos[name])
        assert split["per_class"] == {
            label: sum(path.parent.name == label for path in photos[name]) for label in found["classes"]
        }
    packed = answer(capsys, "data", "pack", tmp_path / "set", "--format", "webdataset", "--output-dir", tmp_path / "packed")
    assert (packed["classes"], packed["data"]) == (found["classes"], str(tmp_path / "packed"))


def test_what_is_written_has_its_file(resnet_run, ssd_run, tmp_path, capsys):
    out = tmp_path / "one.safetensors"
    made = answer(capsys, "export", resnet_run.folder, "--output", out)
    assert (made["file"], made["to"], made["bytes"]) == (str(out), "paceline", out.stat().st_size)
    assert made["checkpoint"] == f"step-{made['step']:06}"
    checked = answer(capsys, "weights", "inspect", out)
    assert (checked["finite"], checked["tensors"] > 10, bool(checked["fits"])) == (True, True, True)
    assert checked["classes"] == json.loads((resnet_run.folder / "run.json").read_text())["classes"]
    turned = answer(capsys, "weights", "convert", out, "--format", "paceline", "--output", tmp_path / "two.pth")
    assert (turned["file"], turned["numbers"]) == (str(tmp_path / "two.pth"), checked["numbers"])
    page = answer(capsys, "report", ssd_run.folder, ssd_run.folder, "--html", tmp_path / "both.html")
    assert page["file"] == str(tmp_path / "both.html") and Path(page["file"]).is_file()


def test_preview_gives_the_picture(class_photos, tmp_path, capsys):
    words = ("classify-demo", "--data", class_photos, "--num-images", 4, "--step", 2, "--output", tmp_path / "some.png")
    drawn = answer(capsys, "preview", *words)
    assert (drawn["file"], drawn["images"], drawn["step"]) == (str(tmp_path / "some.png"), 4, 2)
