"""Flags of other tools (timm, Ultralytics, detectron2, mmdetection, torchvision's scripts), and ours for them."""

from __future__ import annotations

from collections.abc import Sequence

# Ours, by the words of theirs. Only those that the verb has are ever suggested.
SAME = {
    ("--optim.lr",): "lr lr0 learning-rate base-lr blr",
    ("--schedule.min-lr",): "lrf min-lr lr-min",
    ("--schedule.warmup",): "warmup-epochs warmup-iters warmup-steps",
    ("--schedule.name",): "sched scheduler lr-scheduler cos-lr",
    ("--optim.name",): "opt optimizer  optimiser",
    ("--optim.weight-decay",): "wd decay",
    ("--optim.clip-norm",): "clip-grad grad-clip clip-grad-norm max-grad-norm",
    ("--global-batch-size", "--batch-size"): "batch batch-size bs b ims-per-batch train-batch-size",
    ("--epochs",): "num-epochs max-epochs",
    ("--max-steps",): "max-iter max-iters iters iterations steps num-steps",
    ("--system",): "device devices gpu gpus num-gpus cuda accelerator",
    ("--system.precision",): "amp half fp16 bf16 dtype amp-dtype mixed-precision",
    ("--system.num-workers", "--workers"): "workers num-workers j",
    ("--system.compile",): "torchcompile",
    ("--input.auto-augment",): "aa auto-augment autoaugment",
    ("--input.random-erase",): "reprob random-erase random-erasing erasing",
    ("--input.hflip",): "hflip fliplr",
    ("--input.vflip",): "flipud",
    ("--input.mixup-alpha",): "mixup mixup-alpha",
    ("--input.cutmix-alpha",): "cutmix cutmix-alpha",
    ("--input.scale-jitter",): "scale lsj",
    ("--input.rot90",): "rotate90 random-rotate90",
    ("--input.image-size", "--input.min-size"): "imgsz img img-size image-size input-size resolution",
    ("--weights",): "pretrained initial-checkpoint init-checkpoint ckpt load-from",
    ("--data",): "data-dir data-path dataset data-root",
    ("--output-dir",): "name project output save-dir work-dir experiment run-name",
    ("--score-threshold", "--model.detect.score-threshold"): "conf confidence conf-thres score-thr threshold",
    ("--nms-iou", "--model.detect.nms-iou"): "iou iou-thres nms",
    ("--max-detections", "--model.detect.max-detections"): "max-det topk",
    ("--model.freeze-stages",): "freeze freeze-at frozen-stages",
    ("--optim.head-lr-factor",): "head-lr lr-head head-lr-mult",
    ("--optim.layer-decay",): "layer-decay-rate llrd",
    ("--model.label-smoothing",): "smoothing",
    ("--ema-decay",): "model-ema model-ema-decay ema-decay",
    ("--log-every",): "log-interval print-freq",
    ("--save-every",): "save-period save-interval checkpoint-period",
    ("--eval-every",): "val-interval eval-interval eval-period",
    ("--keep-checkpoints",): "checkpoint-hist max-checkpoints save-total-limit",
    ("--max-train-images",): "fraction subset max-train-samples",
    ("--patience",): "early-stopping",
}
OURS = {word: flags for flags, words in SAME.items() for word in words.split()}
# Where there is no such flag because it is said in another way: (a flag of the verbs that this is about, what to do).
OTHERWISE = {
    "resume": ("--output-dir", "Pass the same --output-dir again to resume an unfinished run."),
    "continue": ("--output-dir", "Pass the same --output-dir again to resume an unfinished run."),
    "model": ("--weights", "The recipe sets the network (paceline list recipes), and --model.NAME flags change it."),
    "arch": ("--weights", "The recipe sets the network (paceline list recipes), and --model.NAME flags change it."),
    "config": ("--weights", "The recipe is the first argument, without a flag: a name or ./file.py:function."),
    "config-file": ("--weights", "The recipe is the first argument, without a flag: a name or ./file.py:function."),
    "num-classes": ("--weights", "The dataset determines the number of classes."),
    "nc": ("--weights", "The dataset determines the number of classes."),
    "source": ("--save-images", "Pass images and folders after the run, without a flag."),
}


def find_equivalent(word: str, known: Sequence[str]) -> tuple[list[str], str]:
    """What another tool's flag is called here -> (flags of ours, what to do instead of one); both empty for an unknown word.

    word    without its dashes in front
    known   the verb's flags
    """
    about, text = OTHERWISE.get(word, ("", ""))
    same = [flag for flag in OURS.get(word, ()) if flag in known]
    # The last part of a flag is what other tools call it: --momentum is --optim.momentum.
    same += [flag for flag in known if flag.endswith(f".{word}") and flag not in same]
    return same, text if about in known else ""
