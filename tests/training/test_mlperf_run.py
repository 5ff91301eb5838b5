"""A real run under an MLPerf recipe, made small: the official checker objects to nothing but its accuracy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import checked_logs
import pytest
from checked_logs import records
from mllog_order import by_step
from tiny_runs import NET, command, make_photos, of_its_own, without_report

from paceline.training.logging.mllog import PREFIX

EPOCHS, STEPS_AN_EPOCH, BATCH = 7, 3, 8
# The published recipe; its form is what the rules look at: LARS, poly 2, first evaluation after epoch 3, then every 4.
SMALL = [
    "resnet50-mlperf-3200",
    *NET,
    *f"--global-batch-size {BATCH} --bn-batch-size {BATCH} --optim.lr 0.1 --epochs {EPOCHS}".split(),
]
WHO = ["--mlperf.submitter", "the house", "--mlperf.platform", "a table", "--mlperf.cache-cleared"]


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        data = make_photos(tmp_path_factory.mktemp("photos") / "set", train=BATCH, val=3)
        run = tmp_path_factory.mktemp("runs") / "run"
        from paceline.cli.main import main

        words = ["train", *SMALL, "--data", data, "--output-dir", run, "--target", "top1=0.759"]
        words += WHO
        assert main([str(word) for word in words]) in (0, 1)  # noise may well be guessed
    return run / "mllog.txt"


def test_the_official_checker_objects_to_nothing_but_the_accuracy(log, tmp_path):
    def check(path: Path) -> tuple[bool, list[str]]:
        accepted, printed = checked_logs.check(path)
        return accepted, [line for line in printed.splitlines() if " - " in line]

    shutil.copy(log, tmp_path / "log.txt")
    accepted, printed = check(tmp_path / "log.txt")
    objections = [line for line in printed if not line.startswith("INFO") and "FAILED" not in line]
    assert accepted or (objections and all("eval_accuracy" in line for line in objections)), printed
    # With an accuracy that meets the target the very same log is accepted: nothing else is wrong with it.
    lines = log.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"eval_accuracy"' in line)
    record = json.loads(lines[last].removeprefix(PREFIX))
    lines[last] = PREFIX + json.dumps({**record, "value": 0.7591})
    lines = [line.replace('"status": "aborted"', '"status": "success"') for line in lines]
    (tmp_path / "reached.txt").write_text("\n".join(lines) + "\n")
    accepted, printed = check(tmp_path / "reached.txt")
    assert accepted, printed
    # And the checker would have noticed: one line less is a complaint.
    fewer = [line for line in lines if '"lars_opt_momentum"' not in line]
    (tmp_path / "fewer.txt").write_text("\n".join(fewer) + "\n")
    accepted, printed = check(tmp_path / "fewer.txt")
    assert not accepted and any("lars_opt_momentum" in line for line in printed), printed


def test_the_log_tells_the_recipes_own_numbers(log):
    said = {record["key"]: record["value"] for record in records(log)}
    wanted = {
        "submission_benchmark": "resnet",
        "submission_org": "the house",
        "submission_platform": "a table",
        "submission_division": "closed",
        "cache_clear": True,
        "global_batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "model_bn_span": BATCH,
        "seed": 1,
        "opt_name": "lars",
        "lars_epsilon": 0.0,
        "lars_opt_base_learning_rate": 0.1,
        "lars_opt_end_learning_rate": 1e-4,
        "lars_opt_weight_decay": 5e-5,
        "lars_opt_momentum": 0.9,
        "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_learning_rate_decay_steps": EPOCHS,
        "lars_opt_learning_rate_warmup_epochs": 2,
        "train_samples": 3 * BATCH,
        "eval_samples": 9,
    }
    assert {key: said.get(key) for key in wanted} == wanted
    assert isinstance(said["lars_opt_learning_rate_warmup_epochs"], int)


def test_evaluations_follow_epochs_three_and_seven_and_the_run_stops_once(log):
    told = records(log)
    epochs = [record["metadata"]["epoch_num"] for record in told if record["key"] == "eval_accuracy"]
    assert epochs == [3, 7][: len(epochs)] and epochs
    keys = [record["key"] for record in told]
    for once in ("init_start", "init_stop", "run_start", "run_stop"):
        assert keys.count(once) == 1
    assert keys[-1] == "run_stop"
    assert keys.count("weights_initialization") == len(set(map(str, weights(told)))) > 20


def weights(told: list[dict]) -> list[str]:
    return [record["metadata"]["tensor"] for record in told if record["key"] == "weights_initialization"]


def test_blocks_hold_their_epochs_and_their_evaluation(log):
    """block_start, (epoch_start, epoch_stop, tracked_stats) for each epoch, eval_start, ..., block_stop; then the next.

    Training went on beside the scoring of the first evaluation: its block ended, and the next began, before the result.
    """
    keys = [record["key"] for record in records(log)]
    story = keys[keys.index("eval_samples") + 1 : -1]
    epoch, result = ["epoch_start", "epoch_stop", "tracked_stats"], ["eval_stop", "eval_accuracy"]
    whole = ["block_start", *epoch * 3, "eval_start", *result, "block_stop"]
    two = ["block_start", *epoch * 3, "eval_start", "block_stop", "block_start", "epoch_start", *result]
    two += [*epoch[1:], *epoch * 3, "eval_start", *result, "block_stop"]
    assert story == (whole if story.count("block_start") == 1 else two)
    starts = [record["metadata"] for record in records(log) if record["key"] == "block_start"]
    assert [(start["first_epoch_num"], start["epoch_count"]) for start in starts] == [(1, 3), (4, 4)][: len(starts)]


def test_a_repeated_run_does_not_repeat_that_caches_were_cleared(log):
    from paceline.cli.saved_request import saved_request

    _, options, facts, _ = saved_request(log.parent / "run.json", [], "train")
    assert facts.options["mlperf"]["cache_cleared"] and not options.mlperf.cache_cleared
    assert options.mlperf.submitter == "the house"


def test_times_never_run_backwards(log):
    times = [record["time_ms"] for record in records(log)]
    assert times == sorted(times)


def test_a_recipe_that_is_not_an_mlperf_one_writes_a_log_too(tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    data = make_photos(tmp_path / "set")
    words = "--global-batch-size 8 --optim.lr 0.1 --epochs 1 --bn-batch-size 8 --schedule.warmup 0.5"
    said = command(capsys, "train", "resnet50", *NET, *words.split(), "--data", data, "--output-dir", tmp_path / "run")
    assert said.code == 0
    told = {record["key"]: record["value"] for record in records(tmp_path / "run" / "mllog.txt")}
    assert told["opt_name"] == "sgd" and told["sgd_opt_base_learning_rate"] == 0.1
    assert told["opt_learning_rate_warmup_epochs"] == 0.5 and told["run_stop"] is None
    # Done as asked, which is exit code 0; MLPerf's success is a target that was met, and there was none.
    stop = records(tmp_path / "run" / "mllog.txt")[-1]
    assert (stop["key"], stop["metadata"]["status"]) == ("run_stop", "aborted")


# In the middle of an epoch, at an epoch's end, and at an evaluation that the recipe has too.
@pytest.mark.parametrize("step", [4, 6, 9])
def test_a_run_that_was_stopped_early_and_given_more_has_the_log_of_one_that_was_not(log, step, tmp_path, monkeypatch):
    from paceline.cli.main import main

    without_report(monkeypatch)
    data = make_photos(tmp_path / "set", train=BATCH, val=3)
    words = ["train", *SMALL, "--data", data, "--output-dir", tmp_path / "run", "--target", "top1=0.759"]
    words += WHO
    assert main([str(word) for word in (*words, "--max-steps", step)]) == 0
    code = main([str(word) for word in words])
    told, whole = records(tmp_path / "run" / "mllog.txt"), records(log)
    if code == 2:  # the target was met at step 9 already, by chance
        assert step == 9 and told[-1]["metadata"]["status"] == "success"
    facts = ("step_num", "epoch_num", "first_epoch_num", "status")

    def line(record: dict) -> tuple:
        value = None if record["key"] == "tracked_stats" else record["value"]
        return record["key"], value, *(record["metadata"].get(name) for name in facts)

    def story(lines: list[dict]) -> list[tuple]:
        return by_step([line(record) for record in lines], lambda told: (told[0], told[2]))

    assert story(told) == story(whole)
