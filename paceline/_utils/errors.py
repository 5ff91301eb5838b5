"""Define the errors that a user can fix.

The command line prints only their message and exits with code 2. `ResourceError` is different: no argument is wrong, so the run ends
as failed, also with only a message. Any other exception is a bug or a failed run.

A message states the file or flag with the problem, then the reason, and then the fix.
"""


class PacelineError(Exception):
    """Base class of all errors that you can fix. The message states the problem and the fix.

    Subclasses are `RecipeError`, `DataError`, and `CheckpointError`.

    Example::

        try:
            result = paceline.train("classify-demo", data="photos")
        except paceline.PacelineError as error:
            print(error)
    """


class ResourceError(Exception):
    """Raised if the machine runs out of memory or threads.

    Commands print the message without a traceback and exit with code 3.
    """


class RecipeError(PacelineError):
    """Raised if a recipe, a system, or an option is invalid.

    Raise it in a custom network if its settings are invalid.
    """


class DataError(PacelineError):
    """Raised if a dataset, an image, or an annotation cannot be used.

    Raise it in a custom reader.
    """


class CheckpointError(PacelineError):
    """Raised if a checkpoint or a weight file is missing, damaged, or does not match the network."""


class RankError(PacelineError):
    """Raised for a problem of one rank.

    Every such rank prints the message itself, because the first rank of its node may be missing or have a different problem.
    """


class RankMismatchError(PacelineError):
    """Raised by every rank at the same point with the same message.

    The message is printed once per node, and all ranks exit gracefully.
    """
