"""One flipped bit in a file that is read back: it is named, or it has no effect. Never a silent other result or a traceback.

The long form runs 2,000 whole commands in parts, and prints a table of each part. The default suite runs a few of them, and flips
many more bits under the readers that the commands use.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from coco_sets import make_set
from tiny_runs import TINY, command, make_photos, of_its_own, without_report

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines
from paceline.cli.main import main
from paceline.config.run import read_run
from paceline.data.index.manifest import Manifest
from paceline.data.index.staleness import find_stale_file
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.logging.events import MEASURED, EventLog, read_events
from paceline.training.logging.mllog import MLLog
from paceline.training.state import check_snapshot

SEED, LONG, PARTS, SHORT, UNDER_READERS = 1, 2000, 5, 6, 400
STEPS = 6


@dataclass(frozen=True)
class Setup:
    """Folders as they were before any bit was flipped: a finished run, the same run broken off, and a cache."""

    root: Path
    photos: Path

    def words(self, verb: str, place: Path) -> list[object]:
        """The command, on a copy of everything at `place`."""
        if verb == "resume":
            run = place / "broken"
            return [
                "train",
                "classify-demo",
                "--data",
                self.photos,
                "--output-dir",
                run,
                *TINY,
                *SAVES,
                "--max-steps",
                STEPS,
            ]
        if verb == "eval":
            return ["eval", place / "whole", "--json"]
        photo = self.photos / "val" / "ant"
        return ["predict", place / "whole", photo, "--output-dir", place / "found", "--no-save-images"]

    def files(self, verb: str) -> list[Path]:
        """Every file that the verb reads back, relative to `root`: not photos, which are not ours, nor check.html, for people."""
        run = self.root / ("broken" if verb == "resume" else "whole")
        best = (run / "checkpoints" / "best").resolve()
        kept = sorted((run / "checkpoints").glob("step-*")) if verb == "resume" else [best]
        found = [run / "run.json", *(file for folder in kept for file in sorted(folder.iterdir()))]
        if verb == "resume":
            found += [run / "events.jsonl", run / "mllog.txt"]
        if verb != "predict":
            found += sorted(
                path for path in (self.root / "cache" / "index").rglob("*") if path.is_file() and path.suffix != ".html"
            )
        return [path.relative_to(self.root) for path in found]


SAVES = ["--save-every", 2, "--keep-checkpoints", 3, "--log-every", 1]


@pytest.fixture(scope="module")
def setup(tmp_path_factory) -> Setup:
    root = tmp_path_factory.mktemp("pristine")
    made = Setup(root, make_photos(tmp_path_factory.mktemp("photos") / "set"))
    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        patch.setenv("PACELINE_CACHE", str(root / "cache"))
        assert main([str(word) for word in made.words("resume", root)]) == 0
    (root / "broken").rename(root / "whole")
    broken = shutil.copytree(root / "whole", root / "broken", symlinks=True)
    shutil.rmtree(broken / "checkpoints" / f"step-{STEPS:06d}")
    for link in ("last", "best"):
        if not (broken / "checkpoints" / link).exists():
            (broken / "checkpoints" / link).unlink()
    keep_lines(broken / "events.jsonl", lambda line: json.loads(line)["step"])
    keep_lines(broken / "mllog.txt", lambda line: json.loads(line[9:])["metadata"].get("step_num", -1))
    return made


def keep_lines(file: Path, step_of: Callable[[str], int]) -> None:
    """The lines up to the checkpoint of step 4, as a kill leaves them."""
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if step_of(line) <= 4))


@contextmanager
def flipped(file: Path, random: Random) -> Iterator[str]:
    """One bit of the file is another inside; -> which."""
    content = file.read_bytes()
    place, bit = random.randrange(len(content)), random.randrange(8)
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    file.write_bytes(changed)
    try:
        yield f"{file.name} byte {place} bit {bit}"
    finally:
        if file.parent.exists():  # a resumed run deletes old checkpoints
            file.write_bytes(content)


def kind_of(file: Path) -> str:
    return "index/*.npy" if file.suffix == ".npy" else file.name


def any_file(files: list[Path], random: Random) -> Path:
    """Each kind of file as often as another, however many there are of it."""
    kind = random.choice(sorted({kind_of(file) for file in files}))
    return random.choice([file for file in files if kind_of(file) == kind])


def result_of(verb: str, place: Path, out: str) -> dict[str, Any]:
    """What a command was for: the numbers, the predictions, or the run's weights and its logs less their clocks."""
    if verb == "eval":
        return {"metrics": out.strip().splitlines()[-1]}
    if verb == "predict":
        return {"predictions": (place / "found" / "predictions.json").read_bytes().replace(bytes(place), b"")}
    run = place / "broken"
    return {
        "weights": [file.read_bytes() for file in sorted((run / "checkpoints" / "last").glob("*.safetensors"))],
        "events.jsonl": [
            {name: value for name, value in event.items() if name not in MEASURED}
            for event in read_events(run / "events.jsonl")
            if event["event"] != "resume"  # which tells of the checkpoint that it went on from
        ],
        "mllog.txt": [
            {**json.loads(line[9:]), "time_ms": 0} if "throughput" not in line else ""
            for line in (run / "mllog.txt").read_text(errors="replace").splitlines()
        ],
    }


def outcome(verb: str, file: Path, said: Any, got: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
    """In words what became of a flip in `file`; words in capitals are a failure."""
    told = said.out + said.err
    # An array of the index is named by the index's folder, which is over all of them.
    names = (file.name, file.parent.name) if file.suffix == ".npy" else (file.name,)
    if file.name == "manifest.json":
        names = (file.name, "not prepared yet")
    words = ("damaged", "checksum", "readable", "read", "format", "not prepared yet", "missing", "not found", "truncated")
    named = any(name in told for name in names) and any(word in told for word in words)
    if "Traceback" in told or said.code not in (0, 2):
        return f"TRACEBACK or code {said.code}"
    if said.code == 2:
        return "named and refused" if named else "REFUSED WITHOUT A NAME"
    assert got is not None
    other = [name for name in wanted if got[name] != wanted[name]]
    if not other:
        return "named, the same result" if named else "unaffected"
    if other == [file.name]:  # a log: its own lines
        return "named, its line left out" if named else "mllog.txt" if file.name == "mllog.txt" else "SILENT"
    return f"SILENT: other {', '.join(other)}"


class Flips:
    """Carries out commands on copies of a Setup, one flipped bit at a time."""

    def __init__(self, setup: Setup, place: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        without_report(patch)
        patch.setenv("PACELINE_CACHE", str(place / "cache"))
        self.setup, self.place, self.capsys = setup, place, capsys
        self.wanted = {}
        for verb in ("resume", "eval", "predict"):
            self.fresh()
            said = command(capsys, *setup.words(verb, place))
            assert said.code == 0, said
            self.wanted[verb] = result_of(verb, place, said.out)

    def fresh(self) -> None:
        for folder in ("whole", "broken", "cache", "found"):
            shutil.rmtree(self.place / folder, ignore_errors=True)
            if folder != "found":
                shutil.copytree(self.setup.root / folder, self.place / folder, symlinks=True)

    def one(self, verb: str, file: Path, random: Random) -> tuple[str, str]:
        """-> (outcome, which bit)."""
        self.fresh()
        with flipped(self.place / file, random) as which:
            said = command(self.capsys, *self.setup.words(verb, self.place))
            got = result_of(verb, self.place, said.out) if said.code == 0 else None
        found = outcome(verb, file, said, got, self.wanted[verb])
        return found, f"{verb}: {file.parent.name}/{which}: {said.code} {said.out[-300:]} {said.err[-600:]}"


def table(counts: Counter[tuple[str, str, str]]) -> str:
    """Markdown: verb, file, outcome, how many."""
    rows = [f"| {verb} | {name} | {found} | {count} |" for (verb, name, found), count in sorted(counts.items())]
    return "\n".join(["| command | file | outcome | flips |", "| --- | --- | --- | ---: |", *rows])


def carry_out(places: range, flips: Flips) -> None:
    counts, failures = Counter(), []
    for place in places:
        random = Random(f"{SEED} {place}")
        verb = ("resume", "eval", "predict")[place % 3]
        file = any_file(flips.setup.files(verb), random)
        found, which = flips.one(verb, file, random)
        counts[verb, kind_of(file), found] += 1
        if not found.islower():
            failures.append(f"{found}: {which}")
    with flips.capsys.disabled():
        if len(places) > SHORT:
            print(f"\n{table(counts)}")
    assert not failures, "\n\n".join(failures[:10]) + f"\n{len(failures)} of {len(places)}"


def test_a_flipped_bit_is_named_or_without_effect_in_a_few_commands(setup, tmp_path, capsys, monkeypatch):
    carry_out(range(SHORT), Flips(setup, tmp_path, capsys, monkeypatch))


@pytest.mark.nightly("2,000 commands")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_flipped_bit_is_named_or_without_effect_in_2000_commands(setup, tmp_path, capsys, monkeypatch, part):
    carry_out(range(part, LONG, PARTS), Flips(setup, tmp_path, capsys, monkeypatch))


# Under the readers ----------------------------------------------------------------------------------------------------


def read_checkpoint(file: Path) -> Any:
    snapshot = load_checkpoint(file.parent, check_snapshot)
    groups = {
        group: {name: (tensor.stride(), sha256(tensor.contiguous().numpy()).digest()) for name, tensor in tensors.items()}
        for group, tensors in snapshot.tensors.items()
    }
    return groups, snapshot.facts


def read_log(file: Path) -> Any:
    said: list[str] = []
    events = read_events(file, Lines(said.append))
    log = EventLog(file)
    # A torn end is a kill's mark to a reader, and named by the writer, which cuts it.
    if said or log.damage():
        raise PacelineError("named")
    return events


def read_index(manifest: Manifest) -> Any:
    reason = find_stale_file(manifest)
    if reason is not None:
        raise PacelineError(reason)
    return manifest


READERS: dict[str, Callable[[Path], Any]] = {
    "run.json": read_run,
    "events.jsonl": read_log,
    "manifest.json": lambda file: read_index(Manifest.load(file)),
}


def read(file: Path) -> Any:
    if file.suffix == ".npy":
        return read_index(Manifest.load(file.parents[2]))
    return READERS.get(file.name, read_checkpoint)(file)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory) -> Path:
    """The folder of a box data set's manifest and index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return prepare_if_needed(make_set(tmp_path_factory.mktemp("boxes") / "set"), kind="boxes")


def test_a_flipped_bit_never_passes_a_reader(setup, boxes, tmp_path, nightly):
    place = shutil.copytree(setup.root, tmp_path / "all", symlinks=True)
    names = {name for verb in ("resume", "eval") for name in setup.files(verb)}
    files = [place / name for name in sorted(names) if name.name != "mllog.txt"]
    copy = shutil.copytree(boxes, tmp_path / "boxes")
    files += sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size and path.suffix != ".html")
    whole = {file: repr(read(file)) for file in files}
    random, passed = Random(SEED), []
    for _ in range(LONG if nightly else UNDER_READERS):
        file = any_file(files, random)
        with flipped(file, random) as which:
            try:
                found = repr(read(file))
            except PacelineError:
                continue
        if found != whole[file]:
            passed.append(which)
    assert not passed
    assert whole == {file: repr(read(file)) for file in files}  # nothing was left flipped


def test_a_flipped_bit_in_mllog_is_no_traceback_and_loses_no_other_line(setup, tmp_path):
    file = shutil.copy(setup.root / "broken" / "mllog.txt", tmp_path / "mllog.txt")
    lines = file.read_bytes().splitlines()
    random = Random(SEED)
    for _ in range(50):
        with flipped(file, random) as which:
            log = MLLog(file)
            log.truncate_after(1000)
            kept = set(file.read_bytes().splitlines())
            # A flipped newline takes two lines, and any other bit the line it is in.
            assert len(set(lines) - kept) <= 2, which
            assert log.started, which


def test_flips_reach_every_kind_of_file(setup):
    kinds = {file.suffix for verb in ("resume", "eval", "predict") for file in setup.files(verb)}
    assert kinds == {".json", ".jsonl", ".txt", ".safetensors", ".npy"}
    assert np.all([(setup.root / file).stat().st_size for verb in ("resume", "eval") for file in setup.files(verb)])
