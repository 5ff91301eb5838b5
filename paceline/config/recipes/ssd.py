"""Recipes of SSD300 with a ResNet-34 backbone on COCO 2017 (117,266 training images with objects, 5,000 validation images).

    paceline prepare coco /data/coco
    paceline train ssd --data /data/coco --weights resnet34-mlperf --output-dir runs/ssd
    torchrun --nproc-per-node 8 -m paceline train ssd-mlperf-1024 --data /data/coco --weights resnet34-mlperf --system v100x8

All published settings reach box AP 0.23 from an ImageNet backbone. Published epochs and times are measurements of their publishers;
those of paceline are only in results/.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.config.recipe import Evaluation, Optim, Recipe
from paceline.config.schedule import Schedule
from paceline.config.ssd import BoxInput, BoxParity, DetectionFilter, SSDModel, SSDParity

SSDRecipe = Recipe[SSDModel, BoxInput]

TARGET = (("box_ap", 0.23),)
TRAIN_IMAGES = 117_266  # of COCO 2017 with at least one box
# What they start from, by the names of `paceline weights download`: torchvision's of 2017, and TensorFlow's for Habana's network.
BACKBONE, GAUDI_BACKBONE = "resnet34-mlperf", "ssd-resnet34-tensorflow"

# Base learning rate of MLPerf's SSD rule, for 32 images; a submission's lr is an integer multiple of it.
MLPERF_LR, MLPERF_IMAGES = 2.5e-3, 32

# What the MXNet submission did otherwise than the reference: one fused, padded head a level; a hue jitter of half a
# degree by a linear matrix (DALI); 200 candidates over all classes without a score threshold; clipped boxes, one pixel larger.
MXNET_MODEL = SSDModel(
    heads="fused",
    detect=DetectionFilter(score_threshold=0.0, nms_rule="gt", topk_per="image"),
    parity=SSDParity(box_order="cell-last", box_corners="float64", clip_boxes=True, plus_one=True),
)
MXNET_INPUT = BoxInput(color_jitter="dali", hue=0.5 / 360)

# What Habana's TensorFlow system did otherwise: additive brightness, 50 proposals a drawn crop option of which the free
# one must touch every object, IoU of at least 0.5, the first of two objects wins, resize and colors by TensorFlow's own
# operators, biases of new layers zero, even sides padded at their end alone (its backbone's weights are for that, and are
# refused elsewhere).
GAUDI_MODEL = SSDModel(
    padding="same",
    match_rule="ge",
    zero_init_residual=True,
    parity=SSDParity(tie="first", box_order="anchor", box_corners="float64", new_bias="zero"),
)
GAUDI_INPUT = BoxInput(
    crop_trials=50,
    color_jitter="tensorflow",
    resize="tensorflow",
    parity=BoxParity(brightness_mode="add", free_crop="touching"),
)


def mlperf(global_batch_size: int = 32, *, warmup: float = 0.0, bn_batch_size: int = 32) -> SSDRecipe:
    """Train the MLPerf reference on one device: lr 2.5e-3 at 32 images, weight decay 5e-4, lr / 10 at epochs 40 and 50.

    warmup   epochs; steps are int(warmup * 117,266 / batch), counted from 0
    The weight decay applies to all parameters. `epochs` is that of the reference script; the run stops at the target. It is evaluated
    every 5 epochs. The reference keeps the last, shorter batch of an epoch, so an epoch has 3,665 steps; paceline fills this batch
    with images of the next epoch.
    """
    return Recipe(
        task="detection",
        model=SSDModel(parity=SSDParity(box_order="anchor")),
        input=BoxInput(),
        target_data="coco",
        global_batch_size=global_batch_size,
        epochs=70,
        epoch_rounding="up",
        bn_batch_size=bn_batch_size,
        optim=Optim(lr=MLPERF_LR * global_batch_size / MLPERF_IMAGES, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule(
            name="multistep",
            warmup=int(warmup * TRAIN_IMAGES / global_batch_size) / steps_per_epoch(global_batch_size),
            warmup_step_offset=0 if warmup else 1,
            milestones=(40, 50),
        ),
        target=TARGET,
        eval=Evaluation(start=5, every=5),
        pretrained=BACKBONE,
    )


def steps_per_epoch(global_batch_size: int) -> int:
    """Whole steps that COCO's training images with objects take, the last one filled."""
    return -(-TRAIN_IMAGES // global_batch_size)


def integer_lr(lr: float, global_batch_size: int) -> float:
    """MLPerf's rule: 2.5e-3 times the whole number nearest to (lr / 2.5e-3) * (global_batch_size / 32), at least 1.

    lr   what a configuration says, for 32 images
    """
    return MLPERF_LR * max(1, round(lr / MLPERF_LR * global_batch_size / MLPERF_IMAGES))


def mxnet(
    global_batch_size: int,
    *,
    lr: float,
    warmup: float,
    decay: float,
    bn_batch_size: int,
    boundaries: tuple[float, float] = (44, 55),
    epochs: float = 80,
    later: bool = False,
) -> SSDRecipe:
    """The family of NVIDIA's and Dell's MXNet submissions to MLPerf v0.7.

    lr       for 32 images; the integer rule makes the batch's of it
    warmup   epochs; steps are int(warmup * 117,266 / batch), counted from 1
    decay    weight decay, on every parameter
    later    as in v1.1: the rate in plain proportion to the batch, and an evaluation every five epochs from the fifth on
    Source: config_*.sh, ssd_main.py and lr_scheduler.py of the submission. Epochs have ceil(117,266 / batch) steps.
    """
    points = () if later else (40, 50, 55, 60, 65, 70, 75, 80)
    return Recipe(
        task="detection",
        model=MXNET_MODEL,
        input=MXNET_INPUT,
        target_data="coco",
        global_batch_size=global_batch_size,
        epochs=epochs,
        epoch_rounding="up",
        bn_batch_size=bn_batch_size,
        optim=Optim(
            lr=lr * global_batch_size / MLPERF_IMAGES if later else integer_lr(lr, global_batch_size),
            momentum=0.9,
            momentum_style="mxnet",
            weight_decay=decay,
        ),
        schedule=Schedule(
            name="multistep",
            warmup=int(warmup * TRAIN_IMAGES / global_batch_size) / steps_per_epoch(global_batch_size),
            milestones=boundaries,
        ),
        target=TARGET,
        eval=Evaluation(start=5 if later else 1, every=5 if later else 1, at=points),
        pretrained=BACKBONE,
    )


def nvidia_pytorch(global_batch_size: int, *, lr: float, warmup: int, decay: float, bn_batch_size: int) -> SSDRecipe:
    """The family of NVIDIA's PyTorch submissions to MLPerf v0.7: the MXNet ones' data treatment and rates, the reference's decoding.

    warmup   steps, counted from 0
    Source: config_*.sh, train.py, data/dali_pipeline.py and eval.py of the submission.
    """
    mxnet_s = mxnet(global_batch_size, lr=lr, warmup=0, decay=decay, bn_batch_size=bn_batch_size)
    return replace(
        mxnet_s,
        # Its DALI was given the reference's default boxes; ColorTwist is one matrix.
        model=SSDModel(heads="fused", parity=SSDParity(box_order="anchor-last")),
        input=replace(MXNET_INPUT, color_jitter="matrix"),
        optim=replace(mxnet_s.optim, momentum_style="torch"),
        schedule=replace(mxnet_s.schedule, warmup=warmup / steps_per_epoch(global_batch_size), warmup_step_offset=0),
        eval=replace(mxnet_s.eval, at=(40, 50, 55, 60, 65, 70, 75, 80)),
    )


def mlperf_448() -> SSDRecipe:
    """Train on 8 devices with 56 images each (config DGX1_01x08x56): lr 0.04. `paceline plan ssd-mlperf-448 --system v100x8`"""
    return mxnet(448, lr=2.92e-3, warmup=5.25, decay=1.6e-4, bn_batch_size=56)


def mlperf_512() -> SSDRecipe:
    """Train on 4 devices with 128 images each (Dell C4140). Published: 50 epochs, 43.87 min on 4 V100."""
    return mxnet(512, lr=2.92e-3, warmup=5.25, decay=1.6e-4, bn_batch_size=128)


def mlperf_896() -> SSDRecipe:
    """Train on 16 devices with 56 images each (Dell 4xC4140, DGX-2). Published: 50 epochs, 12.44 min on 16 V100."""
    return mxnet(896, lr=3.2e-3, warmup=5, decay=1.3e-4, bn_batch_size=56)


def mlperf_912() -> SSDRecipe:
    """Train on 8 devices with 114 images each (config DGXA100_1x8x114): lr 0.09. `paceline plan ssd-mlperf-912 --system a100x8`"""
    return mxnet(912, lr=3.2e-3, warmup=5, decay=1.3e-4, bn_batch_size=114)


def mlperf_1024() -> SSDRecipe:
    """Train on 8 devices with 128 images each (Dell 2xC4140). Published: 50 epochs, 22.67 min on 8 V100."""
    return mxnet(1024, lr=5.84e-3, warmup=5.25, decay=1.6e-4, bn_batch_size=128)


def mlperf_1024_dss8440() -> SSDRecipe:
    """Train on 8 devices with 128 images each (Dell DSS8440), with five warm-up epochs.

    Published: 50 epochs, 25.37 min on 8 V100S.
    """
    return mxnet(1024, lr=5.84e-3, warmup=5, decay=1.6e-4, bn_batch_size=128)


def mlperf_1536() -> SSDRecipe:
    """Train on 64 devices with 24 images each (eight DGX A100). Published: 60 epochs, 2.25 min on 64 A100."""
    return mxnet(1536, lr=2.9e-3, warmup=11, decay=1.7e-4, bn_batch_size=24)


def mlperf_2048() -> SSDRecipe:
    """Train on 512 devices with 4 images each (64 DGX A100), with BatchNorm statistics over four GPUs.

    Published: 65 epochs, 0.89 min on 512 A100.
    """
    return mxnet(2048, lr=4.57e-3, warmup=26, decay=4e-5, bn_batch_size=16, boundaries=(60, 75))


def gaudi(global_batch_size: int = 128, *, per_card: int = 128, epochs: float = 64, shift: float = 0.0) -> SSDRecipe:
    """Train Habana's release 1.5.0: lr 3e-3 per 32 images, five warm-up epochs, lr / 10 at 40 and 50, 64 epochs, batch 128.

    per_card  images per card, which share BatchNorm statistics
    shift     its --k: the learning rate decays at 1 + shift / 10 times these epochs
    """
    later = 1 + shift / 10
    return Recipe(
        task="detection",
        model=GAUDI_MODEL,
        input=GAUDI_INPUT,
        target_data="coco",
        global_batch_size=global_batch_size,
        epochs=epochs,
        epoch_rounding="up",
        bn_batch_size=per_card,
        optim=Optim(lr=3e-3 * global_batch_size / 32, momentum=0.9, weight_decay=5e-4),
        # Its step counter starts at 0, and so does its ramp.
        schedule=Schedule(name="multistep", warmup=5, warmup_step_offset=0, milestones=(40 * later, 50 * later)),
        target=TARGET,
        eval=Evaluation(start=5, every=5),
        pretrained=GAUDI_BACKBONE,
    )


def gaudi_1024() -> SSDRecipe:
    """Train Habana's release 1.5.0 on eight cards with 128 images each: 115 steps per epoch."""
    return gaudi(1024)


def gaudi_cosine(global_batch_size: int = 128, *, per_card: int = 128, shift: float = 0.0) -> SSDRecipe:
    """Train Habana's release 1.7 and later: 1.01 times the peak lr, held until epoch 15, cosine to 0.01 at epoch 55.

    There are seven warm-up epochs, no weight decay for BatchNorm, and a frozen stem and first convolution. per_card and shift are as
    in `gaudi`.
    """
    old = gaudi(global_batch_size, per_card=per_card)
    later = 1 + shift / 10
    return replace(
        old,
        model=replace(
            GAUDI_MODEL, freeze_stages=1, parity=replace(GAUDI_MODEL.parity, freeze_first_conv=True, box_order="cell")
        ),
        optim=replace(old.optim, lr=1.01 * old.optim.lr, no_decay="norm"),
        schedule=Schedule(
            name="cosine",
            warmup=7,
            warmup_step_offset=0,
            decay_start=15 * later,
            decay_end=55 * later,
            min_lr=0.01 * old.optim.lr,
        ),
    )


def tpu(
    global_batch_size: int,
    *,
    lr: float,
    warmup: int,
    boundaries: tuple[float, float],
    epochs: float,
    bn_batch_size: int = 64,
) -> SSDRecipe:
    """Google's TensorFlow submissions to MLPerf v0.7 on TPUs, as far as their logs tell.

    lr       for 32 images
    warmup   steps
    Source: the logs' rates, warm-ups, boundaries, decay, span, 50 proposals for a crop and evaluations every five epochs. Network
    and data treatment are ours: Habana's, which began from Google's code for TPUs (its README names tensorflow/tpu).
    """
    habana = gaudi(global_batch_size, per_card=bn_batch_size, epochs=epochs)
    return replace(
        habana,
        optim=replace(habana.optim, lr=lr * global_batch_size / MLPERF_IMAGES),
        schedule=replace(habana.schedule, warmup=warmup / steps_per_epoch(global_batch_size), milestones=boundaries),
    )


def finetune() -> SSDRecipe:
    """Fine-tune on your own boxes, from weights of an SSD or a backbone: `paceline train ssd-finetune --data DIR --weights resnet34`.

    The recipe trains for 30 epochs with a cosine schedule and a weight average. Heads for other classes are initialized again.
    """
    return Recipe(
        task="detection",
        model=SSDModel(),
        input=BoxInput(exif="apply", skip_empty=False, train_on_crowd=False),
        target_data="coco",
        global_batch_size=32,
        epochs=30,
        bn_batch_size=32,
        optim=Optim(lr=5e-3, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule(name="cosine", warmup=1),
        ema_decay=0.998,
        eval=Evaluation(start=1, every=1),
        pretrained="resnet34",
    )


def finetune_cpu() -> SSDRecipe:
    """Fine-tune on your own boxes on a CPU: a lighter backbone with an FPN, at 416 px; crops as in `ssd-demo`.

    The first three stages of the backbone are frozen, because they take most of the time and learn least.

    paceline train ssd-finetune-cpu --data DIR --weights resnet18
    paceline train ssd-finetune-cpu --data DIR --model.backbone timm/tf_efficientnet_lite0 --weights efficientnet-lite0

    Measured: results/tuning.
    """
    small, whole = demo(), finetune()
    return replace(
        whole,
        model=replace(
            small.model,
            depth=18,
            width=64,
            norm="frozen",
            freeze_stages=3,
            fpn_channels=64,
            scales=(0.027, 0.06, 0.14, 0.3, 0.5, 0.75, 0.95),
        ),
        input=replace(small.input, image_size=416, mosaic_prob=0.5, skip_empty=False, train_on_crowd=False),
        global_batch_size=8,
        bn_batch_size=8,
        optim=replace(small.optim, lr=5e-4, head_lr_factor=4.0),
        schedule=Schedule(name="cosine", unit="fraction", warmup=0.05),
        ema_decay=0.99,
        eval=Evaluation(start=5, every=5),
        pretrained="resnet18",
    )


def demo() -> SSDRecipe:
    """Train a small SSD from scratch on a CPU.

        paceline train ssd-demo                        # the built-in shapes, to the target
        paceline train ssd-demo --data DIR             # your boxes, to the end

    The backbone has ten layers at 192 px. The extra layers have BatchNorm, and default boxes are positive from an IoU of 0.35: with
    0.5, it learned half as fast. Crops keep at least 0.6 of each side, because there are few images and objects are small.
    Measured: results/ssd-demo.
    """
    return Recipe(
        task="detection",
        model=SSDModel(
            depth=10,
            width=32,
            extra_channels=128,
            extra_norm=True,
            scales=(0.06, 0.14, 0.30, 0.50, 0.70, 0.90, 1.05),
            match_iou=0.35,
            detect=DetectionFilter(score_threshold=0.01),
        ),
        input=BoxInput(
            image_size=192,
            crop_scale=(0.6, 1.0),
            crop_ratio=(0.75, 4 / 3),
            color_jitter="matrix",
            exif="apply",
            skip_empty=False,
            train_on_crowd=False,
        ),
        target_data="shapes-boxes",
        global_batch_size=8,
        max_images=40_000,
        bn_batch_size=8,
        optim=Optim(name="adamw", lr=0.0025, momentum=0.9, weight_decay=0.05, no_decay="norm-and-bias"),
        schedule=Schedule(name="polynomial", unit="fraction", warmup=0.02),
        ema_decay=0.99,
        target=(("box_ap", 0.40),),
        eval=Evaluation(unit="fraction", start=0.5, every=0.05),
    )
