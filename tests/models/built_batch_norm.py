"""A program: our Triton kernels of BatchNorm built for one NVIDIA architecture, without a GPU; prints what each takes as JSON.

Arguments: compute capability, e.g. 90, and the images' type: fp32, fp16 or bf16.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from triton_programs import built

from paceline.models.layers import triton_batch_norm as kernels
from paceline.models.layers.triton_batch_norm import NARROW, OPTIONS, PROGRAMS, TILE, WIDEST

LAID_AS_IMAGES = ("images", "shortcut", "output", "upstream", "masked", "of_images")
FLOATS = ("weight", "bias", "kept", "sums", "statistics", "slopes", "of_line")
WHOLE = ("rows", "span", "channels", "blocks", "parts", "groups")
TILED = {"HIGH": TILE // WIDEST, "WIDE": WIDEST}
PARTS = {"PARTS": PROGRAMS, "NARROW": NARROW}
# By a name whose first word is the kernel's: the constants of each form that networks take.
FORMS: dict[str, dict[str, Any]] = {
    "partial_moments": TILED,
    "whole_moments": PARTS,
    "normalize alone": TILED | {"RELU": False, "shortcut": None},
    "normalize and add": TILED | {"RELU": True},
    "partial_slopes alone": TILED | {"RELU": True, "masked": None},
    "partial_slopes and mask": TILED | {"RELU": True},
    "whole_slopes": PARTS,
    "image_gradients alone": TILED | {"RELU": True},
    "image_gradients of masked": TILED | {"RELU": False},
}


def main(capability: str, number: str) -> dict[str, Any]:
    kinds = dict.fromkeys(LAID_AS_IMAGES, f"*{number}") | dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(WHOLE, "i32")
    kinds |= {"bits": "*u8", "eps": "fp32"}
    return {
        name: built(
            getattr(kernels, name.partition(" ")[0]), int(capability), kinds, constants, OPTIONS, ("span", "channels")
        )
        for name, constants in FORMS.items()
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
