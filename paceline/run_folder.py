"""The folder of one run: made, resumed or refused here.

A folder that a failed start made is taken away again; one that holds a finished run is never written to.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import IO, Any

from paceline.checkpoint.layout import BEST, link_step, step_name
from paceline.checkpoint.read import check_same_recipe, load_checkpoint, newest_valid
from paceline.checkpoint.retention import check_space
from paceline.checkpoint.snapshot import Snapshot, bytes_of
from paceline.checkpoint.writer import CheckpointWriter
from paceline.config.errors import CheckpointError, UserError
from paceline.config.length import LENGTH, length_in_steps
from paceline.config.python_file import same_workload
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, fill, saved_system, with_defaults
from paceline.config.run_names import LEFT_OVER, RUNS, STOP_FILE, numbered
from paceline.config.submission import Submission
from paceline.config.system import MOST_THREADS, System
from paceline.config.typed import checked
from paceline.config.whole import sweep, write_whole
from paceline.dist.exchange import from_main
from paceline.dist.world import World
from paceline.going_on import how_to_go_on, is_another, stand_of
from paceline.log.events import read_events
from paceline.standing import Standing
from paceline.state import State, check_snapshot, evaluates
from paceline.systems.detect import cpu_cores
from paceline.workloads import workload_of


@dataclass(frozen=True)
class Start:
    """Where a run starts: anew, or from a checkpoint and what is known beside it."""

    standing: Standing  # what the evaluations so far have found
    seconds: float = 0.0  # wall-clock of the run before this process began
    snapshot: Snapshot | None = None  # None: anew
    checkpoint: str = ""  # its name

    def pending(self, last_step: int) -> bool:
        """Whether an evaluation of its step comes first: one follows it, or this run ends there, and nothing says what it found."""
        facts = {} if self.snapshot is None else self.snapshot.facts
        follows = bool(facts) and (evaluates(facts) or facts["step"] >= last_step)
        return follows and self.standing.step != facts["step"]


@dataclass
class RunFolder:
    """One run's folder, on every rank."""

    path: Path
    saved: Mapping[str, Any] | None  # run.json of the run that is resumed; None for a fresh one
    is_main: bool
    ended: str = ""  # status with which the run ended that is given more; empty for any other

    def system(self, wanted: System, *, given: Collection[str], world: int) -> System:
        """The system to run on: a resumed run keeps its own while the ranks are as many, so that its bits stay the same.

        given   what this command names by hand. Where it names a system, images of a forward are kept that fitted into as
                much memory (trying.py)
        """
        if self.saved is None or self.saved["world"] != world:
            return wanted
        saved = saved_system(self.saved, self.path)
        if saved.accelerator != wanted.accelerator:  # it moved to another kind of machine
            return wanted
        if "system" not in given:
            return saved
        if "system.images_per_forward" in given or saved.memory_gib != wanted.memory_gib:
            return wanted
        return replace(wanted, images_per_forward=saved.images_per_forward)

    def with_threads(self, system: System, *, given: bool, world: int) -> System:
        """`system` with the number of compute threads that a resumed run had: the bits of its sums follow it.

        given   whether this command names a number
        An automatic number that another number of ranks or another kind of machine brings stays automatic.
        """
        if self.saved is None or given or system.intra_op_threads or self.saved["world"] != world:
            return system
        if saved_system(self.saved, self.path).accelerator != system.accelerator:
            return system
        return replace(system, intra_op_threads=self.saved_threads())

    def saved_threads(self) -> int:
        """The compute threads of the run that is resumed; 0 where that is not known.

        Raises UserError for a number that no run can have had.
        """
        threads = (self.saved or {}).get("threads", {}).get("intra_op", 0)
        if type(threads) is not int or not 0 <= threads <= MOST_THREADS:
            raise UserError(f"{self.path}: run.json: threads.intra_op is {str(threads)[:60]}, which no run has had.")
        return threads

    def say_threads(self, threads: int, say: Callable[[str], None]) -> None:
        """Name a change of the number of compute threads, and what it costs to keep it."""
        before, cores = self.saved_threads(), cpu_cores()
        count = f"{threads} thread{'s'[: threads > 1]}"
        if before and threads != before:
            say(f"computes with {count}, {before} before: sums round differently from here on")
        elif before > cores:
            say(
                f"computes with {count}, as before, on {cores} core{'s'[: cores > 1]}: the same bits, and slower "
                f"(--system.intra-op-threads {cores} would change them)"
            )

    def submission(self, asked: Submission, say: Callable[[str], None]) -> Submission:
        """What MLPerf's log says of the submission: a log is one run's, so a resumed run keeps its own, and that is said."""
        if self.saved is None:
            return asked
        where = f"{self.path}: run.json: controls.mlperf"
        own = fill(Submission(), checked(dict, self.saved["controls"].get("mlperf", {}), where), where)
        plain = asdict(Submission())
        new = {name: value for name, value in asdict(asked).items() if value not in (plain[name], getattr(own, name))}
        if new:
            flags = ", ".join(f"--mlperf.{name.replace('_', '-')}" for name in new)
            kept = ", ".join(f"{name.replace('_', ' ')} {getattr(own, name) or 'not given'}" for name in new)
            say(f"{flags}: not taken, the log of this run was begun with {kept}; another needs a new run (--out)")
        return own

    def start(self, run: Run, given: Collection[str], world: World, say: Callable[[str], None]) -> Start:
        """Where the run starts: at its newest checkpoint that is whole; every rank calls it.

        given   dotted names of the recipe's fields set by hand: a greater length and fields of `quality` may be new
        say     is told of checkpoints that are skipped
        Raises CheckpointError when it belongs to another recipe or to other data.
        """
        headline = workload_of(run.recipe.task).headline
        found = None if self.saved is None else newest_valid(self.path / "checkpoints", say, check_snapshot)
        if found is None:
            if self.saved is not None:
                say(f"{self.path} has no checkpoint yet: starting over")
            return Start(Standing(headline))
        folder, snapshot = found
        wanted = fingerprint(run)
        self._check_recipe(snapshot.facts["recipe"], wanted["recipe"], run, given)
        if any(snapshot.facts[name] != wanted[name] for name in ("data_hash", "train_images")):
            raise CheckpointError(
                f"{self.path} was begun on other training images ({snapshot.facts['train_images']:,} there, "
                f"{wanted['train_images']:,} now, from {run.provenance['data']['root']}). Go on with the same --data and "
                "--limit-train, or start a new run (another --out) from its weights alone: --weights RUN/checkpoints/last"
            )
        told = json.dumps(self._journal(headline, snapshot.facts, say)) if self.is_main else None
        standing, seconds = json.loads(from_main(world, told, "journal"))
        return Start(Standing(**standing), seconds, snapshot, folder.name)

    def _journal(self, headline: str, facts: Mapping[str, Any], say: Callable[[str], None]) -> tuple[dict, float]:
        """-> (what the evaluations up to a checkpoint of these facts found, the run's seconds), as far as the events know."""
        file, step = self.path / "events.jsonl", facts["step"]
        events = [event for event in read_events(file) if event["step"] <= step and event["event"] != "end"]
        standing, best = Standing.of_events(headline, events), link_step(self.path / "checkpoints", BEST)
        known = {event["step"] for event in events if event["event"] == "eval"}
        if not file.exists():
            say(f"{file} is gone, and what was found before {step_name(step)} with it: the best is chosen from here on")
        elif best is not None and best < step and best not in known and self._was_evaluated(best):
            # The best of the others is not as good, and may be deleted already.
            say(
                f"{file} has lost what was found of {step_name(best)}, the best: `best` stays there until a later evaluation beats "
                "the others"
            )
            standing.best_step = -1
        clocks = [facts["seconds"], *(event["seconds"] for event in events)]
        return asdict(standing), max(filter(isfinite, clocks), default=0.0)

    def _was_evaluated(self, step: int) -> bool:
        try:
            facts = load_checkpoint(self.path / "checkpoints" / step_name(step), check_snapshot).facts
        except CheckpointError:
            return False
        return evaluates(facts)

    def _check_recipe(self, saved: Mapping[str, Any], now: Mapping[str, Any], run: Run, given: Collection[str]) -> None:
        workload = workload_of(run.recipe.task)
        template = Recipe(task="", model=workload.model, input=workload.input)
        saved = with_defaults(saved, template)
        may_differ = [name for name in given if name.startswith("quality.")]
        if same_workload(str(saved["task"]), run.recipe.task):
            may_differ.append("task")
        if set(LENGTH) & set(given):
            before, after = (length_in_steps(recipe, asdict(run.plan)) for recipe in (saved, now))
            if after < before:
                raise CheckpointError(
                    f"{self.path}: it was begun with {before:,} steps, and a run that goes on can only become longer than "
                    f"that, not {after:,}. To end it sooner: --steps {after}"
                )
            may_differ += LENGTH
        check_same_recipe(
            saved,
            now,
            ignore=tuple(may_differ),
            summary=""
            if (self.saved or {}).get("name") == run.name
            else is_another(self.path, self.saved or {}, run.name),
            go_on=how_to_go_on(self.path, str(saved["task"])),
        )

    def check_space(self, state: State, keep: int) -> None:
        """Refuse to start where the checkpoints that will be kept do not fit.

        Raises UserError naming the folder.
        """
        if self.is_main:
            tensors = [*state.model.state_dict().values(), *state.optimiser.state().values()]
            # Kept ones, the best, and the one being written.
            check_space(self.path, bytes_of(tensors) * (keep + 2))

    def write(self, run: Run) -> None:
        """run.json, whole or not at all; a resumed run's says how it goes on, and keeps the first one beside it."""
        if not self.is_main:
            return
        file, first = self.path / "run.json", self.path / "run-first.json"
        if self.saved is not None and not first.exists():
            write_whole(first, file.read_bytes(), sync=True)
        write_whole(file, run.to_json(), sync=True)

    @contextmanager
    def writer(self, controls: Controls, start: Start, say: Callable[[str], None]) -> Iterator[CheckpointWriter | None]:
        """The background writer of checkpoints, on rank 0; what was left undone before `start` is done first.

        say   is told where the best checkpoint is gone
        """
        if not self.is_main:
            yield None
            return
        writer = CheckpointWriter(self.path / "checkpoints", keep=controls.keep, keep_every=controls.keep_every or None)
        best = start.standing.best_step
        if start.snapshot is not None and not writer.goes_on(start.snapshot.facts["step"], best):
            say(f"{step_name(best)} was the best so far and is gone: `best` comes back with a better one")
        try:
            yield writer
        finally:
            writer.close()


def fingerprint(run: Run) -> dict[str, Any]:
    """What a checkpoint says of its run: recipe and data decide whether another run may go on from it."""
    data = run.provenance["data"]
    facts = {"recipe": asdict(run.recipe), "data_hash": data["hash"], "train_images": data["train_images"]}
    return json.loads(json.dumps(facts))


@contextmanager
def open_run_folder(
    name: str, recipe: Recipe, controls: Controls, given: Collection[str], world: World, *, repeats: bool
) -> Iterator[RunFolder]:
    """Decide on rank 0 where the run lives and whether it goes on; all ranks get the same answer.

    given     dotted names of the recipe's fields set by hand
    repeats   whether recipe and controls come from a run.json
    Raises UserError for a folder that is finished, in use, not ours, or not writable.
    """
    answer, lock, made, ended = None, None, None, ""
    if world.is_main:
        path, made = _choose(name, controls.out)
        lock = _lock(path)
        for folder in (path, path / "predictions"):
            sweep(folder)
        try:
            saved = None
            if (path / "run.json").exists():
                saved, ended = stand_of(path, name, recipe, controls, given, repeats=repeats)
        except UserError:
            lock.close()
            raise
        answer = json.dumps({"path": str(path), "saved": saved, "ended": ended})
    facts = json.loads(from_main(world, answer, "run-folder"))
    folder = RunFolder(Path(facts["path"]), facts["saved"], world.is_main, facts["ended"])

    def take_away(_: object = None) -> None:
        """Nothing half-made stays behind: a run has begun once it has events."""
        if not world.is_main or folder.saved is not None or (folder.path / "events.jsonl").exists():
            return
        for entry in folder.path.iterdir() if made is None else ():
            if not LEFT_OVER.fullmatch(entry.name):  # all else came after this command looked
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if made is None:
            return
        shutil.rmtree(folder.path, ignore_errors=True)
        with suppress(OSError):  # somebody else has put something there
            for above in folder.path.parents:
                if not above.is_relative_to(made):
                    break
                above.rmdir()

    if world.watch is not None:
        world.watch.before_exit.append(take_away)  # another rank was refused, and this process is about to leave
    try:
        yield folder
    except BaseException:
        take_away()
        raise
    finally:
        if lock is not None:
            lock.close()


def nearest_folder(out: str) -> Path:
    """The folder of a run before it is made: itself where it is there already, else the nearest above it that is."""
    path = Path(out or RUNS).expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _choose(name: str, out: str) -> tuple[Path, Path | None]:
    """(folder, the topmost folder that was made for it just now)."""
    path = Path(out or RUNS).expanduser().absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{path}: its name is no UTF-8, and TensorBoard writes into no such folder. Choose another one with --out."
        ) from None
    if not out:
        path = numbered(name)
        return path, _make(path, str(path))
    if (path / "run.json").exists():
        if (path / STOP_FILE).is_dir():
            raise UserError(
                f"{path / STOP_FILE}: a folder; only a file of this name stops a run. Remove it or rename it."
            )
        return path, None
    if path.exists() and (not path.is_dir() or any(not LEFT_OVER.fullmatch(entry.name) for entry in path.iterdir())):
        raise UserError(f"--out {out}: this is there already and is no run of ours. Choose another folder.")
    return path, _make(path, f"--out {out}")


def _make(path: Path, what: str) -> Path | None:
    """Make a folder and prove that files can be written into it (mode bits say too little about that).

    -> the topmost folder that had to be made; None where all were there.
    """
    probe = path / ".probe"
    made = next((folder for folder in (*reversed(path.parents), path) if not folder.exists()), None)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"paceline")
        probe.unlink()
    except OSError as problem:
        raise UserError(f"{what}: cannot be written ({problem.strerror}). Choose another folder with --out.") from None
    return made


def _lock(path: Path) -> IO[str]:
    """Hold the folder for as long as this process lives."""
    file = None
    try:
        file = (path / ".lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        assert file is not None
        file.close()
        raise UserError(
            f"{path}: another process is training in this folder. Wait for it, or choose another --out."
        ) from None
    except OSError as problem:
        raise UserError(f"{path}: cannot be written ({problem.strerror}). Choose another folder with --out.") from None
    return file
