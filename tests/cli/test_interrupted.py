"""Ctrl-C at any moment: exit code 75, whatever is under way."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# A command of ours, while a thread prints.
PROGRAM = """
import signal, sys, threading, time
from paceline.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so do their children

def chatter():
    while True:
        print("." * 4000, file=sys.stderr)
        time.sleep(0.001)

def command(words, printer):
    threading.Thread(target=chatter, daemon=True).start()
    try:
        print("ready", flush=True)
        {body}
    finally:
        time.sleep(0.2)

main._carry_out = command
sys.argv = ["paceline", "train"]
sys.exit(main.main())
"""


@pytest.mark.parametrize("body", ["time.sleep(60)", "time.sleep(0.05); return main.INTERRUPTED"])
@pytest.mark.parametrize(("after", "pause"), [(0.0, 0.0001), (0.12, 0.0001)])
def test_ctrl_c_again_and_again_leaves_with_75_at_any_moment(tmp_path, body, after, pause):
    with (tmp_path / "stderr").open("w") as errors:
        command = [sys.executable, "-c", PROGRAM.format(body=body)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        time.sleep(after)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(pause)
        process.stdout.close()
    text = (tmp_path / "stderr").read_text().replace("." * 4000, "")
    assert process.returncode == 75 and "Traceback" not in text and "Fatal" not in text, text[-2000:]
