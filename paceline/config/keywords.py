"""Keywords of the Python call: run controls and fields of a recipe, checked as flags are; and other tools' words for them."""

from __future__ import annotations

import difflib
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from paceline.config.bounds import checked, hints_of
from paceline.config.errors import UserError
from paceline.config.recipe import NO_FLAG, Recipe
from paceline.config.run import Controls, fill
from paceline.config.submission import Submission

# Ours, by the words of theirs. Only those that the verb has are ever suggested.
SAME = {
    ("--optim.lr",): "lr lr0 learning-rate base-lr blr",
    ("--schedule.end-lr",): "lrf min-lr lr-min",
    ("--schedule.warmup",): "warmup-epochs warmup-iters warmup-steps",
    ("--schedule.kind",): "sched scheduler lr-scheduler cos-lr",
    ("--optim.kind",): "opt optimizer optimiser",
    ("--optim.weight-decay",): "wd decay",
    ("--optim.clip-norm",): "clip-grad grad-clip clip-grad-norm max-grad-norm",
    ("--global-batch", "--batch"): "batch batch-size bs b ims-per-batch train-batch-size",
    ("--epochs",): "num-epochs max-epochs",
    ("--steps",): "max-iter max-iters iters iterations max-steps num-steps",
    ("--system",): "device devices gpu gpus num-gpus cuda accelerator",
    ("--system.precision",): "amp half fp16 bf16 dtype amp-dtype mixed-precision",
    ("--system.loader-threads", "--workers"): "workers num-workers j",
    ("--system.compile",): "torchcompile",
    ("--input.size", "--input.short"): "imgsz img img-size image-size input-size resolution",
    ("--weights",): "pretrained initial-checkpoint init-checkpoint ckpt load-from",
    ("--data",): "data-dir data-path dataset data-root",
    ("--out",): "name project output output-dir save-dir work-dir experiment run-name",
    ("--score-above", "--model.detect.score-above"): "conf confidence conf-thres score-thr threshold",
    ("--model.detect.iou",): "iou iou-thres nms",
    ("--model.detect.keep",): "max-det topk",
    ("--model.frozen",): "freeze",
    ("--model.label-smoothing",): "smoothing",
    ("--ema",): "model-ema model-ema-decay ema-decay",
    ("--log-every",): "log-interval print-freq",
    ("--save-every",): "save-period save-interval checkpoint-period",
    ("--eval-every",): "val-interval eval-interval eval-period",
    ("--keep",): "checkpoint-hist max-checkpoints",
    ("--limit-train",): "fraction subset",
    ("--exact",): "deterministic",
    ("--patience",): "early-stopping",
}
OURS = {word: flags for flags, words in SAME.items() for word in words.split()}
# Where there is no such flag because it is said in another way: (a flag of the verbs that this is about, what to do).
OTHERWISE = {
    "resume": ("--out", "Name the same --out again: an unfinished run goes on."),
    "continue": ("--out", "Name the same --out again: an unfinished run goes on."),
    "model": ("--weights", "The recipe names the network (paceline list recipes), its parts are flags --model.NAME."),
    "arch": ("--weights", "The recipe names the network (paceline list recipes), its parts are flags --model.NAME."),
    "config": ("--weights", "The recipe comes first, without a flag: a name, or ./file.py:function of your own."),
    "config-file": ("--weights", "The recipe comes first, without a flag: a name, or ./file.py:function of your own."),
    "num-classes": ("--weights", "Classes are those of the data."),
    "nc": ("--weights", "Classes are those of the data."),
    "source": ("--score-above", "Photos and folders follow the run, without a flag."),
}


def elsewhere(word: str, known: Sequence[str]) -> tuple[list[str], str]:
    """What another tool's flag is called here -> (flags of ours, what to do instead of one); both empty for an unknown word.

    word    without its dashes in front
    known   the verb's flags
    """
    about, text = OTHERWISE.get(word, ("", ""))
    same = [flag for flag in OURS.get(word, ()) if flag in known]
    # The last part of a flag is what other tools call it: --momentum is --optim.momentum.
    same += [flag for flag in known if flag.endswith(f".{word}") and flag not in same]
    return same, text if about in known else ""


# Keywords of the call itself.
OWN = ("data", "out", "system", "changes")


def controls_and_changes(
    recipe: Recipe, keywords: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[Controls, dict[str, Any]]:
    """What the call's keywords ask of the run, and every change of the recipe: dotted names, as `override` takes them.

    changes  dotted names that were given as such
    Raises UserError for a keyword that is neither, naming its nearest neighbours, and for a value of another type.
    """
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise UserError('changes is a dict of dotted names, as changes={"optim.lr": 0.01}.')
    hints = hints_of(Controls)
    of_recipe = {entry.name for entry in fields(recipe)} - {NO_FLAG}
    controls: dict[str, Any] = {}
    of_mlperf = {name.partition(".")[2]: value for name, value in changes.items() if name.startswith("mlperf.")}
    if of_mlperf and "mlperf" in keywords:
        raise UserError("mlperf is given as a keyword and in changes: give it once.")
    if of_mlperf:
        keywords = {**keywords, "mlperf": of_mlperf}
    changed = {name: _plain(value) for name, value in changes.items() if not name.startswith("mlperf.")}
    for name, value in keywords.items():
        if name == "mlperf":
            controls[name] = _submission(value)
        elif name == "sink" and isinstance(value, str):
            controls[name] = (value,)
        elif name in hints:
            controls[name] = checked(hints[name], _plain(value), name)
        elif name not in of_recipe:
            raise UserError(f"there is no keyword {name!r}.{_nearest(name, recipe)}")
        elif name in changes:
            raise UserError(f"{name} is given as a keyword and in changes: give it once.")
        else:
            changed[name] = _plain(value)
    return Controls(**controls), changed


def _submission(value: Any) -> Submission:
    """mlperf=... as a dict of its fields, or as a Submission."""
    facts = asdict(value) if isinstance(value, Submission) else value
    known = [entry.name for entry in fields(Submission)]
    if not isinstance(facts, Mapping):
        raise UserError(f'mlperf is {value!r:.60}: must be a dict of its fields, as mlperf={{"submitter": "Us"}}.')
    if unknown := [name for name in facts if name not in known]:
        raise UserError(f"mlperf has no field {unknown[0]!r:.60}. Known: {', '.join(known)}.")
    return fill(Submission(), {name: _plain(one) for name, one in facts.items()}, "mlperf")


def _plain(value: Any) -> Any:
    """Paths as text, and other libraries' numbers (numpy's) as Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _nearest(name: str, recipe: Recipe) -> str:
    below = dict(_dotted(recipe))
    of_recipe = (entry.name for entry in fields(recipe) if entry.name != NO_FLAG)
    whole = [*OWN, *(entry.name for entry in fields(Controls)), *of_recipe]
    same, _ = elsewhere(name.replace("_", "-"), [f"--{one.replace('_', '-')}" for one in (*whole, *below)])
    near = [flag.removeprefix("--").replace("-", "_") for flag in same]
    near = near or [dotted for dotted, last in below.items() if last == name]
    near = near or difflib.get_close_matches(name, [*whole, *below], n=2, cutoff=0.5)
    ways = [f'changes={{"{one}": ...}}' if "." in one else f"{one}=..." for one in near[:3]]
    hint = f" Did you mean {' or '.join(ways)}?" if ways else ""
    return f"{hint} Keywords: {', '.join(dict.fromkeys(whole))}; fields below these, as optim.lr, go into changes."


def _dotted(node: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Every field below a recipe's own: (optim.lr, lr)."""
    for entry in fields(node):
        value, name = getattr(node, entry.name), f"{above}{entry.name}"
        if is_dataclass(value):
            yield from _dotted(value, f"{name}.")
        elif above:
            yield name, entry.name
