"""ResNet-50 v1.5 on ImageNet-1k (1,281,167 training and 50,000 validation photos); target top-1 0.759.

    paceline train resnet50 --data /data/imagenet --out runs/rn50
    paceline train resnet50-mlperf-3200 --data /data/imagenet --system h100x8
    paceline train classify-demo                       # 2,000 rendered pictures, on a CPU, to its target

Name: workload[-source[-global batch]]. No hours and no accuracy stand here that were not measured by this code: none of the
ImageNet recipes has been run to its end by us yet. The published
runs whose hyper-parameters they carry are cited in each docstring.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.config.recipe import DecayOn, Optim, Quality, Recipe, Schedule
from paceline.config.resnet import ImageInput, ResNetModel

ImageRecipe = Recipe[ResNetModel, ImageInput]

TARGET = (("top1", 0.759),)

# What NVIDIA's MXNet submission of MLPerf Training v3.0 fixed: a fourth input channel of zeros, whose weights count in the stem's
# fan-in and in LARS's norms; fan-in Gaussian init, smoothing over the other 999 classes.
MXNET_MODEL = ResNetModel(stem_channels=4, init="mlperf", smoothing="mxnet")
# Its crop draws 5 to 100 percent of the photo (DALI pipeline of the same submission).
MXNET_INPUT = ImageInput(area=(0.05, 1.0))


def sgd() -> ImageRecipe:
    """The plain baseline: SGD, cosine, 90 epochs.

        paceline train resnet50 --data /data/imagenet

    Source: values of NVIDIA's public PyTorch runs (lr 0.256 per 256 images, momentum 0.875, decay 2^-15 on all tensors but
    BatchNorm's, label smoothing 0.1, 8 warm-up epochs). Cost: 90 x 1,281,167 images x 24.3 GFLOP = 2.8 EFLOP.
    Quality expected by its source: top-1 0.77 to 0.78; target 0.759.
    """
    return Recipe(
        task="classification",
        model=ResNetModel(zero_init_last_gamma=True),
        input=ImageInput(),
        global_batch=2048,
        epochs=90,
        bn_span=64,
        optim=Optim(lr=2.048, momentum=0.875, weight_decay=2**-15, decay_on="no_norm"),
        schedule=Schedule(kind="cosine", warmup=8),
        quality=Quality(targets=TARGET, first=4, every=4),
    )


def lars(
    global_batch: int,
    *,
    lr: float,
    warmup: float,
    epochs: float,
    decay: float,
    first: int,
    bn_span: int,
    momentum: float = 0.9,
    decay_on: DecayOn = "no_norm",
) -> ImageRecipe:
    """The family of MLPerf closed-division LARS recipes: poly-2 decay to 1e-4, eta 0.001, smoothing 0.1, evaluated every 4 epochs.

    decay_on   "all" is sgdwfastlarsv2's, which has one decay for all tensors
    Source: NVIDIA's MXNet submission to MLPerf Training v3.0 (config_*.sh) and its partners' configurations; decay on conv and FC
    weights and on the FC bias, no LARS on biases and BatchNorm, lr inside the velocity with momentum correction.
    """
    return Recipe(
        task="classification",
        model=MXNET_MODEL,
        input=MXNET_INPUT,
        global_batch=global_batch,
        epochs=epochs,
        epoch_steps="up",
        bn_span=bn_span,
        optim=Optim(
            kind="lars",
            lr=lr,
            momentum=momentum,
            momentum_form="lr_inside_corrected",
            weight_decay=decay,
            decay_on=decay_on,
        ),
        schedule=Schedule(kind="poly2", warmup=warmup, end_lr=1e-4),
        quality=Quality(targets=TARGET, first=first, every=4),
    )


def mlperf_3200() -> ImageRecipe:
    """8 x 400, one DGX H100. Published: 35 epochs, 13.60 min (v3.0). `paceline train resnet50-mlperf-3200 --system h100x8`"""
    return lars(3200, lr=11.0, warmup=2, epochs=37, decay=5e-5, first=3, bn_span=400)


def mlperf_3200_4x8() -> ImageRecipe:
    """32 x 100 (config multi_4x8x100): lr 10.7, five warm-up epochs. `torchrun --nnodes 4 ... train resnet50-mlperf-3200-4x8`"""
    return lars(3200, lr=10.7, warmup=5, epochs=37, decay=5e-5, first=3, bn_span=100)


def mlperf_3200_8x8() -> ImageRecipe:
    """64 x 50 (config multi_8x8x50). Published: 35 epochs, 2.66 min on 64 H100 (v3.0)."""
    return lars(3200, lr=11.0, warmup=2, epochs=37, decay=5e-5, first=3, bn_span=50)


def mlperf_20480() -> ImageRecipe:
    """512 x 40 (config multi_64x8x40). Published: 50 epochs, 0.503 min on 512 H100 (v3.0)."""
    return lars(20480, lr=22.0, warmup=12, epochs=52, decay=2.5e-5, first=2, bn_span=40)


def mlperf_32256() -> ImageRecipe:
    """768 x 42 (config multi_96x8x42). Published: 56 epochs, 0.369 min on 768 H100 (v3.0)."""
    return lars(32256, lr=21.2, warmup=16, epochs=58, decay=2.5e-5, first=4, bn_span=42, momentum=0.95)


def mlperf_57344() -> ImageRecipe:
    """3584 x 16, statistics over pairs of GPUs (config multi_448x8x16). Published: 77 epochs, 0.183 min on 3,584 H100 (v3.0)."""
    return lars(57344, lr=23.0, warmup=32, epochs=78, decay=2.5e-5, first=1, bn_span=32, momentum=0.95)


def a100_3264() -> ImageRecipe:
    """8 x 408 (ASUS DGXA100). Published for this batch: 35 to 36 epochs, 27.05 min on 8 A100 80 GB (Dell XE9680, v3.0)."""
    return lars(3264, lr=10.5, warmup=2, epochs=37, decay=5e-5, first=4, bn_span=408)


def a100_3264_8x8() -> ImageRecipe:
    """64 x 51 (ASUS DGXA100, eight nodes)."""
    return lars(3264, lr=10.5, warmup=2, epochs=37, decay=5e-5, first=3, bn_span=51)


def gaudi2_2048() -> ImageRecipe:
    """8 x 256 (Habana's PyTorch batch_256.cfg): 625 steps an epoch, decay over 36. Published: 35 epochs, 16.46 min on 8 Gaudi2.

    Network, first weights, crop and smoothing are torchvision's and torch's (train.py): fan-out, 8 to 100 percent, over all
    classes. Neither biases nor BatchNorm decay or adapt; the velocity is torch's (FusedResourceApplyMomentum below FusedLars, both
    in Habana's closed library: as TensorFlow's rule of that name).
    """
    mxnet = lars(2048, lr=9.0, warmup=3, epochs=35, decay=5e-5, first=3, bn_span=256)
    return replace(
        mxnet,
        model=ResNetModel(),
        input=ImageInput(),
        epoch_steps="down",
        optim=replace(mxnet.optim, momentum_form="torch", decay_on="no_norm_no_bias"),
        # Its decay takes 36 epochs less the warm-up, and one step more (PolynomialDecayWithWarmup; logged: 20,626).
        schedule=replace(mxnet.schedule, horizon=36 + 1 / 625),
    )


def finetune() -> ImageRecipe:
    """Your own classes, from somebody's weights: `paceline train classify-finetune --data DIR --weights resnet50`.

    30 epochs of cosine with an average of the weights; of a set of a few hundred photos they are a few hundred steps. A linear layer
    for other classes starts anew. Ours; no set of photos has been trained with it yet (it wants an accelerator).
    """
    return Recipe(
        task="classification",
        model=ResNetModel(),
        input=ImageInput(area=(0.25, 1.0), eval_resize=232, exif="apply"),
        global_batch=64,
        epochs=30,
        bn_span=64,
        optim=Optim(lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4, decay_on="no_norm_no_bias"),
        schedule=Schedule(kind="cosine", unit="run", warmup=0.05),
        ema=0.99,
        quality=Quality(first=1, every=1),
        pretrained="resnet50",
    )


def finetune_cpu() -> ImageRecipe:
    """The same on a CPU: ResNet-18 or a lighter trunk of timm's, 24 epochs.

    paceline train classify-finetune-cpu --data DIR --weights resnet18
    paceline train classify-finetune-cpu --data DIR --model.trunk timm/tf_efficientnet_lite0 --weights efficientnet-lite0

    The last layer begins fitted and BatchNorms keep their statistics: with those of a batch, a good trunk begins with a loss above
    chance on few photos, and what it forgets costs more than they can teach. AdamW, because SGD left the fit or hardly moved.
    Measured: results/tuning.
    """
    whole = finetune()
    return replace(
        whole,
        model=ResNetModel(depth=18, norm="frozen", first_head="fitted"),
        input=replace(whole.input, size=224, eval_resize=288, eval_size=256),
        global_batch=32,
        epochs=24,
        bn_span=32,
        optim=Optim(kind="adamw", lr=5e-4, momentum=0.9, weight_decay=0.05, decay_on="no_norm_no_bias"),
        quality=Quality(first=3, every=3),
        pretrained="resnet18",
    )


def demo() -> ImageRecipe:
    """A small ResNet v1.5 for a laptop's CPU, through the very same code; made for some 2,000 pictures of 8 to 10 classes.

        paceline train classify-demo                                  # the built-in shapes, to its target
        paceline train classify-demo --data photos                    # your class folders, to the end

    Ten layers at 128 px, evaluated at 160 px (a multiple of the network's stride of 32; objects look larger in random
    crops than in the whole picture, Touvron et al. 2019). Measured: results/classify-demo.
    """
    return Recipe(
        task="classification",
        model=ResNetModel(depth=10, width=32, zero_init_last_gamma=True),
        input=ImageInput(size=128, area=(0.3, 1.0), eval_resize=183, eval_size=160, exif="apply"),
        target_data="shapes",
        global_batch=32,
        images_seen=72_000,
        bn_span=32,
        optim=Optim(lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, decay_on="no_norm_no_bias"),
        # poly2 and the average of the weights both show early what the run has learned: the target is met at half its length.
        schedule=Schedule(kind="poly2", unit="run", warmup=0.1),
        ema=0.99,
        quality=Quality(targets=(("top1", 0.80),), unit="run", first=0.1, every=0.1),
    )
