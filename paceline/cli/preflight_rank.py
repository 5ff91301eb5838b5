"""One rank of a preflight: what `paceline doctor` and `paceline bench comm` do together with the others, in one process.

    python -m paceline.cli.preflight_rank RUN/launch/preflight SYSTEM ROUND   (under torchrun's variables)

Rank 0 leaves ranks-ROUND.json there.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

from paceline.cli.choose import choose_system
from paceline.cli.main import USER_ERROR, settle_environment
from paceline.cli.preflight_board import Board
from paceline.cli.voice import complain
from paceline.config.errors import UserError
from paceline.ranks.launcher import read_launch

# A contender's time for each message, and the largest one: a CPU's ranks have no use for a network's whole gradient here.
SECONDS, LARGEST_MIB, LARGEST_MIB_CPU = 0.05, 512, 2


def run(folder: Path, system_name: str, number: str) -> int:
    """Examine, then time messages; 0. What fails ends the process as it ends a training's rank."""
    import torch

    from paceline.bench.comm import measure
    from paceline.bench.comm_sizes import MIB, messages
    from paceline.machine.doctor.together import examine_together
    from paceline.machine.machine import choose_device
    from paceline.ranks.environment import environment
    from paceline.ranks.world import open_world

    torch.set_num_threads(1)
    launch = read_launch(os.environ)
    system = choose_system(system_name)
    with environment(system, launch, named=False):
        nodes = examine_together(launch, folder)
        again = replace(launch, port=launch.port + 1, job=f"{launch.job}-comm")
        device = choose_device(system, launch.local_rank, launch.local_world)
        most = LARGEST_MIB if device.type == "cuda" else LARGEST_MIB_CPU
        found = [message for message in messages(system.bucket_mib) if message.bytes <= most * MIB]
        with open_world(again, device=device, secret_folder=folder) as world:
            comm = {"launcher": launch.kind, "nodes": launch.nodes, **measure(world, found, SECONDS)}
    if nodes is not None:
        told = {"nodes": [asdict(node) for node in nodes], "comm": comm}
        Board(folder).leave(f"ranks-{number}", told)
    return 0


if __name__ == "__main__":
    settle_environment()
    try:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
    except UserError as problem:
        complain(f"paceline: {problem}", problem)
        sys.exit(USER_ERROR)
