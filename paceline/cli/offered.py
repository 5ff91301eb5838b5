"""A recipe whose fields are flags, but for the one that `train --weights` sets.

A file of its own: it imports the flag parser, which machines that only measure lack, and refusals need not wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from paceline.config.recipe import InputT, ModelT, Recipe


@dataclass(frozen=True)
class OfferedRecipe(Recipe[ModelT, InputT]):
    """A Recipe whose flags are parsed."""

    pretrained: tyro.conf.Suppress[str] = ""  # no flag; its text stands at Recipe's field
