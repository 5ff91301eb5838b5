"""MLPerf's logs as they lie about: of our runs, of published submissions, with a launcher's words in front of each line.

Whoever wrote them, they are data: sizes are bounded, every line is judged before anything is made of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeGuard

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.safe_read import parse_json, read_plain

MAX_BYTES = 2**28  # published logs have up to 4 MB
TOKEN = ":::MLLOG "
OURS = "paceline/"  # what the file names in our own lines start with
# What `paceline mlperf analyse` reads and `check` cannot: how each is told.
FOREIGN = (
    ("GluonCV", re.compile(r"\[Epoch \d+\]\[Batch \d+\], Speed: ")),
    ("Habana's TensorFlow SSD", re.compile(r"Epoch \d+ finished\. Duration: ")),
    ("NVIDIA's DLLogger", re.compile(r"^DLLL \{", re.MULTILINE)),
    ("Horovod", re.compile(r"Total img/sec on \d+ ")),
    ("MXNet", re.compile(r"Epoch\[\d+\] Time cost=")),
)


@dataclass(frozen=True)
class MLLogLine:
    """One :::MLLOG line."""

    ms: float  # since 1970
    key: str
    value: Any
    metadata: dict[str, Any]


def find_logs(words: Sequence[str], kind: str) -> list[Path]:
    """The log files that the words mean: files, run folders, folders of trials (trial-N/) or of a submission (result_N.txt).

    kind  what asks for them: check or analyze
    Raises PacelineError for a word that means none, and for no words.
    """
    if not words:
        raise PacelineError(f"name a run's folder, or a log: paceline mlperf {kind} RUN|FILE")
    return [file for word in words for file in _logs_of(Path(word).expanduser())]


def _logs_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]  # what is wrong with it, its reader says
    if (path / "mllog.txt").exists():
        return [path / "mllog.txt"]
    for pattern in ("trial-*/mllog.txt", "result_*.txt"):
        if results := sorted(path.glob(pattern), key=lambda file: (len(str(file)), str(file))):
            return results
    raise PacelineError(f"{path}: no mllog.txt here, no trial-N/ with one, no result_N.txt. Name a run's folder, or a log.")


def read_text(path: Path) -> str:
    """A log's text. Raises DataError for what is no file, is empty, or is larger than any log."""
    try:
        content = read_plain(path, MAX_BYTES)
    except OSError as problem:
        raise DataError(f"{path}: cannot be read as a log ({problem.strerror or problem}). Name a file.") from None
    if not content.strip():
        raise DataError(f"{path}: this log is empty. Name another one.")
    return content.decode("utf-8", "replace")


def read_mllog(path: Path) -> list[MLLogLine]:
    """Every :::MLLOG line of a log, in order.

    Raises DataError for a file without any, naming whose log it looks like, and for a line that is cut or is none.
    """
    return mllog_lines(path, read_text(path))


def mllog_lines(path: Path, text: str) -> list[MLLogLine]:
    """The same of a text that was read already."""
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        if TOKEN.rstrip() not in line:
            continue
        result = _parsed(line.partition(TOKEN)[2])
        if result is None:
            ours = f'"file": "{OURS}' in text  # others' runs cannot go on
            advice = (
                "Go on with its run (the same --out mends its log), or name another one." if ours else "Name another one."
            )
            raise DataError(f"{path}: line {number} is no :::MLLOG line: the log was cut there, or damaged. {advice}")
        lines.append(result)
    if not lines:
        name = identify_log(text)
        whose = f"it looks like a log of {name}, which `paceline mlperf analyse` reads" if name else "it is no MLPerf log"
        raise DataError(f"{path}: no line with {TOKEN.strip()}: {whose}.")
    return lines


def identify_log(text: str) -> str:
    """Whose log a text without :::MLLOG lines looks like; empty where it is nobody's."""
    return next((name for name, looks in FOREIGN if looks.search(text)), "")


def _parsed(text: str) -> MLLogLine | None:
    try:
        record = parse_json(text)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    ms, key, metadata = record.get("time_ms"), record.get("key"), record.get("metadata")
    if not is_number(ms) or not isinstance(key, str):
        return None
    if not isinstance(metadata, dict) or "value" not in record:
        return None
    return MLLogLine(float(ms), key, record["value"], metadata)


def get_value(lines: Sequence[MLLogLine], key: str, default: Any = None) -> Any:
    """The value of the first line with this key."""
    return next((line.value for line in lines if line.key == key), default)


def get_benchmark(path: Path, lines: Sequence[MLLogLine]) -> str:
    """Which benchmark a log is of. Raises DataError where it does not say."""
    benchmark = get_value(lines, "submission_benchmark")
    if not isinstance(benchmark, str) or not benchmark.isidentifier():
        raise DataError(f"{path}: it does not say which benchmark it is of (submission_benchmark). No rules fit it.")
    return benchmark


# One line of the table that logs are turned into, whoever wrote them.


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number that a float has room for. JSON has NaN, 1e999 and whole numbers of any length too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class LogSummary:
    """What one log tells; None is what it does not. Numbers that are not finite are left out: nothing can be told from them."""

    file: str
    written_by: str  # paceline, MLPerf submission, GluonCV, ...
    system: str = ""
    benchmark: str = ""
    status: str = ""  # success, aborted, or "" where the log has no such word
    accelerators: int | None = None
    global_batch: int | None = None
    minutes: float | None = None  # time to train: run_start to run_stop
    epochs: float | None = None  # trained, up to the evaluation that the quality is of
    images_per_second: float | None = None  # steady: of the median epoch, the first left out
    evaluations: int | None = None
    eval_seconds: float | None = None  # of all evaluations together
    quality: dict[str, float] = field(default_factory=dict)  # of the last evaluation

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int | float) and not is_number(value):
                object.__setattr__(self, entry.name, None)
        quality = {name: value for name, value in self.quality.items() if is_number(value)}
        object.__setattr__(self, "quality", quality)

    @property
    def per_accelerator(self) -> float | None:
        """Images a second of one accelerator."""
        if self.images_per_second is None or not self.accelerators:
            return None
        return self.images_per_second / self.accelerators

    def facts(self) -> dict[str, object]:
        """For JSON, and for CSV where each metric of the quality has a column."""
        result = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        quality = result.pop("quality")
        return {**result, "images_per_second_per_accelerator": self.per_accelerator, "quality": quality}


# Fewer runs have no middle once two are dropped.
MIN_FOR_MEAN = 3


def olympic_mean(seconds: Sequence[float]) -> float:
    """The mean without the fastest and the slowest; infinite where a failed run is left. At least three are needed."""
    inner = sorted(seconds)[1:-1]
    return sum(inner) / len(inner)
