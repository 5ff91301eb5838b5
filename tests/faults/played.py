"""How a fault ended: what its commands did and said, judged by what the table wants of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import multi_path  # noqa: F401
from fault import CODES, Fault, Round
from zygote import Ended

NOT_PLAYED = "not played (cannot mount)"
# A message is for people: none of these is in it.
NEVER_SAID = ("Traceback", "\x1b", "Exception ignored")


@dataclass
class Played:
    """How a fault ended. `problems` is empty where everything was as expected."""

    seen: str = "not recognised"  # or the outcome, or NOT_PLAYED
    codes: list[list[int]] = field(default_factory=list)  # of each command, by rank
    untouched: list[bool] = field(default_factory=list)  # of each command: whether it left the folder as it was
    same: bool = False  # whether weights, events and logs are those of the undisturbed run in the end
    problems: list[str] = field(default_factory=list)
    said: str = ""  # all that the commands printed
    named: str = ""  # the line that names the cause
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether it ended as expected, or could not be played here."""
        return not self.problems


def problems_of(step: Round, ended: list[Ended]) -> list[str]:
    """What is not as it has to be in how one command ended."""
    codes, said = [one.code for one in ended], "\n".join(one.text for one in ended)
    problems = []
    planned = any(strike.do.startswith(("kill", "tear")) for strike in step.strikes)
    if not set(codes) <= set(CODES[step.ends]) or (step.ends == "killed" and -9 not in codes):
        hung = " (it hung)" if -9 in codes and not planned else ""
        problems.append(f"exit codes {codes}{hung}, where the run had to be {step.ends}")
    never = NEVER_SAID[1:] if step.traceback else NEVER_SAID
    problems += [f"{word!r} was printed" for word in never if word in said]
    problems += [f"nothing says {pattern!r}" for pattern in step.says if not re.search(pattern, said)]
    speak = ended[:1] if step.alike else ended
    silent = [rank for rank, one in enumerate(speak) if one.code in (2, 3) and not one.text.strip()]
    problems += [f"rank {rank} ended without a word" for rank in silent]
    return problems


def outcome_of(fault: Fault, played: Played) -> str:
    """The outcome of a fault whose commands all ended as they had to."""
    if fault.rounds[0].ends == "refused" and played.untouched[0]:
        return "refused"
    named = fault.begun and any(step.says for step in fault.rounds)
    return "resumed" if named or len(played.codes) > 1 else "unaffected"
