"""A verb's facts as JSON: on stdout, into a file, or both."""

from __future__ import annotations

import json
from typing import Any

from paceline.config.own_file import KEY, write_output


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
