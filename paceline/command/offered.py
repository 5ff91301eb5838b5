"""A recipe as the command line offers it: each field is a flag but what it starts from, which --weights of `train` says."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from paceline.config.recipe import InputT, ModelT, Recipe


@dataclass(frozen=True)
class OfferedRecipe(Recipe[ModelT, InputT]):
    """A Recipe whose flags are parsed."""

    pretrained: tyro.conf.Suppress[str] = ""  # no flag; its text stands at Recipe's field
