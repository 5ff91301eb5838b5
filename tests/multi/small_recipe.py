"""The recipe of the small trainings, a file of one's own: what the shipped recipes are tuned to does not matter here."""

from __future__ import annotations

from paceline.config.classification import PhotoInput, ResNetModel
from paceline.config.recipe import Optim, Quality, Recipe, Schedule

STEPS = 30


def small() -> Recipe[ResNetModel, PhotoInput]:
    """Thirty steps of twelve photos of 32 pixels."""
    return Recipe(
        task="classification",
        model=ResNetModel(depth=10, width=8),
        input=PhotoInput(size=32, area=(0.35, 1.0), eval_resize=36, eval_size=32),
        target_data="none",
        global_batch=12,
        images_seen=12 * STEPS,
        bn_span=4,
        optim=Optim(lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4, decay_on="no_norm_no_bias"),
        schedule=Schedule(kind="constant"),
        quality=Quality(unit="run"),
    )
