"""Two real ranks of which one is slow: every interval says what each takes, and the slow one is named once."""

from __future__ import annotations

import json

import pytest
from small_run import events, said, tensor_files

from paceline.training.logging.events import read_events

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]

SHORT = "--max-steps 5 --eval-every 5 --max-val-images 6 --log-every 1"


def test_the_slow_rank_of_two_is_in_every_event_and_named_once(trainer, tmp_path):
    run = tmp_path / "run"
    ended = trainer.ended_well(trainer.train(run, SHORT, recipe="lagging"), ranks=2)
    trained = [event for event in read_events(run / "events.jsonl") if event["event"] == "train"]
    assert len(trained) == 5
    for event in trained:
        fast, slow = event["rank_seconds"]
        assert event["slowest_rank"] == 1 and 0 < fast < slow and slow >= 0.2
        assert event["peak_memory"] > 2**20 and event["flop_per_second"] > 0
    notes = [line for line in said(ended).splitlines() if "wait for it" in line]
    assert len(notes) == 1 and "rank 1 on " in notes[0]


def test_one_rank_alone_has_no_times_of_ranks_and_counts_the_same_work(trainer, tmp_path):
    """FLOP of a step are those of its images, whatever the number of ranks that it is cut over."""
    work = []
    for ranks in (1, 2):
        run = trainer.finished(tmp_path / str(ranks), f"{SHORT} --bn-batch-size 6", ranks=ranks)
        event = [event for event in read_events(run / "events.jsonl") if event["event"] == "train"][-1]
        assert ("rank_seconds" in event) == (ranks == 2)
        work.append(event["flop_per_second"] / event["images_per_second"])
        memory = json.loads((run / "run.json").read_text())["memory_estimate"]
        assert work[-1] == pytest.approx(memory["flop"])
    assert work[0] == pytest.approx(work[1])
    assert events(tmp_path / "1")[0].keys() == events(tmp_path / "2")[0].keys() and tensor_files(run)
