"""The three tiny recipes, shrunk so that a run takes about a second: their flags, their photos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import multi_path  # noqa: F401
from instance_sets import make_instances
from small_run import make_photos

SYSTEM = "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.num-workers 1"
ALL = "--schedule.warmup 0 --save-every 3 --log-every 2"
MASK_SIZES = "--model.rpn.anchor-sizes 12 24 36 48 64 --input.min-size 64 --input.max-size 96"
PROPOSALS = (
    "--model.rpn.pre-nms-topk-train 100 --model.rpn.post-nms-topk-train 32 --model.rpn.pre-nms-topk-test 100 "
    "--model.rpn.post-nms-topk-test 32 "
    "--model.detect.max-detections 20"
)


@dataclass(frozen=True)
class Workload:
    """One tiny recipe. A run has `steps` steps; its half-done state is that after `half`."""

    recipe: str
    flags: str
    steps: int
    half: int


WORKLOADS = {
    "resnet50": Workload(
        "classify-demo",
        f"{ALL} --model.width 8 --input.image-size 32 --input.eval-crop-size 32 --input.eval-resize-size 36 "
        "--global-batch-size 12 --bn-batch-size 6 "
        "--optim.lr 0.02 --max-val-images 21 --max-images 216 --eval-every 6",
        steps=18,
        half=11,
    ),
    "ssd": Workload(
        "ssd-demo",
        f"{ALL} --model.width 4 --model.extra-channels 8 --input.image-size 96 --global-batch-size 4 --bn-batch-size 2 "
        "--optim.lr 0.002 "
        "--max-images 48 --eval-every 6",
        steps=12,
        half=8,
    ),
    "maskrcnn": Workload(
        "maskrcnn-demo",
        f"{ALL} {MASK_SIZES} {PROPOSALS} --model.width 8 --model.fpn-channels 16 --model.roi.fc-channels 32 --global-batch-size 4 "
        "--bn-batch-size 2 --optim.lr 0.002 --max-images 48 --eval-every 6",
        steps=12,
        half=8,
    ),
    # All that a checkpoint and an evaluation do to files, in as few operations as may be: test_every_operation.py.
    "journal": Workload(
        "classify-demo",
        f"{ALL} --model.width 8 --input.image-size 32 --input.eval-crop-size 32 --input.eval-resize-size 36 "
        "--global-batch-size 12 --bn-batch-size 6 "
        "--optim.lr 0.02 --max-val-images 21 --max-images 72 --eval-every 2 --save-every 1 --keep-checkpoints 1",
        steps=6,
        half=4,
    ),
}


def make_data(folder: Path) -> dict[str, Path]:
    """Workload -> its data set, made in `folder`."""
    boxes = make_instances(folder / "instances", train=16, val=7)
    photos = make_photos(folder / "photos")
    return {"resnet50": photos, "journal": photos, "ssd": boxes, "maskrcnn": boxes}
