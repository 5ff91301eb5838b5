"""What an MLPerf log says of who submits what on which system: facts of the person, not of the run. Standard library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from paceline._utils.errors import RecipeError
from paceline.config.constraints import Help, convert_checked, get_hints
from paceline.config.recipe import Recipe

# Names of choices whose field would otherwise not fit on one line with its comment.
Division = Literal["auto", "closed", "open"]
Status = Literal["onprem", "cloud", "preview", "research"]

# Optimizers that no closed ruleset of our benchmarks knows.
OPEN_ONLY = ("adamw",)
MAX_CHARACTERS = 200


@dataclass(frozen=True)
class Submission:
    """The submission_* lines of mllog.txt, and its cache_clear."""

    submitter: Annotated[str, Help("organization (submission_org)")] = "reference_implementation"
    division: Annotated[Division, Help("closed or open; auto: open if the closed division excludes the optimizer")] = "auto"
    status: Annotated[Status, Help("availability of the system")] = "onprem"
    platform: Annotated[str, Help("name of the system; empty: the number and name of the devices")] = ""
    cache_cleared: Annotated[bool, Help("caches were cleared before the run, as the closed division requires")] = False


def get_division(submission: Submission, recipe: Recipe) -> str:
    """closed or open."""
    if submission.division == "auto":
        return "open" if recipe.optim.name in OPEN_ONLY else "closed"
    return submission.division


def check_submission(submission: Submission, recipe: Recipe) -> None:
    """Refuse what a log cannot say, or would be wrong to say.

    Raises RecipeError naming the flag.
    """
    for name, hint in get_hints(Submission).items():
        convert_checked(hint, getattr(submission, name), f"mlperf.{name}")  # made in Python, it may hold anything
    for flag, text, needed in (
        ("--mlperf.submitter", submission.submitter, True),
        ("--mlperf.platform", submission.platform, False),
    ):
        if (needed and not text.strip()) or not (text.isprintable() and len(text) <= MAX_CHARACTERS):
            raise RecipeError(f"{flag} {text!r:.60}: must be a name of 1 to {MAX_CHARACTERS} printable characters.")
    if submission.division == "closed" and recipe.optim.name in OPEN_ONLY:
        raise RecipeError(
            f"--mlperf.division closed: does not allow --optim.name {recipe.optim.name}. Use open, or remove the flag."
        )
