"""Compare the numbers of short runs in two trees, bit for bit: an earlier commit (the base) and this one.

    python scripts/equal_bits.py --base                    # the commit BASE, in a temporary worktree
    python scripts/equal_bits.py --base ../before          # a `git worktree` of another commit
    python scripts/equal_bits.py --base --only maskrcnn --images ../shared/data/coco_mini

Each case is a `paceline train` with fixed thread counts and forms, in both trees at the same time. The script compares by value,
shape, dtype, and order: every tensor of each step's checkpoint, the losses and metrics, the batches of 20 steps, and the
predictions of `eval` and `predict`. The exit code is 1 if anything differs, or if a case runs in one tree only.

If this tree renames something, NAMES has a line for it: each tree then runs with its own names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from equal_bits_cases import CASES, Case
from safetensors import safe_open
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
BASE = "15da943f0295e38c1fd53635b8e2b164e51faa16"
# Names in the base -> names in this tree. A name is replaced as a whole word, also inside a dotted name: "trunk" -> "backbone"
# renames "trunk.stem.weight". A flag may have its value: "--system.layout nhwc" -> "--system.channels-last on".
NAMES: dict[str, dict[str, str]] = {
    "recipe": {"resnet50-tiny": "classify-demo", "ssd-tiny": "ssd-demo", "maskrcnn-tiny": "maskrcnn-demo"},
    # Commands too.
    "flag": {
        "--bn-span": "--bn-batch-size",
        "--global-batch": "--global-batch-size",
        "--keep": "--keep-checkpoints",
        "--no-pictures": "--no-save-images",
        "--out eval.json": "--output eval.json",
        "--out predicted": "--output-dir predicted",
        "--out run": "--output-dir run",
        "--score-above": "--score-threshold",
        "--steps": "--max-steps",
        "--input.augment rand": "--input.auto-augment randaugment",
        "--input.copy-paste": "--input.copy-paste-prob",
        "--input.crop": "--input.min-crop-scale",
        "--input.cutmix": "--input.cutmix-alpha",
        "--input.erase": "--input.random-erase",
        "--input.eval-resize": "--input.eval-resize-size",
        "--input.eval-size": "--input.eval-crop-size",
        "--input.long": "--input.max-size",
        "--input.mixup": "--input.mixup-alpha",
        "--input.mosaic": "--input.mosaic-prob",
        "--input.short": "--input.min-size",
        "--input.size": "--input.image-size",
        "--input.zoom-out": "--input.zoom-out-max",
        "--model.detect.keep": "--model.detect.max-detections",
        "--model.detect.score-above": "--model.detect.score-threshold",
        "--model.extras": "--model.extra-channels",
        "--model.loss-group": "--model.loss-normalizer-images",
        "--model.loss-over": "--model.loss-normalizer",
        "--model.channels": "--model.fpn-channels",
        "--model.roi.channels": "--model.roi.fc-channels",
        "--model.rpn.post-test": "--model.rpn.post-nms-topk-test",
        "--model.rpn.post-train": "--model.rpn.post-nms-topk-train",
        "--model.rpn.pre-test": "--model.rpn.pre-nms-topk-test",
        "--model.rpn.pre-train": "--model.rpn.pre-nms-topk-train",
        "--model.rpn.sizes": "--model.rpn.anchor-sizes",
        "--quality.targets": "--target",
        "--system.check-photos": "--system.verify-checksums",
        "--system.graph": "--system.cuda-graph",
        "--system.images-per-forward": "--system.micro-batch-size",
        "--system.loader-threads": "--system.num-workers",
    },
    # Files of a run, of `predict`, and of the images, and the groups of tensors in a checkpoint.
    "file": {"optimiser.safetensors": "optimizer.safetensors", "optimiser": "optimizer"},
    "event": {"picture": "annotated_image"},  # kinds of events and their keys, and the keys of JSON files
    "parameter": {},  # tensors of checkpoints and batches
    # Modules and identifiers in scripts/equal_bits_input.py.
    "python": {
        "paceline.command.flags": "paceline.cli.flags",
        "paceline.datasets.shapes.render": "paceline.data.shapes.render",
        "paceline.ranks.launcher": "paceline.distributed.comm.launcher",
        "paceline.ranks.world": "paceline.distributed.comm.world",
        "paceline.tasks.task": "paceline.models.task",
        "paceline.training.opening": "paceline.training.open_data",
        "Controls": "RunOptions",
        "open_world": "open_distributed",
        "parse_recipe": "parse_run_args",
        "shorten": "limit_steps",
        "images_per_forward": "micro_batch_size",
    },
}
STEPS, BATCHES = 6, 20
# The keys of an event that must not change. Rates and times belong to the machine.
KEPT = re.compile(r"loss.*|lr|samples|step|images|status|best|(top|box_|mask_).*|.*_loss")

# (step, file and name) -> tensor or text, in the order in which the files have them.
Outcome = dict[tuple[int, str], Tensor | str]


class CommandFailed(Exception):
    """A command of a case failed in one tree; the text has the command and the end of its output."""


def translate(text: str, names: Mapping[str, str]) -> str:
    """Replace every whole word that is a key of `names`, all at once, the longest key first."""
    if not names:
        return text
    keys = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])(?:{keys})(?![\w-])", lambda match: names[match[0]], text)


@cache
def _definitions(root: Path) -> set[str]:
    """The lines of a tree's package that begin a class, a function, or a field."""
    lines = (line for file in (root / "paceline").rglob("*.py") for line in file.read_text().splitlines())
    return {line for line in lines if line.startswith(("class ", "def ")) or re.match(r"    \w+: [A-Z]\w*(\[| =)", line)}


@dataclass(frozen=True)
class Tree:
    """One of the two trees, and the folder in which it runs the cases."""

    title: str
    root: Path
    place: Path
    is_base: bool

    def own(self, kind: str, text: str) -> str:
        """The name in this tree of what CASES and this script call by the new name.

        A base that is newer than BASE may have some modules, classes, and functions under their new names already.
        """
        if not self.is_base:
            return text
        names = {new: old for old, new in NAMES[kind].items()}
        if kind == "python":
            names = {new: old for new, old in names.items() if self._defines(old)}
        return translate(text, names)

    def _defines(self, name: str) -> bool:
        if "." in name:
            return (self.root / f"{name.replace('.', '/')}.py").is_file()
        return any(f" {name}{end}" in text for text in _definitions(self.root) for end in "(:")

    def new(self, kind: str, text: str) -> str:
        """The new name of what this tree calls `text`."""
        return translate(text, NAMES[kind]) if self.is_base else text

    def run(self, *words: str, ranks: int = 1, accept: tuple[int, ...] = (0,)) -> None:
        """Run Python with these words in the tree's folder. Raise CommandFailed for another exit code."""
        start = [sys.executable]
        if ranks > 1:
            start += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PACELINE_CACHE": str(self.place / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run([*start, *words], cwd=self.place, env=environment, capture_output=True, text=True)
        if done.returncode not in accept:
            output = (done.stdout + done.stderr)[-2000:]
            raise CommandFailed(f"{self.title} ({self.root}): exit code {done.returncode}: {shlex.join(words)}\n{output}")

    def input_program(self, *words: str) -> None:
        """Run scripts/equal_bits_input.py with the names of this tree."""
        program = self.place / "input.py"
        program.write_text(self.own("python", (ROOT / "scripts" / "equal_bits_input.py").read_text()))
        self.run(str(program), *words)

    def prepare_images(self, images: Path | None, kinds: set[str]) -> None:
        """Render the built-in images, or copy `images`: preparing them writes into their folder."""
        self.place.mkdir(parents=True)
        for kind in sorted(kinds):
            if images is None:
                self.input_program("render", kind, kind)
            else:
                shutil.copytree(images, self.place / kind)

    def outcome(self, case: Case, ranks: int, seed: int) -> Outcome:
        """Run one case and read what it wrote. Raise CommandFailed if one of its commands fails."""
        run = self.place / "run"
        shutil.rmtree(run, ignore_errors=True)
        recipe = self.own("recipe", case.recipe)
        flags = shlex.split(self.own("flag", f"{case.flags} --seed {seed} --data {case.kind}"))
        found: Outcome = {}
        if ranks < 2 and case.batches:
            self.input_program("batches", "batches.safetensors", str(BATCHES), recipe, *flags)
            for name, tensor in read_tensors(self.place / "batches.safetensors"):
                step, _, rest = self.new("parameter", name).partition(" ")
                found[int(step), rest] = tensor
        if ranks:
            steps = f"--output-dir run --max-steps {STEPS} --eval-every {STEPS // 2} --save-every 1 --log-every 1"
            steps += f" --keep-checkpoints {STEPS}"
            more = shlex.split(self.own("flag", f"{steps} --no-tensorboard"))
            self.run("-m", "paceline", self.own("flag", "train"), recipe, *flags, *more, ranks=ranks, accept=(0, 1))
            found |= self._events(run / self.own("file", "events.jsonl"))
            found |= self._checkpoints(run)
        if ranks == 1 and case.predicts:
            found |= self._predictions(case)
        return found

    def _checkpoints(self, run: Path) -> Outcome:
        found: Outcome = {}
        for folder in sorted((run / self.own("file", "checkpoints")).glob("step-*")):
            step = int(folder.name.removeprefix("step-"))
            for file in sorted(folder.glob("*.safetensors")):
                for name, tensor in read_tensors(file):
                    found[step, f"{self.new('file', file.name)}: {self.new('parameter', name)}"] = tensor
            content = json.loads((folder / self.own("file", "index.json")).read_text())
            index = {self.new("event", key): value for key, value in content.items()}
            for group, strides in index["strides"].items():
                for name, numbers in strides.items():
                    found[step, f"strides of {self.new('file', group)}: {self.new('parameter', name)}"] = str(numbers)
        return found

    def _events(self, file: Path) -> Outcome:
        found: Outcome = {}
        for line in file.read_text().splitlines():
            event = {self.new("event", key): value for key, value in json.loads(line).items()}
            kind = self.new("event", str(event["event"]))
            if kind in ("train", "eval", "end"):
                kept = {key: value for key, value in event.items() if KEPT.fullmatch(key)}
                found |= {(event["step"], f"{kind} event: {key}"): value for key, value in flatten(kept).items()}
        return found

    def _predictions(self, case: Case) -> Outcome:
        found: Outcome = {}
        photos = next(folder.name for folder in sorted((self.place / case.kind).glob("val*")) if folder.is_dir())
        predicting = "--output-dir predicted --no-save-images --score-threshold 0"
        commands = {
            "eval": (f"--data {case.kind} --output eval.json", "eval.json"),
            "predict": (f"{case.kind}/{photos} {predicting}", "predicted/predictions.json"),
        }
        for verb, (flags, file) in commands.items():
            self.run("-m", "paceline", *shlex.split(self.own("flag", f"{verb} run {flags}")))
            text = (self.place / self.own("file", file)).read_text().replace(f"{self.place}/", "")
            values = flatten(json.loads(text))
            found |= {(STEPS, f"{verb}: {self.new('event', name)}"): value for name, value in values.items()}
        return found


def read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file, in the order of its header."""
    with file.open("rb") as content:
        header = json.loads(content.read(int.from_bytes(content.read(8), "little")))
    with safe_open(file, "pt") as tensors:
        for name in header:
            if name != "__metadata__":
                yield name, tensors.get_tensor(name)


def flatten(value: Any) -> dict[str, Tensor | str]:
    """JSON as one tensor (or text) per path of keys: the elements of all lists on the way follow each other."""
    leaves: dict[str, list[Any]] = {}

    def visit(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inside in value.items():
                visit(f"{path}.{key}" if path else key, inside)
        elif isinstance(value, list):
            leaves.setdefault(f"{path} (lengths)", []).append(len(value))
            for inside in value:
                visit(path, inside)
        else:
            leaves.setdefault(path, []).append(value)

    visit("", value)
    return {
        path: torch.tensor(values, dtype=torch.float64)
        if all(isinstance(one, int | float) for one in values)
        else json.dumps(values)
        for path, values in leaves.items()
    }


def difference(base: Tensor | str, here: Tensor | str) -> str:
    """What differs between two values in words; "" if every bit is equal."""
    if isinstance(base, str) or isinstance(here, str):
        return "" if isinstance(base, type(here)) and base == here else f"{base!s:.80} in the base, {here!s:.80} here"
    for name, one, other in (("shape", tuple(base.shape), tuple(here.shape)), ("dtype", base.dtype, here.dtype)):
        if one != other:
            return f"{name} {one} in the base, {other} here"
    bits = [value.reshape(-1, 1).contiguous().view(torch.uint8) for value in (base, here)]
    count = int((bits[0] != bits[1]).any(dim=1).sum())
    largest = (base.double() - here.double()).abs().max().item() if count else 0.0
    return f"{count} of {base.numel()} values differ, largest difference {largest:.3g}" if count else ""


def compare(base: Outcome, here: Outcome) -> list[str]:
    """One line per difference, the first step first."""
    lines = []
    for key in sorted(dict.fromkeys([*base, *here]), key=lambda key: key[0]):
        if key not in base or key not in here:
            lines.append((key, "only here" if key in here else "only in the base"))
        elif text := difference(base[key], here[key]):
            lines.append((key, text))
    # Files sort their tensors by name: a renamed tensor may move in its file, the others keep their order.
    renamed = dict.fromkeys([*NAMES["parameter"].values(), *NAMES["event"].values()], "")
    both = {key for key in base if key in here and translate(key[1], renamed) == key[1]}
    orders = (
        sorted((key for key in one if key in both), key=lambda key: (key[0], key[1].partition(": ")[0]))
        for one in (base, here)
    )
    moved = next((one for one, other in zip(*orders) if one != other), None)
    if moved is not None:
        lines.append((moved, "has another place in the order of the tensors here"))
    return [f"step {step}, {name}: {text}" for (step, name), text in sorted(lines, key=lambda line: line[0][0])]


def examine(title: str, trees: tuple[Tree, Tree], case: Case, ranks: int, seed: int) -> bool:
    """Run one case in both trees, print the result, and return True if it is equal."""

    def attempt(tree: Tree) -> Outcome | str:
        try:
            return tree.outcome(case, ranks, seed)
        except CommandFailed as failed:
            return f"  {failed}"

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        base, here = pool.map(attempt, trees)
    seconds = f"{time.monotonic() - began:.0f} s"
    failures = [text for text in (base, here) if isinstance(text, str)]
    if isinstance(base, str) or isinstance(here, str):
        which = "both trees" if len(failures) == 2 else trees[0].title if isinstance(base, str) else trees[1].title
        print(f"FAILED   {title}: the case does not run in {which} ({seconds})", *failures, sep="\n", flush=True)
        return False
    lines = compare(base, here)
    if lines or not here:
        print(f"DIFFERS  {title}: {len(lines)} of {len(here)} values ({seconds})", flush=True)
        print(*(f"  {line}" for line in lines[:8]), *[f"  and {len(lines) - 8} more"][: len(lines) > 8], sep="\n")
        return False
    print(f"equal    {title}: {len(here)} values ({seconds})", flush=True)
    return True


@contextmanager
def base_tree(asked: str) -> Iterator[Path]:
    """The folder `asked`, or a temporary worktree of the commit BASE if it is empty."""
    if asked:
        if not (Path(asked) / "paceline" / "__init__.py").is_file():
            print(
                f"--base {asked}: paceline/__init__.py not found. Give the top folder of a git worktree.", file=sys.stderr
            )
            sys.exit(2)
        yield Path(asked).resolve()
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder, git = Path(scratch) / "base", ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), BASE], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def main() -> int:
    """Run the cases in both trees; return 1 if one differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", nargs="?", const="", required=True, metavar="DIR", help="base tree; no DIR: BASE")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose title matches")
    parser.add_argument("--images", type=Path, metavar="DIR", help="COCO or class folders instead of built-in images")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    kinds = {"classes", "boxes"}
    if flags.images is not None:
        if not flags.images.is_dir():
            parser.error(f"--images {flags.images}: folder not found")
        kinds = {"boxes" if (flags.images / "annotations").is_dir() else "classes"}
    for kind, names in NAMES.items():
        if len(set(names.values())) < len(names):
            parser.error(f"NAMES[{kind!r}]: two names in the base have the same name here")
    cases = [
        (f"{name}, {f'{ranks} rank' + 's' * (ranks > 1) if ranks else 'batches'}", case, ranks)
        for name, case in CASES.items()
        if case.kind in kinds
        for ranks in case.ranks or (0,)
    ]
    cases = [case for case in cases if re.search(flags.only, case[0])]
    if not cases:
        parser.error(f"--only {flags.only}: no case matches")
    equal = 0
    with base_tree(flags.base) as base, tempfile.TemporaryDirectory() as lab:
        trees = Tree("the base", base, Path(lab) / "base", True), Tree("this tree", ROOT, Path(lab) / "here", False)
        kinds = {case.kind for _, case, _ in cases}
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda tree: tree.prepare_images(flags.images, kinds), trees))
        except CommandFailed as failed:
            print(f"error: the images are not prepared. {failed}", file=sys.stderr)
            return 1
        for title, case, ranks in cases:
            equal += examine(title, trees, case, ranks, flags.seed)
    print(f"{equal} of {len(cases)} cases are equal")
    return int(equal < len(cases))


if __name__ == "__main__":
    sys.exit(main())
