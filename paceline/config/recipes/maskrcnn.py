"""Recipes of Mask R-CNN and Faster R-CNN, ResNet-50 FPN, on COCO 2017 (117,266 training images with objects, 5,000 for validation).

    paceline prepare coco /data/coco
    paceline train maskrcnn --data /data/coco --weights resnet50-v1 --output-dir runs/maskrcnn
    torchrun --nproc-per-node 8 -m paceline train maskrcnn-nvidia-96 --data /data/coco --weights resnet50-v1 --system h100x8

A backbone with frozen BatchNorm requires pretrained weights. No BatchNorm is trained, so `bn_batch_size` is 1, which allows any split
of the batch; a custom recipe with `--model.norm batch` needs a larger value.

The backbones differ from those of the reference systems. The MLPerf reference starts from Caffe2's MSRA ResNet-50, whose bottlenecks
have the stride in the first 1x1 convolution and whose input is BGR minus (102.98, 115.95, 122.77). paceline has the stride in the 3x3
convolution (v1.5, as in GluonCV's v1b and torchvision), uses RGB with ImageNet's mean and standard deviation, and starts from
torchvision's first ResNet-50. The reference counts the last pixel of a box as part of its width (+1); paceline does so only for
anchors. Images are padded to a few shapes; the reference systems pad to the largest image of the batch.

Published epochs and times are measurements of their publishers; those of paceline are only in results/.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.config.maskrcnn import (
    RPN,
    InstanceFilter,
    InstanceInput,
    InstanceParity,
    MaskHead,
    MaskRCNNModel,
    MaskRCNNParity,
    RoI,
)
from paceline.config.recipe import Evaluation, Optim, Recipe
from paceline.config.schedule import Schedule

MaskRCNNRecipe = Recipe[MaskRCNNModel, InstanceInput]

TARGET = (("box_ap", 0.377), ("mask_ap", 0.339))
# GluonCV's settings state the warm-up in iterations and the decay in epochs, of ceil(117,266 / batch) iterations.
TRAIN_IMAGES = 117_266

# What the MLPerf reference does otherwise than torchvision: rounded anchors, taken by their edges, of which those inside the photo
# train; smooth L1 of boxes turns at 1; masks to learn are binary; proposals are counted over a device's images.
MLPERF_MODEL = MaskRCNNModel(
    rpn=RPN(keep_border_anchors=False),
    roi=RoI(smooth_l1_beta=1.0),
    mask=MaskHead(target="binary"),
    parity=MaskRCNNParity(anchor_rounding="legacy-edges"),
)
# Biases learn twice as fast and do not decay.
MLPERF_OPTIM = Optim(momentum=0.9, weight_decay=1e-4, no_decay="norm-and-bias", bias_lr_factor=2.0)

# What GluonCV does otherwise than torchvision: level 6 by a convolution; a wide proposal network over rounded anchors, of which
# those inside the photo train, negative below 0.3 even where an object has no better one; one suppression over all levels; class
# and box from 14x14 regions averaged to 7x7; deltas up to 4.42; 1,000 detections from a score of 0.01 on, whose boxes reach
# beyond the photo until their masks are found; first weights of its own; masks to learn from 2 x 2 points a cell.
GLUONCV_MODEL = MaskRCNNModel(
    fpn_top="conv",
    init="gluoncv",
    rpn=RPN(
        channels=1024,
        allow_low_quality_matches=False,
        keep_border_anchors=False,
        pre_nms_topk_train=12_000,
        pre_nms_topk_test=6_000,
        min_box_side=0.0,
        max_log_scale=4.42,
    ),
    roi=RoI(smooth_l1_beta=1.0, max_log_scale=4.42),
    mask=MaskHead(sampling_ratio=2),
    # It suppresses whatever scores enough; on an accelerator the best 4,000 pairs must do.
    detect=InstanceFilter(score_threshold=0.01, max_detections=1_000, topk_candidates=4_000, min_box_side=0.0),
    parity=MaskRCNNParity(
        anchor_rounding="legacy",
        nms_per="image",
        roi_fill="any",
        roi_pooling="average",
        clip_boxes="after",
        mask_paste="gluoncv",
    ),
)
# Objects of an annotated area of a pixel, whose boxes have four inside the photo.
GLUONCV_INPUT = InstanceInput(
    resize="bilinear", parity=InstanceParity(side_rounding="rounded"), min_object_area=1.0, min_box_area=4.0
)


def mlperf() -> MaskRCNNRecipe:
    """Train the MLPerf reference's 1x schedule: 90,000 steps of 16 images, lr 0.02, lr / 10 at steps 60,000 and 80,000.

    Losses and proposals are computed for two images together, as on the eight devices of the reference. It is evaluated every epoch of
    7,330 steps, to box AP 0.377 and mask AP 0.339. The warm-up has 500 steps and starts at a third of the learning rate. The reference
    advances the schedule before each step, so the first step is one step up the ramp, and the decays come one step before 60,000 and
    80,000.
    """
    return Recipe(
        task="instance-segmentation",
        # 2,000 proposals for a device's two images.
        model=replace(
            MLPERF_MODEL,
            loss_normalizer_images=2,
            rpn=replace(MLPERF_MODEL.rpn, post_nms_topk_train=1000),
            parity=replace(MLPERF_MODEL.parity, post_nms_per="batch"),
        ),
        input=InstanceInput(),
        target_data="coco",
        global_batch_size=16,
        max_images=90_000 * 16,
        epoch_rounding="up",
        bn_batch_size=1,
        optim=replace(MLPERF_OPTIM, lr=0.02),
        schedule=Schedule(
            name="multistep", unit="steps", warmup=500, warmup_start_factor=1 / 3, milestones=(60_000 - 1, 80_000 - 1)
        ),
        target=TARGET,
        pretrained="resnet50-v1",
    )


def nvidia(
    global_batch_size: int,
    *,
    lr: float,
    warmup: int,
    ramp: float,
    decays: tuple[int, int],
    per_gpu: int,
    candidates: int = 0,
    most_steps: int = 40_000,
) -> MaskRCNNRecipe:
    """The family of NVIDIA's PyTorch submissions to MLPerf v3.0 and of its partners': the reference's rules, larger batches.

    warmup      steps
    ramp        what the rate grows by in a step of the warm-up ("mlperf_linear": lr - (warmup - step) * ramp)
    decays      SOLVER.STEPS. Its optimizer (solver/fused_sgd.py) takes a rate that was worked out after the step before, counted
                from 0: so the ramp begins with the second step, the first fall, for counts above the first number, comes two
                steps later, the second one step
    per_gpu     images of one GPU, whose losses are normalized together
    candidates  proposals of a GPU's images together; 0 = 1,000 of each image
    most_steps  where the run ends without the target
    Source: config_DGXH100*.sh and the logs. Their biases' ramp has the same step as the weights', from a higher start; ours is
    twice as steep.
    """
    reference = mlperf()
    topk, parity = 1000, MLPERF_MODEL.parity
    if candidates:
        topk = round(candidates / per_gpu)
        parity = replace(parity, post_nms_per="batch", post_nms_batch=candidates if candidates % per_gpu else 0)
    return replace(
        reference,
        model=replace(
            MLPERF_MODEL,
            loss_normalizer_images=per_gpu,
            rpn=replace(MLPERF_MODEL.rpn, post_nms_topk_train=topk),
            parity=parity,
        ),
        global_batch_size=global_batch_size,
        max_images=most_steps * global_batch_size,
        optim=replace(MLPERF_OPTIM, lr=lr),
        schedule=replace(
            reference.schedule,
            warmup=warmup,
            warmup_start_factor=max(0.0, 1 - warmup * ramp / lr),
            warmup_step_offset=-1,
            milestones=(decays[0] + 2, decays[1] + 1),
        ),
    )


def nvidia_96() -> MaskRCNNRecipe:
    """Train on 8 devices with 12 images each (one DGX H100). Published: 14 epochs, 19.18 min.

    `paceline plan maskrcnn-nvidia-96 --system h100x8`
    """
    return nvidia(96, lr=0.12, warmup=625, ramp=1.92e-4, decays=(12_000, 16_000), per_gpu=12, candidates=12_000)


def nvidia_256() -> MaskRCNNRecipe:
    """Train on 64 devices with 4 images each (eight DGX H100). Published: 16 to 18 epochs, 4.26 min on 64 H100."""
    return nvidia(
        256, lr=0.24, warmup=2300, ramp=0.24 / 2300, decays=(6_125, 8_000), per_gpu=4, most_steps=20_000
    )  # fmt: skip


def nvidia_256_48nodes() -> MaskRCNNRecipe:
    """Train on 256 devices with one image each (48 DGX H100, where 128 of the 384 GPUs only evaluated).

    Published: 17 epochs, 1.47 min. Images have at most 96 objects.
    """
    many = nvidia(256, lr=0.24, warmup=1800, ramp=1.33e-4, decays=(5_625, 7_500), per_gpu=1, most_steps=20_000)
    return replace(many, input=replace(many.input, max_objects=96))


def gluoncv(
    global_batch_size: int = 16,
    *,
    lr: float = 0.02,
    warmup: int = 1000,
    warmup_start_factor: float = 0.03,
    boundaries: tuple[float, float] = (8, 10),
    epochs: float = 12,
    clip: float = 1.5,
    per_gpu: int = 2,
    at: tuple[float, ...] = (12,),
) -> MaskRCNNRecipe:
    """Train GluonCV's benchmark on 8 devices with 2 images each: lr 0.02, lr / 10 at epochs 8 and 10, 12 epochs.

    It is evaluated at the end.

    warmup   iterations
    clip     bound of each element of the gradient; 0 = none
    per_gpu  images of one GPU, whose losses are normalized together
    at       epochs to evaluate after; empty = every one
    Gradient elements are clipped to 1.5. Source: scripts/instance/mask_rcnn of GluonCV, its benchmark's README.
    """
    return Recipe(
        task="instance-segmentation",
        model=replace(GLUONCV_MODEL, loss_normalizer_images=per_gpu),
        input=GLUONCV_INPUT,
        target_data="coco",
        global_batch_size=global_batch_size,
        epochs=epochs,
        epoch_rounding="up",
        bn_batch_size=1,
        optim=Optim(
            lr=lr, momentum=0.9, momentum_style="mxnet", weight_decay=1e-4, no_decay="norm-and-bias", clip_value=clip
        ),
        schedule=Schedule(
            name="multistep",
            warmup=warmup / -(-TRAIN_IMAGES // global_batch_size),
            warmup_start_factor=warmup_start_factor,
            warmup_step_offset=0,
            milestones=boundaries,
        ),
        eval=Evaluation(at=at),
        seed=233,
        pretrained="resnet50-v1b",
    )


def gluoncv_192() -> MaskRCNNRecipe:
    """Train GluonCV's benchmark on 24 nodes, 192 devices with one image each: lr 0.16, lr / 10 at epoch 10.

    It is evaluated every epoch. Its second decay, at epoch 14, is after the 12 epochs. Source: as in `gluoncv`.
    """
    return gluoncv(192, lr=0.16, warmup=1600, warmup_start_factor=0.001, boundaries=(10, 14), per_gpu=1, at=())


def finetune() -> MaskRCNNRecipe:
    """Fine-tune on your own objects with masks: `paceline train maskrcnn-finetune --data DIR --weights maskrcnn`.

    The weights are those of a Mask R-CNN on COCO or of a backbone. The recipe trains for 24 epochs with a cosine schedule, a weight
    average, and torchvision's rules. Heads for other classes are initialized again.
    """
    return Recipe(
        task="instance-segmentation",
        model=MaskRCNNModel(),
        input=InstanceInput(exif="apply", skip_empty=False),
        target_data="coco",
        global_batch_size=8,
        epochs=24,
        bn_batch_size=1,
        optim=Optim(lr=0.01, momentum=0.9, weight_decay=1e-4, no_decay="norm-and-bias"),
        schedule=Schedule(name="cosine", warmup=1),
        ema_decay=0.998,
        eval=Evaluation(start=1, every=1),
        pretrained="maskrcnn",
    )


def finetune_cpu() -> MaskRCNNRecipe:
    """Fine-tune on your own objects with masks on a CPU: a lighter backbone, and the FPN and heads of `maskrcnn-demo`.

    paceline train maskrcnn-finetune-cpu --data DIR --weights resnet18
    paceline train maskrcnn-finetune-cpu --data DIR --model.backbone timm/tf_efficientnet_lite0 --weights efficientnet-lite0
    """
    small, whole = demo(), finetune()
    return replace(
        whole,
        model=replace(
            small.model, depth=18, width=64, norm="frozen", freeze_stages=3, roi=replace(small.model.roi, fc_channels=256)
        ),
        input=replace(small.input, min_size=(384, 448), max_size=608),
        bn_batch_size=8,
        optim=replace(small.optim, lr=0.001, head_lr_factor=3.0),
        schedule=Schedule(name="cosine", unit="fraction", warmup=0.05),
        ema_decay=0.99,
        eval=Evaluation(start=4, every=4),
        pretrained="resnet18",
    )


def demo() -> MaskRCNNRecipe:
    """Train a small Mask R-CNN from scratch on a CPU.

        paceline train maskrcnn-demo                   # the built-in shapes, to the target
        paceline train maskrcnn-demo --data DIR        # your masks, to the end

    The backbone has ten layers. The backbone and the FPN have BatchNorm, and nothing is frozen, because weights are random. Anchors
    are positive from an IoU of 0.5, and up to half of the regions are positive: with the published values 0.7 and 0.25, it
    learned half as fast. Measured: results/maskrcnn-demo.
    """
    return Recipe(
        task="instance-segmentation",
        model=MaskRCNNModel(
            depth=10,
            width=32,
            norm="batch",
            freeze_stages=0,
            fpn_channels=64,
            fpn_norm="batch",
            rpn=RPN(
                anchor_sizes=(16.0, 32.0, 64.0, 128.0, 224.0),
                fg_iou=0.5,
                samples_per_image=128,
                pre_nms_topk_train=300,
                pre_nms_topk_test=300,
                post_nms_topk_train=200,
                post_nms_topk_test=200,
            ),
            roi=RoI(samples_per_image=64, positive_fraction=0.5, fc_channels=128),
            mask=MaskHead(num_convs=2, target_buffer_size=56),
            detect=InstanceFilter(topk_candidates=400),
        ),
        input=InstanceInput(
            min_size=(224, 256), max_size=352, min_crop_scale=0.6, color_jitter="matrix", exif="apply", skip_empty=False
        ),
        target_data="shapes-boxes",
        global_batch_size=8,
        max_images=24_000,
        bn_batch_size=8,
        optim=Optim(name="adamw", lr=0.0025, momentum=0.9, weight_decay=0.05, no_decay="norm-and-bias"),
        schedule=Schedule(name="polynomial", unit="fraction", warmup=0.02),
        ema_decay=0.99,
        target=(("box_ap", 0.35), ("mask_ap", 0.30)),
        eval=Evaluation(unit="fraction", start=0.3, every=0.05),
    )


def boxes() -> MaskRCNNRecipe:
    """Train Faster R-CNN with ResNet-50 FPN: the schedule and network of `maskrcnn` without the mask head, to box AP 0.368.

    Sources: maskrcnn-benchmark, on which the MLPerf reference is based: e2e_faster_rcnn_R_50_FPN_1x.yaml, which has the lr, steps,
    and warm-up of its Mask R-CNN and differs only by MASK_ON, and its MODEL_ZOO.md: R-50-FPN, Fast, 1x, box AP 36.8. detectron2's 1x
    also has 90,000 steps of 16 images at lr 0.02, lr / 10 at 60,000 and 80,000 (37.9, with scale jitter and its own rules).
    """
    reference = mlperf()
    return replace(reference, model=replace(reference.model, masks=False), target=(("box_ap", 0.368),))


def finetune_boxes() -> MaskRCNNRecipe:
    """Fine-tune Faster R-CNN on your own boxes: `paceline train fasterrcnn-finetune --data DIR --weights fasterrcnn`.

    The weights are those of a Faster R-CNN on COCO or of a backbone. The recipe is `maskrcnn-finetune` without the mask head.
    """
    whole = finetune()
    return replace(whole, model=replace(whole.model, masks=False), pretrained="fasterrcnn")


def finetune_cpu_boxes() -> MaskRCNNRecipe:
    """Fine-tune Faster R-CNN on your own boxes on a CPU: `paceline train fasterrcnn-finetune-cpu --data DIR --weights resnet18`.

    The recipe is `maskrcnn-finetune-cpu` without the mask head, with the box head and learning rate of the runs in results/tuning.
    """
    small = finetune_cpu()
    model = replace(small.model, masks=False, roi=demo().model.roi)
    return replace(small, model=model, optim=replace(small.optim, head_lr_factor=1.0))
