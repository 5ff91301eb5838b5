"""paceline trains ResNet-50, SSD-ResNet34 and Mask R-CNN to their quality targets, from a laptop's CPU to many GPU nodes.

    import paceline
    paceline.train("resnet50-tiny", data="photos", out="runs/first")
    paceline.load("runs/first").predict(["cat.jpg"])

Importing has no side effects and does not import torch; the two functions do when called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.predict import load
    from paceline.train import train

__version__ = "0.1.0"
__all__ = ["__version__", "load", "train"]


class _Package(ModuleType):
    """The package, in which `train` is the function although a module has that name: importing the module would put it here."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.train if name == "train" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "train":
        from paceline.train import train

        return train
    if name == "load":
        from paceline.predict import load

        return load
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
