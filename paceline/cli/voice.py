"""Who speaks: of the processes that a launcher starts on one node, the first, so that no message comes eight times."""

from __future__ import annotations

import os
import sys

from paceline.config.errors import RankError, UserError


def speaks() -> bool:
    """Whether this process is the first on its node; where the launcher's variables contradict each other, it is."""
    from paceline.dist.launcher import read_launch

    try:
        return read_launch(os.environ).local_rank == 0
    except UserError:
        return True


def complain(text: str, problem: BaseException | None = None) -> None:
    """One error message a node: ranks that fail alike for the same reason would repeat it. A RankError is always said."""
    if isinstance(problem, RankError) or speaks():
        print(text, file=sys.stderr)
