"""Errors that a user can fix. The command line prints only their text and exits with 2. Any other error is a bug or a failed run.

`ResourceError` is an exception to this: no argument is wrong, so it ends a run as failed, also with one message.
A message names what is wrong (file or flag), the reason, and the next step, in this order.
"""


class PacelineError(Exception):
    """Base class of all errors that you can fix. The message states the problem and the fix."""


class ResourceError(Exception):
    """The machine ran out of memory or threads: one message, no traceback, exit code 3."""


class RecipeError(PacelineError):
    """A recipe, system, or option is invalid. Raise it in your own networks for settings that do not fit."""


class DataError(PacelineError):
    """A dataset, image, or annotation cannot be used. Raise it in your own readers."""


class CheckpointError(PacelineError):
    """A checkpoint or a file of weights is missing, damaged, or belongs to another network."""


class RankError(PacelineError):
    """One rank's own trouble, which it must say itself: its node's first rank may not be there, or have another."""


class RankMismatchError(PacelineError):
    """What every rank raises at the same point with the same text: said once a node, and all leave in good order."""
