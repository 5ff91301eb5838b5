"""Ranks that were not started alike: the first thing that differs is named on every host, before anything can go wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from by_night import ONE_MORE
from messages import check_line, check_text
from safetensors.numpy import load_file, save_file
from small_run import Trainer, said

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]


def refused(trainer: Trainer, run: Path, own: list[list[str]]) -> str:
    """Start two ranks with arguments of their own; both must refuse alike, and leave no folder. -> the message."""
    ended = trainer.refused(run, own=own)
    (line,) = [line for line in ended[0].text.splitlines() if line.startswith("paceline: ")]
    assert line.startswith("paceline: the ranks have different settings: "), said(ended)
    assert not any("different settings" in rank.text for rank in ended[1:])  # rank 0 spoke for the host
    return line.removeprefix("paceline: the ranks have different settings: ")


# Every kind of flag: tests/distributed/test_consistency.py.
@pytest.mark.parametrize(
    ("flag", "values", "named"),
    [
        ("--optim.lr", ("0.05", "0.06"), "optim.lr is 0.05 on rank 0 and 0.06 on rank 1."),
        pytest.param("--max-val-images", ("21", "20"), "max-val-images is 21 on rank 0 and 20 on rank 1.", marks=ONE_MORE),
    ],
)
def test_a_flag_that_differs_is_named_with_both_values(trainer, tmp_path, flag, values, named):
    # `own` comes last, and the last of two flags counts
    assert refused(trainer, tmp_path / "run", [[flag, value] for value in values]) == named


def test_a_photo_that_is_missing_on_one_rank_is_noticed(trainer, tmp_path):
    photos = Path(shutil.copytree(trainer.photos, tmp_path / "photos"))
    (photos / "train" / "class1" / "004.jpg").unlink()
    own = [["--data", str(trainer.photos)], ["--data", str(photos)]]
    assert refused(trainer, tmp_path / "run", own) == "data.train-images is 51 on rank 0 and 50 on rank 1."


def test_each_node_that_prepares_the_data_has_a_check_page(trainer, tmp_path):
    """Two ranks as two nodes, each with its own cache. Only rank 0 prints, but both write the page."""
    own = [
        {"PACELINE_CACHE": str(tmp_path / f"cache{node}"), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(node)}
        | {"GROUP_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
        for node in range(2)
    ]  # fmt: skip
    ended = trainer.ended_well(trainer.train(tmp_path / "run", "--max-steps 1"), ranks=2, environs=own)
    assert all(list((tmp_path / f"cache{node}").rglob("check.html")) for node in range(2)), said(ended)
    assert "check:" in ended[0].text and "check:" not in ended[1].text


def test_other_bytes_in_one_photo_are_noticed_and_another_path_is_not(trainer, tmp_path):
    photos = Path(shutil.copytree(trainer.photos, tmp_path / "photos"))
    own = [["--data", str(trainer.photos)], ["--data", str(photos)]]
    trainer.finished(tmp_path / "same", "--max-steps 1 --max-val-images 3", ranks=2, own=own)
    shutil.copyfile(photos / "train" / "class1" / "005.jpg", photos / "train" / "class1" / "004.jpg")
    assert refused(trainer, tmp_path / "run", own).startswith('data.hash is "')


@pytest.fixture(scope="module")
def two_runs(trainer) -> list[Path]:
    """Two runs of other weights, which say the same of themselves."""
    runs = [
        trainer.finished(trainer.folder / f"of-{seed}", f"--max-steps 1 --max-val-images 3 --seed {seed}")
        for seed in (3, 4)
    ]
    shutil.copyfile(runs[0] / "run.json", runs[1] / "run.json")
    return runs


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / "last"


def as_arrays(run: Path, folder: Path) -> Path:
    """Its weights as a folder of .npy files."""
    folder.mkdir()
    for name, array in load_file(checkpoint(run) / "model.safetensors").items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_other_weights_are_noticed_whatever_they_are_kept_in(trainer, two_runs, tmp_path):
    folders = [as_arrays(run, tmp_path / run.name) for run in two_runs]
    for number, places in enumerate((list(map(checkpoint, two_runs)), folders)):
        own = [["--weights", str(place)] for place in places]
        message = refused(trainer, tmp_path / f"run{number}", own)
        assert message.startswith("SHA-256 of ") and " from --weights is " in message


def test_the_same_weights_in_files_of_another_kind_are_the_same(trainer, two_runs, tmp_path):
    file = tmp_path / "model.safetensors"  # without its card, which names classes
    save_file(load_file(checkpoint(two_runs[0]) / "model.safetensors"), file)
    own = [["--weights", str(file)], ["--weights", str(as_arrays(two_runs[0], tmp_path / "arrays"))]]
    trainer.finished(tmp_path / "run", "--max-steps 1 --max-val-images 3", ranks=2, own=own)


def scored_apart(trainer: Trainer, *own: list[str]) -> str:
    """Two ranks that `eval` must refuse alike, before anything is scored; -> the message."""
    ended = trainer.run(["eval"], ranks=2, own=own)
    assert [rank.code for rank in ended] == [2, 2] and "Traceback" not in said(ended), said(ended)
    assert "images of" not in said(ended)
    return ended[0].text


def test_ranks_that_hold_other_weights_score_nothing(trainer, two_runs):
    text = scored_apart(trainer, *([str(run)] for run in two_runs))
    assert check_line(text, "different", "SHA-256", "best")
    more = ["--recipe", f"{trainer.recipes}:small", "--data", str(trainer.photos), "--system", "cpu"]
    text = scored_apart(trainer, *([str(checkpoint(run) / "model.safetensors"), *more] for run in two_runs))
    assert check_line(text, "different", "SHA-256", "weights")


def test_ranks_that_go_on_from_other_copies_of_a_checkpoint_are_refused(trainer, two_runs, tmp_path):
    run = Path(shutil.copytree(two_runs[0], tmp_path / "run", symlinks=True))
    other = trainer.finished(tmp_path / "other", "--max-steps 1 --max-val-images 3 --seed 3 --system.precision bf16")
    (other / "checkpoints").rename(tmp_path / "run.rank1")
    ended = trainer.run(
        trainer.train(run, "--max-steps 2 --max-val-images 3 --seed 3", recipe="on_disks_of_their_own"), ranks=2
    )
    assert [rank.code for rank in ended] == [2, 2], said(ended)
    assert check_line(ended[0].text, "different", "SHA-256") and " step-" in ended[0].text, said(ended)


def test_first_weights_that_each_rank_draws_by_itself_are_rank_0s(trainer, tmp_path):
    found = []
    for recipe in ("drawn_by_rank", "drawn_alike"):
        run = trainer.finished(tmp_path / recipe, "--max-steps 1 --max-val-images 0", ranks=2, recipe=recipe)
        (file,) = (run / "predictions").glob("*.json")
        found.append(json.loads(file.read_text())["images"])
    assert found[0] == found[1]  # of the average, which is mostly the first weights


def test_the_smallest_automatic_number_of_threads_is_taken_by_all_and_said(trainer, tmp_path):
    command = trainer.train(tmp_path / "run", "--max-steps 1 --max-val-images 3 --system.intra-op-threads 0")
    ended = trainer.ended_well(command, ranks=2, environs=[{"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "2"}])
    assert check_line(ended[0].text, "2 compute threads", "3")
    assert '"intra_op": 2' in (tmp_path / "run" / "run.json").read_text()
    assert "compute threads" not in ended[1].text


def test_a_rank_that_scores_another_checkpoint_is_refused(trainer, tmp_path):
    run = trainer.finished(tmp_path / "run", "--max-steps 1 --max-val-images 3")
    ended = trainer.run(["eval", str(run)], ranks=2, own=[["--checkpoint", "best"], ["--checkpoint", "last"]])
    assert [rank.code for rank in ended] == [2, 2], said(ended)
    assert check_text(ended[0].text, 'checkpoint is "best" on rank 0 and "last" on rank 1'), said(ended)


def test_each_host_has_the_message(trainer, tmp_path):
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # two hosts of one rank each
    ended = trainer.refused(tmp_path / "run", own=[["--seed", "1"], ["--seed", "2"]], environs=[alone, alone])
    assert all("seed is 1 on rank 0 and 2 on rank 1." in rank.text for rank in ended)
    assert list(tmp_path.iterdir()) == []  # the secret that the hosts shared is gone too


def test_a_rank_says_itself_why_it_met_nobody(trainer, tmp_path):
    ended = trainer.refused(tmp_path / "run", environs=[{"PACELINE_SECRET": "short"}] * 2)
    assert all("paceline: PACELINE_SECRET: must have 16 to 4096 characters, got 5" in rank.text for rank in ended), said(
        ended
    )
