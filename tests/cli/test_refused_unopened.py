"""What needs no data is refused before they are opened: here they lie in a folder that cannot be opened, and nothing says so."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from run_files import cut_after
from tiny_runs import TINY, command, of_its_own, refused

from paceline.cli.main import main

pytestmark = pytest.mark.usefixtures("no_report")

LENGTH = ["--max-images", 160]
FIT = ["--rescale-schedule", "--save-every", 2, "--keep-checkpoints", 99]


def words_for(data: Path, run: Path, *more: object) -> list[object]:
    return ["train", "classify-demo", "--data", data, "--output-dir", run, *TINY, "--max-steps", 4, *more]


@pytest.fixture(scope="module")
def begun(photos, tmp_path_factory) -> dict[str, Path]:
    """A run as a kill leaves it after step 2 of 4, and one whose schedule was fitted to these."""
    runs = {}
    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        for name, more in (("plain", ["--save-every", 2]), ("fitted", FIT)):
            run = tmp_path_factory.mktemp("runs") / "run"
            assert main([str(word) for word in words_for(photos, run, *LENGTH, *more)]) == 0
            runs[name] = cut_after(run, 2)
    return runs


@pytest.fixture
def run(begun, tmp_path) -> Path:
    return shutil.copytree(begun["plain"], tmp_path / "run", symlinks=True)


@pytest.fixture
def unopened(tmp_path) -> Path:
    """A data folder that is there and holds no data."""
    (tmp_path / "nothing").mkdir()
    return tmp_path / "nothing"


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def test_a_command_that_goes_on_with_the_run_fails_at_these_data(run, unopened, capsys):
    refused(command(capsys, *words_for(unopened, run, *LENGTH)), str(unopened))


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ([*LENGTH, "--optim.momentum", 0.5], "optim.momentum ... 0.9 ... 0.5"),
        ([*LENGTH, "--seed", 9, "--eval.every", 2], "seed ... 1 ... 9"),
        (["--max-images", 80], "20 steps ... 10"),
        (["--epochs", 1, "--max-images", 0], "20 steps ... shorter"),
        ([], "max_images ... 160 ... 72000"),
        ([*LENGTH, "--optim.lr", 1, "--seed", 2, "--model.width", 16, "--ema-decay", 0.5, "--input.hflip", 0,
        "--bn-batch-size", 4], "and 1 more"),
    ],
)  # fmt: skip
def test_another_recipe_than_the_runs_is_refused(run, unopened, capsys, more, wanted):
    before = files(run)
    said = command(capsys, *words_for(unopened, run, *more))
    refused(said, wanted, lines=10)
    assert str(unopened) not in said.err and files(run) == before


def test_another_recipes_run_is_refused_by_name(run, unopened, capsys):
    said = command(capsys, "train", "resnet50", "--data", unopened, "--output-dir", run, "--system", "cpu")
    refused(said, f"{run} ... classification ... classify-demo ... resnet50", lines=2)


def test_of_a_fitted_run_all_that_no_number_of_images_changes_is_compared(begun, photos, unopened, tmp_path, capsys):
    run = shutil.copytree(begun["fitted"], tmp_path / "fitted", symlinks=True)
    words = words_for(unopened, run, *LENGTH, *FIT)
    refused(command(capsys, *words, "--schedule.name", "cosine"), "schedule.name: ", '"cosine" now', lines=5)
    # How long its warm-up is depends on the images there are.
    refused(command(capsys, *words, "--schedule.warmup", 0.25), str(unopened))
    words = words_for(photos, run, *LENGTH, *FIT)
    refused(command(capsys, *words, "--schedule.warmup", 0.25), "schedule.warmup: ", "0.25 now", lines=5)
    assert command(capsys, *words).code == 0


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (["--target", "mask_ap=0.5"], "--target mask_ap"),
        (["--weights", "none.pth"], "none.pth"),
        (["--weights", "resnet3"], "resnet34"),
        (["--profile", "nvtx:0:1"], "CUDA"),
        (["--input.decoder", "nvimgcodec"], "nvimgcodec"),
    ],
)
def test_what_a_new_run_cannot_do_is_refused_too(unopened, tmp_path, capsys, monkeypatch, more, wanted):
    for module in ("nvidia", "nvidia.nvimgcodec"):  # an earlier test may have imported it
        monkeypatch.setitem(sys.modules, module, None)
    said = command(capsys, *words_for(unopened, tmp_path / "run", *more))
    refused(said, wanted)
    assert str(unopened) not in said.err and not (tmp_path / "run").exists()


def test_weights_of_made_up_batches_are_refused(unopened, tmp_path, capsys):
    synthetic = tmp_path / "synthetic"
    words = ["train", "classify-demo", "--synthetic", "--output-dir", synthetic, *TINY, "--max-steps", 1]
    assert command(capsys, *words).code == 0
    weights = synthetic / "checkpoints" / "last"
    said = command(capsys, *words_for(unopened, tmp_path / "run", "--weights", weights))
    refused(said, "synthetic")
