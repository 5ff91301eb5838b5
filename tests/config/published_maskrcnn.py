"""Every field of every Mask R-CNN recipe, typed from fact sheet B (see published_cells.py; 14b is torchvision's column)."""

from __future__ import annotations

import math

from published_cells import Table, joined, ours, sheet

OWN = "a recipe of ours"
TARGETS = (("box_ap", 0.377), ("mask_ap", 0.339))
TORCHVISION = joined(
    ours("no system has rates by depth: all that trains has one", model__freeze_stages=0, optim__head_lr_factor=1.0,
        optim__layer_decay=1.0),
    sheet("B 0, 7", task="instance-segmentation", target_data="coco"),
    sheet("14b trunk", model__backbone="resnet", model__depth=50, model__width=64, model__stride_in="3x3", model__norm="frozen",
          model__freeze_stages=2),
    sheet("14b trunk: plain v1.5", model__padding="symmetric", model__groups=1, model__width_per_group=64, model__bn_momentum=0.1),
    ours("0 is of torchvision's COCO_V1 weights alone", model__bn_eps=1e-5),
    sheet("14b FPN", model__min_fpn_level=2, model__fpn_channels=256, model__fpn_norm="none", model__head_norm="none",
        model__fpn_top="pool"),
    sheet("14b anchors", model__rpn__anchor_sizes=(32.0, 64.0, 128.0, 256.0, 512.0), model__rpn__aspect_ratios=(0.5, 1.0, 2.0),
          model__parity__anchor_rounding="half-even", model__rpn__keep_border_anchors=True),
    sheet("14b RPN", model__rpn__channels=0, model__rpn__pre_nms_topk_train=2000, model__rpn__pre_nms_topk_test=1000,
        model__rpn__post_nms_topk_train=2000,
          model__rpn__post_nms_topk_test=1000, model__parity__post_nms_per="image", model__parity__post_nms_batch=0,
              model__parity__nms_per="level",
          model__rpn__nms_iou=0.7,
          model__rpn__min_box_side=1e-3, model__rpn__fg_iou=0.7, model__rpn__bg_iou=0.3,
              model__rpn__allow_low_quality_matches=True,
          model__rpn__samples_per_image=256, model__rpn__positive_fraction=0.5),
    sheet("14b RPN losses", model__rpn__smooth_l1_beta=1 / 9),
    sheet("14b RoIs", model__roi__fg_iou=0.5, model__roi__samples_per_image=512, model__roi__positive_fraction=0.25,
        model__parity__roi_fill="negatives",
          model__roi__pool_size=7, model__mask__pool_size=14, model__roi__sampling_ratio=2, model__roi__aligned=False,
          model__parity__roi_pooling="direct"),
    sheet("14b box head", model__roi__fc_channels=1024, model__roi__box_reg_weights=(10.0, 10.0, 5.0, 5.0),
        model__roi__max_log_scale=math.log(1000 / 16),
          model__roi__smooth_l1_beta=1 / 9),
    sheet("14b box head's limit, RPN's too", model__rpn__max_log_scale=math.log(1000 / 16)),
    sheet("14b mask head", model__mask__num_convs=4, model__mask__conv_channels=0, model__mask__target="soft"),
    sheet("14b mask head: RoIAlign of the bitmap, as many samples as a cell has pixels", model__mask__sampling_ratio=0),
    sheet("14b: RoIAlign, two FC and no convolution", model__roi__pool_type="align", model__roi__num_convs=0,
        model__roi__conv_channels=0),
    sheet("14b test: pasted with a pixel of padding, threshold 0.5", model__parity__mask_paste="torchvision",
          model__detect__mask_threshold=0.5),
    ours("torchvision's own laws, which its sheet does not tell", model__init="torchvision", model__parity__clip_boxes="before",
         input__parity__side_rounding="cut"),
    ours("what is logged; it changes no weight", model__log_rcnn_accuracies=False),
    sheet("14b mask head: there is one", model__masks=True),
    sheet("14b, REF: no filter by area, no cap", input__min_object_area=0.0, input__min_box_area=0.0, input__max_objects=0),
    ours("the store of masks; docs/reference/known-differences.md", model__mask__target_buffer_size=112),
    sheet("14b test", model__detect__score_threshold=0.05, model__detect__nms_iou=0.5, model__detect__max_detections=100,
          model__detect__min_box_side=1e-2),
    ours("an accelerator's bound; docs/reference/known-differences.md", model__detect__topk_candidates=1000),
    sheet("14b input", input__min_size=(800,), input__max_size=1333, input__mean=(0.485, 0.456, 0.406), input__std=(0.229,
        0.224, 0.225),
          input__size_divisor=32, input__hflip=0.5),
    ours("a few shapes for an accelerator; the systems padded to the batch's largest photo", input__padding_mode="buckets"),
    sheet("B 3: no other augmentation", input__min_crop_scale=1.0, input__color_jitter="none", input__vflip=0.0, input__rot90=0.0,
          input__scale_jitter=(1.0, 1.0), input__copy_paste_prob=0.0),
    ours("no jitter uses them", input__brightness=0.125, input__parity__brightness_mode="multiply", input__contrast=0.5,
         input__saturation=0.5, input__hue=0.05),
    ours("the reference's PIL bilinear is antialiased", input__resize="bilinear-antialias"),
    ours("any JPEG decoder; no system of the time read the note", input__decoder="simplejpeg", input__exif="ignore"),
    sheet("B 3: images with no valid object skipped", input__skip_empty=True),
    sheet("B 4", optim__name="sgd", optim__momentum=0.9, optim__weight_decay=1e-4, optim__no_decay="norm-and-bias",
          schedule__name="multistep", schedule__gamma=0.1),
    ours("plain SGD", optim__nesterov=False, optim__clip_norm=0.0, optim__lars_trust_coefficient=0.001, optim__lars_eps=0.0),
    ours("of other kinds of schedule", schedule__decay_start=0.0, schedule__decay_end=0.0, schedule__min_lr=0.0),
    ours("every epoch (B 7) is the default", eval__unit="epochs", eval__start=1.0, eval__every=1.0),
    ours("no average of the weights", ema_decay=0.0),
    ours("every source shuffles", sampler="random", repeat_threshold=0.001),
    ours("the reference starts from Caffe2's R-50.pkl (14), which strides in the 1x1; docs/reference/known-differences.md",
    pretrained="resnet50-v1"), sheet("B 6: no BN learns", bn_batch_size=1),
    sheet("B 4: ceil(117266 / batch)", epoch_rounding="up"),
)  # fmt: skip
MLPERF = joined(
    TORCHVISION,
    sheet(
        "B 1 Anchors (legacy, widths + 1), 14 RPN ignore rule",
        model__parity__anchor_rounding="legacy-edges",
        model__rpn__keep_border_anchors=False,
    ),
    sheet("14 smooth-L1 beta: RPN 1/9, box 1", model__roi__smooth_l1_beta=1.0),
    sheet("16 Losses: MLPerf-reference mode, binary mask target", model__mask__target="binary"),
    sheet("14: RPN test 1000 per level, train 2000 per batch of two", model__rpn__post_nms_topk_train=1000),
    sheet("B 4: bias lr x2", optim__bias_lr_factor=2.0, optim__momentum_style="torch", optim__clip_value=0.0),
    sheet("B 7", target=TARGETS, eval__at=()),
    ours("MLPerf draws one for each run", seed=1),
    ours("in steps; length in images", schedule__unit="steps", epochs=0.0),
)
REFERENCE = joined(
    MLPERF,
    sheet("14 RPN train: per batch", model__parity__post_nms_per="batch"),
    sheet("B 4: batch 16 on 8 devices", global_batch_size=16, model__loss_normalizer_images=2, optim__lr=0.02, max_images=90_000 * 16),
    sheet("B 4: 500 iterations, factor 1/3; trainer.py: scheduler.step() before a step", schedule__warmup=500,
          schedule__warmup_start_factor=1 / 3, schedule__warmup_step_offset=1),
    sheet("B 4: 60k/80k; the same scheduler.step()", schedule__milestones=(59_999, 79_999)),
)  # fmt: skip


def nvidia(
    batch: int, each: int, lr: float, warmup: int, start: float, falls: tuple[int, int], steps: int, per_batch: bool
) -> Table:
    """A row of B 4's NVIDIA v3.0; start: the ramp's foot as a fraction of the rate; steps: SOLVER_MAX_ITER of config_DGXH100*.sh."""
    return joined(
        MLPERF,
        sheet("B 4", global_batch_size=batch, optim__lr=lr, schedule__warmup=warmup),
        sheet("B 4 factor; the logs' opt_learning_rate_warmup_factor", schedule__warmup_start_factor=start),
        sheet(
            "B 4 decay; solver/fused_sgd.py: > the first, >= the second, of a count one behind, a step later",
            schedule__milestones=(falls[0] + 2, falls[1] + 1),
        ),
        sheet("solver/fused_sgd.py: 0 in the first step, the ramp from the second", schedule__warmup_step_offset=-1),
        sheet("config_DGXH100*.sh SOLVER_MAX_ITER", max_images=steps * batch),
        sheet("B 2: per GPU", model__loss_normalizer_images=each),
        sheet("B 4: post-NMS per batch or per image", model__parity__post_nms_per="batch" if per_batch else "image"),
    )


def gluoncv(
    batch: int, each: int, lr: float, warmup: float, factor: float, falls: tuple[int, int], at: tuple[float, ...]
) -> Table:
    """A benchmark recipe of B 4."""
    return joined(
        TORCHVISION,
        sheet("B 1 Backbone", pretrained="resnet50-v1b"),
        sheet("B 1 P6", model__fpn_top="conv"),
        sheet("B 1 RPN head", model__rpn__channels=1024),
        sheet("B 1 Anchors", model__parity__anchor_rounding="legacy"),
        sheet("B 1.1 RPN", model__rpn__allow_low_quality_matches=False, model__rpn__keep_border_anchors=False),
        sheet("B 1 Proposals", model__rpn__pre_nms_topk_train=12_000, model__rpn__pre_nms_topk_test=6_000,
            model__parity__nms_per="image"),
        ours("a box of a width + 1 of at least 1 is any box", model__rpn__min_box_side=0.0, model__detect__min_box_side=0.0),
        sheet("B 1 RPN decode, Box coder", model__rpn__max_log_scale=4.42, model__roi__max_log_scale=4.42),
        sheet("B 1.1 RoI sampler: leftover positives may fill", model__parity__roi_fill="any"),
        sheet("B 1 Box head", model__parity__roi_pooling="average"),
        sheet("B 2", model__roi__smooth_l1_beta=1.0),
        sheet("B 1.2", model__detect__score_threshold=0.01, model__detect__max_detections=1000),
        ours("an accelerator's bound; docs/reference/known-differences.md", model__detect__topk_candidates=4000),
        sheet("B 3: bilinear; gluoncv's resize rounds sides", input__resize="bilinear", input__parity__side_rounding="rounded"),
        sheet("B 3: area > 1, box area >= 4 after clipping", input__min_object_area=1.0, input__min_box_area=4.0),
        sheet("B 1 FPN, RPN head, Box head: their initialisers", model__init="gluoncv"),
        sheet("B 1.1 Mask target: sample 2", model__mask__sampling_ratio=2),
        sheet("B 7: integer box, fast fill", model__parity__mask_paste="gluoncv"),
        sheet("gluoncv's rcnn.py: boxes are cut by the caller; docs/reference/known-differences.md",
        model__parity__clip_boxes="after"), sheet("B 2: per GPU", model__loss_normalizer_images=each),
        sheet("B 4", optim__momentum_style="mxnet", optim__clip_value=1.5, optim__bias_lr_factor=1.0, epochs=12, max_images=0,
              global_batch_size=batch, optim__lr=lr, schedule__warmup=warmup, schedule__warmup_start_factor=factor,
                  schedule__milestones=falls),
        sheet("B 4: a = i/warmup, i from 0", schedule__warmup_step_offset=0, schedule__unit="epochs"),
        sheet("B 4 validate", eval__at=at),
        ours("run to their end", target=()),
        sheet("B 11 --seed", seed=233),
    )  # fmt: skip


# What recipes of ours share.
FREE = joined(
    TORCHVISION,
    ours(OWN, model__loss_normalizer_images=0, optim__momentum_style="torch", optim__clip_value=0.0,
        optim__bias_lr_factor=1.0, schedule__warmup_start_factor=0.0,
         schedule__warmup_step_offset=1, schedule__milestones=(), schedule__unit="epochs", epoch_rounding="exact", eval__at=(), seed=1,
         input__exif="apply", input__skip_empty=False, global_batch_size=8),
)  # fmt: skip
TABLES: dict[str, Table] = {
    "maskrcnn": REFERENCE,
    "maskrcnn-nvidia-96": nvidia(96, 12, 0.12, 625, 0.0, (12_000, 16_000), 40_000, True),
    "maskrcnn-nvidia-256": nvidia(256, 4, 0.24, 2300, 0.0, (6_125, 8_000), 20_000, False),
    "maskrcnn-nvidia-256-48nodes": joined(
        nvidia(256, 1, 0.24, 1800, 0.0025, (5_625, 7_500), 20_000, False),
        sheet("15: annotation cap 96 per image at 48 nodes", input__max_objects=96),
    ),
    "maskrcnn-gluoncv": gluoncv(16, 2, 0.02, 1000 / 7330, 0.03, (8, 10), (12,)),
    "maskrcnn-gluoncv-192": gluoncv(192, 1, 0.16, 1600 / 611, 0.001, (10, 14), ()),
    "maskrcnn-finetune": joined(
        FREE,
        ours(OWN, epochs=24, max_images=0, optim__lr=0.01, schedule__name="cosine", schedule__warmup=1, ema_decay=0.998,
             target=(), pretrained="maskrcnn"),
    ),
    "maskrcnn-finetune-cpu": joined(
        FREE,
        ours(OWN, model__depth=18, model__width=64, model__norm="frozen", model__freeze_stages=3, model__fpn_channels=64,
             model__fpn_norm="batch", model__rpn__anchor_sizes=(16.0, 32.0, 64.0, 128.0, 224.0), model__rpn__fg_iou=0.5,
             model__rpn__samples_per_image=128, model__rpn__pre_nms_topk_train=300, model__rpn__pre_nms_topk_test=300,
                 model__rpn__post_nms_topk_train=200,
             model__rpn__post_nms_topk_test=200, model__roi__samples_per_image=64, model__roi__positive_fraction=0.5,
                 model__roi__fc_channels=256,
             model__mask__num_convs=2, model__mask__target_buffer_size=56, model__detect__topk_candidates=400,
                 input__min_size=(384, 448), input__max_size=608,
             input__min_crop_scale=0.6, input__color_jitter="matrix", epochs=24, max_images=0, bn_batch_size=8, optim__name="adamw",
                 optim__lr=0.001,
             optim__head_lr_factor=3.0,
             optim__weight_decay=0.05, schedule__name="cosine", schedule__unit="fraction", schedule__warmup=0.05, ema_decay=0.99,
             target=(), eval__start=4, eval__every=4, pretrained="resnet18"),
    ),
    "maskrcnn-demo": joined(
        FREE,
        ours(OWN, model__depth=10, model__width=32, model__norm="batch", model__freeze_stages=0, model__fpn_channels=64,
             model__fpn_norm="batch", model__rpn__anchor_sizes=(16.0, 32.0, 64.0, 128.0, 224.0), model__rpn__fg_iou=0.5,
             model__rpn__samples_per_image=128, model__rpn__pre_nms_topk_train=300, model__rpn__pre_nms_topk_test=300,
                 model__rpn__post_nms_topk_train=200,
             model__rpn__post_nms_topk_test=200, model__roi__samples_per_image=64, model__roi__positive_fraction=0.5,
                 model__roi__fc_channels=128,
             model__mask__num_convs=2, model__mask__target_buffer_size=56, model__detect__topk_candidates=400,
                 input__min_size=(224, 256), input__max_size=352,
             input__min_crop_scale=0.6, input__color_jitter="matrix", target_data="shapes-boxes", epochs=0.0,
                 max_images=24_000, bn_batch_size=8,
             optim__name="adamw", optim__lr=0.0025, optim__weight_decay=0.05, schedule__name="polynomial", schedule__unit="fraction",
             schedule__warmup=0.02, ema_decay=0.99, target=(("box_ap", 0.35), ("mask_ap", 0.30)), eval__unit="fraction",
             eval__start=0.3, eval__every=0.05, pretrained=""),
    ),
}  # fmt: skip
# Faster R-CNN: each is one of the above without its mask head.
TABLES |= {
    name: joined(TABLES[whole], ours("without the mask head", model__masks=False, **changed))
    for name, whole, changed in (
        ("fasterrcnn-finetune", "maskrcnn-finetune", {"pretrained": "fasterrcnn"}),
        (
            "fasterrcnn-finetune-cpu",
            "maskrcnn-finetune-cpu",
            {"model__roi__fc_channels": 128, "optim__head_lr_factor": 1.0},
        ),
    )
}
TABLES["fasterrcnn"] = joined(
    REFERENCE,
    ours("without the mask head", model__masks=False),
    sheet("maskrcnn-benchmark MODEL_ZOO.md, R-50-FPN Fast 1x", target=(("box_ap", 0.368),)),
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
