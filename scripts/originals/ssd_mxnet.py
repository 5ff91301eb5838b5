"""Write down what System A's own network tail makes of given head outputs: decoding, box_nms, clipping, rows for COCO.

    python scripts/originals/ssd_mxnet.py --submission DIR --out tests/oracle/recorded/ssd_mxnet.npz

DIR: DellEMC/benchmarks/ssd/implementation/mxnet of a checkout of github.com/mlcommons/training_results_v0.7. Its
SSD.hybrid_forward and COCOInference.hybrid_forward run on mxnet 1.9.1 with gluoncv 0.10.5's decoders; the layers before them are
replaced by ready head outputs, which are drawn here by numbered generators (`head_outputs` in tests/oracle/test_ssd_mxnet.py is
the same). Modules of MPI, Horovod and the container's BatchNorm are stood in for; nothing of them is called.
Letters: A default boxes   K classes without background
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np

# grids, default boxes of a cell, K, candidates, places, what kind of numbers, its generator
FULL = ((38, 19, 10, 5, 3, 1), (4, 6, 6, 6, 4, 4))
SMALL = ((8, 4, 2), (4, 6, 6))
CASES = {
    "random": (*FULL, 80, 200, 200, "random", 1),
    "few": (*SMALL, 3, 40, 25, "random", 2),
    "sharp": (*SMALL, 3, 40, 40, "sharp", 3),
    "coarse": (*SMALL, 3, 150, 100, "coarse", 4),
    "equal": (*SMALL, 3, 60, 60, "equal", 5),
}
PHOTO = (427.0, 640.0)  # height, width


def head_outputs(grids, boxes, classes: int, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(A, K + 1) logits and (A, 4) deltas, float32.

    random  as a trained network's. sharp: probabilities that are 0 or 1 in float32. coarse: logits and deltas of few values,
    so that boxes overlap by just one half and scores are equal. equal: every default box says the same.
    """
    random = np.random.RandomState(seed)
    count = sum(grid * grid * number for grid, number in zip(grids, boxes))
    logits, deltas = 2.2 * random.standard_normal((count, classes + 1)), 0.5 * random.standard_normal((count, 4))
    if kind == "sharp":
        logits *= 60
    elif kind == "coarse":
        # Sums of exponentials round to one number in any order, so that equal scores are equal to everybody.
        chosen = random.randint(0, classes + 1, count)
        logits[:], deltas = 0, np.round(deltas) * 5
        logits[np.arange(count), chosen] = random.choice((20, 40), count)
    elif kind == "equal":
        logits[:], deltas[:] = logits[0], 0
    return logits.astype(np.float32), deltas.astype(np.float32)


def small_boxes(grids, boxes) -> np.ndarray:
    """(A, 4) float32 cxcywh: squares and oblongs of a cell on a coarse grid, whose overlaps are simple fractions."""
    rows = []
    for grid, number in zip(grids, boxes):
        shapes = [(1, 1), (2, 2), (2, 1), (1, 2), (1.5, 1), (1, 1.5)][:number]
        for row in range(grid):
            for column in range(grid):
                rows += [((column + 0.5) / grid, (row + 0.5) / grid, w / grid, h / grid) for w, h in shapes]
    return np.array(rows, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    for name in ("mpi4py", "horovod", "horovod.mxnet"):
        sys.modules[name] = MagicMock()
    sys.path.insert(0, str(asked.submission))
    import gluoncv
    import mxnet as mx
    from gluoncv.nn.coder import MultiPerClassDecoder, NormalizedBoxCenterDecoder
    from inference import COCOInference
    from ssd.anchors import mlperf_xywh_anchors
    from ssd.ssd import SSD

    found: dict[str, np.ndarray] = {"mxnet": np.array(mx.__version__), "gluoncv": np.array(gluoncv.__version__)}
    for name, (grids, boxes, classes, candidates, places, kind, seed) in CASES.items():
        logits, deltas = head_outputs(grids, boxes, classes, kind, seed)
        anchors = mlperf_xywh_anchors() if len(grids) == 6 else small_boxes(grids, boxes)
        levels, start = [], 0
        for grid, number in zip(grids, boxes):
            end = start + grid * grid * number
            halves = [part[start:end].reshape(1, grid, grid, -1) for part in (logits, deltas)]
            levels.append(np.concatenate(halves, -1))
            start = end
        stand_in = SimpleNamespace(
            layout="NHWC", num_classes=classes, num_defaults=boxes, padding_amounts=[0] * len(grids),
            features=lambda x: [mx.nd.array(level) for level in x],
            predictors=[lambda feature: feature] * len(grids),
            bbox_decoder=NormalizedBoxCenterDecoder((0.1, 0.1, 0.2, 0.2)),
            cls_decoder=MultiPerClassDecoder(classes + 1, thresh=0),
            nms_overlap_thresh=0.5, nms_topk=candidates, nms_valid_thresh=0.0, post_nms=places,
        )  # fmt: skip
        result = SSD.hybrid_forward(stand_in, mx.nd, levels, mx.nd.array(anchors).reshape((1, -1, 4)))
        whole = SimpleNamespace(net=lambda *_, r=result: r, ltrb=False, scale_bboxes=True, score_threshold=0.0)
        found[name] = COCOInference.hybrid_forward(
            whole, mx.nd, None, None, scale=mx.nd.array([PHOTO]), ids=mx.nd.array([[7]])
        ).asnumpy()
    np.savez_compressed(asked.out, **found)
    print(asked.out, asked.out.stat().st_size, "bytes", {name: rows.shape for name, rows in found.items()})


if __name__ == "__main__":
    main()
