"""Every field of every SSD recipe, typed from the fact sheet of SSD (see published_cells.py; R, A and B are its systems)."""

from __future__ import annotations

from published_cells import Table, joined, ours, sheet

OWN = "a recipe of ours"
BASE = joined(
    sheet("9", task="detection", target=(("box_ap", 0.23),)),
    sheet("5", target_data="coco", input__skip_empty=True),
    sheet("2: R, A and B do not filter iscrowd", input__train_on_crowd=True),
    sheet("1.1", model__backbone="resnet", model__depth=34, model__width=64, model__bn_eps=1e-5, model__bn_momentum=0.1),
    sheet("1.1: 3x3 convolutions pad 1 on both sides; basic blocks", model__padding="symmetric", model__stride_in="3x3",
        model__groups=1,
          model__width_per_group=64),
    sheet("1.2: no BN", model__extra_channels=512, model__extra_norm=False),
    sheet("1.2: all extra layers follow the map of stride 8; BatchNorm with the batch's", model__fpn_channels=0, model__norm="batch"),
    sheet("1.4: px / 300", model__scales=(21 / 300, 45 / 300, 99 / 300, 153 / 300, 207 / 300, 261 / 300, 315 / 300)),
    sheet("1.3", model__heads="separate", model__head_channel_multiple=8),
    sheet("6 frozen layers", model__freeze_stages=0, model__parity__freeze_first_conv=False),
    sheet("1.5: B alone", model__zero_init_residual=False),
    sheet("1.5: U(+-1 / sqrt(fan_in))", model__parity__new_bias="uniform"),
    sheet("1.4 R: anchor-major; its utils.py in float32", model__parity__box_order="anchor", model__parity__box_corners="float32"),
    sheet("2: strict, the last wins", model__match_iou=0.5, model__match_rule="gt", model__parity__tie="last"),
    sheet("3", model__negative_ratio=3.0, model__loss_normalizer="image"),
    ours("no source weighs classes", model__loss="cross-entropy", model__focal_gamma=2.0, model__class_weights="none"),
    sheet("9: keep IoU < 0.5", model__detect__nms_rule="ge"),
    sheet("9", model__detect__score_threshold=0.05, model__detect__nms_iou=0.5, model__detect__topk_candidates=200,
          model__detect__topk_per="class", model__detect__max_detections=200, model__parity__clip_boxes=False,
              model__parity__plus_one=False),
    sheet("1.1, 4.2 resize", input__image_size=300, input__resize="bilinear-antialias"),
    sheet("4.1: one proposal, no overlap asked of the free mode", input__iou_crop="ssd", input__crop_trials=1,
          input__crop_scale=(0.3, 1.0), input__crop_ratio=(0.5, 2.0), input__parity__free_crop="any"),
    sheet("4.2", input__hflip=0.5, input__color_jitter="hsv", input__brightness=0.125, input__parity__brightness_mode="multiply",
          input__contrast=0.5, input__saturation=0.5, input__hue=0.05),
    ours("no sheet has more geometry than crop and mirror", input__vflip=0.0, input__rot90=0.0,
         input__zoom_out_max=1.0, input__mosaic_prob=0.0),
    sheet("4.2 normalise", input__mean=(0.485, 0.456, 0.406), input__std=(0.229, 0.224, 0.225)),
    ours("any JPEG decoder; no system of the time read the note", input__decoder="simplejpeg", input__exif="ignore"),
    sheet("6", optim__name="sgd", optim__momentum=0.9, optim__momentum_style="torch", optim__nesterov=False, optim__weight_decay=5e-4,
          optim__no_decay="none", optim__clip_value=0.0, optim__clip_norm=0.0, optim__bias_lr_factor=1.0),
    ours("of LARS", optim__lars_trust_coefficient=0.001, optim__lars_eps=0.0),
    ours("no system has rates by depth: all that trains has one", optim__head_lr_factor=1.0,
        optim__layer_decay=1.0),
    sheet("6 decay", schedule__name="multistep", schedule__milestones=(40, 50), schedule__gamma=0.1),
    sheet("6: loaders keep the last batch (R), fill it (A) or round up (B)", epoch_rounding="up"),
    ours("in epochs", schedule__unit="epochs", eval__unit="epochs", max_images=0),
    sheet("6 warm-up law: base - base at t = 0", schedule__warmup_start_factor=0.0),
    ours("no object is left out for its size or number", input__min_object_area=0.0, input__min_box_area=0.0, input__max_objects=0),
    ours("of other kinds of schedule", schedule__decay_start=0.0, schedule__decay_end=0.0, schedule__min_lr=0.0),
    ours("random for each run (6 Seeds)", seed=1),
    ours("no average of the weights", ema_decay=0.0),
    ours("every source shuffles", sampler="random", repeat_threshold=0.001),
    sheet("1.6 A; 1.1 R: torchvision's resnet34-333f7ec4", pretrained="resnet34-mlperf"),
)  # fmt: skip
REFERENCE = joined(
    BASE,
    sheet("13.3, 14.4", global_batch_size=32, bn_batch_size=32, optim__lr=2.5e-3, epochs=70),
    sheet("14.4 _32: no warm-up", schedule__warmup=0.0),
    ours("there is no ramp", schedule__warmup_step_offset=1),
    sheet("9 reference frequency", eval__start=5, eval__every=5, eval__at=()),
)


def mxnet(
    batch: int, each: int, lr: float, warmup: int, per_epoch: int, decay: float, group: int = 1, falls=(44, 55)
) -> Table:
    """A row of 14.1; lr, warm-up steps as resolved by the logs (15), steps of an epoch as 5 and 6 have them."""
    return joined(
        BASE,
        sheet("1.3 System A", model__heads="fused"),
        sheet("9 A", model__detect__score_threshold=0.0, model__detect__topk_per="image", model__parity__clip_boxes=True,
              model__parity__plus_one=True),
        sheet("9 A: MXNet box_nms suppresses above it", model__detect__nms_rule="gt"),
        sheet("4.2 A: half a degree, Hsv then BrightnessContrast", input__hue=0.5 / 360, input__color_jitter="dali"),
        sheet("1.4, 2 A: cell-major, made in float64; DALI's BoxEncoder takes the last", model__parity__box_order="cell-last",
              model__parity__box_corners="float64"),
        sheet("6 A, 16.13", optim__momentum_style="mxnet"),
        sheet("13.1", epochs=80),
        sheet("9: 40, 50, then every 5th", eval__at=(40, 50, 55, 60, 65, 70, 75, 80)),
        ours("eval.at says it all", eval__start=1.0, eval__every=1.0),
        sheet("14.1, 15", global_batch_size=batch, bn_batch_size=each * group, optim__lr=lr, optim__weight_decay=decay),
        sheet("15 warm-up its; 6: counted from 1", schedule__warmup=warmup / per_epoch, schedule__warmup_step_offset=1),
        sheet("14.1, 6 decay", schedule__milestones=falls),
    )  # fmt: skip


def gaudi(batch: int) -> Table:
    """1.5.0's settings for a global batch."""
    return joined(
        BASE,
        sheet("1.6: SAME pads at the end", model__padding="same"),
        sheet("1.6 B: model.ckpt-28152", pretrained="ssd-resnet34-tensorflow"),
        sheet("2 B", model__match_rule="ge", model__parity__tie="first"),
        sheet("1.4 B: made in float64", model__parity__box_corners="float64"),
        sheet("1.5 B: zero bias", model__parity__new_bias="zero"),
        sheet("1.5 B", model__zero_init_residual=True),
        sheet("4.1 B", input__crop_trials=50, input__parity__free_crop="touching"),
        sheet(
            "4.2 B: crop_and_resize, tf.image's colours",
            input__parity__brightness_mode="add",
            input__resize="tensorflow",
            input__color_jitter="tensorflow",
        ),
        sheet("6 B, 14.3", global_batch_size=batch, bn_batch_size=128, optim__lr=3e-3 * batch / 32, epochs=64),
        sheet("6 B: 5 epochs, t from 0", schedule__warmup=5, schedule__warmup_step_offset=0),
        ours("B never evaluates in training; the reference's cadence", eval__start=5, eval__every=5, eval__at=()),
    )


TABLES: dict[str, Table] = {
    "ssd": REFERENCE,
    "ssd-mlperf-448": mxnet(448, 56, 0.04, int(5.25 * 117_266 / 448), 262, 1.6e-4),
    "ssd-mlperf-512": mxnet(512, 128, 0.0475, 1202, 230, 1.6e-4),
    "ssd-mlperf-896": mxnet(896, 56, 0.09, 654, 131, 1.3e-4),
    "ssd-mlperf-912": mxnet(912, 114, 0.09, int(5 * 117_266 / 912), 129, 1.3e-4),
    "ssd-mlperf-1024": mxnet(1024, 128, 0.1875, 601, 115, 1.6e-4),
    "ssd-mlperf-1024-dss8440": mxnet(1024, 128, 0.1875, 572, 115, 1.6e-4),
    "ssd-mlperf-1536": mxnet(1536, 24, 0.14, 839, 77, 1.7e-4),
    "ssd-mlperf-2048": mxnet(2048, 4, 0.2925, 1488, 58, 4e-5, group=4, falls=(60, 75)),
    "ssd-gaudi": gaudi(128),
    "ssd-gaudi-1024": gaudi(1024),
    "ssd-gaudi-cosine": joined(
        gaudi(128),
        sheet("6 B (>=1.7.0)", schedule__name="cosine", schedule__warmup=7, schedule__decay_start=15, schedule__decay_end=55,
              optim__lr=1.01 * 0.012, schedule__min_lr=0.01 * 0.012, optim__no_decay="norm",
              model__freeze_stages=1, model__parity__freeze_first_conv=True),
        sheet("1.4 B from 1.7 on: cell-major", model__parity__box_order="cell"),
        ours("of other kinds of schedule", schedule__milestones=()),
    ),
    "ssd-finetune": joined(
        REFERENCE,
        ours(OWN, model__parity__box_order="cell", pretrained="resnet34"),
        ours(OWN, input__exif="apply", input__skip_empty=False, input__train_on_crowd=False, epochs=30, optim__lr=5e-3,
            schedule__name="cosine",
             schedule__warmup=1, schedule__milestones=(), ema_decay=0.998, target=(), eval__start=1, eval__every=1,
             epoch_rounding="exact"),
    ),
    "ssd-finetune-cpu": joined(
        REFERENCE,
        ours(OWN, model__parity__box_order="cell", pretrained="resnet18"),
        ours(OWN, model__depth=18, model__width=64, model__norm="frozen", model__freeze_stages=3, model__fpn_channels=64,
            model__extra_channels=128,
             model__extra_norm=True, model__match_iou=0.35, model__scales=(0.027, 0.06, 0.14, 0.3, 0.5, 0.75, 0.95),
             model__detect__score_threshold=0.01, input__image_size=416, input__mosaic_prob=0.5, input__crop_scale=(0.6, 1.0),
             input__crop_ratio=(0.75, 4 / 3), input__color_jitter="matrix", input__exif="apply",
             input__skip_empty=False, input__train_on_crowd=False, global_batch_size=8, epochs=30,
             bn_batch_size=8, optim__name="adamw", optim__lr=5e-4, optim__head_lr_factor=4.0, optim__weight_decay=0.05,
             optim__no_decay="norm-and-bias", schedule__name="cosine", schedule__unit="fraction", schedule__warmup=0.05,
             schedule__milestones=(), ema_decay=0.99, target=(), eval__start=5, eval__every=5, epoch_rounding="exact"),
    ),
    "ssd-demo": joined(
        REFERENCE,
        ours(OWN, model__parity__box_order="cell", pretrained=""),
        ours(OWN, model__depth=10, model__width=32, model__extra_channels=128, model__extra_norm=True, model__match_iou=0.35,
             model__scales=(0.06, 0.14, 0.30, 0.50, 0.70, 0.90, 1.05), model__detect__score_threshold=0.01, input__image_size=192,
             input__crop_scale=(0.6, 1.0), input__crop_ratio=(0.75, 4 / 3), input__color_jitter="matrix", input__exif="apply",
             input__skip_empty=False, input__train_on_crowd=False, target_data="shapes-boxes", global_batch_size=8,
                 max_images=40_000, epochs=0.0,
             bn_batch_size=8, optim__name="adamw", optim__lr=0.0025, optim__weight_decay=0.05, optim__no_decay="norm-and-bias",
             schedule__name="polynomial", schedule__unit="fraction", schedule__warmup=0.02, schedule__milestones=(), ema_decay=0.99,
             target=(("box_ap", 0.40),), eval__unit="fraction", eval__start=0.5, eval__every=0.05, epoch_rounding="exact"),
    ),
}  # fmt: skip

# Recipe, ranks: images of a forward, ranks of a BatchNorm, steps of an epoch, of the run, of the warm-up, where the rate falls (or
# the decay ends), the first evaluations in epochs, and rates of 0-based steps by the laws of 6.
LATE = (40, 50, 55, 60)
PLANS = {
    ("ssd", 1): (32, 1, 3665, 256_550, 0, (146_600, 183_250), (5, 10), {0: 2.5e-3, 146_599: 2.5e-3, 146_600: 2.5e-4, 183_250: 2.5e-5}),
    ("ssd-mlperf-448", 8): (56, 1, 262, 20_960, 1374, (11_528, 14_410), LATE, {0: 0.04 / 1374, 1373: 0.04, 11_528: 0.004}),
    ("ssd-mlperf-512", 4): (128, 1, 230, 18_400, 1202, (10_120, 12_650), LATE, {0: 0.0475 / 1202, 10_119: 0.0475, 10_120: 0.00475}),
    ("ssd-mlperf-896", 16): (56, 1, 131, 10_480, 654, (5764, 7205), LATE, {0: 0.09 / 654, 653: 0.09, 5764: 0.009, 7205: 9e-4}),
    ("ssd-mlperf-912", 8): (114, 1, 129, 10_320, 642, (5676, 7095), LATE, {0: 0.09 / 642, 641: 0.09, 5676: 0.009}),
    ("ssd-mlperf-1024", 8): (128, 1, 115, 9200, 601, (5060, 6325), LATE, {0: 0.1875 / 601, 600: 0.1875, 5060: 0.01875}),
    ("ssd-mlperf-1024-dss8440", 8): (128, 1, 115, 9200, 572, (5060, 6325), LATE, {0: 0.1875 / 572, 571: 0.1875, 6325: 0.001875}),
    ("ssd-mlperf-1536", 64): (24, 1, 77, 6160, 839, (3388, 4235), LATE, {0: 0.14 / 839, 838: 0.14, 3388: 0.014}),
    ("ssd-mlperf-2048", 512): (4, 4, 58, 4640, 1488, (3480, 4350), LATE, {0: 0.2925 / 1488, 1487: 0.2925, 3480: 0.02925}),
    ("ssd-mlperf-2048", 1024): (2, 8, 58, 4640, 1488, (3480, 4350), LATE, {4350: 0.002925}),
    ("ssd-gaudi", 1): (128, 1, 917, 58_688, 4585, (36_680, 45_850), (5, 10), {0: 0.0, 1: 0.012 / 4585, 4585: 0.012, 36_680: 0.0012}),
    ("ssd-gaudi-1024", 8): (128, 1, 115, 7360, 575, (4600, 5750), (5, 10), {0: 0.0, 1: 0.096 / 575, 4600: 0.0096}),
    ("ssd-gaudi-cosine", 1): (128, 1, 917, 58_688, 6419, 50_435, (5, 10), {
        0: 0.0, 1: 1.01 * 0.012 / 6419, 13_755: 1.01 * 0.012, 32_095: 0.51 * 0.012, 50_435: 0.01 * 0.012}),
}  # fmt: skip
