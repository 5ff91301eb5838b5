"""Refusals beyond the usual ones: numbers that cannot be meant, runs that go on, weights and folders of every kind."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from messages import check_line
from run_files import tensor_files
from safetensors.torch import save_file
from tiny_runs import TINY, command, make_photos, of_its_own, refused, train

from paceline._utils.safe_read import SEAL, with_checksum
from paceline.cli.main import main
from paceline.config.recipe import Recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.models.registry import WORKLOADS
from paceline.models.resnet.task import ClassificationData
from paceline.models.weights.formats.torchvision import to_plain_tensors

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def finished(resnet_run) -> Path:
    """A run of two steps."""
    return resnet_run.folder


@pytest.fixture
def set_of_its_own(tmp_path) -> Path:
    return make_photos(tmp_path / "set")


def tree(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


# Flags ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--input.image-size", 0], ["--input.eval-crop-size", 64], ["--input.crop-scale", 0.5, 0.1], ["--input.crop-ratio", 0, 1],
        ["--input.auto-augment", "auto"], ["--input.hflip", 2], ["--input.std", 0, 1, 1], ["--model.width", 0],
        ["--model.label-smoothing", 1], ["--model.bn-eps", 0], ["--model.bn-momentum", 0], ["--model.depth", 42],
        ["--optim.momentum", 1],
        ["--optim.weight-decay", -1], ["--optim.lr", "nan"], ["--optim.lr", 0], ["--schedule.warmup", 2],
        ["--schedule.milestones", 0.5, 0.2], ["--eval.every", 0], ["--target", "top1=75.9"],
        ["--target", "top7=0.5"], ["--eval.at", 0], ["--seed", -1], ["--epochs", "inf"], ["--ema-decay", 1],
        ["--bn-batch-size", 0], ["--bn-batch-size", 3], ["--global-batch-size", 0], ["--max-val-images", -1], ["--max-steps", -1],
            ["--keep-checkpoints", 0],
        ["--max-time", "soon"], ["--profile", 5], ["--task", "segmentation"], ["--system.memory-gib", "nan"],
        ["--system.loss-scale", 128], ["--system.micro-batch-size", 3], ["--system.prefetch-steps", 0], ["--system.io-threads", -1],
        ["--bn-batch-size", 1, "--global-batch-size", 1, "--optim.lr", 0.1],
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)  # fmt: skip
def test_a_number_that_cannot_be_meant_is_refused_by_its_flag(photos, tmp_path, capsys, flags):
    said = train(capsys, photos, tmp_path / "run", *flags)
    assert said.code == 2 and "Traceback" not in said.err, said
    flag = "--bn-batch-size" if "images-per-forward" in flags[0] else flags[0]
    assert flag.removeprefix("--").split(".")[-1] in said.err, said.err
    assert not (tmp_path / "run").exists()


def test_a_run_folder_whose_name_is_no_text_is_refused(photos, tmp_path, capsys, monkeypatch):
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    refused(train(capsys, photos, odd), "caf\\udce9 ... UTF-8", "--output-dir", lines=1)
    assert not odd.exists()
    odd.mkdir()
    monkeypatch.chdir(odd)
    refused(command(capsys, "train", "classify-demo", "--data", photos), "name ... UTF-8", lines=1)
    assert not list(odd.iterdir())


def test_a_launchers_incomplete_variables_are_named(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    refused(train(capsys, photos, tmp_path / "run"), "RANK")
    assert not (tmp_path / "run").exists()


# Data and folders -----------------------------------------------------------------------------------------------------


def test_a_refused_data_set_is_not_touched_and_the_way_out_that_is_offered_works(set_of_its_own, tmp_path, capsys):
    (set_of_its_own / "val" / "cat" / "0.jpg").write_bytes(b"")
    before = tree(set_of_its_own)
    refused(train(capsys, set_of_its_own, tmp_path / "run"), "cat/0.jpg", "--on-unreadable skip", lines=8)
    assert tree(set_of_its_own) == before and not (tmp_path / "run").exists()
    assert command(capsys, "prepare", "folder", set_of_its_own, "--on-unreadable", "skip").code == 0
    assert train(capsys, set_of_its_own, tmp_path / "run").code == 0


def test_a_photo_that_breaks_after_it_was_verified_is_named_and_never_skipped(set_of_its_own, tmp_path, capsys):
    assert train(capsys, set_of_its_own, tmp_path / "first").code == 0
    victim = set_of_its_own / "train" / "ant" / "0.jpg"
    time = victim.stat().st_mtime_ns
    victim.write_bytes(b"\x00" * victim.stat().st_size)
    os.utime(victim, ns=(time, time))  # as a failing disk would: no newer, no shorter
    said = train(capsys, set_of_its_own, tmp_path / "second", steps=3)
    assert said.code == 2 and "ant/0.jpg" in said.err and "Traceback" not in said.err, said


def test_an_empty_out_folder_is_used_also_after_a_refused_start(photos, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    refused(train(capsys, photos, tmp_path / "run", "--weights", tmp_path / "none.pth"), "none.pth")
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {".lock"}
    assert train(capsys, photos, tmp_path / "run").code == 0


def test_a_read_only_out_folder_is_refused(photos, tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        disk.chmod(0o500)
    elif subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,ro", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a read-only disk here, and root may write into any folder")
    try:
        refused(train(capsys, photos, disk / "run"), "--output-dir", "writable")
        refused(train(capsys, photos, disk), "--output-dir", "writable")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", disk], check=True)


# Going on -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(photos, tmp_path_factory) -> Path:
    """A run that broke inside its evaluation after step 6; checkpoints of steps 2 and 4 are there."""
    run = tmp_path_factory.mktemp("broken") / "run"

    def planted(self, *_):
        raise ZeroDivisionError("planted")

    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        patch.setattr(ClassificationData, "draw_val", planted)
        words = f"train classify-demo --data {photos} --output-dir {run} --max-steps 6 --save-every 2 --keep-checkpoints 3"
        assert main([*words.split(), *TINY]) == 3
    return run


@pytest.fixture
def broken_off(broken, tmp_path) -> Path:
    """A copy that goes on."""
    return shutil.copytree(broken, tmp_path / "run", symlinks=True)


def spoil_newest(run: Path) -> Path:
    newest = max((run / "checkpoints").glob("step-*"))
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (newest / "model.safetensors").write_bytes(content)
    return newest


def test_after_a_damaged_checkpoint_the_run_ends_with_the_unbroken_runs_bytes(photos, broken_off, tmp_path, capsys):
    damaged = spoil_newest(broken_off)
    said = train(capsys, photos, broken_off, "--save-every", 2, "--keep-checkpoints", 3, steps=6)
    assert said.code == 0, said
    assert check_line(said.out, damaged.name, "checksum") and check_line(said.out, "resumed", "step-")
    assert said.out.count("skipping") == 1
    assert train(capsys, photos, tmp_path / "unbroken", "--save-every", 2, "--keep-checkpoints", 3, steps=6).code == 0
    assert tensor_files(broken_off) == tensor_files(tmp_path / "unbroken")


def test_when_every_checkpoint_is_damaged_nothing_starts_over_silently(photos, broken_off, capsys):
    for folder in (broken_off / "checkpoints").glob("step-*"):
        (folder / "model.safetensors").write_bytes(b"")
    before = tree(broken_off)
    refused(train(capsys, photos, broken_off, steps=6), "damaged", "--output-dir", lines=8)
    assert tree(broken_off) == before


def test_another_recipes_checkpoint_is_refused_with_every_difference_and_nothing_is_lost(photos, broken_off, capsys):
    before = tree(broken_off)
    said = train(capsys, photos, broken_off, "--optim.momentum", 0.5, "--seed", 9, steps=6)
    refused(said, "optim.momentum ... 0.9 ... 0.5", "seed ... 1 ... 9", lines=8)
    assert tree(broken_off) == before
    assert train(capsys, photos, broken_off, steps=6).code == 0


@pytest.mark.parametrize("classes", [("ant", "bee", "cat"), ("ant", "bee", "dog"), ("ant", "bee")], ids=str)
def test_other_data_are_refused_on_resume(broken_off, tmp_path, capsys, classes):
    before = tree(broken_off)
    other = make_photos(tmp_path / "other", classes, train=7)
    said = train(capsys, other, broken_off, steps=6)
    assert said.code == 2 and "--data" in said.err, said
    assert tree(broken_off) == before


def test_two_processes_do_not_train_in_one_folder(photos, broken_off, capsys):
    with (broken_off / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(train(capsys, photos, broken_off, steps=6), "another process")
    assert train(capsys, photos, broken_off, steps=6).code == 0


def test_a_finished_run_is_never_written_to_again(photos, resnet_run, tmp_path, capsys):
    finished = shutil.copytree(resnet_run.folder, tmp_path / "run", symlinks=True)
    (finished / "report.html").write_text("as it was")
    before = tree(finished)
    refused(train(capsys, photos, finished), "--output-dir", "finished")
    refused(command(capsys, "train", finished / "run.json", "--output-dir", finished), "finished")
    refused(command(capsys, "train", finished), "a folder", "run.json")
    assert tree(finished) == before


def test_a_run_json_that_is_none_is_named(finished, tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text("{")
    refused(command(capsys, "train", file), "run.json", "readable")
    file.write_text('{"name": 1}')
    refused(command(capsys, "train", file), "format, world_size, recipe, system, plan, options")
    refused(command(capsys, "train", tmp_path / "none.json"), "run.json not found")
    refused(command(capsys, "eval", tmp_path / "none"), f"{tmp_path}/none ... run")
    facts = json.loads((finished / "run.json").read_text())
    facts["recipe"]["optim"]["beta2"] = 0.9
    del facts[SEAL]
    file.write_text(json.dumps(with_checksum(facts)))
    refused(command(capsys, "train", file), "beta2", "another version")


# Weights --------------------------------------------------------------------------------------------------------------


def test_weights_of_a_resnet34_are_refused_in_safetensors_too(photos, tmp_path, capsys):
    model = WORKLOADS["classification"].network.build(
        Recipe("classification", ResNetModel(depth=34, width=8), ImageInput()), 3
    )
    save_file(to_plain_tensors(model.network.state_dict()), tmp_path / "resnet34.safetensors")
    words = ["--weights", tmp_path / "resnet34.safetensors", "--model.depth", 18]
    refused(train(capsys, photos, tmp_path / "run", *words), "resnet34", "another model", "layer1.2")
    assert not (tmp_path / "run").exists()


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("suffix", ["pth", "pkl", "bin"])
def test_a_malicious_pickle_runs_nothing_whatever_its_name(photos, tmp_path, capsys, suffix):
    file, target = tmp_path / f"weights.{suffix}", tmp_path / "owned"
    if suffix == "pth":
        torch.save({"state_dict": Malicious(target)}, file)
    else:
        file.write_bytes(pickle.dumps({"conv1.weight": Malicious(target)}))
    refused(train(capsys, photos, tmp_path / "run", "--weights", file), file.name, lines=6)
    out = tmp_path / "out.safetensors"
    said = command(capsys, "weights", "convert", file, "--format", "paceline", "--output", out)
    refused(said, file.name, "would run" if suffix == "pkl" else "", lines=6)
    assert not target.exists() and not (tmp_path / "run").exists() and not out.exists()
    pickle.loads(pickle.dumps(Malicious(target)))
    assert target.exists()  # the trap works where it is stepped into


def test_weights_that_are_none_are_refused(photos, finished, broken_off, tmp_path, capsys):
    (tmp_path / "text.pth").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    for name in ("text.pth", "text.safetensors", "none.pth"):
        refused(train(capsys, photos, tmp_path / "new", "--weights", tmp_path / name), name)
    (tmp_path / "none").mkdir()
    shutil.copyfile(finished / "run.json", tmp_path / "none" / "run.json")
    refused(train(capsys, photos, tmp_path / "new", "--weights", tmp_path / "none"), "checkpoint")
    refused(train(capsys, photos, tmp_path / "new", "--weights", spoil_newest(broken_off)), "damaged")
    assert not (tmp_path / "new").exists()


# Using a run ----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(finished, photos, tmp_path, capsys):
    for words in (["eval", finished], ["predict", finished, photos / "val" / "ant", "--output-dir", tmp_path / "answers"]):
        refused(command(capsys, *words, "--checkpoint", "step-77"), "step-77", "step-000002")
        refused(command(capsys, *words, "--checkpoint", "newest"), "newest", "best")
    assert not (tmp_path / "answers").exists()


def test_predict_refuses_before_it_writes_anything(finished, photos, tmp_path, capsys):
    text, answers = tmp_path / "notes.jpg", tmp_path / "answers"
    text.write_text("these are no pixels")
    (tmp_path / "empty").mkdir()
    for photo, wanted in ((tmp_path / "empty", "no images"), (tmp_path / "gone.jpg", "gone.jpg")):
        refused(command(capsys, "predict", finished, photos / "val" / "ant", photo, "--output-dir", answers), wanted)
        assert not answers.exists()
    refused(command(capsys, "predict", finished), "photo")
    refused(command(capsys, "predict", photos, photos / "val" / "ant"), "run.json")
    refused(command(capsys, "predict", finished, photos / "val" / "ant", "--output-dir", text), "--output-dir")


def test_eval_refuses_data_with_other_classes_by_name(finished, tmp_path, capsys):
    other = make_photos(tmp_path / "other", ("ant", "bee", "dog", "eel"))
    refused(command(capsys, "eval", finished, "--data", other), "dog, eel", "ant, bee, cat")
    same = make_photos(tmp_path / "same", val=5)
    assert "15 images" in command(capsys, "eval", finished, "--data", same).out


def test_eval_refuses_flags_that_cannot_be_meant(finished, tmp_path, capsys):
    refused(command(capsys, "eval", finished, "--batch-size", -1), "--batch-size")
    refused(command(capsys, "eval", finished, "--checkpoint", "all", "--output", tmp_path / "x.json"), "--output")
    (tmp_path / "file").write_text("")
    refused(command(capsys, "eval", finished, "--output", tmp_path / "file" / "x.json"), "--output")


def test_a_damaged_checkpoint_is_named_by_eval_and_the_others_can_be_scored(broken_off, photos, capsys):
    assert train(capsys, photos, broken_off, "--save-every", 2, "--keep-checkpoints", 3, steps=6).code == 0
    spoil_newest(broken_off)
    refused(command(capsys, "eval", broken_off, "--checkpoint", "last"), "damaged", "model.safetensors")
    assert command(capsys, "eval", broken_off, "--checkpoint", "step-4").code == 0


def test_preview_and_report_name_what_they_cannot_do(finished, photos, tmp_path, capsys):
    words = ["preview", "classify-demo", "--data", photos, "--num-images", 6]
    assert command(capsys, *words, "--output", tmp_path / "new" / "mosaic.png").code == 0
    assert (tmp_path / "new" / "mosaic.png").stat().st_size > 1000
    refused(command(capsys, *words, "--output", tmp_path / "mosaic.doc"), "--output", ".png")
    refused(command(capsys, *words, "--columns", 0), "--columns")
    refused(command(capsys, "report"), "run folder")
    refused(command(capsys, "report", tmp_path), "run.json not found")
    refused(command(capsys, "plan", finished, "--world-size", 3), "3 ranks")


def test_doctor_is_content_here_and_names_a_cache_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    said = command(capsys, "doctor")
    assert said.code == 0 and "ready" in said.out and "torch" in said.out, said
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    said = command(capsys, "doctor")
    assert said.code == 2 and "PACELINE_CACHE" in said.out and "1 problem" in said.out, said
    refused(command(capsys, "doctor", "--fix"), "--fix")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ssd-finetune-cpu --input.copy-paste-prob 0.5", "--input.copy-paste-prob ... instance-segmentation"),
        ("maskrcnn-finetune-cpu --input.mosaic-prob 0.5", "--input.mosaic-prob ... detection"),
        ("ssd-finetune-cpu --input.cutmix-alpha=1", "--input.cutmix-alpha ... classification"),
        ("fasterrcnn-finetune-cpu --input.copy-paste-prob 0.5", "boxes"),
        ("ssd-demo --model.backbone timm/resnet10t --model.parity.freeze-first-conv", "--model.parity.freeze-first-conv"),
    ],
)
def test_an_augmentation_of_another_workload_is_refused_by_whose_it_is(words, said, capsys):
    refused(command(capsys, "train", *words.split(), "--weights", "none"), said)


def test_weights_of_another_trunk_are_refused_with_what_to_choose(set_of_its_own, tmp_path, capsys):
    timm, file, run = pytest.importorskip("timm"), tmp_path / "other.safetensors", tmp_path / "run"
    save_file(timm.create_model("test_efficientnet").state_dict(), file)
    for trunk in ("resnet", "timm/test_resnet"):
        said = train(capsys, set_of_its_own, run, "--weights", file, "--model.backbone", trunk, "--model.norm", "batch")
        refused(said, "another model", "--model.backbone, --model.depth")
        assert not run.exists()
