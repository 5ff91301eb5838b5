"""Nothing that measures on a GPU needs a package that such a machine may lack: decoders, the flag parser, the scorer, extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Not installed on a machine that has torch, torchvision, triton, numpy, Pillow, rich, safetensors, tensorboard, jinja2,
# matplotlib, yaml and pytest.
ABSENT = (
    "tyro,docstring_parser,typeguard,simplejpeg,hotcoco,pycocotools,faster_coco_eval,mlperf_logging,detectron2,"
    "nvidia.nvimgcodec,timm"
)
IMPORTS = f"""
import importlib, importlib.util, pathlib, sys
import pytest
root = pathlib.Path({str(ROOT)!r})
for path in [*sorted((root / "paceline" / "tools" / "bench").glob("*.py")), *sorted((root / "benchmarks").glob("*.py"))]:
    importlib.import_module(".".join((*path.parent.relative_to(root).parts, path.stem)))
names = "training.trainer", "api", "launch.doctor.local_checks", "cli.commands.train"
for name in names:
    importlib.import_module(f"paceline.{{name}}")
files = [*sorted((root / "tests" / "gpu").glob("*.py")), *sorted((root / "scripts" / "gpu").glob("*.py"))]
sys.path[:0] = [str(root / "scripts" / "gpu"), str(root / "tests")]
for path in files:
    spec = importlib.util.spec_from_file_location(f"tried_{{path.stem}}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except pytest.skip.Exception:  # a file of tests that an extra is for
        continue
there = [name for name in {ABSENT!r}.split(",") if name in sys.modules]
assert not there, there
for name in {ABSENT!r}.split(","):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name)
print(len(files))
"""


@pytest.mark.nightly("imports torch and all of the package in a process of its own")
def test_benches_gpu_tests_and_setup_import_without_the_packages_that_a_bare_machine_lacks():
    environment = os.environ | {"ABSENT": ABSENT, "PYTHONPATH": f"{ROOT}/scripts/gpu/bare:{ROOT}"}
    environment.pop("PRESENT", None)
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4
