"""mllog.txt: accepted by the official checker, the same as the package writes, one run_start for ever."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from checked_logs import check, records

from paceline.config.recipe import Optim
from paceline.models.mllog_keys import optimizer_log_entries
from paceline.training.logging.mllog import MLLog

OPTIMIZERS = {
    "lars": (Optim("lars", 11.0, weight_decay=5e-5), dict(min_lr=1e-4, poly_power=2, decay_epochs=37, warmup_epochs=2)),
    "sgd": (Optim("sgd", 2.0, weight_decay=1e-4), dict(min_lr=1e-4, poly_power=2, decay_epochs=56, warmup_epochs=5)),
}


def begin(log: MLLog, kind: str = "lars") -> None:
    log.cache_clear(True)
    log.init_start()
    log.submission("resnet", org="example", division="closed", status="onprem", platform="1xCPU")
    log.run_facts({"seed": 1, "model_bn_span": 400, "global_batch_size": 3200, "gradient_accumulation_steps": 1})
    optim, schedule = OPTIMIZERS[kind]
    log.run_facts(optimizer_log_entries(optim, **schedule))
    log.weights_initialization(["conv1.weight", "fc.bias"])
    log.init_stop()
    log.run_start(train_samples=1_281_167, eval_samples=50_000)


def block(log: MLLog, first: int, last: int, accuracy: float, steps: int = 100) -> None:
    log.block_start(first_epoch_num=first, epoch_count=last - first + 1, step=(first - 1) * steps)
    for epoch in range(first, last + 1):
        log.epoch_start(epoch_num=epoch, step=(epoch - 1) * steps)
        log.epoch_stop(epoch_num=epoch, step=epoch * steps)
        log.tracked_stats({"throughput": 1234.5}, step=epoch * steps)
    log.eval_start(epoch_num=last, step=last * steps)
    log.eval_stop(epoch_num=last, step=last * steps)
    log.eval_accuracy(accuracy, epoch_num=last, step=last * steps)
    log.block_stop(first_epoch_num=first, step=last * steps)


@pytest.mark.parametrize("kind", ["lars", "sgd"])
def test_the_official_checker_accepts_a_run_that_reached_the_target(tmp_path, kind):
    log = MLLog(tmp_path / "mllog.txt")
    begin(log, kind)
    block(log, 1, 3, 0.61)
    block(log, 4, 7, 0.76)
    log.run_stop("success", step=700)
    accepted, printed = check(tmp_path / "mllog.txt")
    assert accepted, printed


def test_the_only_rule_a_run_below_the_target_fails_is_eval_accuracy(tmp_path):
    log = MLLog(tmp_path / "mllog.txt")
    begin(log)
    block(log, 1, 3, 0.61)
    log.run_stop("aborted", step=300)
    accepted, printed = check(tmp_path / "mllog.txt")
    complaints = [line for line in printed.splitlines() if "ailed" in line and "FAILED" not in line]
    assert not accepted
    assert len(complaints) == 1 and "eval_accuracy" in complaints[0], printed


def test_the_checker_notices_a_missing_run_stop(tmp_path):
    log = MLLog(tmp_path / "mllog.txt")
    begin(log)
    block(log, 1, 3, 0.76)
    accepted, printed = check(tmp_path / "mllog.txt")
    assert not accepted and "run_stop" in printed


def test_the_lines_stand_in_the_published_order(tmp_path):
    log = MLLog(tmp_path / "mllog.txt", clock=lambda: 1_700_000_000.25)
    begin(log)
    block(log, 1, 1, 0.5)
    log.run_stop("aborted", step=100)
    lines = records(tmp_path / "mllog.txt")
    assert [line["key"] for line in lines] == [
        *("cache_clear", "init_start"),
        *(f"submission_{name}" for name in ("benchmark", "org", "division", "status", "platform")),
        *("seed", "model_bn_span", "global_batch_size", "gradient_accumulation_steps"),
        *("lars_opt_learning_rate_decay_poly_power", "lars_opt_end_learning_rate", "opt_name", "lars_epsilon"),
        *("lars_opt_weight_decay", "lars_opt_momentum", "lars_opt_base_learning_rate"),
        *("lars_opt_learning_rate_warmup_epochs", "lars_opt_learning_rate_decay_steps"),
        *("weights_initialization", "weights_initialization", "init_stop", "run_start", "train_samples", "eval_samples"),
        *("block_start", "epoch_start", "epoch_stop", "tracked_stats", "eval_start", "eval_stop", "eval_accuracy"),
        *("block_stop", "run_stop"),
    ]
    assert {line["time_ms"] for line in lines} == {1_700_000_000_250}
    assert list(lines[0]) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
    assert lines[-1]["event_type"] == "INTERVAL_END" and lines[-1]["metadata"]["status"] == "aborted"


def test_mlperfs_own_package_writes_the_same_bytes(tmp_path):
    mllog = pytest.importorskip("mlperf_logging.mllog.mllog", reason="mlperf-logging is not installed (extra: mlperf)")
    log = MLLog(tmp_path / "mllog.txt", clock=lambda: 5.0)
    begin(log)
    block(log, 1, 2, 0.5)
    log.run_stop("success", step=200)
    messages: list[str] = []
    logger = logging.Logger("package", logging.INFO)
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: messages.append(record.getMessage()) if record.levelno == logging.INFO else None
    logger.addHandler(handler)
    package = mllog.MLLogger(logger)
    write = {"POINT_IN_TIME": package.event, "INTERVAL_START": package.start, "INTERVAL_END": package.end}
    for line in records(tmp_path / "mllog.txt"):  # its file and line among the metadata take the place of this one
        write[line["event_type"]](line["key"], line["value"], line["metadata"], time_ms=line["time_ms"])
    assert "".join(f"{message}\n" for message in messages) == (tmp_path / "mllog.txt").read_text()
    assert len(messages) == 26 + 11 + 1


def test_every_line_names_the_place_that_reported_it(tmp_path):
    log = MLLog(tmp_path / "mllog.txt")
    begin(log)
    source = Path(__file__).read_text().splitlines()
    for line in records(tmp_path / "mllog.txt"):
        assert line["metadata"]["file"] == "tests/training/test_mllog.py"
        assert "log." in source[line["metadata"]["lineno"] - 1]


def test_nothing_is_printed(tmp_path, capfd):
    begin(MLLog(tmp_path / "mllog.txt"))
    assert capfd.readouterr() == ("", "")


def test_a_resumed_run_goes_on_in_the_same_file_with_one_init_and_one_run_start(tmp_path):
    path = tmp_path / "mllog.txt"
    log = MLLog(path)
    begin(log)
    block(log, 1, 2, 0.5)
    log.block_start(first_epoch_num=3, epoch_count=1, step=200)
    log.epoch_start(epoch_num=3, step=200)
    log.run_stop("aborted", step=250)  # interrupted; the newest checkpoint is that of step 200

    log = MLLog(path)
    assert log.started
    assert log.truncate_after(200) == 3
    begin(log)
    block(log, 3, 3, 0.76)
    log.run_stop("success", step=300)

    unbroken = MLLog(tmp_path / "unbroken.txt")
    begin(unbroken)
    block(unbroken, 1, 2, 0.5)
    block(unbroken, 3, 3, 0.76)
    unbroken.run_stop("success", step=300)
    told, wanted = ([(line["key"], line["value"]) for line in records(file)] for file in (path, tmp_path / "unbroken.txt"))
    assert told == wanted
    accepted, printed = check(path)
    assert accepted, printed


def test_an_evaluation_that_was_pending_at_the_checkpoint_is_cut(tmp_path):
    log = MLLog(tmp_path / "mllog.txt")
    begin(log)
    before = records(tmp_path / "mllog.txt")
    block(log, 1, 1, 0.5)
    log.truncate_after(100, evaluated=False)
    keys = [line["key"] for line in records(tmp_path / "mllog.txt")[len(before) :]]
    assert keys == ["block_start", "epoch_start", "epoch_stop", "tracked_stats"]


@pytest.mark.parametrize("lines_kept", [1, 5, -2, -1])
def test_a_run_killed_before_its_start_was_logged_begins_the_log_anew(tmp_path, lines_kept):
    path = tmp_path / "mllog.txt"
    begin(MLLog(path))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:lines_kept]) + ':::MLLOG {"names')
    log = MLLog(path)
    assert not log.started
    begin(log)
    assert [line["key"] for line in records(path)].count("run_start") == 1
    assert len(records(path)) == len(lines)


def test_a_decay_that_is_no_polynomial_has_no_power_and_names_its_boundaries():
    optim, schedule = OPTIMIZERS["sgd"]
    facts = optimizer_log_entries(optim, **{**schedule, "poly_power": None}, boundary_epochs=(30, 60))
    assert "sgd_opt_learning_rate_decay_poly_power" not in facts and "lars_epsilon" not in facts
    assert facts["opt_learning_rate_decay_boundary_epochs"] == [30, 60]
    assert facts["opt_learning_rate_warmup_epochs"] == 5


@pytest.mark.parametrize("key", ["eval_samples", "block_start"])
def test_a_damaged_line_is_named_and_cut_and_the_log_is_not_begun_anew(tmp_path, key):
    path = tmp_path / "mllog.txt"
    log = MLLog(path)
    begin(log)
    block(log, 1, 1, 0.5)
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(place for place, line in enumerate(lines) if b'"%s"' % key.encode() in line)
    for damaged in (
        b"\xff\xfe" + lines[number],
        lines[number].replace(b'"key":', b'"key";'),
        b":::MLLOG " + b"[" * 100_000 + b"\n",
    ):
        path.write_bytes(b"".join([*lines[:number], damaged, *lines[number + 1 :]]))
        log = MLLog(path)
        assert log.started and log.damage == [f"{path}: line {number + 1} damaged and ignored"]
        assert log.truncate_after(1000) == 1
        assert path.read_bytes() == b"".join([*lines[:number], *lines[number + 1 :]])


@pytest.mark.parametrize("odd", ['"metadata": 5', '"metadata": {"step_num": "x"}', '"metadata": [], "key": []'])
def test_a_line_of_odd_types_does_no_harm(tmp_path, odd):
    path = tmp_path / "mllog.txt"
    begin(MLLog(path))
    with path.open("a") as file:
        file.write(f":::MLLOG {{{odd}}}\n")
    MLLog(path).truncate_after(100)
    assert all(isinstance(line, dict) for line in records(path))
