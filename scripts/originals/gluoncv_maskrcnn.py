"""What GluonCV's Mask R-CNN itself computes on inputs drawn by a seed, recorded for our tests.

    python scripts/originals/gluoncv_maskrcnn.py --out tests/oracle/recorded [--seed 0] [--part NAME ...] [--script FILE]

Runs where MXNet 1.9.1 and GluonCV are installed (versions: tests/oracle/recorded/README.md), without paceline and without torch. Each
part writes OUT/gluoncv_PART.npz: its inputs, its outputs and the versions. The tests compare paceline with the recorded files; their
nightly form runs this script anew with another seed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from pathlib import Path

import numpy as np

# MXNet 1.9.1 and GluonCV use names that numpy has only announced to remove.
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)

import gluoncv  # noqa: E402
import mxnet as mx  # noqa: E402
from gluoncv_geometry import anchor_targets, anchors, decoding, mask_targets, pooling, region_samples  # noqa: E402
from gluoncv_metrics import metrics  # noqa: E402
from gluoncv_network import detections, first_weights, training  # noqa: E402
from gluoncv_optimizer import schedule, steps  # noqa: E402
from gluoncv_pixels import pasting, resizing  # noqa: E402

PARTS = {
    "metrics": metrics,
    "anchors": anchors,
    "anchor_targets": anchor_targets,
    "region_samples": region_samples,
    "pooling": pooling,
    "decoding": decoding,
    "mask_targets": mask_targets,
    "training": training,
    "detections": detections,
    "first_weights": first_weights,
    "resizing": resizing,
    "pasting": pasting,
    "steps": steps,
}


def versions() -> str:
    return json.dumps(
        {
            "mxnet": mx.__version__,
            "gluoncv": gluoncv.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the recorded files")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--part", choices=sorted(PARTS), action="append", help="only these; default: all")
    parser.add_argument(
        "--script", type=Path, help="train_mask_rcnn.py of a checkout of gluon-cv: its loop's learning rates too"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number, (name, record) in enumerate(PARTS.items()):
        if arguments.part and name not in arguments.part:
            continue
        # Each part has numbers of its own, whatever other parts draw.
        mx.random.seed(arguments.seed)
        np.random.seed(arguments.seed)
        save(arguments.out, name, record(np.random.RandomState([arguments.seed, number])))
    if arguments.script is not None:
        save(arguments.out, "schedule", schedule(arguments.script))
    return 0


def save(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    path = folder / f"gluoncv_{name}.npz"
    np.savez_compressed(path, versions=np.array(versions()), **arrays)
    print(f"{path}  {path.stat().st_size / 1024:.1f} KiB  {len(arrays)} arrays")


if __name__ == "__main__":
    sys.exit(main())
