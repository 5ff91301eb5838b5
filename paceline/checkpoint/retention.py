"""Which checkpoints stay on disk; and whether they will fit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.run_entries import NOWHERE
from paceline.log.prose import byte_size


def doomed_steps(
    steps: Iterable[int], *, newest: int, keep: int, keep_every: int | None, best: int | None
) -> list[int]:
    """The steps to delete once the checkpoint of step `newest` is safely on disk.

    keep        so many of the newest stay, `newest` among them
    keep_every  multiples of this many steps stay as well
    best        this one stays as well
    Steps after `newest` are of an earlier life of the run (it went on from before them, because they were damaged).
    """
    past = sorted(step for step in steps if step <= newest)
    stay = set(past[-max(1, keep) :]) | {newest, best}
    if keep_every:
        stay |= {step for step in past if step % keep_every == 0}
    return [step for step in sorted(steps) if step > newest or step not in stay]


def check_space(folder: Path, bytes_needed: int) -> None:
    """Refuse a folder that cannot be written, that takes no links, or a disk with less than `bytes_needed` bytes free.

    raise UserError   names the folder and the reason
    """
    problem = "cannot be written"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".probe.*.part"):  # a link, which nobody can hold: a killed process's
            if left.is_symlink() and os.readlink(left) == NOWHERE:
                left.unlink()
        probe = folder / f".probe.{os.urandom(4).hex()}.part"  # a kill leaves a part as any other (config/whole.py)
        with open(probe, "xb") as file:
            file.write(b"\0" * 4096)
        probe.unlink()
        problem = "takes no symbolic links, as checkpoints/last and best are"
        probe.symlink_to(NOWHERE)
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UserError(f"{folder}: {problem} ({error.strerror or error}). Choose another folder with --out.") from None
    if free < bytes_needed:
        raise UserError(
            f"{folder}: checkpoints will need {byte_size(bytes_needed)}, and {byte_size(free)} are free. "
            "Make room, choose another --out, or keep fewer (--keep)."
        )
