"""Packages of others that a part of this one can use, and the command that installs them."""

from __future__ import annotations

import shlex

# As pyproject.toml has them under optional-dependencies, whose names these are (tests/config/test_extras.py).
EXTRAS = {
    "fast": ("nvidia-nvimgcodec-cu12>=0.9",),
    "mlperf": ("mlperf-logging>=4.1",),
    "timm": ("timm>=1.0.15",),
    "remote": ("obstore>=0.11",),
    "zstd": ("zstandard>=0.22",),
    "wandb": ("wandb>=0.20",),
    "mlflow": ("mlflow-skinny>=2.20", "sqlalchemy>=2,<3", "alembic>=1.14"),
}


def to_install(extra: str) -> str:
    """The command that installs what `extra` needs, to be pasted.

    It names those packages and not ours: paceline is on no index, and `paceline[wandb]` would install what a stranger
    registers there.
    """
    return shlex.join(["pip", "install", *EXTRAS[extra]])
