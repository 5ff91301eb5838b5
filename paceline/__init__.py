"""Train ResNet-50, SSD-ResNet34 and Mask R-CNN on CPUs and GPUs.

    import paceline
    trained = paceline.train("classify-demo", data="photos", out="runs/first")
    paceline.load("runs/first").predict("cat.jpg").draw().show()

train          train a recipe; returns a TrainResult: how the run ended
load           open a finished (or unfinished) run for prediction; returns a Predictor
PacelineError  what both raise for anything that a user can fix: its text says what is wrong and what to do. Its subclasses DataError
               and RecipeError are for your own readers and networks

Importing has no side effects and does not import torch; the functions do when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline._utils.version import __version__

if TYPE_CHECKING:
    from paceline._utils.errors import DataError, PacelineError, RecipeError
    from paceline.api import train
    from paceline.inference import load

__all__ = ["DataError", "RecipeError", "PacelineError", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from paceline.api import train

        return train
    if name == "load":
        from paceline.inference import load

        return load
    if name in ("DataError", "RecipeError", "PacelineError"):
        from paceline._utils import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
