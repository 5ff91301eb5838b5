"""A program: our Triton kernels built for one NVIDIA architecture, without a GPU; prints what each takes as JSON.

Arguments: compute capability, e.g. 90, and words of the lists for which `walk` is built, which takes most of the time.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paceline.boxes.triton_matching import BLOCK, OPTIONS, best_of_anchors, best_of_objects
from paceline.boxes.triton_suppression import ROWS, WIDE, overlapped, walk

KINDS = {
    "boxes": "*fp32", "labels": "*i64", "anchors": "*fp32", "eligible": "*i1", "most": "*i64", "best": "*fp32", "slots": "*i64",
    "forced": "*i32", "classes": "*i64", "valid": "*i1", "beats": "*i32", "kept": "*i1", "threshold": "fp32",
    "objects": "i32", "count": "i32", "words": "i32",
}  # fmt: skip


def built(kernel: Any, capability: int, constants: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Registers of a thread, bytes of its stack, where spilled registers go, and words of the PTX that decide bits."""
    names = kernel.arg_names
    kinds = {name: "constexpr" if name in constants else KINDS[name] for name in names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if kinds[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, kinds, values, aligned)
    code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={**OPTIONS, **options}).asm
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(code["cubin"])
        told = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
        used = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) \S+ LOCAL:(\d+)", used)
    assert found, used
    words = set(re.findall(r"\b(?:fma|div|mad)\.\S*f32|\w+\S*\.ftz\S*", code["ptx"]))
    return {"registers": int(found[1]), "spilled": int(found[2]) + int(found[3]), "words": sorted(words)}


def main(capability: int, *widths: int) -> dict[str, Any]:
    anchors = {"BLOCK": BLOCK, "EVERY": True, "EQUAL_LAST": False, "TIE_LAST": False}
    defaults = {"BLOCK": BLOCK, "EVERY": False, "EQUAL_LAST": True, "TIE_LAST": True, "eligible": None}
    found = {
        "objects": built(best_of_objects, capability, {"BLOCK": BLOCK}),
        "anchors": built(best_of_anchors, capability, anchors),
        "defaults": built(best_of_anchors, capability, defaults),
        "overlapped": built(overlapped, capability, {"ROWS": ROWS}),
    }
    for width in widths:
        found[f"walk {width}"] = built(walk, capability, {"WIDTH": width}, num_warps=max(1, width // WIDE))
    return found


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
