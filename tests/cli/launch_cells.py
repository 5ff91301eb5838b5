"""A command of the pages, as far as `paceline launch` looks at it before anything is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paceline.cli.flags import ParsedArgs
from paceline.launch.config import check_launch_config, make_job
from paceline.launch.runner import check_combination, make_files


def check_cell(asked: ParsedArgs, patch: pytest.MonkeyPatch) -> None:
    """Raises PacelineError where this launch is refused, on a machine that has every program; in an empty working directory.

    A file of hosts that it names is there, with as many as it wants.
    """
    where = asked.options
    check_launch_config(where)
    if where.hostfile:
        Path(where.hostfile).write_text("".join(f"node{number} slots=16\n" for number in range(where.nodes)))
    patch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    folder = Path.cwd() / "run"
    words = ("train", asked.name, "--output-dir", str(folder))
    job = make_job(
        words, folder, name=asked.name, where=where, system_name=asked.system_name, system=asked.system, minutes=60
    )
    check_combination(job)
    assert make_files(job)
