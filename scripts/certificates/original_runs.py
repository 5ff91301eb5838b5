"""The interpreter that an original runs in: made once, with the versions named here, and apart from ours.

A certificate's script runs a program of scripts/originals/ there, in a process of one thread; they exchange .npz files.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# tests/oracle/recorded/README.md names the same versions.
GLUONCV = (
    "mxnet==1.9.1",
    "gluoncv==0.10.5",
    "numpy==1.23.5",
    "opencv-python-headless==4.8.1.78",
    "pycocotools==2.0.7",
    "setuptools",
)
PYTHON = "3.11"
THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")}


def interpreter(folder: Path, packages: tuple[str, ...], python: str = PYTHON) -> Path:
    """The environment's interpreter; uv makes the environment where the folder has none.

    Raises CalledProcessError where uv cannot, and leaves no interpreter then.
    """
    there = folder / "bin" / "python"
    if not (folder / "made").is_file():
        subprocess.run(["uv", "venv", "--clear", "-q", "-p", python, str(folder)], check=True)
        subprocess.run(["uv", "pip", "install", "-q", "-p", str(there), *packages], check=True)
        (folder / "made").write_text("\n".join(packages) + "\n")
    return there


def run_original(there: Path, program: Path, *words: str, **more: str) -> None:
    """Run a program of the original's environment to its end; `more` are environment variables. Raises CalledProcessError."""
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))
    }
    own = {**outside, **THREADS, "PYTHONDONTWRITEBYTECODE": "1", **more}
    subprocess.run([str(there), str(program), *words], env=own, check=True)
