"""A program: our Triton kernels of RoIAlign built for one NVIDIA architecture, without a GPU; prints what each takes as JSON.

Arguments: compute capability, e.g. 90, and the maps' type: fp32, fp16 or bf16.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from triton_programs import built

from paceline.models.ops.triton_roi_align import (
    CELLS,
    LEVELS,
    MEMBERS,
    OPTIONS,
    PIXELS,
    ROWS,
    WIDEST,
    gather,
    group_by_map,
    pool,
)

KINDS = {
    "image": "*i64", "boxes": "*fp32", "levels": "*i64", "order": "*i32", "spans": "*i32",
    "channels": "i32", "pooled": "i32", "count": "i32",
}  # fmt: skip
OF_LEVELS = {"height": "i32", "width": "i32", "scale": "fp32", "end": "i32"}
RULES = {"RATIO": 2, "ALIGNED": False}


def main(capability: str, number: str) -> dict[str, Any]:
    kinds = KINDS | {f"{what}{level}": kind for what, kind in OF_LEVELS.items() for level in range(LEVELS)}
    kinds |= dict.fromkeys(("output", "upstream", *(f"map{level}" for level in range(LEVELS))), f"*{number}")
    found = {"by_map": built(group_by_map, int(capability), kinds, {"ROWS": ROWS}, OPTIONS)}
    for side in (7, 14):
        sides = RULES | {"SIDE": side, "WIDE": WIDEST // (4 if number == "fp32" else 2)}
        found[f"pool {side}"] = built(pool, int(capability), kinds, sides | {"CELLS": CELLS}, OPTIONS, ("channels",))
        squares = sides | {"PIXELS": PIXELS, "MEMBERS": MEMBERS}
        found[f"gather {side}"] = built(gather, int(capability), kinds, squares, OPTIONS, ("channels",))
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
