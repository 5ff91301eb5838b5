"""GluonCV's Mask R-CNN on MXNet: the original of maskrcnn.py --beside gluoncv.

scripts/originals/gluoncv_steps.py takes the steps in an environment of its own. Here: DUMP's weights and batches as it reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from maskrcnn_ours import DECAY, PEAK, WARMUP, WARMUP_FROM
from maskrcnn_start import bitmaps, nudged, photos_of, read_batches, read_drop
from original_runs import GLUONCV, interpreter, run_original

from paceline.models.weights.formats.mxnet import WITHOUT_BACKGROUND, _head_name, _trunk_name

PROGRAM = Path(__file__).parents[1] / "originals" / "gluoncv_steps.py"
SLOTS = 16  # of objects
UNITS, MASK_HEAD = 3, 8  # convolutions of a bottleneck; the place of the mask head's transposed convolution


def ours_of(name: str) -> tuple[str, int]:
    """Our name of a weight of GluonCV's, and how many of our first rows are the background's, which it has not."""
    found = _trunk_name(name, UNITS) or _head_name(name, MASK_HEAD) or name
    return found, WITHOUT_BACKGROUND.get(found.rpartition(".")[0], 0)


def write_batches(dump: Path, out: Path, steps: int) -> Path:
    """DUMP's batches as the program reads them, with the rates' numbers."""
    arrays: dict[str, Any] = {"peak": PEAK, "warmup": WARMUP, "from": WARMUP_FROM, "decay": DECAY}
    arrays["drop"] = read_drop(dump)
    for step, (batch, drawn) in enumerate(read_batches(dump, steps)):
        images, height, width = len(batch), *batch.images.shape[2:]
        assert bool((batch.sizes == torch.tensor([height, width])).all()), "GluonCV cuts proposals at the padding's border"
        objects, classes = np.full((images, SLOTS, 4), -1, np.float32), np.full((images, SLOTS), -1, np.float32)
        masks = np.zeros((images, SLOTS, height, width), np.float32)
        for image, count in enumerate((batch.labels > 0).sum(dim=1).tolist()):
            objects[image, :count] = batch.boxes[image, :count]
            classes[image, :count] = batch.labels[image, :count] - 1
            masks[image, :count] = bitmaps(batch, image)
        parts = {"photos": photos_of(batch).numpy(), "objects": objects, "classes": classes, "masks": masks}
        arrays |= {f"{step}.{name}": part for name, part in parts.items()}
        arrays |= {f"{step}.{name}": part.numpy() for name, part in drawn.items()}
    np.savez(out, **arrays)
    return out


def train(dump: Path, steps: int, seed: int = 0, *, environment: Path) -> list[dict[str, float]]:
    """Losses of the original's steps from DUMP's weights on DUMP's batches; seed: see `nudged`."""
    python = interpreter(environment, GLUONCV)
    names, weights, out = dump / "names.npz", dump / f"weights{seed}.npz", dump / f"losses{seed}.json"
    if not names.exists():
        run_original(python, PROGRAM, "--names", str(names))
    state = nudged(torch.load(dump / "first.pth"), seed)
    arrays, unused = {}, set(state)
    with np.load(names) as file:
        for name in file.files:
            ours, background = ours_of(name)
            arrays[name] = state[ours][background:].numpy()
            unused.discard(ours)
            assert arrays[name].shape == tuple(file[name]), (name, ours)
    assert not unused, unused
    np.savez(weights, **arrays)
    batches = write_batches(dump, dump / f"batches{seed}.npz", steps)
    words = ("--batches", str(batches), "--weights", str(weights), "--steps", str(steps), "--out", str(out))
    run_original(python, PROGRAM, *words)
    return json.loads(out.read_text())
