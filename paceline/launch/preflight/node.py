"""One node's part of a job's preflight, before its training: `paceline launch ... --preflight` starts it on every node.

    python -m paceline.launch.preflight.node --folder RUN/launch/preflight --nodes 2 --ranks 8 --number 0

All of it goes through files in that folder, which all nodes see, so that a node which the others do not reach differs from one
that is not there: look-N (what the node reports of itself), present (whose look the first node has), reach-N (whom it
reaches), together (node 0 sends all of them to `doctor` and `bench comm`), ranks (what came of it), verdict.
Node 0 is the first; without it there is no verdict, and the script that started it prints that. Each file carries the start's name.
The lines of a job's script that start these processes, as the job's ranks are started, and that end the job where the verdict is
not good, are written here too.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import atomic_write
from paceline._utils.cache import cache_folder
from paceline._utils.platform import get_allowed_cpus
from paceline.config.system import System
from paceline.distributed.comm.exit_code import FAILED
from paceline.distributed.comm.interfaces import (
    ANYWHERE,
    find_free_port,
    find_interface_towards,
    is_address_of_this_host,
    list_interfaces,
)
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.device.systems import choose_system
from paceline.launch.containers.engines import CONTAINERS
from paceline.launch.doctor.compare import MachineFact, count_problems, examine_nodes
from paceline.launch.doctor.measure import (
    Listener,
    estimate_clock_offset,
    find_folder_problems,
    measure_bandwidth,
    measure_cores,
    measure_round_trips,
    ring_neighbors,
    short_reason,
)
from paceline.launch.doctor.node import collect_node_facts, known_fields, node_from_json
from paceline.launch.job import LaunchJob, Words, choose_store_port, format_command_lines
from paceline.launch.preflight.rank import FileBoard
from paceline.launch.preflight.report import LocalChecks, NetworkChecks, Preflight, judge_nodes, write_report
from paceline.launch.starters import STARTERS


def node_program(job: LaunchJob, names: Words = ()) -> Words:
    """One node's process; its caller appends --number, and --name where the launcher knows it.

    names  of all hosts, where they are known before
    """
    words: Words = ("--folder", str(job.preflight_folder), "--nodes", str(job.nodes), "--ranks", str(job.per_node))
    if job.system_name not in ("", "auto"):
        words += ("--system", job.system_name)
    if port := job.port or (STARTERS[job.start].reach == "node" and job.nodes > 1 and choose_store_port(job)):
        words += ("--port", str(port))
    if job.system.interface:
        words += ("--interface", job.system.interface)
    for path in job.preflight_reads:
        words += ("--reads", path)
    for path in job.preflight_writes:
        words += ("--writes", path)
    if names:
        words += ("--names", ",".join(names))
    return CONTAINERS[job.container].wrap(job, (*job.python, "-m", "paceline.launch.preflight.node", *words))


def preflight_lines(job: LaunchJob, start: str) -> str:
    """Shell lines: `start` runs the programs on every node; where the verdict is not good the script ends with 3."""
    quote = shlex.quote
    return f"""
# Before training, run doctor and bench comm on every node.
preflight={quote(str(job.preflight_folder))}
mkdir -p "$preflight"
preflight_start=${{SLURM_JOB_ID:-here}}-$$-$(date +%s)-$RANDOM$RANDOM
rm -f "$preflight/start"  # an existing link is not followed
echo "$preflight_start" >"$preflight/start"
{start} || true
if [ "$(cat "$preflight/verdict" 2>/dev/null)" != "$preflight_start good" ]; then
    [ "$(cat "$preflight/verdict" 2>/dev/null)" = "$preflight_start refused" ] || echo "paceline: the preflight did not complete"
    echo {FAILED} >{quote(str(job.exit_code_file))}
    exit {FAILED}
fi
"""


def with_node_number(job: LaunchJob, number: str, *, name: str = "", names: Words = ()) -> str:
    """Through a shell that fills in the node's own number (and name): `sh -c 'exec "$@" --number ...' sh PROGRAM`."""
    text = f'exec "$@" --number {number}' + (f" --name {name}" if name else "")
    return format_command_lines(("sh", "-c", text, "sh", *node_program(job, names)))


# For every node to report what it is: a Python that starts from a slow shared disk, and a second of measuring.
LOOK_SECONDS = 120.0
REACH_SECONDS = 90.0
# For ranks together: NCCL gives up after two minutes, a roll call after one.
ROUND_SECONDS = 300.0
# For a file of another node to be seen, on a file system that remembers for a while what was not there.
SEEN_SECONDS = 10.0
AT_ONCE = 64
LAST_LINES = 4


def run_node(arguments: Sequence[str]) -> int:
    """This node's part; always 0: the verdict is what counts."""
    flags = _flags(arguments)
    board = FileBoard(Path(flags.folder))
    number = _own_number(flags)
    began = time.monotonic()
    system = replace(choose_system(flags.system or "auto"), ranks_per_node=flags.ranks)
    with Listener(board.start, flags.port) as listener:
        board.leave(f"look-{number}", asdict(_look(flags, number, listener)))
        first = _First(flags, board, system) if number == 0 else None
        if first:
            first.call()
        _, present = board.wait(["present"], LOOK_SECONDS + REACH_SECONDS)
        if number in present.get("numbers", ()):
            board.leave(f"reach-{number}", asdict(_reach(board, number, present["numbers"])))
        if first:
            first.judge()
        _take_part(flags, board, number, first.after_ranks if first else lambda: None)
    if first:
        first.finish(time.monotonic() - began)
    return 0


def _flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="paceline.launch.preflight.node")
    for name in ("--folder", "--name", "--system", "--interface"):
        parser.add_argument(name, default="")
    parser.add_argument("--names", type=lambda text: text.split(","), default=[])
    for name in ("--number", "--nodes", "--ranks", "--port"):
        parser.add_argument(name, type=int, default=0)
    for name in ("--reads", "--writes"):
        parser.add_argument(name, action="append", default=[])
    return parser.parse_args(arguments)


def _own_number(flags: argparse.Namespace) -> int:
    """As the launcher numbers nodes; but mpirun may count its own host first, so this host's name in the list counts more."""
    return next((index for index, name in enumerate(flags.names) if is_address_of_this_host(name)), flags.number)


def _look(flags: argparse.Namespace, number: int, listener: Listener) -> LocalChecks:
    rank_info = replace(SINGLE, local_world=flags.ranks, node=number, nodes=flags.nodes)
    written = [
        ("cache", cache_folder()),
        ("temporary", Path(os.environ.get("TMPDIR") or "/tmp")),
        *(("--copy-data-to", Path(path)) for path in flags.writes),
    ]
    troubles = find_folder_problems(Path(flags.folder), written, [("data or weights", Path(path)) for path in flags.reads])
    return LocalChecks(
        number,
        flags.name or next(iter(flags.names[number : number + 1]), socket.gethostname()),
        _address(flags),
        listener.ports,
        find_free_port(),
        collect_node_facts(rank_info, Path(flags.folder)),
        tuple(text for text in (*troubles, listener.trouble) if text),
    )


def _address(flags: argparse.Namespace) -> str:
    """Where the others find this node: its address on the network that ranks will use, as World chooses gloo's."""
    there = list_interfaces()
    candidates = (os.environ.get("MASTER_ADDR"), os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), *flags.names[:1], ANYWHERE)
    results = [
        flags.interface,
        os.environ.get("GLOO_SOCKET_IFNAME"),
        *(find_interface_towards(one) for one in candidates if one),
    ]
    for name in (*results, *there):
        if name and not name.startswith("lo") and there.get(name):
            return there[name]
    return "127.0.0.1"


def _reach(board: FileBoard, own: int, numbers: Sequence[int]) -> NetworkChecks:
    looks = {number: facts for number in numbers if (facts := board.find(f"look-{number}")) is not None}
    cores = {str(cpu): rate for cpu, rate in measure_cores(sorted(get_allowed_cpus())).items()}
    peers = [number for number in looks if number != own]
    failures: dict[str, str] = {}
    clocks: dict[str, tuple[float, float]] = {}

    def visit(peer: int) -> None:
        trips: list[tuple[float, float, float]] = []
        for port in looks[peer]["ports"]:
            try:
                trips += measure_round_trips(looks[peer]["address"], port, board.start)
            except OSError as problem:
                failures[str(peer)] = f"{looks[peer]['address']}:{port} ({short_reason(problem)})"
                return
        clocks[str(peer)] = estimate_clock_offset(trips)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(visit, peers))
    rates: dict[str, float] = {}
    for peer in ring_neighbors(own, looks):
        if str(peer) not in failures:
            try:
                rates[str(peer)] = measure_bandwidth(looks[peer]["address"], looks[peer]["ports"][0], board.start)
            except OSError as problem:
                failures[str(peer)] = f"{looks[peer]['address']} during the bandwidth test ({short_reason(problem)})"
    return NetworkChecks(own, cores, failures, rates, clocks)


def _take_part(flags: argparse.Namespace, board: FileBoard, number: int, after: Callable[[], None]) -> None:
    """This node's ranks, unless it is decided already."""
    name, order = board.wait(["decided", "together"], REACH_SECONDS + ROUND_SECONDS)
    if name == "together":
        _ranks(flags, board, order, number)
        after()


def _ranks(flags: argparse.Namespace, board: FileBoard, order: Mapping[str, Any], number: int) -> None:
    """Start this node's ranks, under torchrun's variables, and leave their last lines where they fail."""
    nodes, each = flags.nodes, flags.ranks
    words = [sys.executable, "-m", "paceline.launch.preflight.rank", flags.folder, flags.system or "auto"]
    started = []
    for local in range(each):
        own = {"RANK": number * each + local, "WORLD_SIZE": nodes * each, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": each}
        own |= {"GROUP_RANK": number, "GROUP_WORLD_SIZE": nodes, "TORCHELASTIC_RUN_ID": board.start}
        own |= {"MASTER_ADDR": order["address"], "MASTER_PORT": order["port"]}
        environ = {**os.environ, **{name: str(value) for name, value in own.items()}}
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, **pipe))
    failed = [text for process in started if (text := _failure(process))]
    if failed:
        board.leave(f"failed-{number}", {"text": failed[0]})
    board.leave(f"done-{number}", {})


def _failure(process: subprocess.Popen[str]) -> str:
    """The last lines of a rank that failed, in one; '' of one that did not."""
    try:
        text, _ = process.communicate(timeout=ROUND_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"did not complete within {ROUND_SECONDS:g} s"
    return (
        ""
        if process.returncode == 0
        else " ".join(text.strip().splitlines()[-LAST_LINES:]) or f"exit code {process.returncode}"
    )


class _First:
    """Node 0's further work: it calls the nodes, judges them, and writes the report and the verdict."""

    def __init__(self, flags: argparse.Namespace, board: FileBoard, system: System):
        self.flags, self.board, self.system = flags, board, system
        self.looks: dict[int, LocalChecks] = {}
        self.names: list[str] = []
        self.found: dict[int, list[MachineFact]] = {}
        self.reaches: dict[int, NetworkChecks] = {}
        self.comm: dict[str, Any] = {}
        self.failure = ""

    def call(self) -> None:
        """Wait for all nodes' looks, and leave whose have come."""
        came = self.board.gather("look", range(self.flags.nodes), LOOK_SECONDS)
        for number, facts in sorted(came.items()):
            self.looks[number] = LocalChecks(
                **{**known_fields(LocalChecks, facts), "facts": node_from_json(facts["facts"])}
            )
        listed = self.flags.names or [f"node {number}" for number in range(self.flags.nodes)]
        self.names = [
            self.looks[number].name if number in self.looks else listed[number] for number in range(self.flags.nodes)
        ]
        self.board.leave("present", {"numbers": sorted(self.looks)})

    def judge(self) -> None:
        """Judge each node by its own report. If all are good and there are at least two ranks, start the ranks."""
        came = self.board.gather("reach", sorted(self.looks), REACH_SECONDS)
        self.reaches = {number: NetworkChecks(**known_fields(NetworkChecks, facts)) for number, facts in came.items()}
        expected = self.system if self.flags.system else None
        self.found = judge_nodes(self.names, self.looks, self.reaches, expected)
        if self._is_bad() or self.flags.nodes * self.flags.ranks == 1:
            self.board.leave("decided", {})
        else:
            self.board.leave("together", {"address": self.looks[0].address, "port": self.looks[0].free_port})

    def _is_bad(self) -> bool:
        return any(count_problems(own) for own in self.found.values())

    def after_ranks(self) -> None:
        """Judge what the ranks found together."""
        self.board.gather("done", range(self.flags.nodes), ROUND_SECONDS)
        failed = self.board.gather("failed", range(self.flags.nodes), 0.2)
        joint = {} if failed else self.board.wait(["ranks"], SEEN_SECONDS)[1]
        if not joint:
            self.failure = next((facts["text"] for facts in failed.values()), "the test of all ranks did not complete")
            return
        nodes = [node_from_json(facts) for facts in joint["nodes"]]
        self.comm = joint["comm"]
        before = {number: {finding.text for finding in own} for number, own in self.found.items()}
        for one in examine_nodes(nodes, self.system if self.flags.system else None):
            for number in one.nodes:
                if one.text not in before[number]:
                    self.found[number].append(MachineFact(one.level, self.names[number], one.text))
        if not self.comm["sums_are_right"]:
            self.failure = "bench comm: a sum between ranks was wrong"

    def finish(self, seconds: float) -> None:
        """The report, and the verdict, which comes last."""
        good = not self.failure and not self._is_bad()
        result = Preflight(self.names, self.looks, self.reaches, self.found, good, self.comm, self.failure, seconds)
        print(write_report(result, self.board.folder.parent), flush=True)
        atomic_write(self.board.folder / "verdict", f"{self.board.start} {'good' if good else 'refused'}\n", sync=True)


if __name__ == "__main__":
    sys.exit(run_node(sys.argv[1:]))
