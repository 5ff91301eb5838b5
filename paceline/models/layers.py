"""Layers without torch's first weights: those would cost time and move the global random state.

A trunk's `draw`, the `initialise` functions or a weight file give them.
"""

from __future__ import annotations

from torch import nn


class Conv2d(nn.Conv2d):
    """nn.Conv2d without torch's first weights."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


class ConvTranspose2d(nn.ConvTranspose2d):
    """nn.ConvTranspose2d without torch's first weights."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


class Linear(nn.Linear):
    """nn.Linear without torch's first weights."""

    def reset_parameters(self) -> None:
        """Draw nothing."""
