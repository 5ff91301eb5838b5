"""Mask R-CNN of GluonCV: the flags of train_mask_rcnn.py, and those behind its word custom-model."""

from __future__ import annotations

from paceline.recipes.migrate.table import direct, gone, numbers, settled


def number(text: str) -> float | None:
    """Its numbers are text, and an empty one is the default."""
    return float(text) if text else None


FLAGS = (
    settled("--network", str, "resnet50_v1b", "model.depth", "--model.trunk resnet --model.depth 50", "resnet18_v1b: `--model.depth 18`; MobileNet, ResNeSt: `--model.trunk timm/NAME`", row="MobileNet and ResNeSt trunks"),
    gone("--dataset", str, "coco", "--data /data/coco", "any prepared set with boxes or masks", values={}),
    direct("--num-workers -j", int, 4, "--system.loader-threads {}"),
    settled("--batch-size", int, 8, "global_batch optim.lr", "--global-batch 16 --optim.lr 0.02", "of all GPUs, as theirs"),
    gone("--gpus", str, "0", "automatic: a rank takes the device of its local number", "one process is one device here"),
    settled("--epochs", number, 26, "epochs", "--epochs 12"),
    settled("--resume", str, "", "", "--weights model.params", "weights alone, as theirs; a run goes on by naming its `--out runs/mrcnn` again", by="weights"),
    gone("--start-epoch", int, 0, "automatic: a resumed run knows its step"),
    settled("--lr", number, None, "optim.lr", "--optim.lr 0.02", "0.00125 times the batch if unsaid"),
    settled("--lr-decay", float, 0.1, "schedule.factor", "--schedule.factor 0.1"),
    settled("--lr-decay-epoch", numbers, "17,23", "schedule.boundaries", "--schedule.boundaries 8 10"),
    settled("--lr-warmup", number, None, "schedule.warmup", "--schedule.unit steps --schedule.warmup 1000 --schedule.boundaries 58640 73300", "iterations: in epochs in the recipe, 1,000 of 7,330 steps; the larger of 8000 / batch and 1000 if unsaid"),
    settled("--lr-warmup-factor", float, 1 / 3, "schedule.warmup_from", "--schedule.warmup-from 0.03"),
    settled("--clip-gradient", float, -1.0, "optim.clip_value", "--optim.clip-value 1.5", "element by element; -1 there is 0 here"),
    settled("--momentum", float, 0.9, "optim.momentum", "--optim.momentum 0.9", "MXNet's form: `--optim.momentum-form lr_inside`, in the recipe"),
    settled("--wd", number, 1e-4, "optim.weight_decay", "--optim.weight-decay 1e-4", "biases do not decay: `--optim.decay-on no_norm_no_bias`, in the recipe"),
    direct("--log-interval", int, 100, "--log-every {}", "steps"),
    direct("--save-prefix", str, "", "--out {}", example="runs/mrcnn"),
    direct("--save-interval", int, 1, "--save-every 7330", "steps", values={}),
    settled("--val-interval", int, 1, "quality.at", "--quality.at --quality.first 1 --quality.every 1", "the first flag empties the list of exact points"),
    settled("--seed", int, 233, "seed", "--seed 233"),
    gone("--verbose", bool, False, "none: trainable parameters are not listed"),
    settled("--norm-layer", str, None, "model.norm model.fpn_norm model.head_norm", "--model.norm frozen", "bn: `--model.norm batch`, gn: `--model.norm group`, also of pyramid and mask head", row="BatchNorm over ranks in box and mask head"),
    settled("--rpn-smoothl1-rho", float, 1 / 9, "model.rpn.beta", "--model.rpn.beta 0.1111"),
    settled("--rcnn-smoothl1-rho", float, 1.0, "model.roi.beta", "--model.roi.beta 1.0"),
    gone("--use-fpn", bool, False, "fixed: the pyramid is always there", "its C4 networks: none (docs/deviations.md)"),
    direct("--disable-hybridization", bool, False, "--system.no-compile"),
    gone("--static-alloc", bool, False, "automatic: shapes are few, memory is reused"),
    settled("--amp", bool, False, "", "--system.precision fp16", "dynamic loss scale, as theirs", by="system"),
    gone("--horovod", bool, False, "automatic: as many ranks as a launcher starts"),
    gone("--use-ext", bool, False, "fixed: scores come from compiled code, equal to pycocotools'"),
    gone("--executor-threads", int, 1, "dead: one process is one device"),
    gone("--kv-store", str, "nccl", "automatic: NCCL or gloo, by device"),
)  # fmt: skip

# Behind the word custom-model, which is one of them: it begins from other numbers than the presets.
WORD = settled(
    "custom-model", bool, False, "model.rpn.channels", "--model.rpn.channels 256", "a network of one's own numbers"
)
CUSTOM = (
    settled("--no-pretrained-base", bool, False, "", "--weights none", "with `--model.norm batch --model.frozen none`: frozen random norms learn nothing", by="weights"),
    settled("--num-fpn-filters", int, 256, "model.channels", "--model.channels 256"),
    settled("--num-box-head-conv", int, 4, "model.roi.convs", "--model.roi.convs 4 --model.head-norm group", "one fully connected layer behind them, as theirs; SyncBN: GroupNorm here, theirs with gn"),
    settled("--num-box-head-conv-filters", int, 256, "model.roi.conv_channels", "--model.roi.convs 4 --model.roi.conv-channels 256"),
    settled("--num_box_head_dense_filters", int, 1024, "model.roi.channels", "--model.roi.channels 1024"),
    settled("--image-short", numbers, "800", "input.short", "--input.short 800", "several: one is drawn for each step; theirs drew from a range for each photo"),
    settled("--image-max-size", int, 1333, "input.long", "--input.long 1333"),
    settled("--nms-thresh", float, 0.5, "model.detect.iou", "--model.detect.iou 0.5"),
    settled("--nms-topk", int, -1, "model.detect.candidates", "--model.detect.candidates 1000", "-1 there; on a CPU all that score enough"),
    settled("--post-nms", int, -1, "model.detect.keep", "--model.detect.keep 100"),
    settled("--roi-mode", str, "align", "model.roi.mode", "--model.roi.mode align", "pool: `--model.roi.mode pool`"),
    direct("--roi-size", str, "14,14", "--model.roi.side 7 --model.mask.side 14", "box and mask apart", values={"7,7": "--model.roi.side 7 --model.mask.side 7"}),
    direct("--strides", str, "4,8,16,32,64", "--model.first-level 2", "4 to 64; 3 leaves stride 4 out, and wants four `--model.rpn.sizes`", values={}),
    settled("--clip", float, 4.14, "model.roi.limit", "--model.roi.limit 4.42 --model.rpn.limit 4.42"),
    settled("--rpn-channel", int, 256, "model.rpn.channels", "--model.rpn.channels 1024"),
    settled("--anchor-base-size", int, 16, "model.rpn.sizes", "--model.rpn.sizes 32 64 128 256 512", "base times scales"),
    settled("--anchor-aspect-ratio", numbers, "0.5,1,2", "model.rpn.ratios", "--model.rpn.ratios 0.5 1 2"),
    settled("--anchor-scales", numbers, "2,4,8,16,32", "model.rpn.sizes", "--model.rpn.sizes 32 64 128 256 512"),
    gone("--anchor-alloc-size", str, "384,384", "automatic: anchors are made for each input shape"),
    settled("--rpn-nms-thresh", float, 0.7, "model.rpn.iou", "--model.rpn.iou 0.7"),
    settled("--rpn-train-pre-nms", int, 12000, "model.rpn.pre_train", "--model.rpn.pre-train 12000 --model.rpn.nms-over image"),
    settled("--rpn-train-post-nms", int, 2000, "model.rpn.post_train", "--model.rpn.post-train 2000"),
    settled("--rpn-test-pre-nms", int, 6000, "model.rpn.pre_test", "--model.rpn.pre-test 6000"),
    settled("--rpn-test-post-nms", int, 1000, "model.rpn.post_test", "--model.rpn.post-test 1000"),
    settled("--rpn-min-size", int, 1, "model.rpn.least_side", "--model.rpn.least-side 0", "theirs counted a pixel more: 1 there is 0 here"),
    settled("--rcnn-num-samples", int, 512, "model.roi.samples", "--model.roi.samples 512"),
    settled("--rcnn-pos-iou-thresh", float, 0.5, "model.roi.iou", "--model.roi.iou 0.5"),
    settled("--rcnn-pos-ratio", float, 0.25, "model.roi.positive_share", "--model.roi.positive-share 0.25"),
    gone("--max-num-gt", int, 100, "automatic: as many slots as the data's fullest photo needs", "theirs sized a table of random numbers and failed on fuller photos; a cap is `--input.most-objects 100`, which learns the largest", row="most objects of a photo"),
    gone("--target-roi-scale", int, 2, "fixed: masks have twice as many cells as the pooled region, `--model.mask.side 14`"),
    settled("--num-mask-head-convs", int, 4, "model.mask.convs", "--model.mask.convs 4"),
)  # fmt: skip
