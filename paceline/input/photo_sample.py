"""One photo of a class as a sample of the network: a random crop and flip, or the centre.

A sample's random numbers are drawn in a fixed order: crop, flip.
"""

from __future__ import annotations

from paceline.config.classification import PhotoInput
from paceline.input.crop import random_resized_crop, resize_and_centre_crop
from paceline.input.draw import Draw
from paceline.input.randomness import SampleRandom
from paceline.store.header import Header


def draw_training_sample(header: Header, name: str, label: int, random: SampleRandom, settings: PhotoInput) -> Draw:
    """RandomResizedCrop and flip, for an input of (size, size)."""
    height, width = header.height, header.width
    window = random_resized_crop(height, width, settings.size, random, area=settings.area, aspect=settings.aspect)
    return Draw(name, header, window, label, flip=random.coin(settings.flip), decoder=settings.decoder)


def draw_evaluation_sample(header: Header, name: str, label: int, settings: PhotoInput) -> Draw:
    """The centre of the resized photo, for an input of (eval_size, eval_size)."""
    window = resize_and_centre_crop(header.height, header.width, settings.eval_resize, settings.eval_size)
    return Draw(name, header, window, label, decoder=settings.decoder)
