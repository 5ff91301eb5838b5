"""Slurm's two compact notations: tasks per host, and lists of hosts.

Source: srun(1), SLURM_TASKS_PER_NODE; scontrol(1), show hostnames.
"""

from __future__ import annotations

import re

from paceline.config.errors import UserError


def tasks_per_host(name: str, text: str) -> list[int]:
    """Slurm's '2(x3),1' -> [2, 2, 2, 1]. `name` is the variable, for the error's text."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None or int(match[1]) < 1:
            raise UserError(f"{name}={text!r} cannot be read; expected something like 8(x2),4.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(nodelist: str) -> str:
    """Slurm's 'rack[2-3]n[01-16,20],login' -> 'rack2n01'."""
    head = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
    if head is None:
        raise UserError(f"SLURM_STEP_NODELIST={nodelist!r} names no host.")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", head[0])
