"""Kernels in Triton without a GPU: run a program of the tests that prints JSON, and build a kernel for an NVIDIA architecture."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def interpreter_works() -> bool:
    """Triton's interpreter before 3.7 takes an array for a number, which numpy 2.4 refuses."""
    from importlib.metadata import version

    triton, numpy = (tuple(map(int, version(name).split(".")[:2])) for name in ("triton", "numpy"))
    return triton >= (3, 7) or numpy < (2, 4)


def printed_by(program: Path, *arguments: Any, **environ: str) -> Any:
    """What a program of its own process prints, which may import what lies beside this file."""
    paths = os.pathsep.join((str(HERE.parent), str(HERE)))
    command = [sys.executable, str(program), *map(str, arguments)]
    settings = os.environ | {"PYTHONPATH": paths} | environ
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def built(
    kernel: Any, capability: int, kinds: dict[str, str], constants: dict[str, Any], options: dict[str, Any],
    whole: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """Registers of a thread, bytes of its stack, where spilled registers go, and words of the PTX that decide bits and speed.

    kinds  type of each argument by its name; whole: integers that are multiples of 16
    """
    from triton import compile, knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else kinds[name] for name in names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if types[name].startswith("*") or (name in whole and name not in constants)
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, types, values, aligned)
    code = compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(code["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
        used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) \S+ LOCAL:(\d+)", used)
    assert found, used
    words = set(re.findall(r"\b(?:fma|div|mad)\.\S*f32|\w+\S*\.ftz\S*", code["ptx"]))
    moves = set(re.findall(r"\b(?:ld\.global|st\.global|cvt)\.\S+", code["ptx"]))
    return {
        "registers": int(found[1]),
        "spilled": int(found[2]) + int(found[3]),
        "words": sorted(words),
        "moves": sorted(moves),
    }
