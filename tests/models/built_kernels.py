"""A program: our Triton kernels built for one NVIDIA architecture, without a GPU; prints what each takes as JSON.

Arguments: compute capability, e.g. 90, and words of the lists for which `walk` is built, which takes most of the time.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from triton_programs import built

from paceline.models.ops.triton_matching import (
    BLOCK,
    OPTIONS,
    ROWS,
    WIDE,
    best_of_anchors,
    best_of_objects,
    mark_overlapped,
    walk,
)

KINDS = {
    "boxes": "*fp32", "labels": "*i64", "anchors": "*fp32", "eligible": "*i1", "most": "*i64", "best": "*fp32", "slots": "*i64",
    "forced": "*i32", "classes": "*i64", "valid": "*i1", "beats": "*i32", "kept": "*i1", "threshold": "fp32",
    "objects": "i32", "count": "i32", "words": "i32",
}  # fmt: skip


def of(kernel: Any, capability: int, constants: dict[str, Any], **options: Any) -> dict[str, Any]:
    return built(kernel, capability, KINDS, constants, OPTIONS | options)


def main(capability: int, *widths: int) -> dict[str, Any]:
    anchors = {"BLOCK": BLOCK, "EVERY": True, "EQUAL_LAST": False, "TIE_LAST": False}
    defaults = {"BLOCK": BLOCK, "EVERY": False, "EQUAL_LAST": True, "TIE_LAST": True, "eligible": None}
    found = {
        "objects": of(best_of_objects, capability, {"BLOCK": BLOCK}),
        "anchors": of(best_of_anchors, capability, anchors),
        "defaults": of(best_of_anchors, capability, defaults),
        "overlapped": of(mark_overlapped, capability, {"ROWS": ROWS}),
    }
    for width in widths:
        found[f"walk {width}"] = of(walk, capability, {"WIDTH": width}, num_warps=max(1, width // WIDE))
    return found


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
