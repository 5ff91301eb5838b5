"""Output that cannot be written to: what prints goes on."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable

import pytest
from messages import check_lines

from paceline.training.logging.console import Console
from paceline.training.logging.stdout_guard import SafeStream, keep_output_open


class Leaving(io.StringIO):
    """A stream whose reader leaves after so many characters."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, text: str) -> int:
        if self.tell() + len(text) > self.room:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


@pytest.fixture
def replaced(monkeypatch) -> Callable[[], tuple[Leaving, io.StringIO]]:
    """Call it inside the test: pytest sets its own streams between the parts of one."""

    def replace() -> tuple[Leaving, io.StringIO]:
        out, err = Leaving(10), io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return replace


def test_the_loss_is_said_once_and_later_lines_are_dropped(replaced):
    out, err = replaced()
    with keep_output_open() as output:
        output.goes_on = "it goes on"
        for number in range(9):
            print(f"line {number}", flush=True)
        assert isinstance(output.lost, BrokenPipeError)
    assert out.getvalue() == "line 0\n"
    assert check_lines(err.getvalue().splitlines(), ("stdout", "Broken pipe"))
    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_thread_that_prints_and_the_live_line_of_a_terminal_are_not_ended_by_it(replaced):
    _out, err = replaced()
    ended = []
    with keep_output_open():
        thread = threading.Thread(target=lambda: ended.append([print("many words", n) for n in range(9)]))
        thread.start()
        thread.join()
        console = Console(10, target="", terminal=True)
        console.line("more than ten characters")
        event = {"step": 1, "epoch": 0.1, "loss": 1.0, "lr": 0.1, "images_per_second": 10.0, "data_wait": 0.0}
        console.train(event, 1.0)
        console.close()
    assert len(ended) == 1 and err.getvalue().count("output") == 1


def test_inside_another_block_the_outer_one_speaks(replaced):
    replaced()
    with keep_output_open() as outer, keep_output_open() as inner:
        assert inner is outer
    assert not isinstance(sys.stdout, SafeStream)


def test_a_stream_that_was_closed_and_one_without_stderr_are_no_error_either(replaced):
    out, err = replaced()
    err.close()
    with keep_output_open() as output:
        out.close()
        print("nobody hears this")
        print("nor this", file=sys.stderr)
    assert isinstance(output.lost, ValueError)


def test_characters_that_the_stream_has_no_code_for_are_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with keep_output_open() as output:
        print("a\udcffb\xe9")
    assert raw.getvalue() == b"a\\udcffb\\xe9\n" and output.lost is None
