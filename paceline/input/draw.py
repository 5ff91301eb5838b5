"""From an encoded photo to pixels in two parts: what is drawn, from its header alone, and how that is rendered.

A Draw says which part of a photo is seen, mirrored or not, in which colours, and what is labelled in it. It is decided by the
header and the sample's key (input/photo_sample.py, box_sample.py, instance_sample.py) before a pixel is touched, so whoever
renders it, one photo on a CPU thread here or a batch on a device, gets the same samples.

Letters: H, W the network's input; h, w the part of it that the photo fills. All in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from paceline.input.crop import Window
from paceline.input.decode import Decoder, decode_crop
from paceline.input.jitter import Colour, apply_colour
from paceline.input.resample import ResizeLaw
from paceline.store.header import Header


class Draw(NamedTuple):
    """One sample, decided."""

    name: str  # the record, for messages
    header: Header
    window: Window  # the photo's region, the size it is resized to, and where the output starts inside
    label: Any  # the class, or the objects that stay
    flip: bool = False  # mirrored left to right, after the resize
    colour: Colour | None = None  # how colours change; None: not
    decoder: Decoder = "simplejpeg"
    law: ResizeLaw = "bilinear-antialias"


# (epoch, index, header, name) -> Draw. Called by several threads at once; must depend on these alone.
DrawSample = Callable[[int, int, Header, str], Draw]
# (encoded photo, its Draw, out (H, W, 3) uint8): writes every pixel of `out`. Called by several threads at once.
Render = Callable[[bytes, Draw, np.ndarray], None]
# (n encoded photos, their Draws, (H, W)) -> (n, 3, H, W) uint8 on the batch's device, as n calls of a Render would write;
# n may be 0.
RenderBatch = Callable[[Sequence[bytes], Sequence[Draw], tuple[int, int]], Tensor]


def render(data: bytes, draw: Draw, out: np.ndarray) -> None:
    """Decode what is seen and write it, with its colours, into the upper left corner of `out`, zeros elsewhere.

    out  (H, W, 3) uint8, RGB
    Raises DataError for a broken image; RecipeError where the decoder is not installed.
    """
    window = draw.window
    h, w = window.resized_height - window.skip_top, window.resized_width - window.skip_left
    part = out[:h, :w]
    out[h:] = 0
    out[:h, w:] = 0
    decode_crop(
        data, draw.header, window, part, flip=draw.flip, decoder=draw.decoder, name=draw.name, law=draw.law
    )  # fmt: skip
    if draw.colour is not None:
        apply_colour(part, draw.colour)
