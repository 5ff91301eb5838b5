"""Plays faults on real trainings and says how each ended; as a program it plays the whole table and writes it down.

    python tests/faults/harness.py --jobs 2 --out results/faults

Ranks are forked from one process that has imported torch, so a run of a tiny recipe takes about a second.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import damage
import multi_path
from comparing import differences, tree
from fault import Fault, Round, Strike
from fault_flags import outweigh
from played import NOT_PLAYED, Played, outcome_of, problems_of
from workloads import SYSTEM, WORKLOADS, make_data
from zygote import Ended, Zygote, by_hand

from paceline.distributed.comm.interfaces import find_free_port

# Before torch is loaded: see paceline/cli/main.py.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A command that runs for longer hangs: the slowest takes a few seconds, and a lost rank is noticed in as many.
MAX_SECONDS = 45


class Harness:
    """Plays faults in a folder of its own; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open = ExitStack()
        self._commands = 0

    def __enter__(self) -> Harness:
        self._zygote = self._open.enter_context(Zygote(multi_path.TESTS / "faults"))
        self._data = make_data(self.folder / "data")
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def play(self, fault: Fault) -> Played:
        """Let it strike, go on with the same command until the run is finished, and compare."""
        began = time.monotonic()
        played = Played()
        with ExitStack() as place:
            scene = self._scene(fault, place)
            if scene is None:
                return Played(NOT_PLAYED)
            rounds = [*fault.rounds]
            while rounds:
                step = rounds.pop(0)
                self._round(fault, scene, step, played)
                if played.problems:
                    break
                if not rounds and any(played.codes[-1]) and not step.over:
                    rounds.append(Round(damage=("mend",), ranks=fault.resumed_on))
            else:
                wanted = self.unbroken(fault)
                played.problems += differences(
                    scene.run,
                    wanted,
                    photos={scene.data, self._data[fault.workload]},
                    lost=fault.lost_events,
                    saves=fault.saves,
                )
                played.same = not played.problems
                played.seen = outcome_of(fault, played)
                if played.seen != fault.expected:
                    played.problems.append(f"{played.seen}, where {fault.expected} was expected")
        played.seconds = time.monotonic() - began
        return played

    def unbroken(self, fault: Fault) -> Path:
        """The run that nothing happened to, but for a change of the number of ranks half-way where the fault has one."""
        special = hashlib.sha256(f"{fault.automatic}{fault.always}".encode()).hexdigest()[:8]
        name = f"{fault.workload}-{fault.ranks}-{fault.resumed_on}-{fault.report}-{special}"
        run = self.folder / "unbroken" / name
        if not (run / "run.json").exists():
            if fault.resumed_on:
                shutil.copytree(self.begun(fault), run, symlinks=True)
            scene = damage.Scene(run.parent, run, self._data[fault.workload], self.folder / "cache")
            ended = self._command(fault, scene, Round(ranks=fault.resumed_on), count=run.with_name(f"{name}.counts"))
            assert all(rank.code == 0 for rank in ended), "\n".join(rank.text for rank in ended)
        return run

    def begun(self, fault: Fault) -> Path:
        """A run that was killed half-way: after a step that has no checkpoint."""
        run = self.folder / "begun" / f"{fault.workload}-{fault.ranks}"
        if not run.exists():
            scene = damage.Scene(run.parent, run, self._data[fault.workload], self.folder / "cache")
            at = f"step {WORKLOADS[fault.workload].half}"
            strikes = (Strike(at, "wait 1", 0), Strike(at, "kill all", 0))  # checkpoints under way are written meanwhile
            ended = self._command(fault, scene, Round(strikes=strikes))
            assert {rank.code for rank in ended} == {-9}, "\n".join(rank.text for rank in ended)
        return run

    def _scene(self, fault: Fault, place: ExitStack) -> damage.Scene | None:
        """The folders of one fault, as they are before anything strikes; None where mounting is not allowed."""
        folder = self.folder / "fault"
        disk = folder / "disk"
        disk.mkdir(parents=True)
        place.callback(lambda: shutil.rmtree(folder))
        if fault.disk:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={fault.disk}", "tmpfs", str(disk)]
            if subprocess.run(mount, capture_output=True).returncode:
                return None
            place.callback(lambda: subprocess.run(["umount", "-l", str(disk)], check=True))
        data, cache = self._data[fault.workload], self.folder / "cache"
        own = shutil.copytree(data, folder / "data") if fault.data == "own" else data
        scene = damage.Scene(
            folder=folder,
            run=disk / "run",
            data=own,
            cache=folder / "cache" if fault.cache == "own" else cache,
            untouched_data=data,
            begun=self.begun(fault) if fault.begun else None,
        )
        if scene.begun is not None:
            shutil.copytree(scene.begun, scene.run, symlinks=True)
        return scene

    def _round(self, fault: Fault, scene: damage.Scene, step: Round, played: Played) -> None:
        """One command: done, and judged."""
        with ExitStack() as held:
            for word in step.damage:
                if word == "lock":
                    lock = held.enter_context((scene.run / ".lock").open("w"))
                    fcntl.flock(lock, fcntl.LOCK_EX)
                else:
                    damage.carry_out(word, scene)
            before = tree(scene.run)
            ended = self._command(fault, scene, step)
        said = "".join(f"--- rank {rank}: {one.code}\n{one.text}" for rank, one in enumerate(ended))
        played.codes.append([one.code for one in ended])
        played.said += said
        for pattern in step.says:
            lines = [line for line in said.splitlines() if re.search(pattern, line)]
            played.named = played.named or "".join(lines[:1])
        played.problems += problems_of(step, ended)
        played.untouched.append(tree(scene.run) == before)

    def _command(self, fault: Fault, scene: damage.Scene, step: Round, count: Path | None = None) -> list[Ended]:
        """Train, on all ranks, until all have ended."""
        self._commands += 1
        outs = self.folder / "output" / str(self._commands)
        outs.mkdir(parents=True)
        ranks = step.ranks or fault.ranks
        workload = WORKLOADS[fault.workload]
        system = "" if fault.automatic else SYSTEM
        flags = outweigh(f"--data {scene.data} --output-dir {scene.run} {workload.flags} {system} {step.flags}")
        port = find_free_port()
        environs = []
        for rank in range(ranks):
            mine = [strike for strike in (*fault.always, *step.strikes) if strike.rank in (None, rank)]
            orders = {
                "strikes": [[self._counted(fault, strike.at), strike.do] for strike in mine],
                "roots": {"run": str(scene.run), "cache": str(scene.cache), "data": str(scene.data)},
                "report": fault.report,
                "count": str(count) if count is not None and rank == 0 else "",
            }
            environ = {"FAULT": json.dumps(orders), "PACELINE_CACHE": str(scene.cache)}
            environs.append(environ if ranks == 1 else by_hand(rank, ranks, port, **environ))
        words = ("train", workload.recipe, *flags)
        return self._zygote.run(outs, environs, *words, module="faulty_rank", deadline=MAX_SECONDS)

    def _counted(self, fault: Fault, at: str) -> str:
        """A moment given as a share of all its kind ("operation 37%") as a number."""
        kind, _, share = at.partition(" ")
        if not share.endswith("%"):
            return at
        counts = json.loads(self.unbroken(fault).with_suffix(".counts").read_text())
        return f"{kind} {1 + int(float(share[:-1]) / 100 * counts[kind])}"


def main() -> int:
    """Play the table, print a line for each fault, and write it down. -> 1 where one did not end as expected."""
    from table import TABLE
    from written import write_table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write table.md into this folder")
    parser.add_argument("--only", default="", help="play only the rows whose name this regular expression finds")
    parser.add_argument("--short", action="store_true", help="only the rows of the ordinary suite")
    parser.add_argument("--jobs", type=int, default=1, help="how many faults at a time")
    asked = parser.parse_args()
    rows = [fault for fault in TABLE if re.search(asked.only, fault.row) and (fault.short or not asked.short)]
    played: dict[Fault, Played] = {}
    waiting, began = iter(rows), time.monotonic()
    taking = threading.Lock()

    def work(folder: Path) -> None:
        with Harness(folder) as harness:
            while True:
                with taking:
                    fault = next(waiting, None)
                if fault is None:
                    return
                found = played[fault] = harness.play(fault)
                print(f"{len(played):3} {'  ' if found.good else 'NO'} {found.seconds:5.1f} s  {fault.row}", flush=True)
                if not found.good:
                    print("\n".join([*found.problems, found.said]), flush=True)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        folders = [Path(folder) / str(job) for job in range(asked.jobs)]
        for done in [pool.submit(work, own) for own in folders]:
            done.result()
    seconds = time.monotonic() - began
    if asked.out is not None:
        write_table(asked.out / "table.md", rows, played, seconds)
    bad = [fault.row for fault in rows if not played[fault].good]
    print("\n".join([f"{len(rows) - len(bad)} of {len(rows)} faults ended as expected, in {seconds:.0f} s", *bad]))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
