"""Every field of every ResNet-50 recipe, typed from fact sheet A, ResNet-50's (published_cells.py says what the sheets are)."""

from __future__ import annotations

from published_cells import Table, joined, ours, sheet

NETWORK = joined(
    sheet("A 1 Depth, Stem, Bottleneck, BN", model__backbone="resnet", model__depth=50, model__width=64, model__stride_in="3x3",
          model__stem="imagenet", model__bn_eps=1e-5, model__bn_momentum=0.1),
    sheet("A 1 Stem, Bottleneck: pad 3 and 1 on both sides, plain 3x3", model__padding="symmetric", model__groups=1,
        model__width_per_group=64),
    sheet("A 1 Gamma-zero option: not used by the launcher", model__zero_init_residual=False),
)  # fmt: skip
INPUT = joined(
    sheet("A 3.3 step 2a", input__image_size=224, input__crop_scale=(0.05, 1.0), input__crop_ratio=(3 / 4, 4 / 3)),
    sheet("A 3.3 step 3", input__hflip=0.5, input__mean=(0.485, 0.456, 0.406), input__std=(0.229, 0.224, 0.225)),
    sheet("A 3.4", input__eval_resize_size=256, input__eval_crop_size=224),
    ours("DALI's triangular filter when shrinking is antialiased bilinear; the sheet says resize", input__resize="bilinear-antialias"),
    ours("any JPEG decoder; DALI's on the device is nvimgcodec here", input__decoder="simplejpeg"),
    ours("no system of the time read the note; the sheet is silent", input__exif="ignore"),
    ours("no sheet has more than crop and mirror", input__vflip=0.0, input__rot90=0.0, input__auto_augment="none",
        input__random_erase=0.0,
         input__mixup_alpha=0.0, input__cutmix_alpha=0.0),
)  # fmt: skip
REST = joined(
    sheet("A 0", task="classification", target_data="imagenet"),
    sheet("A 7", target=(("top1", 0.759),), eval__every=4),
    ours("as epochs", eval__unit="epochs", eval__at=(), max_images=0, schedule__unit="epochs"),
    ours("MLPerf draws one for each run", seed=1),
    ours(
        "no system has rates by depth: all that trains has one",
        model__freeze_stages=0,
        optim__head_lr_factor=1.0,
        optim__layer_decay=1.0,
    ),
    sheet("A 4.3: no EMA", ema_decay=0.0),
    ours("no source weighs classes", model__loss="cross-entropy", model__focal_gamma=2.0, model__class_weights="none"),
    ours("every source shuffles", sampler="random", repeat_threshold=0.001),
    sheet("A 2: every layer is drawn", pretrained="", model__head_init="random", model__norm="batch"),
)
LARS = joined(
    sheet("A 4.1", optim__name="lars", optim__lars_trust_coefficient=0.001, optim__lars_eps=0.0,
        optim__momentum_style="mxnet-corrected"),
    sheet("A 4.1: *_weight and the FC bias, zero for gamma and beta", optim__no_decay="norm"),
    sheet("A 4.1: clip_gradient never set", optim__clip_value=0.0, optim__clip_norm=0.0),
    sheet("A 4.1: local lr = lr(t) for the others", optim__bias_lr_factor=1.0, optim__nesterov=False),
    sheet("A 4.2", schedule__name="polynomial", schedule__warmup_start_factor=0.0, schedule__min_lr=1e-4,
        schedule__warmup_step_offset=1),
    ours("of other kinds of schedule", schedule__decay_start=0.0, schedule__milestones=(), schedule__gamma=0.1),
    sheet("A 4.2: T = steps * num_epochs", schedule__decay_end=0.0),
    sheet("A 4.2: ceil", epoch_rounding="up"),
)  # fmt: skip
MXNET = joined(
    REST, LARS, NETWORK, INPUT,
    sheet("A 1 Input, Fan-in caveat: 7*7*4 = 196", model__input_channels=4),
    sheet("A 1 Conv/FC init", model__init="mlperf"),
    sheet("A 2", model__label_smoothing=0.1, model__label_smoothing_style="mxnet"),
)  # fmt: skip


def config(
    batch: int, each: int, lr: float, warmup: int, epochs: int, decay: float, momentum: float, first: int, group: int = 1
) -> Table:
    """A row of the sheet's table of batches and rates: B, B/GPU, base LR, warm-up, schedule, WD, momentum, first evaluation."""
    return joined(
        MXNET,
        sheet("A 4.3", global_batch_size=batch, optim__lr=lr, schedule__warmup=warmup, epochs=epochs, optim__weight_decay=decay,
              optim__momentum=momentum, eval__start=first),
        sheet("A 6 BN group: per-GPU batch * bn_group", bn_batch_size=each * group),
    )  # fmt: skip


GAUDI2 = joined(
    config(2048, 256, 9.0, 3, 35, 5e-5, 0.9, 3),
    sheet("Habana PT train.py: torchvision.models.resnet50(pretrained=False)", model__input_channels=3, model__init="torchvision"),
    sheet("Habana PT train.py: CrossEntropyLoss(label_smoothing)", model__label_smoothing_style="torch"),
    sheet("Habana PT train.py: transforms.RandomResizedCrop(224), whose area is 8 to 100 percent", input__crop_scale=(0.08, 1.0)),
    sheet("Habana PT train.py: skip_list has every bias and bn", optim__no_decay="norm-and-bias"),
    sheet("Habana PT train.py: FusedResourceApplyMomentum, TensorFlow's rule", optim__momentum_style="torch"),
    sheet("A 4.3: 625 = floor(1,281,167 / 2,048)", epoch_rounding="down"),
    sheet("A 4.3, LARS decay 36; Habana PT optimizer.py: one step more; logged 20,626", schedule__decay_end=22_501 / 625),
)  # fmt: skip

OWN = "a recipe of ours"
SGD = joined(
    REST, NETWORK, INPUT,
    sheet("NVIDIA's PyTorch ResNet-50 v1.5", optim__lr=2.048, global_batch_size=2048, optim__momentum=0.875,
        optim__weight_decay=2**-15,
          schedule__warmup=8, epochs=90, model__label_smoothing=0.1, schedule__name="cosine", optim__no_decay="norm",
          model__zero_init_residual=True, model__init="torchvision", model__label_smoothing_style="torch"),
    sheet("torchvision's RandomResizedCrop", input__crop_scale=(0.08, 1.0)),
    ours("the usual span of a GPU", bn_batch_size=64),
    ours(OWN, eval__start=4, optim__name="sgd", optim__momentum_style="torch", optim__nesterov=False, optim__bias_lr_factor=1.0,
         optim__clip_value=0.0, optim__clip_norm=0.0, schedule__warmup_start_factor=0.0, schedule__warmup_step_offset=1,
             schedule__decay_end=0.0,
         schedule__min_lr=0.0, schedule__decay_start=0.0, schedule__milestones=(), schedule__gamma=0.1, epoch_rounding="exact",
         model__input_channels=3),
    ours("of LARS", optim__lars_trust_coefficient=0.001, optim__lars_eps=0.0),
)  # fmt: skip

CUSTOM = joined(
    SGD,
    ours(OWN, model__zero_init_residual=False, input__crop_scale=(0.25, 1.0), input__eval_resize_size=232, input__exif="apply",
         global_batch_size=64, epochs=30.0, bn_batch_size=64, optim__lr=0.02, optim__momentum=0.9, optim__nesterov=True,
             optim__weight_decay=1e-4,
         optim__no_decay="norm-and-bias", schedule__unit="fraction", schedule__warmup=0.05, ema_decay=0.99, target=(),
         eval__start=1, eval__every=1, pretrained="resnet50"),
)  # fmt: skip
TABLES: dict[str, Table] = {
    "resnet50": SGD,
    "resnet50-mlperf-3200": config(3200, 400, 11.0, 2, 37, 5e-5, 0.9, 3),
    "resnet50-mlperf-3200-4x8": config(3200, 100, 10.7, 5, 37, 5e-5, 0.9, 3),
    "resnet50-mlperf-3200-8x8": config(3200, 50, 11.0, 2, 37, 5e-5, 0.9, 3),
    "resnet50-mlperf-20480": config(20480, 40, 22.0, 12, 52, 2.5e-5, 0.9, 2),
    "resnet50-mlperf-32256": config(32256, 42, 21.2, 16, 58, 2.5e-5, 0.95, 4),
    "resnet50-mlperf-57344": config(57344, 16, 23.0, 32, 78, 2.5e-5, 0.95, 1, group=2),
    "resnet50-a100-3264": config(3264, 408, 10.5, 2, 37, 5e-5, 0.9, 4),
    "resnet50-a100-3264-8x8": config(3264, 51, 10.5, 2, 37, 5e-5, 0.9, 3),
    "resnet50-gaudi2-2048": GAUDI2,
    "classify-finetune": CUSTOM,
    "classify-finetune-cpu": joined(
        CUSTOM,
        ours(OWN, model__depth=18, model__norm="frozen", model__head_init="linear-probe", input__image_size=224,
            input__eval_resize_size=288,
             input__eval_crop_size=256, global_batch_size=32, epochs=24.0, bn_batch_size=32, optim__name="adamw", optim__lr=5e-4,
             optim__nesterov=False, optim__weight_decay=0.05, eval__start=3, eval__every=3, pretrained="resnet18"),
    ),
    "classify-demo": joined(
        SGD,
        ours(OWN, model__depth=10, model__width=32, input__image_size=128, input__crop_scale=(0.3, 1.0), input__eval_resize_size=183,
             input__eval_crop_size=160, input__exif="apply", target_data="shapes", global_batch_size=32, epochs=0.0, max_images=72_000,
             bn_batch_size=32, optim__lr=0.1, optim__momentum=0.9, optim__nesterov=True, optim__weight_decay=5e-4,
             optim__no_decay="norm-and-bias", schedule__name="polynomial", schedule__unit="fraction", schedule__warmup=0.1,
             ema_decay=0.99,
             target=(("top1", 0.80),), eval__unit="fraction", eval__start=0.1, eval__every=0.1),
    ),
}  # fmt: skip

# Recipe, ranks: images of a forward, ranks of a BatchNorm, steps of an epoch, of the run, of the warm-up, where the decay ends, the
# first evaluations in epochs, and rates of 0-based steps, by the law of A 4.2 with t = step + 1.
PLANS = {
    ("resnet50-mlperf-3200", 8): (400, 1, 401, 14_837, 802, 14_837, (3, 7, 11), {0: 11 / 802, 801: 11.0, 14_836: 1e-4}),
    ("resnet50-mlperf-3200-4x8", 32): (100, 1, 401, 14_837, 2005, 14_837, (3, 7, 11), {0: 10.7 / 2005, 2004: 10.7, 14_836: 1e-4}),
    ("resnet50-mlperf-3200-8x8", 64): (50, 1, 401, 14_837, 802, 14_837, (3, 7, 11), {0: 11 / 802, 801: 11.0, 14_836: 1e-4}),
    ("resnet50-mlperf-20480", 512): (40, 1, 63, 3276, 756, 3276, (2, 6, 10), {0: 22 / 756, 755: 22.0, 3275: 1e-4}),
    ("resnet50-mlperf-32256", 768): (42, 1, 40, 2320, 640, 2320, (4, 8, 12), {0: 21.2 / 640, 639: 21.2, 2319: 1e-4}),
    ("resnet50-mlperf-57344", 3584): (16, 2, 23, 1794, 736, 1794, (1, 5, 9), {0: 23 / 736, 735: 23.0, 1793: 1e-4}),
    ("resnet50-a100-3264", 8): (408, 1, 393, 14_541, 786, 14_541, (4, 8, 12), {0: 10.5 / 786, 785: 10.5, 14_540: 1e-4}),
    ("resnet50-a100-3264-8x8", 64): (51, 1, 393, 14_541, 786, 14_541, (3, 7, 11), {0: 10.5 / 786, 785: 10.5, 14_540: 1e-4}),
    ("resnet50-gaudi2-2048", 8): (256, 1, 625, 21_875, 1875, 22_501, (3, 7, 11), {
        0: 9 / 1875, 1874: 9.0, 11_874: 1e-4 + (9 - 1e-4) * (1 - 10_000 / 20_626) ** 2}),
}  # fmt: skip
