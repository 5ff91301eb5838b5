"""Milliseconds a call of a run's own model in torch and of the files that `paceline export` made of it, interleaved call by call.

    python scripts/export_latency.py RUN FILE.onnx FILE.xml ... [--rounds 40] [--threads 2]

Prints of each the smallest, the median and the largest. Classifiers are asked about one photo; the files of other networks must be of
`--batch 1`, and of one size.
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
from paceline.export.graph import Graph
from paceline.export.verb import Flags


def onnx(path: Path, threads: int) -> Callable[[list[np.ndarray]], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda arguments: session.run(None, dict(zip(names, arguments)))


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
    parser.add_argument("--size", default="", help="of Mask R-CNN's files: HxW")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    graph = Graph(paceline.load(asked.run).trained, Flags(size=asked.size, compare=0))
    photo = np.random.default_rng(0).integers(0, 255, (1, *graph.shape, 3), dtype=np.uint8)
    arguments = [photo, np.array([graph.shape])][: len(graph.example())]

    def eager(arguments: list[np.ndarray]) -> Any:
        with torch.inference_mode():
            return graph(*map(torch.from_numpy, arguments))

    runs: dict[str, Callable[[list[np.ndarray]], Any]] = {"torch": eager}
    for file in asked.files:
        runs[file.name] = (openvino if file.suffix == ".xml" else onnx)(file, asked.threads)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(asked.rounds + 3):
        for name, run in runs.items():
            began = time.perf_counter()
            run(arguments)
            if number >= 3:
                times[name].append(1000 * (time.perf_counter() - began))
    for name, found in times.items():
        print(f"{name}  {min(found):.1f} {np.median(found):.1f} {max(found):.1f} ms")


if __name__ == "__main__":
    main()
