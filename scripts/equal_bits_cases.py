"""The cases of scripts/equal_bits.py: short runs whose layout, compilation, graph, kernels, and threads are all set by flags.

The recipes and flags have the names of this tree.
"""

from __future__ import annotations

from dataclasses import dataclass

FORMS = "--system.compile off --system.cuda-graph off --system.kernels torch --system.verify-checksums"
FIXED = f"--system cpu --system.intra-op-threads 1 --system.num-workers 2 {FORMS}"
FP32 = f"{FIXED} --system.precision fp32 --system.channels-last on"
ROWS = f"{FIXED} --system.precision fp32 --system.channels-last off"
RESNET = "--model.depth 10 --model.width 8 --input.image-size 32 --input.eval-crop-size 32 --input.eval-resize-size 36 --optim.lr 0.01"
SSD = (
    "--model.depth 10 --model.width 4 --model.extra-channels 8 --model.detect.score-threshold 0.001 "
    "--input.image-size 96 --optim.lr 0.01"
)
MASKRCNN = (
    "--model.width 8 --model.fpn-channels 16 --model.roi.fc-channels 32 --model.rpn.pre-nms-topk-train 100 "
    "--model.rpn.post-nms-topk-train 32 "
    "--model.rpn.pre-nms-topk-test 100 --model.rpn.post-nms-topk-test 32 --model.detect.max-detections 20 "
    "--model.detect.score-threshold 0.001 "
    "--input.min-size 64 --input.max-size 96 --model.rpn.anchor-sizes 12 24 36 48 64 --optim.lr 0.002"
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
    return f"--system.micro-batch-size {images}"


R12 = f"{RESNET} --bn-batch-size 12 --global-batch-size 12 {per_forward(12)}"
S12 = f"{SSD} --bn-batch-size 4 --global-batch-size 12"
M12, M8 = (f"{MASKRCNN} --bn-batch-size 4 --global-batch-size {images}" for images in (12, 8))
AMP = f"{FIXED} --system.channels-last on"
CASES = {
    "resnet": Case("classify-demo", "classes", f"{FP32} {R12}", (1, 2, 3), batches=True, predicts=True),
    "resnet, NCHW": Case("classify-demo", "classes", f"{ROWS} {R12}", batches=True, predicts=True),
    "resnet, bf16": Case("classify-demo", "classes", f"{AMP} --system.precision bf16 {R12}"),
    "resnet, fp16 scaled": Case("classify-demo", "classes", f"{AMP} --system.precision fp16 {R12}", (1, 2)),
    "resnet, accumulated": Case(
        "classify-demo", "classes", f"{FP32} {RESNET} --bn-batch-size 6 --global-batch-size 24 {per_forward(6)}", batches=True
    ),
    "resnet, BatchNorm in groups": Case(
        "classify-demo", "classes", f"{FP32} {RESNET} --bn-batch-size 6 --global-batch-size 12 {per_forward(12)}", (1, 3)
    ),
    "resnet, LARS": Case(
        "resnet50-mlperf-3200", "classes", f"{FP32} {R12} --epochs 4 --schedule.warmup 1 --target", (1, 2)
    ),
    "resnet, augmented": Case(
        "classify-demo", "classes", f"{FP32} {R12} --input.auto-augment randaugment --input.random-erase 0.5"
        " --input.mixup-alpha 0.2 --input.cutmix-alpha 1",
        (), batches=True
    ),
    "ssd": Case("ssd-demo", "boxes", f"{FP32} {S12} {per_forward(12)}", (1, 2, 3), batches=True, predicts=True),
    "ssd, NCHW": Case("ssd-demo", "boxes", f"{ROWS} {S12} {per_forward(12)}"),
    "ssd, accumulated": Case("ssd-demo", "boxes", f"{FP32} {S12} {per_forward(4)}", batches=True),
    "ssd, SGD over the batch": Case(
        "ssd", "boxes", f"{FP32} {S12} {per_forward(12)} --weights none --model.loss-normalizer batch --target", (1, 2)
    ),
    "ssd, augmented": Case(
        "ssd-demo", "boxes", f"{FP32} {S12} {per_forward(12)} --input.mosaic-prob 0.5 --input.zoom-out-max 3 --input.rot90 0.5",
        (), batches=True
    ),
    "maskrcnn": Case("maskrcnn-demo", "boxes", f"{FP32} {M12} {per_forward(12)}", (1, 2, 3), batches=True, predicts=True),
    "maskrcnn, NCHW": Case("maskrcnn-demo", "boxes", f"{ROWS} {M12} {per_forward(12)}"),
    "fasterrcnn": Case(
        "maskrcnn-demo", "boxes", f"{FP32} {M12} {per_forward(12)} --model.no-masks --target",
        (1, 2), batches=True, predicts=True
    ),
    "maskrcnn, loss groups": Case(
        "maskrcnn-demo", "boxes", f"{FP32} {M8} {per_forward(8)} --model.loss-normalizer-images 2", (1, 2)
    ),
    "maskrcnn, accumulated": Case("maskrcnn-demo", "boxes", f"{FP32} {M8} {per_forward(4)}", batches=True),
    "maskrcnn, augmented": Case(
        "maskrcnn-demo", "boxes", f"{FP32} {M12} {per_forward(12)} --input.copy-paste-prob 0.5 --input.min-crop-scale 1"
        " --input.scale-jitter 0.5 2",
        (), batches=True
    ),
}  # fmt: skip
