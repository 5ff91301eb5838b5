"""--num-folds K --fold I in whole commands: what is learned and scored, a resume, `eval`, a repetition, ranks, and what is refused."""

from __future__ import annotations

import json
import shutil

import pytest
from messages import check_line, check_text
from run_files import cut_after, events_of, facts_of, tensor_files
from shared_runs import SSD
from tiny_runs import TINY, command, refused, train

from paceline.tools.report.run_report import write_report

pytestmark = pytest.mark.usefixtures("no_report", "no_charts")

STEPS = ["--log-every", 1, "--save-every", 1, "--eval-every", 2, "--keep-checkpoints", 9]


def scored(run) -> list[str]:
    found = json.loads(sorted((run / "predictions").glob("step-*.json"))[-1].read_text())
    return sorted(image["file"] for image in found["images"])


@pytest.fixture
def first(class_photos, tmp_path, capsys):
    assert train(capsys, class_photos, tmp_path / "one", "--num-folds", 3, "--fold", 1, *STEPS, steps=4).code == 0
    return tmp_path / "one"


def test_folds_are_scored_once_each_whatever_the_seed_and_named_everywhere(first, class_photos, tmp_path, capsys):
    files = [scored(first)]
    for fold, seed in ((2, 0), (3, 7)):
        run = tmp_path / f"run{fold}"
        more = ("--num-folds", 3, "--fold", fold, "--seed", seed)
        assert train(capsys, class_photos, run, *more, steps=1).code == 0
        files.append(scored(run))
    every = sorted(str(path) for path in (class_photos / "train").rglob("*.jpg"))
    assert sorted(file for own in files for file in own) == every and [len(own) for own in files] == [6, 6, 6]
    facts = facts_of(first)
    assert (facts["plan"]["train_images"], facts["plan"]["val_images"]) == (12, 6)
    assert facts["data"]["fold"] == {"number": 1, "of": 3, "seed": 0, "group": "", "data": facts["data"]["fold"]["data"]}
    predictions = json.loads(next((first / "predictions").glob("step-000004.json")).read_text())
    assert predictions["fold"] == facts["data"]["fold"]
    assert "fold 1 of 3" in command(capsys, "plan", f"{first}/run.json").out
    page = write_report(first).read_text()
    assert page.count("fold 1 of 3") >= 2 and check_line(page, "fold 1 of 3", "step 4")


def test_a_resumed_run_and_a_repeated_one_have_the_same_fold_and_bits(first, class_photos, tmp_path, capsys):
    cut = cut_after(shutil.copytree(first, tmp_path / "cut", symlinks=True), 2)
    assert train(capsys, class_photos, cut, "--num-folds", 3, "--fold", 1, *STEPS, steps=4).code == 0
    assert command(capsys, "train", f"{first}/run.json", "--output-dir", tmp_path / "again").code == 0
    for run in (cut, tmp_path / "again"):
        assert tensor_files(run) == tensor_files(first) and scored(run) == scored(first)
        assert [event["top1"] for event in events_of(run, "eval")] == [event["top1"] for event in events_of(first, "eval")]
    cut = cut_after(shutil.copytree(first, tmp_path / "other", symlinks=True), 2)
    said = train(capsys, class_photos, cut, "--num-folds", 3, "--fold", 2, *STEPS, steps=4)
    refused(said, "12 ... fold 1 of 3 ... fold 2 of 3", "--fold")
    refused(train(capsys, class_photos, cut, *STEPS, steps=4), "12 ... fold 1 of 3 ... 18")


def test_eval_scores_the_runs_own_fold_and_other_data_whole(first, class_photos, tmp_path, capsys):
    said = command(capsys, "eval", first, "--checkpoint", "last", "--output", tmp_path / "found.json")
    assert said.code == 0 and "fold 1 of 3" in said.out, said
    found = json.loads((tmp_path / "found.json").read_text())
    assert sorted(image["file"] for image in found["images"]) == scored(first) and found["fold"]["number"] == 1
    said = command(capsys, "eval", first, "--data", class_photos, "--json", "--output", tmp_path / "val.json")
    found = json.loads((tmp_path / "val.json").read_text())
    assert said.code == 0 and "fold" not in found
    assert all("/val/" in image["file"] for image in found["images"]) and len(found["images"]) == 9


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("--fold 1", "--fold 1"),
        ("--fold-seed 3", "--fold-seed 3"),
        ("--num-folds 3", "--num-folds 3 without --fold"),
        ("--num-folds 3 --fold 4", "--fold 4 ... 1 to 3"),
        ("--num-folds 1 --fold 1", "--num-folds 1: must be 2 or more"),
        ("--num-folds 9 --fold 1", "Use at most --num-folds 6"),
        ("--num-folds 99 --fold 1", "18 different"),
    ],
)
def test_what_cannot_be_is_refused(class_photos, tmp_path, capsys, flags, wanted):
    refused(train(capsys, class_photos, tmp_path / "run", *flags.split()), wanted)
    assert not (tmp_path / "run").exists()


def test_show_plans_a_fold_and_a_detector_trains_on_one(ssd_run, tmp_path, capsys):
    words = ("--data", ssd_run.data, "--num-folds", 2, "--fold", 2)
    said = command(capsys, "plan", "ssd-demo", *words)
    assert said.code == 0 and "fold 2 of 2" in said.out and "6 training images" in said.out, said
    refused(command(capsys, "plan", "ssd-demo", "--num-folds", 2, "--fold", 1), "--data DIR")
    for fold in (1, 2):
        run = tmp_path / f"run{fold}"
        more = ("--num-folds", 2, "--fold", fold, "--max-steps", 1)
        assert (
            command(capsys, "train", "ssd-demo", "--data", ssd_run.data, "--output-dir", run, *SSD.split(), *more).code == 0
        )
    one, other = scored(tmp_path / "run1"), scored(tmp_path / "run2")
    assert len(set(one) | set(other)) == 12 and len(one) == len(other) == 6
    assert write_report(tmp_path / "run1").exists()


def test_a_staged_copy_is_read_by_a_fold(class_photos, tmp_path, capsys):
    said = command(
        capsys, "train", "classify-demo", "--data", class_photos, "--output-dir", tmp_path / "run", *TINY, "--max-steps", 1,
        "--copy-data-to", tmp_path / "near", "--num-folds", 3, "--fold", 1,
    )  # fmt: skip
    assert said.code == 0 and "copied 18 files" in said.out, said


def test_runs_gives_the_mean_and_deviation_of_folds_and_seeds_by_a_plain_sum(class_photos, tmp_path, capsys):
    folder, told = tmp_path / "runs", {}
    for name, flags in {
        "a1": "--num-folds 3 --fold 1", "a1b": "--num-folds 3 --fold 1", "a2": "--num-folds 3 --fold 2",
        "a2s": "--num-folds 3 --fold 2 --seed 5",
        "b": "", "bs": "--seed 9", "alone": "--optim.momentum 0.5",
    }.items():  # fmt: skip
        assert train(capsys, class_photos, folder / name, *flags.split(), "--eval-every", 1).code == 0
        told[name] = events_of(folder / name, "eval")
    by_folds, by_seed = json.loads(command(capsys, "runs", folder, "--folds", "--json").out)
    assert (by_folds["folds"], by_folds["missing"], by_folds["seeds"]) == (
        3,
        [3],
        sorted({5, facts_of(folder / "a1")["recipe"]["seed"]}),
    )
    left_out = {run["name"]: run["left_out"] for run in by_folds["runs"]}
    assert left_out == {"a1": "replaced by a newer run with the same fold and seed", "a1b": "", "a2": "", "a2s": ""}
    assert (by_seed["folds"], by_seed["missing"], [run["name"] for run in by_seed["runs"]]) == (0, [], ["b", "bs"])
    for group, names in ((by_folds, ("a1b", "a2", "a2s")), (by_seed, ("b", "bs"))):
        for which in ("best", "last"):
            for metric in ("top1", "top5"):
                chosen = [
                    max(told[name], key=lambda event: event["top1"]) if which == "best" else told[name][-1]
                    for name in names
                ]
                values = [event[metric] for event in chosen]
                mean = sum(values) / len(values)
                deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
                assert group[which][metric] == {
                    "mean": pytest.approx(mean),
                    "deviation": pytest.approx(deviation),
                    "runs": len(values),
                }
    text = command(capsys, "runs", folder, "--folds").out
    assert "missing: fold 3" in text and "3 folds, 2 seeds, 4 runs" in text and "alone" not in text and " +- " in text
    check_text(command(capsys, "runs", folder / "alone", "--folds").out, "fold", "seed")
