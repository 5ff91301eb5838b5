"""Milliseconds a call of a run's own model in torch and of the files that `paceline export` made of it, interleaved call by call.

    python scripts/export_latency.py RUN FILE.onnx FILE.xml FILE.pt2 ... [--batch 8] [--rounds 40] [--threads 2] [--other THEIRS.onnx]

Prints of each the smallest, the median and the largest, and photos a second by the median. Files of other networks than
classifiers must be of this --batch, and of one size. --other is anybody's network in ONNX with one input, float32, for scale.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paceline
from paceline.cli.commands.export import ExportFlags
from paceline.inference.export.graph import Graph
from paceline.inference.graph.runtimes import FORMS


def onnx(path: Path, threads: int) -> Callable[[list[np.ndarray]], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda arguments: session.run(None, dict(zip(names, arguments)))


def others(path: Path, threads: int, batch: int) -> Callable[[list[np.ndarray]], Any]:
    """Gray pixels in its own input's shape, whatever is given."""
    import onnxruntime

    runtime: Any = onnxruntime
    given = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()[0]
    sides = [side if isinstance(side, int) else batch for side in given.shape]
    run, gray = onnx(path, threads), np.full(sides, 0.5, np.float32)
    return lambda _: run([gray])


def program(path: Path, threads: int) -> Callable[[list[np.ndarray]], Any]:
    """A .pt2, of torch.export or of AOTInductor, with torch's own threads."""
    return FORMS[".pt2"].runner(path, "").run


def openvino(path: Path, threads: int) -> Callable[[list[np.ndarray]], Any]:
    import openvino as library

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    return library.Core().compile_model(path, "CPU", settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1, help="photos a call")
    parser.add_argument("--size", default="", help="of Mask R-CNN's files: HxW")
    parser.add_argument("--other", type=Path, help="somebody's network in ONNX")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    trained: Any = paceline.load(asked.run).trained
    graph = Graph(trained, ExportFlags(image_size=asked.size, batch_size=asked.batch, verify_images=0))
    shape = graph.shape or trained.workload.network.largest(trained.recipe)
    photo = np.random.default_rng(0).integers(0, 255, (asked.batch, *shape, 3), dtype=np.uint8)
    arguments = [photo, np.array([shape] * asked.batch)][: len(graph.example())]

    def eager(arguments: list[np.ndarray]) -> Any:
        with torch.inference_mode():
            return graph(*map(torch.from_numpy, arguments))

    runs: dict[str, Callable[[list[np.ndarray]], Any]] = {"torch": eager}
    for file in asked.files:
        runs[file.name] = {".xml": openvino, ".pt2": program}.get(file.suffix, onnx)(file, asked.threads)
    if asked.other:
        runs[asked.other.name] = others(asked.other, asked.threads, asked.batch)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(asked.rounds + 3):
        for name, run in runs.items():
            began = time.perf_counter()
            run(arguments)
            if number >= 3:
                times[name].append(1000 * (time.perf_counter() - began))
    for name, found in times.items():
        middle = float(np.median(found))
        print(f"{name}  {min(found):.1f} {middle:.1f} {max(found):.1f} ms  {1000 * asked.batch / middle:.1f} photos/s")


if __name__ == "__main__":
    main()
