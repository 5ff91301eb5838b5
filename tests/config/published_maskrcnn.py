"""Every field of every Mask R-CNN recipe, typed from fact sheet B (see published_cells.py; 14b is torchvision's column)."""

from __future__ import annotations

import math

from published_cells import Table, joined, ours, sheet

OWN = "a recipe of ours"
TARGETS = (("box_ap", 0.377), ("mask_ap", 0.339))
TORCHVISION = joined(
    ours("no system has rates by depth: all that trains has one", model__freeze=0, optim__head_rate=1.0, optim__layer_decay=1.0),
    sheet("B 0, 7", task="maskrcnn", target_data="coco"),
    sheet("14b trunk", model__trunk="resnet", model__depth=50, model__width=64, model__stride_in="3x3", model__norm="frozen",
          model__frozen="stem_and_first"),
    sheet("14b trunk: plain v1.5", model__padding="both", model__groups=1, model__group_width=64, model__bn_momentum=0.1),
    ours("0 is of torchvision's COCO_V1 weights alone", model__bn_eps=1e-5),
    sheet("14b FPN", model__first_level=2, model__channels=256, model__fpn_norm="none", model__head_norm="none", model__top="pool"),
    sheet("14b anchors", model__rpn__sizes=(32.0, 64.0, 128.0, 256.0, 512.0), model__rpn__ratios=(0.5, 1.0, 2.0),
          model__rpn__rounding="half_even", model__rpn__edges="all"),
    sheet("14b RPN", model__rpn__channels=0, model__rpn__pre_train=2000, model__rpn__pre_test=1000, model__rpn__post_train=2000,
          model__rpn__post_test=1000, model__rpn__post_of="image", model__rpn__post_group=0, model__rpn__nms_over="level",
          model__rpn__iou=0.7,
          model__rpn__least_side=1e-3, model__rpn__positive_iou=0.7, model__rpn__negative_iou=0.3, model__rpn__best_anchor="positive",
          model__rpn__samples=256, model__rpn__positive_share=0.5),
    sheet("14b RPN losses", model__rpn__beta=1 / 9),
    sheet("14b RoIs", model__roi__iou=0.5, model__roi__samples=512, model__roi__positive_share=0.25, model__roi__fill="negatives",
          model__roi__side=7, model__mask__side=14, model__roi__sampling_ratio=2, model__roi__aligned=False,
          model__roi__pooling="direct"),
    sheet("14b box head", model__roi__channels=1024, model__roi__weights=(10.0, 10.0, 5.0, 5.0), model__roi__limit=math.log(1000 / 16),
          model__roi__beta=1 / 9),
    sheet("14b box head's limit, RPN's too", model__rpn__limit=math.log(1000 / 16)),
    sheet("14b mask head", model__mask__convs=4, model__mask__channels=0, model__mask__target="soft"),
    sheet("14b mask head: RoIAlign of the bitmap, as many samples as a cell has pixels", model__mask__sampling_ratio=0),
    sheet("14b: RoIAlign, two FC and no convolution", model__roi__mode="align", model__roi__convs=0, model__roi__conv_channels=0),
    sheet("14b test: pasted with a pixel of padding, threshold 0.5", model__detect__paste="torchvision",
          model__detect__mask_above=0.5),
    ours("torchvision's own laws, which its sheet does not tell", model__init="torchvision", model__detect__clip="before",
         input__sides="cut"),
    ours("what is logged; it changes no weight", model__accuracies=False),
    sheet("14b mask head: there is one", model__masks=True),
    sheet("14b, REF: no filter by area, no cap", input__least_area=0.0, input__least_box=0.0, input__most_objects=0),
    ours("the store of masks; docs/deviations.md", model__mask__canvas=112),
    sheet("14b test", model__detect__score_above=0.05, model__detect__iou=0.5, model__detect__keep=100,
          model__detect__least_side=1e-2),
    ours("an accelerator's bound; docs/deviations.md", model__detect__candidates=1000),
    sheet("14b input", input__short=(800,), input__long=1333, input__mean=(0.485, 0.456, 0.406), input__std=(0.229, 0.224, 0.225),
          input__multiple=32, input__flip=0.5),
    ours("a few shapes for an accelerator; the systems padded to the batch's largest photo", input__padding="buckets"),
    sheet("B 3: no other augmentation", input__crop=1.0, input__jitter="none", input__vflip=0.0, input__rot90=0.0,
          input__scale_jitter=(1.0, 1.0), input__copy_paste=0.0),
    ours("no jitter uses them", input__brightness=0.125, input__brightness_form="multiply", input__contrast=0.5,
         input__saturation=0.5, input__hue=0.05),
    ours("the reference's PIL bilinear is antialiased", input__resize="bilinear-antialias"),
    ours("any JPEG decoder; no system of the time read the note", input__decoder="simplejpeg", input__exif="ignore"),
    sheet("B 3: images with no valid object skipped", input__drop_empty=True),
    sheet("B 4", optim__kind="sgd", optim__momentum=0.9, optim__weight_decay=1e-4, optim__decay_on="no_norm_no_bias",
          schedule__kind="steps", schedule__factor=0.1),
    ours("plain SGD", optim__nesterov=False, optim__clip_norm=0.0, optim__lars_eta=0.001, optim__lars_eps=0.0),
    ours("of other kinds of schedule", schedule__hold=0.0, schedule__horizon=0.0, schedule__end_lr=0.0),
    ours("every epoch (B 7) is the default", quality__unit="epochs", quality__first=1.0, quality__every=1.0),
    ours("no average of the weights", ema=0.0),
    ours("every source shuffles", sampler="shuffle", repeat_threshold=0.001),
    ours("the reference starts from Caffe2's R-50.pkl (14), which strides in the 1x1; docs/deviations.md", pretrained="resnet50-v1"),
    sheet("B 6: no BN learns", bn_span=1),
    sheet("B 4: ceil(117266 / batch)", epoch_steps="up"),
)  # fmt: skip
MLPERF = joined(
    TORCHVISION,
    sheet(
        "B 1 Anchors (legacy, widths + 1), 14 RPN ignore rule",
        model__rpn__rounding="legacy_edges",
        model__rpn__edges="inside",
    ),
    sheet("14 smooth-L1 beta: RPN 1/9, box 1", model__roi__beta=1.0),
    sheet("16 Losses: MLPerf-reference mode, binary mask target", model__mask__target="binary"),
    sheet("14: RPN test 1000 per level, train 2000 per batch of two", model__rpn__post_train=1000),
    sheet("B 4: bias lr x2", optim__bias_lr=2.0, optim__momentum_form="torch", optim__clip_value=0.0),
    sheet("B 7", quality__targets=TARGETS, quality__at=()),
    ours("MLPerf draws one for each run", seed=1),
    ours("in steps; length in images", schedule__unit="steps", epochs=0.0),
)
REFERENCE = joined(
    MLPERF,
    sheet("14 RPN train: per batch", model__rpn__post_of="batch"),
    sheet("B 4: batch 16 on 8 devices", global_batch=16, model__loss_group=2, optim__lr=0.02, images_seen=90_000 * 16),
    sheet("B 4: 500 iterations, factor 1/3; trainer.py: scheduler.step() before a step", schedule__warmup=500,
          schedule__warmup_from=1 / 3, schedule__warmup_first=1),
    sheet("B 4: 60k/80k; the same scheduler.step()", schedule__boundaries=(59_999, 79_999)),
)  # fmt: skip


def nvidia(
    batch: int, each: int, lr: float, warmup: int, start: float, falls: tuple[int, int], steps: int, per_batch: bool
) -> Table:
    """A row of B 4's NVIDIA v3.0; start: the ramp's foot as a fraction of the rate; steps: SOLVER_MAX_ITER of config_DGXH100*.sh."""
    return joined(
        MLPERF,
        sheet("B 4", global_batch=batch, optim__lr=lr, schedule__warmup=warmup),
        sheet("B 4 factor; the logs' opt_learning_rate_warmup_factor", schedule__warmup_from=start),
        sheet(
            "B 4 decay; solver/fused_sgd.py: > the first, >= the second, of a count one behind, a step later",
            schedule__boundaries=(falls[0] + 2, falls[1] + 1),
        ),
        sheet("solver/fused_sgd.py: 0 in the first step, the ramp from the second", schedule__warmup_first=-1),
        sheet("config_DGXH100*.sh SOLVER_MAX_ITER", images_seen=steps * batch),
        sheet("B 2: per GPU", model__loss_group=each),
        sheet("B 4: post-NMS per batch or per image", model__rpn__post_of="batch" if per_batch else "image"),
    )


def gluoncv(
    batch: int, each: int, lr: float, warmup: float, factor: float, falls: tuple[int, int], at: tuple[float, ...]
) -> Table:
    """A benchmark recipe of B 4."""
    return joined(
        TORCHVISION,
        sheet("B 1 Backbone", pretrained="resnet50-v1b"),
        sheet("B 1 P6", model__top="conv"),
        sheet("B 1 RPN head", model__rpn__channels=1024),
        sheet("B 1 Anchors", model__rpn__rounding="legacy"),
        sheet("B 1.1 RPN", model__rpn__best_anchor="negative", model__rpn__edges="inside"),
        sheet("B 1 Proposals", model__rpn__pre_train=12_000, model__rpn__pre_test=6_000, model__rpn__nms_over="image"),
        ours("a box of a width + 1 of at least 1 is any box", model__rpn__least_side=0.0, model__detect__least_side=0.0),
        sheet("B 1 RPN decode, Box coder", model__rpn__limit=4.42, model__roi__limit=4.42),
        sheet("B 1.1 RoI sampler: leftover positives may fill", model__roi__fill="any"),
        sheet("B 1 Box head", model__roi__pooling="average"),
        sheet("B 2", model__roi__beta=1.0),
        sheet("B 1.2", model__detect__score_above=0.01, model__detect__keep=1000),
        ours("an accelerator's bound; docs/deviations.md", model__detect__candidates=4000),
        sheet("B 3: bilinear; gluoncv's resize rounds sides", input__resize="bilinear", input__sides="rounded"),
        sheet("B 3: area > 1, box area >= 4 after clipping", input__least_area=1.0, input__least_box=4.0),
        sheet("B 1 FPN, RPN head, Box head: their initialisers", model__init="gluoncv"),
        sheet("B 1.1 Mask target: sample 2", model__mask__sampling_ratio=2),
        sheet("B 7: integer box, fast fill", model__detect__paste="gluoncv"),
        sheet("gluoncv's rcnn.py: boxes are cut by the caller; docs/deviations.md", model__detect__clip="after"),
        sheet("B 2: per GPU", model__loss_group=each),
        sheet("B 4", optim__momentum_form="lr_inside", optim__clip_value=1.5, optim__bias_lr=1.0, epochs=12, images_seen=0,
              global_batch=batch, optim__lr=lr, schedule__warmup=warmup, schedule__warmup_from=factor, schedule__boundaries=falls),
        sheet("B 4: a = i/warmup, i from 0", schedule__warmup_first=0, schedule__unit="epochs"),
        sheet("B 4 validate", quality__at=at),
        ours("run to their end", quality__targets=()),
        sheet("B 11 --seed", seed=233),
    )  # fmt: skip


# What recipes of ours share.
FREE = joined(
    TORCHVISION,
    ours(OWN, model__loss_group=0, optim__momentum_form="torch", optim__clip_value=0.0, optim__bias_lr=1.0, schedule__warmup_from=0.0,
         schedule__warmup_first=1, schedule__boundaries=(), schedule__unit="epochs", epoch_steps="exact", quality__at=(), seed=1,
         input__exif="apply", input__drop_empty=False, global_batch=8),
)  # fmt: skip
TABLES: dict[str, Table] = {
    "maskrcnn": REFERENCE,
    "maskrcnn-nvidia-96": nvidia(96, 12, 0.12, 625, 0.0, (12_000, 16_000), 40_000, True),
    "maskrcnn-nvidia-256": nvidia(256, 4, 0.24, 2300, 0.0, (6_125, 8_000), 20_000, False),
    "maskrcnn-nvidia-256-48nodes": joined(
        nvidia(256, 1, 0.24, 1800, 0.0025, (5_625, 7_500), 20_000, False),
        sheet("15: annotation cap 96 per image at 48 nodes", input__most_objects=96),
    ),
    "maskrcnn-gluoncv": gluoncv(16, 2, 0.02, 1000 / 7330, 0.03, (8, 10), (12,)),
    "maskrcnn-gluoncv-192": gluoncv(192, 1, 0.16, 1600 / 611, 0.001, (10, 14), ()),
    "maskrcnn-finetune": joined(
        FREE,
        ours(OWN, epochs=24, images_seen=0, optim__lr=0.01, schedule__kind="cosine", schedule__warmup=1, ema=0.998,
             quality__targets=(), pretrained="maskrcnn"),
    ),
    "maskrcnn-finetune-cpu": joined(
        FREE,
        ours(OWN, model__depth=18, model__width=64, model__norm="frozen", model__freeze=3, model__frozen="none", model__channels=64,
             model__fpn_norm="batch", model__rpn__sizes=(16.0, 32.0, 64.0, 128.0, 224.0), model__rpn__positive_iou=0.5,
             model__rpn__samples=128, model__rpn__pre_train=300, model__rpn__pre_test=300, model__rpn__post_train=200,
             model__rpn__post_test=200, model__roi__samples=64, model__roi__positive_share=0.5, model__roi__channels=256,
             model__mask__convs=2, model__mask__canvas=56, model__detect__candidates=400, input__short=(384, 448), input__long=608,
             input__crop=0.6, input__jitter="matrix", epochs=24, images_seen=0, bn_span=8, optim__kind="adamw", optim__lr=0.001,
             optim__head_rate=3.0,
             optim__weight_decay=0.05, schedule__kind="cosine", schedule__unit="run", schedule__warmup=0.05, ema=0.99,
             quality__targets=(), quality__first=4, quality__every=4, pretrained="resnet18"),
    ),
    "maskrcnn-demo": joined(
        FREE,
        ours(OWN, model__depth=10, model__width=32, model__norm="batch", model__frozen="none", model__channels=64,
             model__fpn_norm="batch", model__rpn__sizes=(16.0, 32.0, 64.0, 128.0, 224.0), model__rpn__positive_iou=0.5,
             model__rpn__samples=128, model__rpn__pre_train=300, model__rpn__pre_test=300, model__rpn__post_train=200,
             model__rpn__post_test=200, model__roi__samples=64, model__roi__positive_share=0.5, model__roi__channels=128,
             model__mask__convs=2, model__mask__canvas=56, model__detect__candidates=400, input__short=(224, 256), input__long=352,
             input__crop=0.6, input__jitter="matrix", target_data="shapes-boxes", epochs=0.0, images_seen=24_000, bn_span=8,
             optim__kind="adamw", optim__lr=0.0025, optim__weight_decay=0.05, schedule__kind="poly2", schedule__unit="run",
             schedule__warmup=0.02, ema=0.99, quality__targets=(("box_ap", 0.35), ("mask_ap", 0.30)), quality__unit="run",
             quality__first=0.3, quality__every=0.05, pretrained=""),
    ),
}  # fmt: skip
# Faster R-CNN: each is one of the above without its mask head.
TABLES |= {
    name: joined(TABLES[whole], ours("without the mask head", model__masks=False, **changed))
    for name, whole, changed in (
        ("fasterrcnn-finetune", "maskrcnn-finetune", {"pretrained": "fasterrcnn"}),
        ("fasterrcnn-finetune-cpu", "maskrcnn-finetune-cpu", {"model__roi__channels": 128, "optim__head_rate": 1.0}),
    )
}
TABLES["fasterrcnn"] = joined(
    REFERENCE,
    ours("without the mask head", model__masks=False),
    sheet("maskrcnn-benchmark MODEL_ZOO.md, R-50-FPN Fast 1x", quality__targets=(("box_ap", 0.368),)),
)

# Recipe, ranks: images of a forward, ranks of a BatchNorm, steps of an epoch, of the run, of the warm-up, where the rate falls, the
# first evaluations in epochs, and rates of 0-based steps by the laws of B 4.
PLANS = {
    ("maskrcnn", 8): (2, 1, 7330, 90_000, 500, (59_999, 79_999), (1, 2), {
        0: 0.02 * (1 / 3 * (1 - 1 / 500) + 1 / 500), 499: 0.02, 59_998: 0.02, 59_999: 0.002, 79_999: 2e-4}),
    ("fasterrcnn", 8): (2, 1, 7330, 90_000, 500, (59_999, 79_999), (1, 2), {0: 0.02 * (1 / 3 * (1 - 1 / 500) + 1 / 500), 499: 0.02}),
    ("maskrcnn-nvidia-96", 8): (12, 1, 1222, 40_000, 625, (12_002, 16_001), (1, 2), {
        0: 0.0, 1: 0.0, 2: 1.92e-4, 625: 0.12 - 1.92e-4, 626: 0.12, 12_001: 0.12, 12_002: 0.012, 16_001: 0.0012}),
    ("maskrcnn-nvidia-256", 64): (4, 1, 459, 20_000, 2300, (6_127, 8_001), (1, 2), {
        0: 0.0, 1: 0.0, 2: 1.0434782608695652e-4, 2301: 0.24, 6_126: 0.24, 6_127: 0.024}),
    ("maskrcnn-nvidia-256-48nodes", 256): (1, 1, 459, 20_000, 1800, (5_627, 7_501), (1, 2), {
        0: 0.0, 1: 0.24 - 1800 * 1.33e-4, 2: 0.24 - 1799 * 1.33e-4, 1801: 0.24, 7_501: 0.0024}),
    ("maskrcnn-gluoncv", 8): (2, 1, 7330, 87_960, 1000, (58_640, 73_300), (12,), {0: 0.0006, 500: 0.0103, 1000: 0.02, 58_640: 0.002}),
    ("maskrcnn-gluoncv-192", 192): (1, 1, 611, 7332, 1600, (6110, 8554), (1, 2), {0: 0.00016, 1600: 0.16, 6110: 0.016}),
}  # fmt: skip
