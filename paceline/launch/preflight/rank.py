"""One rank of a preflight: what `paceline doctor` and `paceline bench comm` do together with the others, in one process.

    python -m paceline.launch.preflight.rank RUN/launch/preflight SYSTEM   (under torchrun's variables)

Rank 0 leaves ranks.json there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.safe_read import read_entry
from paceline._utils.text import escape_text
from paceline.distributed.comm.exit_code import USER_ERROR, set_library_variables
from paceline.distributed.comm.launcher import is_first_on_node, read_launch
from paceline.distributed.device.systems import choose_system

# A contender's time for each message, and the largest one: a CPU's ranks have no use for a network's whole gradient here.
SECONDS, LARGEST_MIB, LARGEST_MIB_CPU = 0.05, 512, 2
GRADIENT = {"ResNet-50-size": [1_000_000] * 25}  # 25 million numbers, without a network to count
POLL_SECONDS = 0.05
MAX_BYTES = 16 << 20


class FileBoard:
    """The files through which the nodes of a preflight talk: a folder that all see, before any network is trusted.

    Files of an earlier start are as if they were not there.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.start = read_entry(folder / "start", MAX_BYTES).decode().strip()

    def leave(self, name: str, facts: Mapping[str, Any]) -> None:
        atomic_write(self.folder / f"{name}.json", json.dumps({"start": self.start, **facts}))

    def find(self, name: str) -> dict[str, Any] | None:
        try:
            facts = json.loads(read_entry(self.folder / f"{name}.json", MAX_BYTES))
        except (OSError, ValueError):
            return None
        return facts if facts.get("start") == self.start else None

    def gather(self, kind: str, numbers: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        """kind-N of these nodes, as many as come within the time."""
        result: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + seconds
        while len(result) < len(numbers) and time.monotonic() < until:
            for number in numbers:
                if number not in result and (facts := self.find(f"{kind}-{number}")) is not None:
                    result[number] = facts
            time.sleep(POLL_SECONDS)
        return result

    def wait(self, names: Sequence[str], seconds: float) -> tuple[str, dict[str, Any]]:
        """The first of these that is there; ("", {}) after the time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name in names:
                if (facts := self.find(name)) is not None:
                    return name, facts
            time.sleep(POLL_SECONDS)
        return "", {}


def run_rank(folder: Path, system_name: str) -> int:
    """Examine, then time messages; 0. What fails ends the process as it ends a training's rank."""
    import torch

    from paceline.distributed.comm.benchmark import MIB, make_messages, measure
    from paceline.distributed.comm.environment import apply_environment
    from paceline.distributed.comm.world import open_distributed
    from paceline.distributed.device.setup import choose_device
    from paceline.launch.doctor.multi_node import examine_together

    torch.set_num_threads(1)
    launch = read_launch(os.environ)
    system = choose_system(system_name)
    with apply_environment(system, launch, named=False):
        nodes = examine_together(launch, folder)
        again = replace(launch, port=launch.port + 1, job=f"{launch.job}-comm")
        device = choose_device(system, launch.local_rank, launch.local_world)
        most = LARGEST_MIB if device.type == "cuda" else LARGEST_MIB_CPU
        sent = [message for message in make_messages(system.ddp_bucket_mib, GRADIENT) if message.bytes <= most * MIB]
        with open_distributed(again, device=device, secret_folder=folder) as world:
            comm = {"launcher": launch.kind, "nodes": launch.nodes, **measure(world, sent, SECONDS)}
    if nodes is not None:
        FileBoard(folder).leave("ranks", {"nodes": [asdict(node) for node in nodes], "comm": comm})
    return 0


if __name__ == "__main__":
    set_library_variables()
    try:
        sys.exit(run_rank(Path(sys.argv[1]), sys.argv[2]))
    except PacelineError as problem:
        if is_first_on_node():
            print(escape_text(f"paceline: {problem}"), file=sys.stderr)
        sys.exit(USER_ERROR)
