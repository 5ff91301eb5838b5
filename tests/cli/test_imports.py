"""What each command imports, held as a list: libraries come in where they are used, and nobody pays for another's.

One process imports torch and then forks for each command, which tells what came on top; so the list costs one import of torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from by_night import ONE_MORE
from shared_runs import MASKRCNN, SSD
from tiny_runs import TINY

import paceline

ROOT = Path(paceline.__file__).parents[1]

# Reads [[name, words], ...]; writes {name: [exit code, modules on top of torch's own, or of Python's where it needs none]}.
PROGRAM = """
import json, os, sys

def forked(words, result):
    if os.fork():
        os.wait()
        return
    before = set(sys.modules)
    from paceline.training.logging.event_logger import EventLogger

    def tell(code):
        with open(result, "w") as file:
            json.dump([code, sorted(set(sys.modules) - before)], file)
        os._exit(0)

    EventLogger.train = lambda *_, **__: tell(0)  # at the first step
    from paceline.cli.main import main

    tell(main(words))

light, heavy, folder = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for name, words in light.items():
    forked(words, f"{folder}/{name}.json")
import torch
# The first time counts the memory of each network, which is remembered; those of the runs are known from the runs.
for name, words in [*((name, words) for name, words in heavy.items() if words[0] == "plan"), *heavy.items()]:
    forked(words, f"{folder}/{name}.json")
"""
STDLIB = {*sys.stdlib_module_names, "__main__", "__mp_main__"}
PARSER = {"tyro", "typeguard", "docstring_parser", "typing_extensions"}
SHOW = {"PIL", "safetensors", "typing_extensions"}  # no flag, no parser
PREDICT = SHOW | PARSER | {"simplejpeg", "packaging"}  # safetensors before 0.6 compares torch's version with it
# Live progress; TensorBoard with what it is made of, and MLPerf's logger, where it is installed.
# TensorBoard's writer takes boto3 along where it is installed, as it is beside the tests' server of buckets.
BOTO3 = {"boto3", "botocore", "certifi", "dateutil", "jmespath", "s3transfer", "six", "urllib3"}
TRAIN = PREDICT | {"rich", "pygments", "markdown_it", "mdurl"} | BOTO3
TRAIN |= {
    "tensorboard",
    "google",
    "absl",
    "fsspec",
    "six",
    "mlperf_logging",
    "zstandard",
}  # the last by fsspec, where it is there
TRAIN |= {"jinja2", "markupsafe"}  # the check page of a set that training prepares itself
TASKS = {"classify-demo": "resnet", "ssd-demo": "ssd", "maskrcnn-demo": "maskrcnn"}
RECIPES = ["classify-demo", pytest.param("ssd-demo", marks=ONE_MORE), "maskrcnn-demo"]
# COCO's scores and run lengths, and the reader of YOLO's data.yaml, which looks at each data set with boxes.
OF_WORKLOAD: dict[tuple[str, str], set[str]] = {
    (verb, recipe): set() for verb in ("plan", "predict", "train") for recipe in TASKS
}
OF_WORKLOAD["predict", "maskrcnn-demo"] = {"hotcoco"}
OF_WORKLOAD["train", "ssd-demo"] = OF_WORKLOAD["train", "maskrcnn-demo"] = {"hotcoco", "yaml"}
# Of torch, what takes longer to import than all of paceline.
NEVER = ("torchvision", "sympy", "torch._dynamo", "torch._inductor", "torch.onnx", "torch.fx.experimental.symbolic_shapes")


# Further commands, which by day would cost a process each.
BY_NIGHT = {"version": 0, "unknown verb": 2, "no recipe": 2, "unknown recipe": 2, "batch without lr": 2, "missing run": 2,
            "missing test set": 2}  # fmt: skip


@pytest.fixture(scope="module")
def imported(tmp_path_factory, resnet_run, ssd_run, maskrcnn_run, nightly) -> dict[str, tuple[int, list[str]]]:
    """Command -> its exit code, and the modules that came in for it."""
    folder = tmp_path_factory.mktemp("imports")
    ssd, maskrcnn = SSD.split(), MASKRCNN.split()
    runs = {"classify-demo": (resnet_run, TINY), "ssd-demo": (ssd_run, ssd), "maskrcnn-demo": (maskrcnn_run, maskrcnn)}
    light = {
        "help": ["--help"],
        "version": ["--version"],
        "unknown verb": ["trian"],
        "no recipe": ["train"],
        "help of a recipe": ["train", "resnet50", "--help"],
        "unknown recipe": ["train", "classify-dmeo"],
        "unknown flag": ["train", "ssd-demo", "--lrr", "1"],
        "batch without lr": ["train", "maskrcnn-demo", "--global-batch-size", "3"],
        "missing data": ["train", "ssd-demo", "--data", str(folder / "none")],
        "missing run": ["eval", str(folder / "none")],
        "missing run to predict with": ["predict", str(folder / "none"), str(ssd_run.data)],
        "missing test set": ["eval", str(ssd_run.folder), "--data", str(folder / "none")],
        "threshold beyond 1": ["eval", str(ssd_run.folder), "--nms-iou", "2"],
        "finished run": [
            "train",
            "ssd-demo",
            "--data",
            str(ssd_run.data),
            "--output-dir",
            str(ssd_run.folder),
            *SSD.split(),
            "--max-steps",
            "6",
        ],
        "runs": ["runs", str(ssd_run.folder.parent)],
        "list": ["list", "recipes"],
    }
    if not nightly:
        light = {name: words for name, words in light.items() if name not in BY_NIGHT}
        del runs["ssd-demo"]
    heavy = {}
    for recipe, (run, flags) in runs.items():
        photo = next(path for path in sorted(run.data.rglob("*.*g")) if path.suffix in (".jpg", ".png"))
        heavy[f"plan {recipe}"] = ["plan", recipe]
        heavy[f"predict {recipe}"] = [
            "predict",
            str(run.folder),
            str(photo),
            "--output-dir",
            str(folder / f"{recipe}-answers"),
        ]
        heavy[f"train {recipe}"] = ["train", recipe, "--data", str(run.data), "--output-dir", str(folder / recipe), *flags,
                                    "--max-steps", "3", "--log-every", "1"]  # fmt: skip
    shutil.copytree(ssd_run.data.parent / "cache", folder / "cache")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PACELINE_CACHE": str(folder / "cache")}
    words = [json.dumps(light), json.dumps(heavy), str(folder)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {name: tuple(json.loads((folder / f"{name}.json").read_text())) for name in (*light, *heavy)}


def libraries(modules: list[str]) -> set[str]:
    """Top-level packages that came on top of torch and its numpy and are neither ours nor Python's, without Cython's own."""
    found = {name.split(".")[0] for name in modules if not name.startswith(("_cython", "cython_runtime"))}
    return found - STDLIB - {"paceline", "torch", "torchgen", "numpy"}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("help", 0), ("help of a recipe", 0), ("unknown flag", 2), ("missing data", 2), ("missing run to predict with", 2),
        ("threshold beyond 1", 2), ("finished run", 2), ("runs", 0), ("list", 0),
        *(pytest.param(name, code, marks=ONE_MORE) for name, code in BY_NIGHT.items()),
    ],
)  # fmt: skip
def test_what_needs_only_a_recipe_or_a_run_json_imports_the_flag_parser_at_most(imported, name, code):
    ended, modules = imported[name]
    assert ended == code
    assert not {"torch", "numpy"} & {module.split(".")[0] for module in modules}
    assert libraries(modules) <= (set() if name in ("help", "version", "unknown verb") else PARSER)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("verb", ["plan", "predict", "train"])
def test_no_command_imports_what_its_workload_does_not_use(imported, verb, recipe):
    code, modules = imported[f"{verb} {recipe}"]
    assert code == 0
    assert libraries(modules) <= {"plan": SHOW, "predict": PREDICT, "train": TRAIN}[verb] | OF_WORKLOAD[verb, recipe]
    assert not [module for module in modules if module.startswith(NEVER)]


@pytest.mark.parametrize("verb", ["plan", "train"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_workload_imports_another(imported, verb, recipe):
    tasks = set(re.findall(r"paceline\.models\.(\w+)\.task\b", " ".join(imported[f"{verb} {recipe}"][1])))
    own = {TASKS[recipe]} if verb == "train" else set()  # a network that was counted before is not built to be shown
    assert tasks & set(TASKS.values()) == own
