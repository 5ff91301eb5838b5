"""Jobs with fixed paths, whose files are golden, and a stand-in for an engine that runs what it is given here."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from paceline.config.system import System
from paceline.launch.containers.engines import PYTHON
from paceline.launch.job import EnvVariable, LaunchJob, Mount

RUN = Path("/runs/ssd")
MOUNTS = (
    Mount(Path("/data/coco"), "/data/coco", "named by /data/coco"),
    Mount(Path("/home/ann/.cache/paceline"), "/home/ann/.cache/paceline", "paceline's cache", writable=True),
    Mount(RUN, str(RUN), "the run's folder", writable=True),
)
EIGHT_GPUS = System("cuda", ranks_per_node=8, memory_gib=80, device_name="H100")
JOB = LaunchJob(
    words=("train", "ssd", "--data", "/data/coco", "--output-dir", str(RUN)),
    folder=RUN,
    name="ssd",
    nodes=1,
    per_node=8,
    system_name="h100x8",
    system=EIGHT_GPUS,
    environ=(EnvVariable("OMP_NUM_THREADS", "12", "compute threads a rank"),),
    mounts=MOUNTS,
    python=PYTHON,
    image="registry.example.com/team/paceline:0.1.0",
    workdir=Path("/home/ann/work"),
)
TWO_NODES = replace(JOB, nodes=2, through="slurm", system=replace(EIGHT_GPUS, cpu_bind="exclusive"))

ENGINE = """#!/bin/bash
# Runs what stands behind the image here, in place of `run FLAGS IMAGE COMMAND...`, and notes its own words.
printf '%s\\n' "$@" >"{log}"
while [ "$1" != "{image}" ]; do shift; done
shift
exec "$@"
"""


def stand_in_engine(folder: Path, name: str, image: str) -> Path:
    """An engine called `name` in `folder`; -> the file in which it leaves the words that it was called with."""
    folder.mkdir(parents=True, exist_ok=True)
    log, program = folder / f"{name}.words", folder / name
    program.write_text(ENGINE.format(log=log, image=image))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return log
