"""One original command line with what its program receives."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    system: str
    command: str
    ranks: int  # devices that train; 0 for a line that does not train
    given: dict = field(default_factory=dict)  # the program's own values, where they are not its defaults
    nodes: int = 1
    folder: str = ""  # of configs/, where it is typed: its configuration lies there
    environment: bool = False  # run_and_time.sh chose the rest: its own defaults hold, not the program's
