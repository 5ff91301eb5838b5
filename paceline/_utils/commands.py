"""Commands of ours inside messages: whole, quoted for a shell, to be pasted as they stand. Standard library only.

`tests/cli/test_printed_commands.py` carries out what each message names.
"""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from paceline._utils.errors import RecipeError
from paceline._utils.user_code import is_in_file


def format_command(*words: object) -> str:
    """`paceline WORDS`, each word quoted where a shell wants it; a Path is written as `format_path` writes it."""
    return shlex.join(["paceline", *(str(format_path(word) if isinstance(word, Path) else word) for word in words)])


def format_path(path: Path) -> Path:
    """The path as a person types it here: from the working folder where it lies below that, else as it is."""
    try:
        below = path.relative_to(Path.cwd())
    except (ValueError, OSError):
        return path
    return path if below == Path() or str(below).startswith("-") else below


def resume_command(run: Path, task: str = "") -> str:
    """The command that goes on with the run in the folder `run`, as it was asked for; task: its recipe's."""
    own = ["--task-file", task] if is_in_file(task) and task.isprintable() else []
    return format_command("train", run / "run.json", *own, "--output-dir", run)


# Packages of others that a part of this one can use, and the command that installs them.


# As pyproject.toml has them under optional-dependencies, whose names these are (tests/config/test_extras.py).
EXTRAS = {
    "fast": ("nvidia-nvimgcodec-cu13>=0.9",),  # its part for the CPU, which is the same for any CUDA
    "mlperf": ("mlperf-logging>=4.1",),
    "timm": ("timm>=1.0.22",),
    "export": ("onnx>=1.18", "onnxscript>=0.6.2", "onnxruntime>=1.21"),
    "openvino": ("openvino>=2025.0",),
    "remote": ("obstore>=0.11",),
    "zstd": ("zstandard>=0.22",),
    "serve": ("starlette>=0.46", "uvicorn>=0.34", "python-multipart>=0.0.20"),
    "video": ("av>=14.1",),
    "tensorboard": ("tensorboard>=2.17",),
    "wandb": ("wandb>=0.20",),
    "mlflow": ("mlflow-skinny>=2.20", "sqlalchemy>=2,<3", "alembic>=1.14"),
}


def install_command(extra: str) -> str:
    """The command that installs what `extra` needs, to be pasted.

    It names those packages and not ours: paceline is on no index, and `paceline[wandb]` would install what a stranger
    registers there.
    """
    return shlex.join(["pip", "install", *EXTRAS[extra]])


def require(extra: str, what: str) -> None:
    """Raises RecipeError where the package of this name, which `what` asks for, is not installed; it is not imported."""
    if find_spec(extra) is None:
        raise RecipeError(f"{what}: requires {extra}, which is not installed. Install it:  {install_command(extra)}")
