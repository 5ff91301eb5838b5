"""Recipes of ResNet-50 v1.5 on ImageNet-1k (1,281,167 training and 50,000 validation images); target top-1 0.759.

    paceline train resnet50 --data /data/imagenet --output-dir runs/rn50
    paceline train resnet50-mlperf-3200 --data /data/imagenet --system h100x8
    paceline train classify-demo                       # 2,000 rendered images, on a CPU, to its target

Names are workload[-source[-global batch]]. None of the ImageNet recipes has been trained to its end with paceline yet, so there are
no times or accuracies of it. Each docstring cites the published run that has its hyperparameters.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.config.recipe import Evaluation, NoDecay, Optim, Recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.config.schedule import Schedule

ImageRecipe = Recipe[ResNetModel, ImageInput]

TARGET = (("top1", 0.759),)

# What NVIDIA's MXNet submission of MLPerf Training v3.0 fixed: a fourth input channel of zeros, whose weights count in the stem's
# fan-in and in LARS's norms; fan-in Gaussian init, smoothing over the other 999 classes.
MXNET_MODEL = ResNetModel(input_channels=4, init="mlperf", label_smoothing_style="mxnet")
# Its crop draws 5 to 100 percent of the photo (DALI pipeline of the same submission).
MXNET_INPUT = ImageInput(crop_scale=(0.05, 1.0))


def sgd() -> ImageRecipe:
    """Train ResNet-50 for 90 epochs with SGD and a cosine schedule.

        paceline train resnet50 --data /data/imagenet

    Source: the values of NVIDIA's public PyTorch runs (lr 0.256 per 256 images, momentum 0.875, weight decay 2^-15 on all tensors
    except those of BatchNorm, label smoothing 0.1, 8 warm-up epochs). Cost: 90 x 1,281,167 images x 24.3 GFLOP = 2.8 EFLOP.
    The source reports a top-1 of 0.77 to 0.78; the target is 0.759.
    """
    return Recipe(
        task="classification",
        model=ResNetModel(zero_init_residual=True),
        input=ImageInput(),
        global_batch_size=2048,
        epochs=90,
        bn_batch_size=64,
        optim=Optim(lr=2.048, momentum=0.875, weight_decay=2**-15, no_decay="norm"),
        schedule=Schedule(name="cosine", warmup=8),
        target=TARGET,
        eval=Evaluation(start=4, every=4),
    )


def lars(
    global_batch_size: int,
    *,
    lr: float,
    warmup: float,
    epochs: float,
    decay: float,
    first: int,
    bn_batch_size: int,
    momentum: float = 0.9,
    no_decay: NoDecay = "norm",
) -> ImageRecipe:
    """Make a recipe of the MLPerf closed division with LARS: polynomial decay to 1e-4, evaluated every 4 epochs.

    The trust coefficient is 0.001, and label smoothing is 0.1.

    no_decay   "none" is for sgdwfastlarsv2, which has one weight decay for all tensors
    Source: NVIDIA's MXNet submission to MLPerf Training v3.0 (config_*.sh) and configurations of its partners; weight decay on weights
    of convolutions and FC and on the FC bias, no LARS on biases and BatchNorm, lr inside the velocity with momentum correction.
    """
    return Recipe(
        task="classification",
        model=MXNET_MODEL,
        input=MXNET_INPUT,
        global_batch_size=global_batch_size,
        epochs=epochs,
        epoch_rounding="up",
        bn_batch_size=bn_batch_size,
        optim=Optim(
            name="lars", lr=lr, momentum=momentum, momentum_style="mxnet-corrected", weight_decay=decay, no_decay=no_decay
        ),
        schedule=Schedule(name="polynomial", warmup=warmup, min_lr=1e-4),
        target=TARGET,
        eval=Evaluation(start=first, every=4),
    )


def mlperf_3200() -> ImageRecipe:
    """Train on 8 devices with 400 images each (one DGX H100). Published: 35 epochs, 13.60 min (v3.0).

    `paceline train resnet50-mlperf-3200 --system h100x8`
    """
    return lars(3200, lr=11.0, warmup=2, epochs=37, decay=5e-5, first=3, bn_batch_size=400)


def mlperf_3200_4x8() -> ImageRecipe:
    """Train on 32 devices with 100 images each (config multi_4x8x100): lr 10.7, five warm-up epochs.

    Start it with `torchrun --nnodes 4 ... train resnet50-mlperf-3200-4x8`.
    """
    return lars(3200, lr=10.7, warmup=5, epochs=37, decay=5e-5, first=3, bn_batch_size=100)


def mlperf_3200_8x8() -> ImageRecipe:
    """Train on 64 devices with 50 images each (config multi_8x8x50). Published: 35 epochs, 2.66 min on 64 H100 (v3.0)."""
    return lars(3200, lr=11.0, warmup=2, epochs=37, decay=5e-5, first=3, bn_batch_size=50)


def mlperf_20480() -> ImageRecipe:
    """Train on 512 devices with 40 images each (config multi_64x8x40). Published: 50 epochs, 0.503 min on 512 H100 (v3.0)."""
    return lars(20480, lr=22.0, warmup=12, epochs=52, decay=2.5e-5, first=2, bn_batch_size=40)


def mlperf_32256() -> ImageRecipe:
    """Train on 768 devices with 42 images each (config multi_96x8x42). Published: 56 epochs, 0.369 min on 768 H100 (v3.0)."""
    return lars(32256, lr=21.2, warmup=16, epochs=58, decay=2.5e-5, first=4, bn_batch_size=42, momentum=0.95)


def mlperf_57344() -> ImageRecipe:
    """Train on 3,584 devices with 16 images each (config multi_448x8x16), with BatchNorm statistics over pairs of GPUs.

    Published: 77 epochs, 0.183 min on 3,584 H100 (v3.0).
    """
    return lars(57344, lr=23.0, warmup=32, epochs=78, decay=2.5e-5, first=1, bn_batch_size=32, momentum=0.95)


def a100_3264() -> ImageRecipe:
    """Train on 8 devices with 408 images each (ASUS DGXA100).

    Published for this batch size: 35 to 36 epochs, 27.05 min on 8 A100 80 GB (Dell XE9680, v3.0).
    """
    return lars(3264, lr=10.5, warmup=2, epochs=37, decay=5e-5, first=4, bn_batch_size=408)


def a100_3264_8x8() -> ImageRecipe:
    """Train on 64 devices with 51 images each (ASUS DGXA100, eight nodes)."""
    return lars(3264, lr=10.5, warmup=2, epochs=37, decay=5e-5, first=3, bn_batch_size=51)


def gaudi2_2048() -> ImageRecipe:
    """Train on 8 devices with 256 images each (Habana's PyTorch batch_256.cfg): 625 steps per epoch, decay over 36 epochs.

    Published: 35 epochs, 16.46 min on 8 Gaudi2. The network, initial weights, crop, and smoothing are those of torchvision and torch
    (train.py): fan-out, 8% to 100%, over all classes. Biases and BatchNorm have no weight decay and no LARS. The velocity is torch's
    (FusedResourceApplyMomentum below FusedLars, both in Habana's closed library: as TensorFlow's rule of that name).
    """
    mxnet = lars(2048, lr=9.0, warmup=3, epochs=35, decay=5e-5, first=3, bn_batch_size=256)
    return replace(
        mxnet,
        model=ResNetModel(),
        input=ImageInput(),
        epoch_rounding="down",
        optim=replace(mxnet.optim, momentum_style="torch", no_decay="norm-and-bias"),
        # Its decay takes 36 epochs less the warm-up, and one step more (PolynomialDecayWithWarmup; logged: 20,626).
        schedule=replace(mxnet.schedule, decay_end=36 + 1 / 625),
    )


def finetune() -> ImageRecipe:
    """Fine-tune on your own classes from pretrained weights: `paceline train classify-finetune --data DIR --weights resnet50`.

    The recipe trains for 30 epochs with a cosine schedule and a weight average, a few hundred steps for a few hundred images. If the
    classes differ from those of the weights, the linear layer is initialized again. It is a recipe of paceline and has not been
    trained on any dataset yet, because it requires an accelerator.
    """
    return Recipe(
        task="classification",
        model=ResNetModel(),
        input=ImageInput(crop_scale=(0.25, 1.0), eval_resize_size=232, exif="apply"),
        global_batch_size=64,
        epochs=30,
        bn_batch_size=64,
        optim=Optim(lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4, no_decay="norm-and-bias"),
        schedule=Schedule(name="cosine", unit="fraction", warmup=0.05),
        ema_decay=0.99,
        eval=Evaluation(start=1, every=1),
        pretrained="resnet50",
    )


def finetune_cpu() -> ImageRecipe:
    """Fine-tune on your own classes on a CPU: ResNet-18 or a lighter timm backbone, 24 epochs.

    paceline train classify-finetune-cpu --data DIR --weights resnet18
    paceline train classify-finetune-cpu --data DIR --model.backbone timm/tf_efficientnet_lite0 --weights efficientnet-lite0

    The last layer is initialized by a linear probe, and the BatchNorm statistics are frozen. With batch statistics, a good backbone
    starts with a loss above chance on small datasets, and forgets more than it can learn from them. The optimizer is AdamW, because
    SGD lost the initial fit or hardly changed it. Measured: results/tuning.
    """
    whole = finetune()
    return replace(
        whole,
        model=ResNetModel(depth=18, norm="frozen", head_init="linear-probe"),
        input=replace(whole.input, image_size=224, eval_resize_size=288, eval_crop_size=256),
        global_batch_size=32,
        epochs=24,
        bn_batch_size=32,
        optim=Optim(name="adamw", lr=5e-4, momentum=0.9, weight_decay=0.05, no_decay="norm-and-bias"),
        eval=Evaluation(start=3, every=3),
        pretrained="resnet18",
    )


def demo() -> ImageRecipe:
    """Train a small ResNet v1.5 on a CPU, for datasets of about 2,000 images in 8 to 10 classes.

        paceline train classify-demo                                  # the built-in shapes, to the target
        paceline train classify-demo --data photos                    # your class folders, to the end

    The network has ten layers at 128 px and is evaluated at 160 px (a multiple of its stride of 32; objects look larger in random
    crops than in the whole image, Touvron et al. 2019). Measured: results/classify-demo.
    """
    return Recipe(
        task="classification",
        model=ResNetModel(depth=10, width=32, zero_init_residual=True),
        input=ImageInput(image_size=128, crop_scale=(0.3, 1.0), eval_resize_size=183, eval_crop_size=160, exif="apply"),
        target_data="shapes",
        global_batch_size=32,
        max_images=72_000,
        bn_batch_size=32,
        optim=Optim(lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, no_decay="norm-and-bias"),
        # polynomial and the average of the weights both show early what the run has learned: the target is met at half its length.
        schedule=Schedule(name="polynomial", unit="fraction", warmup=0.1),
        ema_decay=0.99,
        target=(("top1", 0.80),),
        eval=Evaluation(unit="fraction", start=0.1, every=0.1),
    )
