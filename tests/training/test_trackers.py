"""What trackers are told: each step once, under one name, over kills; and the real packages hold what was sent."""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from messages import check_text, raises
from tiny_runs import train, without_report

from paceline._utils.errors import PacelineError
from paceline.training.logging.events import get_metrics, read_events
from paceline.training.logging.trackers import TrackerRun


def numbers(event: str, step: int, **facts: float) -> dict:
    return {"event": event, "step": step, "epoch": step / 2, "seconds": 1.0, **facts}


def installed(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


def need(name: str, extra: str) -> None:
    if not installed(name):
        pytest.skip(f"{name} is not installed: pip install '.[{extra}]'")


def test_a_step_is_new_once_of_each_kind_and_over_a_kill(tmp_path):
    file = tmp_path / "x.json"
    told = TrackerRun(file, None)
    assert told.id == "" and not file.exists()
    for step in (2, 4):
        assert told.is_new(numbers("train", step))
        told.note("abc", numbers("train", step))
    again = TrackerRun(file, 2)  # killed at step 5, its checkpoint is of step 2
    assert again.id == "abc"
    assert [again.is_new(numbers("train", step)) for step in (2, 4, 6)] == [False, False, True]
    assert again.is_new(numbers("eval", 2))
    assert TrackerRun(file, None).id == ""  # killed before its first checkpoint: another run there too


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"id": 1, "steps": {}}', '{"id": "a", "steps": {"train": "x"}}', "[" * 9999]
)
def test_a_file_that_is_none_of_ours_is_named(tmp_path, text):
    (tmp_path / "wandb.json").write_text(text)
    with raises(PacelineError, "wandb.json", "Remove"):
        TrackerRun(tmp_path / "wandb.json", 2)


def test_the_logger_on_the_page_records_a_run(class_photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    page = (Path(__file__).parents[2] / "docs/how-to/extend/logger.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    (tmp_path / "curves.py").write_text(blocks[0])
    run = tmp_path / "run"
    assert train(capsys, class_photos, run, "--logger", f"{tmp_path}/curves.py:Curves").code == 0
    table = sqlite3.connect(run / "curves.db")
    rows = table.execute("SELECT step, value FROM curves WHERE kind = 'eval' AND name = 'top1'").fetchall()
    table.close()
    assert [step for step, _ in rows] == [2] and 0 <= rows[0][1] <= 1


def pieces(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a log in LevelDB's format, in blocks of 32 KiB, after 7 bytes of its own."""
    assert content[:4] == b":W&B"
    place, whole = 7, b""
    while place + 7 <= len(content):
        if 2**15 - place % 2**15 < 7:  # no room for a head: padding
            place += 2**15 - place % 2**15
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def records(run: Path) -> list[dict]:
    """What every start of a run wrote offline, by W&B's own messages: its history's rows, then config and summary by name."""
    from wandb.proto import wandb_internal_pb2

    starts = []
    for file in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        rows, config, summary, ends = [], {}, {}, []
        for data in pieces(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                named = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                rows.append({name: value for name, value in named.items() if name != "_runtime" and name != "_timestamp"})
            for part in (
                [record.config] if record.HasField("config") else [record.run.config] if record.HasField("run") else []
            ):
                config |= {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in part.update}
            if record.HasField("summary"):
                summary |= {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.summary.update
                }
            if record.HasField("exit"):
                ends.append(record.exit.exit_code)
        starts.append(
            {"rows": rows, "config": config, "summary": summary, "exit": ends, "id": file.stem.removeprefix("run-")}
        )
    return starts


@pytest.mark.nightly("imports an extra of 150 MB and trains into it")
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_holds_what_was_sent(class_photos, tmp_path, capsys, monkeypatch):
    need("wandb", "wandb")
    without_report(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    for steps in (2, 3):
        assert train(capsys, class_photos, run, "--logger", "wandb", "--log-every", 1, "--seed", 7, steps=steps).code == 0
    first, second = records(run)
    assert first["id"] == second["id"] == json.loads((run / "wandb.json").read_text())["id"]
    events = [event for event in read_events(run / "events.jsonl") if event["event"] in ("train", "eval")]
    rows = [row for start in (first, second) for row in start["rows"]]
    assert [row["_step"] for row in rows] == sorted({event["step"] for event in events}) == [1, 2, 3]
    for event in events:
        row = rows[event["step"] - 1]
        if event["event"] == "train":
            assert (row["train/loss"], row["train/lr"], row["epoch"]) == (event["loss"], event["lr"], event["epoch"])
        else:
            assert {name: row[f"eval/{name}"] for name in get_metrics(event)} == get_metrics(event)
    assert first["config"]["recipe"]["seed"] == 7 and second["config"]["plan"]["stop_after"] == 3
    assert second["summary"]["status"] == "stopped_early" and second["exit"] == [0]
    assert second["summary"]["best/top1"] == max(event["top1"] for event in events if "top1" in event)

    # Killed: steps 4 and 5 were logged, the checkpoint is of step 4, whose evaluation was not known yet.
    from paceline.training.logging.trackers import WeightsAndBiases

    killed = WeightsAndBiases(run, 3)
    for step in (4, 5):
        killed.write(numbers("train", step, loss=1.0 * step))
    killed.close()
    again = WeightsAndBiases(run, 4)
    again.write(numbers("eval", 4, images=9, eval_seconds=1.0, top1=0.5))
    for step in (5, 6):
        again.write(numbers("train", step, loss=10.0 * step))
    again.close()
    *_, third, fourth = records(run)
    assert [(row["_step"], row["train/loss"]) for row in third["rows"]] == [(4, 4.0), (5, 5.0)] and third["exit"] == [1]
    assert [(row["_step"], row.get("eval/top1"), row.get("train/loss")) for row in fourth["rows"]] == [
        (4, 0.5, None),
        (6, None, 60.0),
    ]


@pytest.mark.nightly("imports an extra of 150 MB and trains into it")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("store", ["files", "sqlite"])
def test_mlflow_holds_what_was_sent_once(class_photos, tmp_path, capsys, monkeypatch, store):
    need("mlflow" if store == "files" else "sqlalchemy", "mlflow")
    without_report(monkeypatch)
    monkeypatch.chdir(tmp_path)  # where mlflow puts mlflow.db
    where = str(tmp_path / "store") if store == "files" else f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    run = tmp_path / "run"
    for steps in (2, 3):
        said = train(capsys, class_photos, run, "--logger", "mlflow", "--log-every", 1, "--seed", 7, steps=steps)
        assert said.code == 0 and "--logger" not in said.out + said.err, said
    # Killed and gone on with: what MLflow has of step 3 is not sent again.
    from mlflow.tracking import MlflowClient

    from paceline.training.logging.trackers import MLflow

    client, number = MlflowClient(), json.loads((run / "mlflow.json").read_text())["id"]
    again = MLflow(run, 2)
    assert client.get_run(number).info.status == "RUNNING"
    again.write(numbers("train", 3, loss=99.0))
    again.write(numbers("train", 4, loss=4.0))
    again.write({**numbers("end", 4), "status": "interrupted", "reason": "stopped", "best": {"top1": 0.5}})
    again.close()
    events = read_events(run / "events.jsonl")
    for kind, name in (("train", "loss"), ("train", "lr"), ("eval", "top1")):
        has = [(entry.step, entry.value) for entry in client.get_metric_history(number, f"{kind}/{name}")]
        sent = [(event["step"], event[name]) for event in events if event["event"] == kind]
        assert has == sent + ([(4, 4.0)] if name == "loss" else [])
    held = client.get_run(number)
    assert held.data.params["recipe.seed"] == "7" and held.data.params["plan.global_batch_size"] == "8"
    assert held.data.tags["paceline.status"] == "interrupted" and held.info.status == "KILLED"
    assert held.data.metrics["best/top1"] == 0.5 and held.info.run_name == "run"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "other"))
    said = train(capsys, class_photos, run, "--logger", "mlflow", "--seed", 7, steps=5)
    assert said.code == 2 and check_text(said.err, "mlflow.json", "MLFLOW_TRACKING_URI") and len(said.err.splitlines()) == 1
