"""The cases of scripts/equal_bits.py: short runs whose layout, compilation, graph, kernels, and threads are all set by flags.

The recipes and flags have the names of this tree.
"""

from __future__ import annotations

from dataclasses import dataclass

FORMS = "--system.compile off --system.graph off --system.kernels torch --system.check-photos"
FIXED = f"--system cpu --system.intra-op-threads 1 --system.loader-threads 2 {FORMS}"
FP32 = f"{FIXED} --system.precision fp32 --system.channels-last on"
ROWS = f"{FIXED} --system.precision fp32 --system.channels-last off"
RESNET = "--model.depth 10 --model.width 8 --input.size 32 --input.eval-size 32 --input.eval-resize 36 --optim.lr 0.01"
SSD = "--model.depth 10 --model.width 4 --model.extras 8 --model.detect.score-above 0.001 --input.size 96 --optim.lr 0.01"
MASKRCNN = (
    "--model.width 8 --model.channels 16 --model.roi.channels 32 --model.rpn.pre-train 100 --model.rpn.post-train 32 "
    "--model.rpn.pre-test 100 --model.rpn.post-test 32 --model.detect.keep 20 --model.detect.score-above 0.001 "
    "--input.short 64 --input.long 96 --model.rpn.sizes 12 24 36 48 64 --optim.lr 0.002"
)


@dataclass(frozen=True)
class Case:
    """One run: its recipe, its flags, and the numbers of ranks that it starts with; without ranks only its batches."""

    recipe: str
    kind: str  # of images: classes or boxes
    flags: str
    ranks: tuple[int, ...] = (1,)
    batches: bool = False  # compare the batches of one rank too
    predicts: bool = False  # compare the predictions of `eval` and `predict` too


def per_forward(images: int) -> str:
    """Fix the images of one forward: by default, the memory estimate chooses them."""
    return f"--system.images-per-forward {images}"


R12 = f"{RESNET} --bn-span 12 --global-batch 12 {per_forward(12)}"
S12 = f"{SSD} --bn-span 4 --global-batch 12"
M12, M8 = (f"{MASKRCNN} --bn-span 4 --global-batch {images}" for images in (12, 8))
AMP = f"{FIXED} --system.channels-last on"
CASES = {
    "resnet": Case("classify-demo", "classes", f"{FP32} {R12}", (1, 2, 3), batches=True, predicts=True),
    "resnet, NCHW": Case("classify-demo", "classes", f"{ROWS} {R12}", batches=True, predicts=True),
    "resnet, bf16": Case("classify-demo", "classes", f"{AMP} --system.precision bf16 {R12}"),
    "resnet, fp16 scaled": Case("classify-demo", "classes", f"{AMP} --system.precision fp16 {R12}", (1, 2)),
    "resnet, accumulated": Case(
        "classify-demo", "classes", f"{FP32} {RESNET} --bn-span 6 --global-batch 24 {per_forward(6)}", batches=True
    ),
    "resnet, BatchNorm in groups": Case(
        "classify-demo", "classes", f"{FP32} {RESNET} --bn-span 6 --global-batch 12 {per_forward(12)}", (1, 3)
    ),
    "resnet, LARS": Case(
        "resnet50-mlperf-3200", "classes", f"{FP32} {R12} --epochs 4 --schedule.warmup 1 --quality.targets", (1, 2)
    ),
    "resnet, augmented": Case(
        "classify-demo", "classes", f"{FP32} {R12} --input.augment rand --input.erase 0.5 --input.mixup 0.2 --input.cutmix 1",
        (), batches=True
    ),
    "ssd": Case("ssd-demo", "boxes", f"{FP32} {S12} {per_forward(12)}", (1, 2, 3), batches=True, predicts=True),
    "ssd, NCHW": Case("ssd-demo", "boxes", f"{ROWS} {S12} {per_forward(12)}"),
    "ssd, accumulated": Case("ssd-demo", "boxes", f"{FP32} {S12} {per_forward(4)}", batches=True),
    "ssd, SGD over the batch": Case(
        "ssd", "boxes", f"{FP32} {S12} {per_forward(12)} --weights none --model.loss-over batch --quality.targets", (1, 2)
    ),
    "ssd, augmented": Case(
        "ssd-demo", "boxes", f"{FP32} {S12} {per_forward(12)} --input.mosaic 0.5 --input.zoom-out 3 --input.rot90 0.5",
        (), batches=True
    ),
    "maskrcnn": Case("maskrcnn-demo", "boxes", f"{FP32} {M12} {per_forward(12)}", (1, 2, 3), batches=True, predicts=True),
    "maskrcnn, NCHW": Case("maskrcnn-demo", "boxes", f"{ROWS} {M12} {per_forward(12)}"),
    "fasterrcnn": Case(
        "maskrcnn-demo", "boxes", f"{FP32} {M12} {per_forward(12)} --model.no-masks --quality.targets",
        (1, 2), batches=True, predicts=True
    ),
    "maskrcnn, loss groups": Case(
        "maskrcnn-demo", "boxes", f"{FP32} {M8} {per_forward(8)} --model.loss-group 2", (1, 2)
    ),
    "maskrcnn, accumulated": Case("maskrcnn-demo", "boxes", f"{FP32} {M8} {per_forward(4)}", batches=True),
    "maskrcnn, augmented": Case(
        "maskrcnn-demo", "boxes", f"{FP32} {M12} {per_forward(12)} --input.copy-paste 0.5 --input.crop 1 --input.scale-jitter 0.5 2",
        (), batches=True
    ),
}  # fmt: skip
