"""Train ResNet-50, SSD-ResNet34 and Mask R-CNN on CPUs and GPUs.

    import paceline
    ending = paceline.train("resnet50-tiny", data="photos", out="runs/first")
    paceline.load("runs/first").predict("cat.jpg").draw().show()

train      train a recipe; returns how the run ended
load       open a finished (or unfinished) run for prediction
UserError  what both raise for anything that a user can mend: its text says what is wrong and what to do

Importing has no side effects and does not import torch; the functions do when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.config.errors import UserError
    from paceline.predict import load
    from paceline.training.call import train

__all__ = ["UserError", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from paceline.training.call import train

        return train
    if name == "load":
        from paceline.predict import load

        return load
    if name == "UserError":
        from paceline.config.errors import UserError

        return UserError
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
