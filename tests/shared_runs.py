"""One finished run of each workload: trained once in a session, by whichever process is first, and read by all tests.

A test that changes a run copies it first (`shutil.copytree(run, ..., symlinks=True)`); `untouched` finds the one that did not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from instance_sets import make_instances
from tiny_runs import TINY, make_photos, without_report

from paceline.cli.main import main
from paceline.data.shapes.render import render_shapes

FP32 = "--system cpu --system.precision fp32"
SSD = (
    f"{FP32} --model.depth 10 --model.width 4 --model.extra-channels 8 --input.image-size 96 "
    "--global-batch-size 4 --bn-batch-size 4 --optim.lr 0.01"
)
MASKRCNN_NET = (
    f"{FP32} --system.intra-op-threads 1 --system.num-workers 1 --model.width 8 --model.fpn-channels 16 "
    "--model.roi.fc-channels 32 --model.rpn.pre-nms-topk-train 100 --model.rpn.post-nms-topk-train 32 "
    "--model.rpn.pre-nms-topk-test 100 "
    "--model.rpn.post-nms-topk-test 32 --model.detect.max-detections 20"
)
MASKRCNN_TOY = f"{MASKRCNN_NET} --input.min-size 64 --input.max-size 96 --model.rpn.anchor-sizes 12 24 36 48 64"
MASKRCNN = f"{MASKRCNN_TOY} --global-batch-size 4 --bn-batch-size 4 --optim.lr 0.002"
TRAIN, VAL = 12, 6  # images of the two sets with boxes


@dataclass(frozen=True)
class SharedRun:
    """A finished run, and the data it was trained on."""

    folder: Path
    data: Path


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder NAME of this session, for all its processes; `make` fills it, where no other process did."""
    base = factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    base.mkdir(exist_ok=True)
    folder, made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PACELINE_CACHE", str(base / "cache"))
                make(folder)
            made.touch()
    return folder


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[Path]:
    """The folder, which must be the same afterwards."""
    before = contents(folder)
    yield folder
    assert contents(folder) == before, f"a test changed {folder}, which others read: it must copy it first"


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file."""
    found = {str(path): path.lstat() for path in folder.rglob("*") if not path.is_dir()}
    return {name: (facts.st_size, facts.st_mtime_ns) for name, facts in found.items()}


def class_photos(factory: pytest.TempPathFactory) -> Path:
    """The class-folder set of `make_photos`."""
    return made_once(factory, "class-photos", make_photos)


def rendered_boxes(factory: pytest.TempPathFactory) -> Path:
    """Pictures of shapes with boxes and masks."""
    return made_once(
        factory, "pictures", lambda root: render_shapes("boxes", root, train=TRAIN, val=VAL, side=96, processes=1)
    )


def drawn_instances(factory: pytest.TempPathFactory) -> Path:
    """Photos with drawn polygons."""
    return made_once(factory, "instances", lambda root: make_instances(root, train=TRAIN, val=VAL))


def resnet_run(factory: pytest.TempPathFactory) -> SharedRun:
    """Two steps on the class folders, without a report."""
    return _trained(factory, "classify-demo", class_photos(factory), *TINY, "--max-steps", "2", report=False)


def ssd_run(factory: pytest.TempPathFactory) -> SharedRun:
    """Six steps on rendered pictures."""
    return _trained(factory, "ssd-demo", rendered_boxes(factory), *SSD.split(), "--max-steps", "6")


def maskrcnn_run(factory: pytest.TempPathFactory) -> SharedRun:
    """Four steps on drawn polygons, each of them logged."""
    return _trained(
        factory, "maskrcnn-demo", drawn_instances(factory), *MASKRCNN.split(), "--max-steps", "4", "--log-every", "1"
    )


def _trained(factory: pytest.TempPathFactory, recipe: str, data: Path, *flags: str, report: bool = True) -> SharedRun:
    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if not report:
                without_report(patch)
            assert main(["train", recipe, "--data", str(data), "--output-dir", str(folder), *flags]) == 0

    return SharedRun(made_once(factory, f"{recipe}-run", make), data)
