"""What users of other tools type by habit, and how each command is received: it works, it is answered with the right line, or neither.

    python scripts/first_guesses.py                  # a Markdown table on stdout, and the counts
    python scripts/first_guesses.py --misses         # those that neither work nor get the right answer, with their answers

A command *works* where it gets past the parser and sets what its user means. It is *answered* where it is refused with exit code 2
and the message names the right flag or command. Nothing is trained: a command ends once its flags are parsed.
The table was written before the flags were renamed, from the manuals of the tools, and names what an answer has to contain: any one
of the names that a setting has had.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

# Recipes for one's own images of the three networks, as the menu names them now.
RECIPES = {"CLS": "classify-finetune", "SSD": "ssd-finetune", "MASK": "maskrcnn-finetune"}
DATA = "--data DIR"
KINDS = ("works", "answered", "missed")

# Tool -> rows: a command without its first word, and a pattern of what has to be set or named. CLS, SSD and MASK stand for recipes.
GUESSES: dict[str, tuple[tuple[str, str], ...]] = {
    "Ultralytics": (
        (f"train SSD {DATA} --epochs 100 --imgsz 640", r"input\.(image_)?size"),
        (f"train SSD {DATA} --batch 16", r"global_batch_size|micro_batch_size"),
        (f"train SSD {DATA} --device cpu", r"--system\b|system"),
        (f"train SSD {DATA} --device 0,1", r"torchrun|per_node|ranks_per_node|launch"),
        (f"train SSD {DATA} --workers 8", r"num_workers"),
        (f"train SSD {DATA} --project runs --name first", r"\bout\b|output_dir"),
        (f"train SSD {DATA} --lr0 0.01", r"optim\.lr"),
        (f"train SSD {DATA} --lrf 0.01", r"schedule\.(end|min)_lr"),
        (f"train SSD {DATA} --patience 20", r"patience"),
        (f"train SSD {DATA} --resume", r"same --out(put-dir)?"),
        (f"train SSD {DATA} --freeze 2", r"model\.(freeze|frozen)(_stages)?"),
        (f"train SSD {DATA} --cos_lr", r"schedule\.(kind|name)"),
        (f"train SSD {DATA} --mosaic 0", r"input\.mosaic(_prob)?"),
        (f"train SSD {DATA} --half", r"system\.precision"),
        (f"train SSD {DATA} --optimizer AdamW", r"optim\.(kind|name)"),
        (f"train SSD {DATA} --seed 0", r"seed"),
        (f"train SSD {DATA} --save-period 5", r"save_every"),
        (f"train SSD {DATA} --fraction 0.1", r"limit_train|max_train_images"),
        (f"train SSD {DATA} --deterministic", r"exact|deterministic"),
        (f"train SSD {DATA} --weights yolo11n.pt", r"weights"),
        ("val RUN --data DIR", r"eval RUN|^run$"),
        ("eval RUN --conf 0.25 --iou 0.6", r"score_(above|threshold)"),
        ("predict RUN photo.jpg --conf 0.25", r"score_(above|threshold)"),
        ("predict RUN --source photos", r"photos|images|without a flag"),
        ("predict RUN photos --max-det 100", r"max_(objects|detections)"),
        ("predict RUN photos --save-txt", r"write|save_formats"),
        ("predict RUN photos --save-crop", r"crop"),
        ("predict RUN video.mp4 --vid-stride 5", r"every|frame_stride"),
        ("detect RUN photos", r"predict RUN|^run$"),
        ("export RUN --format onnx --output m.onnx", r"\bto\b|format"),
        ("export RUN --output m.onnx --imgsz 640", r"\bsize\b|image_size"),
        ("export RUN --output m.onnx --batch 8", r"\bbatch(_size)?\b"),
        ("export RUN --format openvino --int8 --output m.xml", r"calibrat"),
        ("benchmark RUN", r"\bbench\b"),
    ),
    "timm": (
        ("train CLS --data-dir DIR", r"--data\b|\bdata\b"),
        (f"train CLS {DATA} --opt adamw --lr 1e-3", r"optim\.(kind|name)"),
        (f"train CLS {DATA} -b 128", r"global_batch_size"),
        (f"train CLS {DATA} --batch-size 128", r"global_batch_size"),
        (f"train CLS {DATA} -j 8", r"num_workers"),
        (f"train CLS {DATA} --sched cosine", r"schedule\.(kind|name)"),
        (f"train CLS {DATA} --warmup-epochs 5", r"schedule\.warmup"),
        (f"train CLS {DATA} --min-lr 1e-6", r"schedule\.(end|min)_lr"),
        (f"train CLS {DATA} --model-ema", r"--ema-decay\b|ema(_decay)?"),
        (f"train CLS {DATA} --aa rand-m9-mstd0.5", r"input\.(auto_)?augment"),
        (f"train CLS {DATA} --reprob 0.25", r"input\.(random_)?erase"),
        (f"train CLS {DATA} --mixup 0.2 --cutmix 1.0", r"input\.mixup"),
        (f"train CLS {DATA} --smoothing 0.1", r"model\.label_smoothing"),
        (f"train CLS {DATA} --num-classes 10", r"[Cc]lasses are those of the data|classes of the data|number of classes"),
        (f"train CLS {DATA} --pretrained", r"weights"),
        (f"train CLS {DATA} --model resnet50", r"list recipes|recipe"),
        (f"train CLS {DATA} --initial-checkpoint w.pth", r"weights"),
        (f"train CLS {DATA} --output out --experiment first", r"\bout\b|output_dir"),
        (f"train CLS {DATA} --log-interval 10", r"log_every"),
        (f"train CLS {DATA} --checkpoint-hist 3", r"keep(_checkpoints)?"),
        (f"train CLS {DATA} --amp --amp-dtype bfloat16", r"system\.precision"),
        (f"train CLS {DATA} --torchcompile", r"system\.compile"),
        (f"train CLS {DATA} --clip-grad 1.0", r"optim\.clip_norm"),
        (f"train CLS {DATA} --layer-decay 0.75", r"optim\.layer_decay"),
        (f"train CLS {DATA} --drop-path 0.1", r"list recipes|model\."),
        (f"train CLS {DATA} --log-wandb", r"sink|logger"),
        ("validate RUN", r"eval RUN|^run$"),
        ("eval RUN --batch-size 64", r"\bbatch(_size)?\b"),
    ),
    "torchvision": (
        ("train MASK --data-path DIR", r"--data\b|\bdata\b"),
        (f"train MASK {DATA} --lr-steps 16 22", r"schedule\.(boundaries|milestones)"),
        (f"train MASK {DATA} --lr-gamma 0.1", r"schedule\.(factor|gamma)"),
        (f"train MASK {DATA} --lr-scheduler cosineannealinglr", r"schedule\.(kind|name)"),
        (f"train MASK {DATA} --output-dir out", r"\bout\b|output_dir"),
        (f"train MASK {DATA} --print-freq 20", r"log_every"),
        (f"train MASK {DATA} --test-only", r"eval RUN|paceline eval"),
        (f"train MASK {DATA} --trainable-backbone-layers 3", r"model\.(freeze|frozen)(_stages)?"),
        (f"train MASK {DATA} --weights-backbone ResNet50_Weights.IMAGENET1K_V1", r"weights"),
        (f"train MASK {DATA} --rpn-score-thresh 0.05", r"model\.(rpn|detect)"),
        (f"train CLS {DATA} --auto-augment ta_wide", r"input\.(auto_)?augment"),
        (f"train CLS {DATA} --random-erase 0.1", r"input\.(random_)?erase"),
        (f"train CLS {DATA} --label-smoothing 0.1", r"model\.label_smoothing"),
        (f"train CLS {DATA} --mixup-alpha 0.2", r"input\.mixup"),
        (f"train CLS {DATA} --norm-weight-decay 0", r"optim\.no_decay"),
        (f"train CLS {DATA} --val-crop-size 224", r"input\.eval_(crop_)?size"),
        (f"train CLS {DATA} --model-ema-decay 0.999", r"ema(_decay)?"),
        (f"train CLS {DATA} --device cuda", r"--system\b|system"),
        (f"train CLS {DATA} --use-deterministic-algorithms", r"exact|deterministic"),
        (f"train CLS {DATA} --world-size 8", r"torchrun|launch|nodes"),
    ),
    "detectron2": (
        ("train --config-file mask_rcnn_R_50_FPN_1x.yaml", r"list recipes|recipe"),
        (f"train MASK {DATA} --num-gpus 8", r"--system\b|torchrun|launch|per_node"),
        (f"train MASK {DATA} --num-machines 2", r"launch|nodes"),
        (f"train MASK {DATA} SOLVER.BASE_LR 0.02", r"optim\.lr"),
        (f"train MASK {DATA} --eval-only", r"eval RUN|paceline eval"),
        (f"train MASK {DATA} --max-iter 90000", r"--(max-)?steps|\b(max_)?steps"),
        (f"train MASK {DATA} --ims-per-batch 16", r"global_batch_size"),
        (f"train MASK {DATA} --base-lr 0.02", r"optim\.lr"),
        (f"train MASK {DATA} --freeze-at 2", r"model\.(freeze|frozen)(_stages)?"),
        ("predict RUN --input photo.jpg --output out", r"photos|images|without a flag"),
        ("predict RUN photos --confidence-threshold 0.5", r"score_(above|threshold)"),
        ("test RUN", r"eval RUN|^run$"),
        ("analyze RUN", r"mlperf analy[sz]e"),
    ),
    "Hugging Face": (
        (f"train CLS {DATA} --output_dir out", r"\bout\b|output_dir"),
        (f"train CLS {DATA} --learning_rate 5e-5", r"optim\.lr"),
        (f"train CLS {DATA} --per_device_train_batch_size 8", r"global_batch_size|micro_batch_size"),
        (f"train CLS {DATA} --num_train_epochs 3", r"epochs"),
        (f"train CLS {DATA} --max_steps 1000", r"--(max-)?steps|\b(max_)?steps"),
        (f"train CLS {DATA} --bf16", r"system\.precision"),
        (f"train CLS {DATA} --report_to wandb", r"sink|logger"),
        (f"train CLS {DATA} --gradient_accumulation_steps 4", r"micro_batch_size"),
        (f"train CLS {DATA} --save_total_limit 3", r"keep(_checkpoints)?"),
        (f"train CLS {DATA} --max_train_samples 500", r"limit_train|max_train_images"),
    ),
}

# Runs the command that follows, and prints the names of the fields that its flags changed instead of doing what they ask for.
PARSE = """
import dataclasses, json, sys

from paceline._utils.names import flatten
from paceline.cli import flags
from paceline.cli.main import main

parse, parse_run_args = flags.parse, flags.parse_run_args


def parsed(names):
    print("PARSED", json.dumps(sorted(names)))
    sys.stdout.flush()
    import os

    os._exit(0)


def stop_after_parse(printer, arguments, default, *rest, **named):
    result = parse(printer, arguments, default, *rest, **named)
    before, after = dataclasses.asdict(default), dataclasses.asdict(result)
    parsed(name for name in after if after[name] != before[name])


def stop_after_run_args(*words, **named):
    parsed(parse_run_args(*words, **named).given)


flags.parse, flags.parse_run_args = stop_after_parse, stop_after_run_args
sys.exit(main(sys.argv[1:]))
"""


def receive(words: str, wanted: str) -> tuple[str, str]:
    """How one command is received -> ("works", "answered" or "missed"; what it set or printed)."""
    for short, name in RECIPES.items():
        words = re.sub(rf"\b{short}\b", name, words)
    command = [sys.executable, "-c", PARSE, *shlex.split(words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.stdout.startswith("PARSED"):
        names = json.loads(done.stdout.removeprefix("PARSED"))
        return ("works" if any(re.search(wanted, name) for name in names) else "missed"), ", ".join(names)
    text = (done.stdout + done.stderr).strip()
    flags = text.replace("-", "_")  # a field is written with _ in Python and with - as a flag
    right = done.returncode == 2 and (re.search(wanted, text) or re.search(wanted, flags))
    return ("answered" if right else "missed"), text


def main() -> None:
    """Print the table, or the commands that are missed."""
    words = argparse.ArgumentParser()
    words.add_argument("--misses", action="store_true")
    misses = words.parse_args().misses
    rows = [(tool, *row) for tool, some in GUESSES.items() for row in some]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda row: receive(*row[1:]), rows))
    if misses:
        for (tool, command, wanted), (outcome, text) in zip(rows, results, strict=True):
            if outcome == "missed":
                print(f"{tool}: paceline {command}\n  wanted: {wanted}\n  {text}\n")
        return
    print("| tool | command | outcome |\n| --- | --- | --- |")
    for (tool, command, _), (outcome, _) in zip(rows, results, strict=True):
        print(f"| {tool} | `paceline {command}` | {outcome} |")
    counts = Counter((tool, outcome) for (tool, *_), (outcome, _) in zip(rows, results, strict=True))
    print("\n| tool | commands | work | answered | missed |\n| --- | --- | --- | --- | --- |")
    for tool in [*GUESSES, "all"]:
        numbers = [
            sum(n for (one, kind), n in counts.items() if tool in (one, "all") and kind == outcome) for outcome in KINDS
        ]
        print(f"| {tool} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")


if __name__ == "__main__":
    main()
