"""The three tiny recipes, shrunk so that a run takes about a second: their flags, their photos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import multi_path  # noqa: F401
from instance_sets import make_instances
from small_run import make_photos

SYSTEM = "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.loader-threads 1"
ALL = "--schedule.warmup 0 --save-every 3 --log-every 2"
MASK_SIZES = "--model.rpn.sizes 12 24 36 48 64 --input.short 64 --input.long 96"
PROPOSALS = (
    "--model.rpn.pre-train 100 --model.rpn.post-train 32 --model.rpn.pre-test 100 --model.rpn.post-test 32 "
    "--model.detect.keep 20"
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
        f"{ALL} --model.width 8 --input.size 32 --input.eval-size 32 --input.eval-resize 36 --global-batch 12 --bn-span 6 "
        "--optim.lr 0.02 --limit-val 21 --images-seen 216 --eval-every 6",
        steps=18,
        half=11,
    ),
    "ssd": Workload(
        "ssd-demo",
        f"{ALL} --model.width 4 --model.extras 8 --input.size 96 --global-batch 4 --bn-span 2 --optim.lr 0.002 "
        "--images-seen 48 --eval-every 6",
        steps=12,
        half=8,
    ),
    "maskrcnn": Workload(
        "maskrcnn-demo",
        f"{ALL} {MASK_SIZES} {PROPOSALS} --model.width 8 --model.channels 16 --model.roi.channels 32 --global-batch 4 "
        "--bn-span 2 --optim.lr 0.002 --images-seen 48 --eval-every 6",
        steps=12,
        half=8,
    ),
    # All that a checkpoint and an evaluation do to files, in as few operations as may be: test_every_operation.py.
    "journal": Workload(
        "classify-demo",
        f"{ALL} --model.width 8 --input.size 32 --input.eval-size 32 --input.eval-resize 36 --global-batch 12 --bn-span 6 "
        "--optim.lr 0.02 --limit-val 21 --images-seen 72 --eval-every 2 --save-every 1 --keep 1",
        steps=6,
        half=4,
    ),
}


def make_data(folder: Path) -> dict[str, Path]:
    """Workload -> its data set, made in `folder`."""
    boxes = make_instances(folder / "instances", train=16, val=7)
    photos = make_photos(folder / "photos")
    return {"resnet50": photos, "journal": photos, "ssd": boxes, "maskrcnn": boxes}
