"""`paceline export RUN --output FILE`: the file answers as its run, in an empty folder, in every verb that takes a run."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
import torchvision
from card_files import card_in, without_card
from messages import check_line
from tiny_runs import TINY, command, make_photos, refused, train

import paceline
from paceline._utils.safe_read import with_checksum

RUNS = ("resnet50", "ssd", "maskrcnn")


@pytest.fixture(params=RUNS)
def a_run(request, resnet_run, ssd_run, maskrcnn_run):
    return dict(zip(RUNS, (resnet_run, ssd_run, maskrcnn_run)))[request.param]


def photos_of(data: Path) -> list[Path]:
    return sorted(path for path in data.rglob("*.jpg") if "val" in str(path))[:4]


def records(run: Path, photos: list[Path]) -> list[dict]:
    return [result.to_dict() for result in paceline.load(run).predict(photos)]


def same_model(file: Path, run: Path) -> None:
    here, there = paceline.load(file).trained, paceline.load(run).trained
    assert (here.recipe, here.classes, here.category_ids) == (there.recipe, there.classes, there.category_ids)
    own = there.model.state_dict()
    for name, tensor in here.model.state_dict().items():
        assert torch.equal(tensor, own[name]) or name.endswith("num_batches_tracked"), name
        assert tensor.stride() == own[name].stride(), name


def exported(capsys, source: Path, out: Path) -> Path:
    said = command(capsys, "export", source, "--output", out)
    assert said.code == 0 and str(out) in said.out, said
    return out


def test_it_answers_and_scores_as_its_run(a_run, tmp_path, capsys):
    file = exported(capsys, a_run.folder, tmp_path / "alone" / "cats.safetensors")
    photos = photos_of(a_run.data)
    answers = records(file, photos)
    assert answers == records(a_run.folder, photos) and str(answers).count("score") >= len(photos)
    same_model(file, a_run.folder)

    def scores(subject: Path) -> dict:
        said = command(capsys, "eval", subject, "--data", a_run.data, "--json")
        assert said.code == 0, said
        return json.loads(said.out)

    here, there = scores(file), scores(a_run.folder)
    assert here.pop("checkpoint") == "cats.safetensors" and there.pop("checkpoint").startswith("step-")
    assert here == there
    refused(command(capsys, "eval", file), "paceline eval", "--data DIR")
    refused(command(capsys, "eval", file, "--data", a_run.data, "--checkpoint", "last"), "one model")


def test_a_file_copied_out_of_a_checkpoint_is_the_model_too(a_run, tmp_path, capsys, caplog):
    saved = a_run.folder / "checkpoints" / "best"
    averaged = (saved / "average.safetensors").is_file()
    file = tmp_path / "mine.safetensors"
    shutil.copy(saved / ("average.safetensors" if averaged else "model.safetensors"), file)
    same_model(file, a_run.folder)
    again = exported(capsys, file, tmp_path / "again.safetensors")
    same_model(again, a_run.folder)
    if averaged:
        shutil.copy(saved / "model.safetensors", file)
        paceline.load(file)
        assert check_line(caplog.text, "WARNING", "average")


def test_its_card_says_what_it_is_and_names_no_place_of_the_run_s_machine(ssd_run, tmp_path, capsys):
    file = exported(capsys, ssd_run.folder, tmp_path / "cats.safetensors")
    card, run = card_in(file), json.loads((ssd_run.folder / "run.json").read_text())
    assert card["recipe"] == run["recipe"] and card["classes"] == run["classes"] and card["versions"] == run["versions"]
    assert card["data"] == {name: run["data"][name] for name in ("hash", "category_ids")}
    assert card["run"]["id"] == run["sha256"] and card["step"] == 6 and card["metrics"].keys() >= {"box_ap", "box_ar1"}
    assert str(ssd_run.folder.parent) not in json.dumps(card) and run["host"]["cpu"] not in json.dumps(card)
    for verb in (["plan"], ["weights", "inspect"]):
        said = command(capsys, *verb, file)
        assert said.code == 0 and "ssd-demo, step 6: 8 classes (circle, square" in said.out, said
        assert "box_ap 0" in said.out and f"id {run['sha256']}" in said.out
    assert "4 images" in command(capsys, "plan", file).out
    refused(command(capsys, "plan", tmp_path / "none.safetensors"), "none.safetensors")
    assert json.loads(command(capsys, "plan", file, "--json").out)["card"]["dataset"] == run["data"]["hash"]


def test_training_from_it_keeps_the_rows_of_classes_that_both_have(resnet_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.api.report_run", lambda *_: None)
    file = exported(capsys, resnet_run.folder, tmp_path / "cats.safetensors")
    data = make_photos(tmp_path / "photos", ("bee", "cat", "dog"), train=3, val=1)
    said = train(capsys, data, tmp_path / "run", "--weights", file, steps=1)
    assert said.code == 0, said
    for line in ("2 of 3", "class 1 bee: row 2 of the file, bee", "class 2 cat: row 3 of the file", "dog: new"):
        assert line in said.out
    saved = json.loads((tmp_path / "run" / "run.json").read_text())["options"]
    assert saved["weights"] == str(file)


def test_old_checkpoints_whose_files_have_no_card_still_open(resnet_run, tmp_path, capsys, caplog):
    run = shutil.copytree(resnet_run.folder, tmp_path / "run", symlinks=True)
    saved = (run / "checkpoints" / "best").resolve()
    index = json.loads((saved / "index.json").read_text())
    del index["sha256"]
    for file in saved.glob("*.safetensors"):
        if file.name in ("model.safetensors", "average.safetensors"):
            assert card_in(file)["classes"] == ["ant", "bee", "cat"]
            without_card(file)
            index["files"][file.name] = {
                "bytes": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
    (saved / "index.json").write_text(json.dumps(with_checksum(index)))
    same_model(run, resnet_run.folder)
    with caplog.at_level("INFO", "paceline"):
        beside = paceline.load(saved / "model.safetensors")  # classes from the run.json beside, as ever
    assert "3 classes" in caplog.text and beside.classes == ("ant", "bee", "cat")
    same_model(exported(capsys, run, tmp_path / "new.safetensors"), resnet_run.folder)


def test_another_recipe_reads_its_tensors_as_anybodys(resnet_run, tmp_path, capsys):
    file, photo = exported(capsys, resnet_run.folder, tmp_path / "cats.safetensors"), photos_of(resnet_run.data)[0]
    recipe = f"classify-demo {' '.join(map(str, TINY[:4]))} --input.eval-crop-size 64"
    said = command(capsys, "predict", file, photo, "--recipe", recipe, "--output-dir", tmp_path / "out", "--no-save-images")
    assert said.code == 0 and check_line(said.out, f"cats.safetensors: {recipe}", "3 classes", "ant, bee, cat"), said


def test_anybodys_weights_become_one_file_too(tmp_path, class_photos, capsys, caplog):
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18(num_classes=4).state_dict(), tmp_path / "w.pth")
    file = exported(capsys, tmp_path / "w.pth", tmp_path / "w.safetensors")
    photos = photos_of(class_photos)
    with caplog.at_level("INFO", "paceline"):
        there = records(tmp_path / "w.pth", photos)
    assert "depth 18" in caplog.text
    assert records(file, photos) == there
    assert "4 classes (class 1, class 2" in command(capsys, "plan", file).out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--format", "onxx", "--output", "a.safetensors"], ("--format onxx ... onnx",)),
        (["--output", "a.cats"], ("--output a.cats ... suffix", ".safetensors (paceline)")),
        (["--format", "paceline", "--output", "a.pth"], ("--format paceline ... .safetensors",)),
        ([], ("paceline export RUN --output",)),
        (["--output", "photo.jpg/a.safetensors"], ("photo.jpg/a.safetensors",)),
        (["--output", "theirs.safetensors"], ("theirs.safetensors ... exists",)),
        (["--output", "folder.safetensors"], ("a folder",)),
        (["--checkpoint", "step-99", "--output", "a.safetensors"], ("step-99",)),
        (["--recipe", "ssd", "--output", "a.safetensors"], ("--recipe ssd",)),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(words, wanted, resnet_run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photo.jpg").write_bytes(b"x")
    Path("theirs.safetensors").write_bytes(b"theirs")
    Path("folder.safetensors").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refused(command(capsys, "export", resnet_run.folder, *words), *wanted)
    assert sorted(tmp_path.rglob("*")) == before and Path("theirs.safetensors").read_bytes() == b"theirs"


def test_a_run_without_a_checkpoint_and_what_is_no_run_are_refused(resnet_run, tmp_path, capsys):
    run = shutil.copytree(resnet_run.folder, tmp_path / "run", symlinks=True)
    shutil.rmtree(run / "checkpoints")
    out = tmp_path / "a.safetensors"
    refused(command(capsys, "export", run, "--output", out), "run")
    refused(command(capsys, "export", tmp_path / "nothing", "--output", out), "run")
    assert not out.exists()


def test_a_file_of_ours_is_replaced_also_by_itself(resnet_run, tmp_path, capsys):
    file = exported(capsys, resnet_run.folder, tmp_path / "cats.safetensors")
    first = file.read_bytes()
    assert exported(capsys, file, file).read_bytes() == first
    assert exported(capsys, resnet_run.folder, file).read_bytes() == first


def test_synthetic_batches_taught_nothing_also_outside_of_their_run(class_photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.api.report_run", lambda *_: None)
    run = tmp_path / "run"
    assert command(capsys, "train", "classify-demo", "--synthetic", *TINY, "--max-steps", 1, "--output-dir", run).code == 0
    file = shutil.copy(run / "checkpoints" / "last" / "model.safetensors", tmp_path / "mine.safetensors")
    for words in (["predict", file, class_photos], ["train", "classify-demo", *TINY, "--weights", file]):
        refused(command(capsys, *words), "synthetic")
