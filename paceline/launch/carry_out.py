"""Write a job's files, say them, run them, follow its log, and find its own exit code."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.plain_file import read_plain
from paceline.config.run_names import check_entries
from paceline.config.whole import whole
from paceline.launch.axes import File
from paceline.launch.combine import THROUGH, check_combination, command_of, missing
from paceline.launch.containers import CONTAINER
from paceline.launch.follow import follow
from paceline.launch.job import Job

# What a job is handed over by begins so, whoever hands it over.
_HEAD = re.compile(rb"#!/usr/bin/env bash\n# [^\n]+: [^\n]+ on [^\n]+, started by [^\n]+\.\n")
MOST_SCRIPT_BYTES = 16 << 20


def files_of(job: Job) -> tuple[File, ...]:
    """Every file of this job; what is handed over to whoever gives the nodes comes first. Pure."""
    return (*THROUGH[job.through].files(job, command_of(job)), *CONTAINER[job.container].files(job))


def launch(job: Job, *, dry: bool = False, say: Callable[[str], None] = print) -> int:
    """Carry out `job.words` on all its ranks; -> their own exit code (0 for a dry run).

    dry    only write and say the files
    Raises UserError for what does not go together, and for what this machine, the cluster or a host refuses.
    """
    check_combination(job)
    lacks = missing(job)
    if lacks and not dry:
        raise UserError(lacks[0])
    check_entries(job.folder)
    files = files_of(job)
    there = THROUGH[job.through].there(job, files)
    paths = write_files(job, files)
    for file, path in zip(files, paths):
        if file.said:
            say(f"--- {path}\n{file.text.rstrip()}\n")
    if dry:
        for line in lacks:
            say(f"could not be started here: {line}")
        say(f"Nothing was started (--dry-run). By hand:  {shlex.join((*THROUGH[job.through].by_hand, str(paths[0])))}")
        return 0
    if there is not None:
        return follow(job, lambda: there, say=say)
    job.exit_code_file.unlink(missing_ok=True)
    return follow(job, lambda: THROUGH[job.through].begin(job, paths), say=say)


def _is_ours(script: Path) -> bool:
    """Whether nothing is there, or a script that an earlier launch wrote. Raises OSError."""
    if not os.path.lexists(script):
        return True
    return not script.is_symlink() and _HEAD.match(read_plain(script, MOST_SCRIPT_BYTES)) is not None


def write_files(job: Job, files: tuple[File, ...]) -> tuple[Path, ...]:
    """Into RUN/launch, each whole or not at all.

    Raises UserError where the folder cannot be written, is a link, or its script is not ours.
    """
    paths = []
    try:
        first = job.launch_folder / files[0].name
        if job.launch_folder.is_symlink() or not _is_ours(first):
            raise UserError(
                f"{first}: is there, and no launch of ours wrote it, so nothing in its folder is replaced. Choose another folder "
                "with --out."
            )
        job.launch_folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            path = job.launch_folder / file.name
            path.parent.mkdir(exist_ok=True)
            with whole(path, sync=True) as part:
                part.write_text(file.text, encoding="utf-8")
                part.chmod(0o755 if file.runs else 0o644)
            paths.append(path)
    except OSError as problem:
        raise UserError(
            f"{job.launch_folder}: cannot be written ({problem.strerror}). Choose another folder with --out."
        ) from None
    return tuple(paths)
