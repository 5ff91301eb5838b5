"""events.jsonl: one schema, always JSON, and whole again after a kill."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines
from paceline.training.logging.events import SCHEMA, EventLog, find_schema_problems, get_metrics, read_events, to_json_value

FACTS = {
    "train": {"loss": 2.5, "lr": 0.1, "images_per_second": 120.0, "data_wait": 0.01, "samples": 640},
    "eval": {"images": 1000, "eval_seconds": 3.2, "top1": 0.5, "top5": 0.9},
    "checkpoint": {"name": "step-000010"},
    "warm_up": {
        **{"shapes": 3, "warm_up_seconds": 4.5, "compilations": 3, "captures": 0},
        **{"micro_batch_size": 32, "memory_estimate": 2**30},
    },
    "resume": {"checkpoint": "step-000010", "world_size": 2},
    "end": {"status": "success", "best": {"top1": 0.76}},
}


def write(log: EventLog, event: str, step: int) -> None:
    log.write(event, step=step, epoch=step / 10, seconds=float(step), **FACTS[event])


def strict_json(path: Path) -> list[dict]:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_every_event_is_one_json_line_that_follows_the_schema(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    for step, event in enumerate(SCHEMA):
        write(log, event, step)
    records = strict_json(tmp_path / "events.jsonl")
    assert [record["event"] for record in records] == list(FACTS)
    assert [find_schema_problems(record) for record in records] == [[]] * len(SCHEMA)
    assert read_events(tmp_path / "events.jsonl") == [
        {name: value for name, value in record.items() if name != "crc"} for record in records
    ]
    first = {"event": "train", "step": 0, "epoch": 0.0, "seconds": 0.0, **FACTS["train"]}
    assert {name: records[0][name] for name in first} == first and records[0].keys() - first.keys() == {"crc"}


@pytest.mark.parametrize("event, field", [(event, field) for event, fields in SCHEMA.items() for field in fields])
def test_an_event_without_a_fact_of_its_schema_is_refused_and_not_written(tmp_path, event, field):
    log = EventLog(tmp_path / "events.jsonl")
    facts = {name: value for name, value in FACTS[event].items() if name != field}
    with pytest.raises(ValueError, match=f"{field} is missing"):
        log.write(event, step=0, epoch=0.0, seconds=0.0, **facts)
    assert read_events(tmp_path / "events.jsonl") == []


@pytest.mark.parametrize(
    "event, facts, problem",
    [
        ("banana", {}, "unknown event"),
        ("train", {**FACTS["train"], "loss": "big"}, "a number"),
        ("train", {**FACTS["train"], "samples": 6.5}, "a int"),
        ("eval", {"images": 7, "eval_seconds": 1.0}, "metric"),
        ("end", {"status": "fine", "best": {}}, "status ... 'fine'"),
    ],
)
def test_a_wrong_event_says_what_is_wrong(tmp_path, event, facts, problem):
    with raises(ValueError, problem):
        EventLog(tmp_path / "events.jsonl").write(event, step=0, epoch=0.0, seconds=0.0, **facts)


@given(st.floats(), st.floats(width=32))
@examples(60)
def test_numbers_come_back_as_they_were_and_the_file_is_always_json(tmp_path_factory, loss, lr):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    log = EventLog(path)
    facts = {**FACTS["train"], "loss": torch.tensor(loss, dtype=torch.float64), "lr": np.float32(lr)}
    log.write("train", step=1, epoch=0.1, seconds=1.0, **facts)
    strict_json(path)
    (event,) = read_events(path)
    assert np.array_equal([event["loss"], event["lr"]], [loss, lr], equal_nan=True)


def test_facts_of_numpy_torch_and_paths_are_written_as_plain_values():
    facts = {"a": np.int64(3), "b": torch.tensor(1.5), "c": Path("x/y"), "d": (np.bool_(True), None), "e": [math.inf]}
    assert to_json_value(facts) == {"a": 3, "b": 1.5, "c": "x/y", "d": [True, None], "e": ["inf"]}
    with raises(ValueError, "JSON"):
        to_json_value({"x": object()})


def test_metrics_are_what_an_evaluation_has_beside_its_own_facts():
    event = {"event": "eval", "step": 1, "epoch": 1.0, "seconds": 2.0, **FACTS["eval"], "eval_loss": "nan", "note": "x"}
    metrics = get_metrics(event)
    assert metrics.pop("eval_loss") != metrics
    assert metrics == {"top1": 0.5, "top5": 0.9}


@pytest.mark.parametrize("torn", ["{", '{"event": "train", "step": 30, "lo', "\x00\x00"])
def test_a_line_torn_by_a_kill_is_left_out_by_readers_and_cut_on_opening(tmp_path, torn):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    write(log, "train", 10)
    whole = path.read_bytes()
    path.write_bytes(whole + torn.encode())
    assert [event["step"] for event in read_events(path)] == [10]
    log = EventLog(path)
    assert path.read_bytes() == whole
    write(log, "train", 20)
    assert [event["step"] for event in read_events(path)] == [10, 20]


def test_a_resumed_log_equals_the_unbroken_one(tmp_path):
    story = [("train", 10), ("eval", 10), ("checkpoint", 10), ("train", 20), ("eval", 20), ("end", 20)]
    unbroken, broken = EventLog(tmp_path / "unbroken"), EventLog(tmp_path / "broken")
    for event, step in story:
        write(unbroken, event, step)
    for event, step in [*story[:4], ("end", 20)]:  # interrupted after the checkpoint of step 10
        write(broken, event, step)
    assert broken.truncate_after(10) == 2
    for event, step in story[3:]:
        write(broken, event, step)
    assert (tmp_path / "broken").read_bytes() == (tmp_path / "unbroken").read_bytes()


def test_a_stale_end_does_not_survive_a_resume(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    write(log, "end", 10)
    assert log.truncate_after(10) == 1
    assert read_events(tmp_path / "events.jsonl") == []


def test_a_rewrite_leaves_no_other_file_behind(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    write(log, "train", 10)
    log.truncate_after(5)
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_no_file_means_no_events(tmp_path):
    assert read_events(tmp_path / "events.jsonl") == []


def test_a_folder_that_cannot_be_written_is_a_users_error_that_names_the_file(tmp_path):
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(PacelineError, match=r"events\.jsonl: not writable"):
        EventLog(tmp_path / "events.jsonl")


def test_a_full_disk_is_a_users_error_with_the_next_step():
    with raises(PacelineError, "No space left on device", "--output-dir"):
        write(EventLog(Path("/dev/full")), "train", 10)


def test_a_file_removed_under_a_run_is_not_begun_anew_in_the_middle(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    write(log, "train", 10)
    # As `rm -r RUN` does; the folder may outlive it by a checkpoint that appears meanwhile.
    (tmp_path / "events.jsonl").unlink()
    with pytest.raises(PacelineError, match=r"events\.jsonl: not writable \(No such file.*\n.*was removed"):
        write(log, "train", 20)
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_bit_of_a_line_is_noticed_and_the_other_lines_stay(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for step in (10, 20, 30):
        write(log, "eval", step)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    said: list[str] = []
    for bit in range(8 * (len(second) - 1)):
        flipped = bytearray(second)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(first + flipped + third)
        del said[:]
        assert [event["step"] for event in read_events(path, Lines(said.append))] == [10, 30]
        assert said[0].startswith(f"{path}: line") and "damaged" in said[0]
    path.write_bytes(first + second[:-1] + b"\x0b" + third)
    assert [event["step"] for event in read_events(path, Lines(said.append))] == [10] and "line 2 damaged" in said[-1]


def test_resuming_cuts_damaged_lines_and_says_which(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for step in (10, 20, 30):
        write(log, "train", step)
    path.write_bytes(path.read_bytes().replace(b'"step": 20', b'"step": 21'))
    log = EventLog(path)
    assert log.damage() == [f"{path}: line 2 damaged (checksum mismatch) and ignored"]
    assert log.truncate_after(30) == 1 and log.damage() == []
    path.write_bytes(path.read_bytes()[:-1])
    assert "truncated" in EventLog(path).damage()[0]


def test_what_is_no_file_is_a_users_error(tmp_path):
    (tmp_path / "events.jsonl").mkdir()
    with raises(PacelineError, "events.jsonl"):
        read_events(tmp_path / "events.jsonl")
