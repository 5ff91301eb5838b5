"""Errors a user can mend. The command line prints their text alone and exits with 2; anything else is a bug or a failed run.

The exception is a Shortage: nothing that the user gave is wrong, so it ends a run as failed, in a sentence all the same.
A message names what is wrong (file or flag), why, and the next step, in that order.
"""


class PacelineError(Exception):
    """Bad input: one clear message, no traceback, exit code 2."""


class ResourceError(Exception):
    """The machine ran out of memory or threads: one message, no traceback, exit code 3."""


class RecipeError(PacelineError):
    """A recipe, system or flag that cannot be carried out as asked."""


class DataError(PacelineError):
    """A data set, image or annotation that cannot be used."""


class CheckpointError(PacelineError):
    """A checkpoint or weight file that is damaged, or belongs to something else."""


class RankError(PacelineError):
    """One rank's own trouble, which it must say itself: its node's first rank may not be there, or have another."""


class RankMismatchError(PacelineError):
    """What every rank raises at the same point with the same text: said once a node, and all leave in good order."""
