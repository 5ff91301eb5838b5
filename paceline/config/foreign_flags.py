"""Flags of other tools (timm, Ultralytics, detectron2, mmdetection, Hugging Face, torchvision's scripts), and ours for them."""

from __future__ import annotations

from collections.abc import Sequence

# Ours, by the words of theirs. A word is accepted for the first flag that the command has. A word with ~ has another unit or other
# values there: it is only suggested.
SAME = {
    ("--optim.lr",): "lr lr0 learning-rate base-lr ~blr",
    ("--schedule.min-lr",): "min-lr lr-min ~lrf",
    ("--schedule.warmup",): "~warmup-epochs ~warmup-iters ~warmup-steps",
    ("--schedule.name",): "sched lr-scheduler lr-scheduler-type",
    ("--optim.name",): "opt optim optimizer",
    ("--optim.weight-decay",): "wd ~decay",
    ("--optim.clip-norm",): "clip-grad grad-clip clip-grad-norm max-grad-norm",
    (
        "--global-batch-size",
        "--batch-size",
    ): "batch batch-size bs b ims-per-batch train-batch-size ~per-device-train-batch-size",
    ("--epochs",): "num-epochs max-epochs num-train-epochs",
    ("--max-steps",): "max-iter max-iters iters iterations steps num-steps",
    ("--system",): "device ~devices ~gpu ~gpus ~num-gpus ~cuda ~accelerator",
    ("--system.precision",): "dtype amp-dtype ~amp ~mixed-precision",
    ("--system.num-workers", "--workers"): "workers num-workers j dataloader-num-workers",
    ("--input.auto-augment",): "aa auto-augment autoaugment",
    ("--input.random-erase",): "reprob random-erase random-erasing erasing",
    ("--input.hflip",): "hflip fliplr",
    ("--input.vflip",): "flipud",
    ("--input.mixup-alpha",): "mixup-alpha ~mixup",
    ("--input.cutmix-alpha",): "cutmix-alpha ~cutmix",
    ("--input.mosaic-prob",): "mosaic",
    ("--input.scale-jitter",): "~scale ~lsj",
    ("--input.rot90",): "rotate90 random-rotate90",
    ("--input.image-size",): "imgsz img img-size image-size input-size resolution",
    ("--input.min-size",): "~imgsz ~img ~img-size ~image-size ~input-size ~resolution",
    ("--weights",): "initial-checkpoint init-checkpoint ckpt load-from ~pretrained",
    ("--data",): "data-dir data-path dataset data-root",
    ("--output-dir",): "save-dir work-dir ~name ~project ~output ~experiment ~run-name",
    ("--score-threshold", "--model.detect.score-threshold"): "conf confidence conf-thres score-thr threshold",
    ("--nms-iou", "--model.detect.nms-iou"): "iou iou-thres nms",
    ("--max-detections", "--model.detect.max-detections"): "max-det ~topk",
    ("--frame-stride",): "vid-stride",
    ("--save-formats",): "~save-txt ~save-json",
    ("--model.freeze-stages",): "~freeze ~freeze-at ~frozen-stages ~trainable-backbone-layers",
    ("--optim.head-lr-factor",): "head-lr-mult ~head-lr ~lr-head",
    ("--optim.layer-decay",): "layer-decay-rate llrd",
    ("--model.label-smoothing",): "smoothing label-smoothing-factor",
    ("--ema-decay",): "model-ema-decay ~model-ema",
    ("--log-every",): "log-interval print-freq logging-steps",
    ("--save-every",): "checkpoint-period save-steps ~save-period ~save-interval",
    ("--eval-every",): "eval-period eval-steps ~val-interval ~eval-interval",
    ("--keep-checkpoints",): "checkpoint-hist max-checkpoints save-total-limit",
    ("--max-train-images",): "max-train-samples ~fraction ~subset",
    ("--max-val-images",): "max-eval-samples",
    ("--patience",): "~early-stopping",
    ("--logger",): "report-to",
    ("--schedule.gamma",): "lr-gamma",
    ("--schedule.milestones",): "~lr-steps ~lr-step-size",
    ("--optim.no-decay",): "~norm-weight-decay ~bias-weight-decay",
    ("--system.micro-batch-size",): "~gradient-accumulation-steps ~grad-accum-steps ~accumulate",
}
FOREIGN = {word.removeprefix("~") for words in SAME.values() for word in words.split()}
ACCEPTED = {word: flags for flags, words in SAME.items() for word in words.split() if word[0] != "~"}
# Switches of theirs that are a value of ours.
SWITCHES = {
    "cos-lr": (("--schedule.name",), "cosine"),
    **dict.fromkeys(("half", "fp16"), (("--system.precision", "--precision"), "fp16")),
    "bf16": (("--system.precision",), "bf16"),
    "int8": (("--precision",), "int8"),
    "torchcompile": (("--system.compile",), "on"),
    "log-wandb": (("--logger",), "wandb"),
}
# Values of theirs that have another name here, by our flag.
VALUES: dict[str, dict[str, str]] = {
    "--optim.name": {},
    "--system": dict.fromkeys(("cuda", "cuda:0", "0", "gpu"), "gpu"),
    "--system.precision": {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"},
    "--schedule.name": {"cosineannealinglr": "cosine", "multisteplr": "multistep", "poly": "polynomial"},
}
# Where there is no such flag because it is said in another way: (a flag of the verbs that this is about, what to do).
OTHERWISE = {
    word: (flag, text)
    for words, flag, text in (
        ("resume continue", "--output-dir", "Pass the same --output-dir again to resume an unfinished run."),
        (
            "model arch drop-path",
            "--weights",
            "The recipe sets the network (paceline list recipes); --model.NAME changes it.",
        ),
        (
            "config config-file",
            "--weights",
            "The recipe is the first argument, without a flag: a name or ./file.py:function.",
        ),
        ("num-classes nc", "--weights", "The dataset determines the number of classes."),
        ("test-only eval-only", "--weights", "Run `paceline eval RUN` to evaluate a run."),
        ("world-size num-machines", "--weights", "Start ranks with torchrun or `paceline launch RECIPE --nodes N`."),
        ("input source", "--save-images", "Pass images and folders after the run, without a flag."),
    )
    for word in words.split()
}


def accept_foreign(words: Sequence[str], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Replace other tools' flags whose meaning, unit, and values are those of ours.

    Args:
        words: a command's arguments.
        known: the command's flags.

    Returns:
        The arguments with our flags, and one line per replaced flag: "--lr sets --optim.lr".
    """
    result, notes, flag = [], [], ""
    for word in words:
        name, equals, value = word.partition("=")
        bare = name.lstrip("-").replace("_", "-")
        if not name.startswith("--") and name not in ("-b", "-j"):
            result.append(_translate_value(flag, word))
            if flag:
                notes[-1] += f" {result[-1]}"
            flag = ""
            continue
        ends = [one for one in known if one.endswith(f".{bare}")] if bare not in FOREIGN else []
        flags, setting = SWITCHES.get(bare, (ACCEPTED.get(bare, ends if len(ends) == 1 else ()), ""))
        ours = [one for one in flags if one in known]
        flag = ""
        if f"--{bare}" in known or not ours:
            result.append(word)
            continue
        setting = _translate_value(ours[0], value) if equals else setting
        result += [ours[0], setting] if setting else ours[:1]
        notes.append(f"{name} sets {ours[0]} {setting}".rstrip())
        flag = "" if setting else ours[0]
    return result, notes


def _translate_value(flag: str, value: str) -> str:
    """Return our name of a value that another tool's user gave to our flag."""
    small = value.lower()
    return VALUES[flag].get(small, small) if flag in VALUES else value


def find_equivalent(word: str, known: Sequence[str]) -> tuple[list[str], str]:
    """What another tool's flag is called here -> (flags of ours, what to do instead of one); both empty for an unknown word.

    word    without its dashes in front
    known   the verb's flags
    """
    about, text = OTHERWISE.get(word, ("", ""))
    same = [
        flag for flags, words in SAME.items() if word in words.replace("~", "").split() for flag in flags if flag in known
    ]
    # The last part of a flag is what other tools call it: --momentum is --optim.momentum.
    same += [flag for flag in known if flag.endswith(f".{word}") and flag not in same]
    return same, text if about in known else ""
