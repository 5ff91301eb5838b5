"""The console: plain lines for files, one live line for people, prose from numbers."""

from __future__ import annotations

import io
import math
import time

import pytest

from paceline._utils.formatting import format_duration, format_metric, format_metric_name, format_quantity
from paceline.training.logging.console import Console

TRAIN = dict(epoch=1.5, loss=1.23456, lr=0.12, images_per_second=1234.5, data_wait=0.01)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def story(console: Console) -> None:
    console.line("classify-demo: 7,329 steps")
    console.train({"step": 50, **TRAIN}, 200.0)
    console.evaluation(7329, 1.0, {"box_ap": 0.0841, "mask_ap": 0.0713}, 41.2, best=True)
    console.note_checkpoint(7329, "step-007329")
    console.train({"step": 7350, **TRAIN}, 200.0)
    console.close()


def test_a_file_gets_one_plain_line_an_event():
    out = io.StringIO()
    story(Console(10_000, target="box AP 23.0", out=out))
    assert out.getvalue().splitlines() == [
        "classify-demo: 7,329 steps",
        "step 50/10,000  epoch 1.50  loss 1.2346  lr 0.12  1,234 images/s  data wait 1%  ETA at most 3 min 20 s",
        "step 7,329  epoch 1.00  box AP 8.4  mask AP 7.1  (target box AP 23.0)  in 41 s  (best)",
        "step 7,329  saved step-007329",
        "step 7,350/10,000  epoch 1.50  loss 1.2346  lr 0.12  1,234 images/s  data wait 1%  ETA at most 3 min 20 s",
    ]
    assert "\r" not in out.getvalue() and "\x1b" not in out.getvalue()


def test_a_score_of_0_is_not_called_the_best():
    out = io.StringIO()
    console = Console(10, out=out)
    console.evaluation(5, 1.0, {"box_ap": 0.0, "box_ap_small": 0.2}, 1.0, best=True)
    console.evaluation(10, 2.0, {"box_ap": 0.001}, 1.0, best=True)
    assert [line.endswith("(best)") for line in out.getvalue().splitlines()] == [False, True]


@pytest.mark.parametrize("columns", [70, 160])
def test_a_terminal_keeps_the_permanent_lines_and_redraws_one(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    story(Console(10_000, target="", out=out))
    screen = screen_after(out.getvalue(), columns)
    assert [line for line in screen if line] == [
        "classify-demo: 7,329 steps",
        "step 7,329  epoch 1.00  box AP 8.4  mask AP 7.1  in 41 s  (best)",
        "step 7,329  saved step-007329",
    ]
    assert "step 7,350/10,000" in out.getvalue()


def screen_after(text: str, columns: int) -> list[str]:
    """What a terminal shows after this text: a screen of lines, with the few control sequences that rich uses."""
    lines, row, column, position = [""], 0, 0, 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\x1b":
            end = next(i for i in range(position + 1, len(text)) if text[i].isalpha())
            code, amount = text[end], text[position + 1 : end]
            position = end + 1
            if code == "A":
                row = max(0, row - int(amount or 1))
            elif code == "K":
                assert amount == "2"
                lines[row] = ""
        elif character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            assert column < columns, f"the line wraps: {lines[row]!r}"
            lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    story(Console(10_000, target="", out=out))
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("waits, advised", [([0.9, 0.01, 0.9], 0), ([0.06, 0.07], 1), ([0.5] * 5, 1), ([0.05] * 5, 0)])
def test_slow_input_is_advised_once_and_never_after_the_first_interval_alone(waits, advised):
    out = io.StringIO()
    console = Console(100, target="", out=out)
    for step, wait in enumerate(waits):
        console.train({"step": step, **TRAIN, "data_wait": wait}, 200.0)
    assert out.getvalue().count("paceline bench input") == advised


def test_closing_twice_is_fine(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = Console(10, target="", out=Terminal())
    console.close()
    console.close()


@pytest.mark.parametrize(
    "seconds, text",
    [
        *((None, "-"), (math.inf, "-"), (0.42, "0.42 s"), (9.96, "10 s"), (41.2, "41 s"), (59.7, "1 min 00 s")),
        *((200, "3 min 20 s"), (7500, "2 h 05 min"), (86400 * 3 + 3600 * 4, "3 d 4 h")),
    ],
)
def test_durations_read_as_people_say_them(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    "name, value, text",
    [
        *(("top1", 0.75934, "top1 75.93 %"), ("box_ap", 0.0841, "box AP 8.4"), ("mask_ap50", 0.5, "mask AP50 50.0")),
        *(("box_ap_small", -1.0, "box AP small n/a"), ("box_ar100", 0.25, "box AR100 25.0")),
        *(("eval_loss", 1.23456, "eval_loss 1.235"), ("top1", math.nan, "top1 nan")),
    ],
)
def test_metrics_read_in_their_own_unit(name, value, text):
    assert f"{format_metric_name(name)} {format_metric(name, value)}" == text


@pytest.mark.parametrize(
    "value, text", [(0.4213, "0.42"), (7.33, "7.3"), (85.4, "85"), (1234.5, "1,234"), (math.nan, "nan")]
)
def test_rates_keep_two_or_more_digits(value, text):
    assert format_quantity(value) == text


def test_of_many_checkpoints_in_a_few_seconds_one_is_told(monkeypatch):
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console(100, out=out, terminal=False)
    for step in range(5, 105, 5):
        console.note_checkpoint(step, f"step-{step:06}")
        now[0] += 3.0
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["5", "25", "45", "65", "85"]
