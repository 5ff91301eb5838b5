"""How the command line speaks: what it says passes here or through the log's console, where names are made harmless.

Of the processes that a launcher starts on one node the first complains, so that no message comes eight times.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from paceline.config.errors import RankError, UserError
from paceline.config.own_file import KEY, write_output
from paceline.config.printable import one_line, printable


def speaks() -> bool:
    """Whether this process is the first on its node; where the launcher's variables contradict each other, it is."""
    from paceline.ranks.launcher import read_launch

    try:
        return read_launch(os.environ).local_rank == 0
    except UserError:
        return True


def say(text: object) -> None:
    """One line on stdout. Names in it are other people's: none is obeyed by the terminal or makes a second line."""
    print(one_line(str(text)))


def complain(text: str, problem: BaseException | None = None) -> None:
    """One error message a node: ranks that fail alike for the same reason would repeat it. A RankError is always said."""
    if isinstance(problem, RankError) or speaks():
        print(printable(text), file=sys.stderr)


# A verb's facts as JSON: on stdout, into a file, or both.


def answer(facts: dict[str, Any], *, out: str, printed: bool, flag: str = "--out") -> None:
    """Write `facts` where they are asked for.

    out      file for them, whose folder is made; empty = none
    printed  on stdout too
    flag     the one that named `out`
    Raises UserError where the file is not ours to replace, or cannot be written.
    """
    text = json.dumps({KEY: "answer", **facts}, indent=1)
    if out:
        write_output(out, text + "\n", flag)
    if printed:
        print(text)
