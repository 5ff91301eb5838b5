"""A verb's facts as JSON: on stdout, into a file, or both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.config.errors import UserError


def answer(facts: dict[str, Any], *, out: str, printed: bool) -> None:
    """Write `facts` where they are asked for.

    out      file for them, whose folder is made; empty = none
    printed  on stdout too
    Raises UserError where the file cannot be written.
    """
    text = json.dumps(facts, indent=1)
    if out:
        try:
            Path(out).parent.mkdir(parents=True, exist_ok=True)
            Path(out).write_text(text + "\n")
        except OSError as problem:
            raise UserError(f"--out {out}: cannot be written ({problem.strerror}). Name another file.") from None
    if printed:
        print(text)
