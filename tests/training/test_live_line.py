"""The live line: what is wanted most comes first and whole, it moves by itself, and nothing is drawn after the end."""

from __future__ import annotations

import io
import threading
import time
from types import SimpleNamespace

import pytest
from messages import check_lines, check_text

from paceline.training.logging import live_line
from paceline.training.logging.console import SLOW_INPUT, Console
from paceline.training.logging.live_line import RunStatus, fit_line, format_parts

TRAIN = dict(epoch=12.5, loss=1.23456, lr=0.12, images_per_second=1234.5, data_wait=0.01)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Makes a console on a terminal of so many columns, whose thread does not draw and whose clock stands still."""
    made: list[Console] = []

    def make(columns: int = 80, **more) -> tuple[Console, Terminal]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        out = Terminal()
        made.append(Console(10_000, out=out, **more))
        return made[-1], out

    monkeypatch.setattr(live_line, "REDRAW_SECONDS", 3600.0)
    for module in ("live_line", "console"):
        monkeypatch.setattr(f"paceline.training.logging.{module}.time", SimpleNamespace(monotonic=lambda: 100.0))
    yield make
    for console in made:
        console.close()


def drawn(out: Terminal) -> str:
    """The newest drawing, without what moves the cursor."""
    text = out.getvalue().rpartition("\x1b[2K")[2]
    return "".join(letter for letter in text if letter.isprintable() or letter == " ").strip()


def trained(console: Console, **more) -> None:
    console.plan(10_000, target="", global_batch_size=8)
    console.stepped(7_350)
    console.evaluation(7_329, 1.0, {"box_ap": 0.0841, "box_ap50": 0.2}, 41.2)
    console.train({"step": 7_350, **TRAIN, **more}, 200.0)


def test_at_80_columns_the_time_left_comes_first_and_whole(terminal):
    console, out = terminal(80)
    trained(console)
    assert drawn(out) == "ETA 3 min 20 s  step 7,350/10,000  loss 1.2346  1,234 images/s"


def test_at_200_columns_there_are_a_bar_the_newest_evaluation_epoch_and_learning_rate(terminal):
    console, out = terminal(200)
    trained(console)
    line = drawn(out)
    assert line.endswith(
        "ETA 3 min 20 s  step 7,350/10,000  loss 1.2346  1,234 images/s  box AP 8.4  box AP50 20.0  epoch 12.50  lr 0.12"
    )
    assert "\u2501" in line


def test_waiting_for_data_is_shown_where_it_is_worth_advice_and_before_what_is_less_wanted(terminal):
    console, out = terminal(200)
    trained(console, data_wait=SLOW_INPUT)
    assert "data wait" not in drawn(out)
    trained(console, data_wait=0.35)
    assert "images/s  data wait 35%  box AP" in drawn(out)


@pytest.mark.parametrize("width", range(1, 60))
def test_a_line_never_exceeds_its_width_and_keeps_the_first_parts(width):
    texts = ["ETA 3 min 20 s", "step 7,350/10,000", "loss 1.2346"]
    line = fit_line(texts, width)
    assert len(line) <= width
    assert line in (texts[0][:width], "  ".join(texts[:2]), "  ".join(texts))


def test_the_time_left_counts_down_between_two_events():
    now = RunStatus(since=100.0, step=50, total=100, step_seconds=2.0, images_per_second=4.0)
    assert format_parts(now, 100.0)[0] == "ETA 1 min 40 s" and format_parts(now, 130.0)[0] == "ETA 1 min 10 s"
    assert format_parts(now, 130.0)[1] == "step 50/100 (30 s)"  # a slow step shows its own seconds
    assert format_parts(now, 1e6)[0] == "ETA 1 s"
    now.target = "box AP 40.0"  # which may end the run earlier
    assert format_parts(now, 100.0)[0] == "ETA at most 1 min 40 s"


def test_before_the_first_interval_is_over_pace_and_time_left_follow_from_the_steps_sent():
    now = RunStatus(total=100, batch=8)
    assert format_parts(now, now.since)[0] == "step 0/100"
    now.turn_to("first step", 0.0)
    assert format_parts(now, 12.4) == ["first step  12 s"]
    now.turn_to("", 20.0)
    now.step, now.begun = 1, (1, 20.0)
    assert format_parts(now, 21.0) == ["step 1/100 (1 s)"]
    now.step, now.since = 3, 24.0
    assert format_parts(now, 24.0) == ["ETA 3 min 14 s", "step 3/100", "4.0 images/s"]
    # Ten minutes of an evaluation say nothing of the pace.
    now.turn_to("evaluating", 24.0, 400)
    now.done = 120
    assert format_parts(now, 30.0) == ["evaluating 120/400  6 s", "step 3/100"]
    now.turn_to("", 624.0)
    now.step, now.since = 4, 626.0
    assert format_parts(now, 626.0)[0] == "ETA 3 min 12 s"


def test_whoever_asks_a_run_to_stop_sees_at_once_that_it_heard():
    now = RunStatus(since=100.0, step=50, total=100, step_seconds=27.0, stopping=lambda: True)
    assert check_lines(format_parts(now, 112.0), ("stopping",), ("step 50/100", "12 s"))


def test_it_moves_by_itself(monkeypatch, terminal):
    monkeypatch.setattr(live_line, "REDRAW_SECONDS", 0.01)
    console, out = terminal()
    before, until = len(out.getvalue()), time.monotonic() + 30
    while len(out.getvalue()) == before:
        assert time.monotonic() < until, "nobody drew it again"
        time.sleep(0.01)
    console.close()
    assert not any(thread.name == "paceline-line" for thread in threading.enumerate())


def test_after_the_end_nothing_is_drawn_again(terminal):
    console, out = terminal()
    trained(console)
    live = console._live
    console.close()
    console.warning("interrupted: stopped by a signal")
    live.draw()
    console.doing("writing")
    console.stepped(7_351)
    assert out.getvalue().endswith("interrupted: stopped by a signal\n")


def test_a_quiet_console_prints_warnings_and_the_end_alone(terminal):
    for console, out in (terminal(quiet=True), terminal(quiet=True, terminal=False)):
        trained(console)
        console.note_checkpoint(7_350, "step-007350")
        console.line("resumed from step-000020")
        assert out.getvalue() == ""
        for wait in (0.9, 0.9):
            console.train({"step": 7_400, **TRAIN, "data_wait": wait}, 200.0)
        console.warning("success: done")
        note, end = out.getvalue().splitlines()
        assert note.startswith("note: ") and check_text(note, "images 90%") and end == "success: done"
