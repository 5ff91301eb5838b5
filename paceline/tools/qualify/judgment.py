"""Judge by what `paceline check-performance` measured whether a machine is as fast as it should be, and name what to look at. Pure.

An accelerator is judged by what was published for it (config/reference_rates.py). A CPU is judged by the CPU-seconds that an image
took on another, made to fit by the tests: so many times as fast as its cores do a test, so many times faster are steps (matrix
products and copies, the geometric mean), input and scores (inflate) expected to be. Tests are per CPU-second, rates by the clock: a
core that is as fast as its tests say, but is not there half of the time, is slower than expected, and CPU-seconds an image say
which of the two it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.config.reference_rates import ReferenceRate, find_recorded_rate, find_reference_rate

Facts = Mapping[str, Any]  # of a rank, as tools/qualify/measurements.py gives them
# Least share of the expectation that is as expected. Of a CPU's CPU-seconds and a device's own tests: more than what they vary by
# (results/qualify). Of a program with fused kernels: eager ResNet-50 reached 0.59 of it on one H200 (results/gpu), and other networks
# and devices are not measured, so only gross faults are found. An all-reduce over loopback varies more than computing does.
MIN = {
    **{"recorded": 0.8, "bare": 0.9, "plain": 0.9, "fused": 0.45},
    **{"all-reduce": 0.6, "fed": 0.8, "disk": 0.5, "beside": 0.9},
}
CROWDED, STOLEN, THROTTLED = 0.1, 0.03, 0.02  # shares of the cores' time that are worth a word
HEAVY = 1.15  # times the CPU-seconds that an image should cost
NAMES = {"classification": "ResNet-50", "detection": "SSD", "instance-segmentation": "Mask R-CNN"}
PARTS = {"step": "step", "input": "input pipeline", "photos": "step with input"}
TITLES = {f"{task}/{part}": f"{name}, {words}" for task, name in NAMES.items() for part, words in PARTS.items()}
TITLES |= {"scores": "box metrics", "matmul": "matrix multiplication", "copy": "memory copy", "disk": "reading from disk"}
UNITS = {"matmul": "TFLOP/s", "copy": "TB/s", "all-reduce": "GB/s"}
CORES = "core speed while computing"  # by CPU-seconds
BESIDE = "slowest rank (of the median)"
FED = "speed of the node's input pipeline"
GOOD, SLOW, UNJUDGED = "as expected", "slower", "not rated"


@dataclass(frozen=True)
class QualifyCheck:
    """One thing measured."""

    name: str
    measured: float  # of all ranks
    unit: str
    expected: float  # 0 = not known
    least: float  # share of it that is enough
    basis: str  # where the expectation is from

    @property
    def ratio(self) -> float:
        """Measured by expected; 0 without an expectation."""
        return self.measured / self.expected if self.expected else 0.0

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return UNJUDGED if not self.expected else GOOD if self.ratio >= self.least else SLOW


@dataclass(frozen=True)
class QualifyReport:
    """All of it."""

    rows: Sequence[QualifyCheck]
    slowest: str  # the device, in words; "" of one alone
    advice: Sequence[str]  # what to look at next

    @property
    def good(self) -> bool:
        """Whether nothing is slower than expected."""
        return all(row.verdict != SLOW for row in self.rows)


def judge_ranks(ranks: Sequence[Facts], problems: Sequence[str] = ()) -> QualifyReport:
    """ranks: facts of all, by rank; problems: what `paceline doctor` found wrong on these nodes."""
    rows = list(_cpu_rows(ranks) if is_cpu(ranks) else _device_rows(ranks))
    name, share = find_slowest(ranks)
    advice = [f"paceline doctor: {text}" for text in problems]
    if name:
        rows.append(QualifyCheck(BESIDE, share, "", 1.0, MIN["beside"], ""))
        if rows[-1].verdict == SLOW:
            advice.append(f"only {name} is slow. Check its clocks, heat, and other jobs on its cores or link")
    if any(row.verdict == SLOW for row in rows):
        taken = list(_taken_away(ranks))
        advice += taken or list(_unexplained(ranks, rows))
        advice += _input(ranks, rows, crowded=bool(taken))
        advice = advice or ["no cause found. Measure again with a larger --minutes"]
    return QualifyReport(rows, name, advice)


def is_cpu(ranks: Sequence[Facts]) -> bool:
    """Whether the steps ran on CPUs."""
    return ranks[0]["kind"] == "cpu"


def expected_scales(rank: Facts) -> dict[str, float]:
    """How many times as fast as on the recorded CPU each kind of work is expected to be on a core here."""
    tests, here = find_recorded_rate(rank["device"]).tests, rank["tests"]
    ratio = {name: here[name] / tests[name] for name in tests}
    return {"step": math.sqrt(ratio["matmul"] * ratio["copy"]), "input": ratio["inflate"], "all-reduce": ratio["copy"]}


def _scale(rank: Facts, name: str) -> float:
    """Of one measurement. A step on photos is mostly the step."""
    return expected_scales(rank)["input" if name.endswith("/input") or name == "scores" else "step"]


def _sum(ranks: Sequence[Facts], name: str) -> float:
    return sum(rank["measured"][name]["rate"] for rank in ranks)


def _cpu_rows(ranks: Sequence[Facts]) -> Iterator[QualifyCheck]:
    recorded = find_recorded_rate(ranks[0]["device"])
    basis = f"CPU-seconds recorded on {recorded.machine}, and tests of these cores"
    for name in ranks[0]["measured"]:
        yield QualifyCheck(TITLES[name], _sum(ranks, name), "images/s", _expected(ranks, name), MIN["recorded"], basis)
    yield QualifyCheck(CORES, 1 / cpu_cost_ratio(ranks), "", 1.0, MIN["recorded"], "")
    yield from _disk_row(ranks)
    if comm := ranks[0]["comm"]:
        expected = recorded.all_reduce * min(expected_scales(rank)["all-reduce"] for rank in ranks)
        alone = len({rank["node"] for rank in ranks}) == 1 and len(ranks) == 2  # as it was recorded
        title = f"all-reduce, {comm['bytes'] / 1e6:.0f} MB"
        yield QualifyCheck(
            title, comm["rate"], "GB/s", expected if alone else 0.0, MIN["all-reduce"], basis if alone else ""
        )


def _device_rows(ranks: Sequence[Facts]) -> Iterator[QualifyCheck]:
    count, device = len(ranks), ranks[0]["device"]
    for name in ("matmul", "copy"):
        row = find_reference_rate(name, device, count)
        slow = min(rank["tests"][name] for rank in ranks)
        yield QualifyCheck(f"{TITLES[name]}, slowest rank", slow, UNITS[name], *_bar(row))
    for name in ranks[0]["measured"]:
        task, _, part = name.partition("/")
        row = find_reference_rate(task, device, count) if part in ("step", "photos") else None
        if part == "input":  # it has to feed the steps
            step = _sum(ranks, f"{task}/step")
            yield QualifyCheck(TITLES[name], _sum(ranks, name), "images/s", step, MIN["fed"], "speed of the step")
            continue
        yield QualifyCheck(TITLES[name], _sum(ranks, name), "images/s", *_bar(row, count))
    yield from _disk_row(ranks)
    if comm := ranks[0]["comm"]:
        yield QualifyCheck(f"all-reduce, {comm['bytes'] / 1e6:.0f} MB", comm["rate"], "GB/s", 0.0, 1.0, "")


def _bar(row: ReferenceRate | None, count: int = 1) -> tuple[float, float, str]:
    """Expectation, least share of it, basis."""
    return (row.rate * count, MIN[row.program], row.source) if row else (0.0, 1.0, "")


def _disk_row(ranks: Sequence[Facts]) -> Iterator[QualifyCheck]:
    """The slowest node's disk beside the photos a second that the node makes into batches.

    On a CPU those that it is expected to make, as a slow disk slows that down too.
    """
    made = _expected if is_cpu(ranks) else _sum
    disks = [
        QualifyCheck(TITLES["disk"], first["disk"], "images/s", made(own, "classification/input"), MIN["disk"], FED)
        for first, own in _nodes(ranks)
        if first.get("disk")
    ]
    yield from sorted(disks, key=lambda row: row.ratio)[:1]


def _expected(ranks: Sequence[Facts], name: str) -> float:
    """Of CPUs, were every core idle but for this."""
    cpu_seconds = find_recorded_rate(ranks[0]["device"]).cpu_seconds[name]
    return sum(rank["cores_own"] * _scale(rank, name) / cpu_seconds for rank in ranks)


def find_slowest(ranks: Sequence[Facts]) -> tuple[str, float]:
    """The rank whose steps are slowest: (its name, share of the median of all); ("", 1) of one alone."""
    if len(ranks) < 2:
        return "", 1.0
    steps = [name for name in ranks[0]["measured"] if name.endswith("/step")]
    medians = {name: statistics.median(rank["measured"][name]["rate"] for rank in ranks) for name in steps}
    shares = [statistics.median(rank["measured"][name]["rate"] / medians[name] for name in steps) for rank in ranks]
    index = min(range(len(ranks)), key=lambda rank: shares[rank])
    rank = ranks[index]
    return f"rank {rank['rank']} on {rank['host']} ({rank['name']})", shares[index]


def cpu_cost_ratio(ranks: Sequence[Facts]) -> float:
    """How many times the CPU-seconds an image of a step costs that it should; 1 on accelerators."""
    if not is_cpu(ranks):
        return 1.0
    spent = [
        one["cpu_seconds"] * _scale(rank, name) / find_recorded_rate(rank["device"]).cpu_seconds[name]
        for rank in ranks
        for name, one in rank["measured"].items()
        if name.endswith("/step")
    ]
    return statistics.median(spent)


def _nodes(ranks: Sequence[Facts]) -> Iterator[tuple[Facts, list[Facts]]]:
    """Each node's first rank, which counted for it, and all its ranks."""
    for node in dict.fromkeys(rank["node"] for rank in ranks):
        own = [rank for rank in ranks if rank["node"] == node]
        yield own[0], own


def _taken_away(ranks: Sequence[Facts]) -> Iterator[str]:
    """Who has the cores' time, of each node."""
    light = f". An image costs {cpu_cost_ratio(ranks):.2f} times the expected CPU-seconds" if is_cpu(ranks) else ""
    for first, own in _nodes(ranks):
        counted, cores, host = first["counters"], first["cores"], first["host"]
        if counted["throttled_seconds"] > THROTTLED * counted["wall"] * cores:
            limit = f" ({counted['quota']:g} of {cores} cores)" if counted["quota"] else ""
            yield (
                f"{host}: the CPU limit of the control group{limit} throttled {counted['throttled']:,.0f} periods, "
                f"{counted['throttled_seconds']:.0f} s of {counted['wall']:.0f} s (nr_throttled in cpu.stat){light}. Raise --cpus of "
                "the container, resources.limits.cpu of Kubernetes, or --cpus-per-task of Slurm"
            )
        busy = (counted["busy"] - sum(rank["cpu"] for rank in own)) / counted["wall"]  # below 0 where it is unknown
        free = cores - min(counted["quota"] or cores, cores)  # of what this group may not use others take nothing away
        if busy > free + CROWDED * cores:
            yield (
                f"{host}: other processes used {busy:.1f} of {cores} cores{light}. End them (see top), or wait. To train "
                "at the same time, set --system.intra-op-threads"
            )
        if counted["stolen"] > STOLEN * counted["wall"] * cores:
            share = counted["stolen"] / counted["wall"] / cores
            yield f"{host}: the host of this virtual machine used {share:.0%} of the time of the cores (steal in /proc/stat)"


def _unexplained(ranks: Sequence[Facts], rows: Sequence[QualifyCheck]) -> Iterator[str]:
    """What a CPU's own figures say where nobody is seen to take its time."""
    if not is_cpu(ranks) or not any(row.verdict == SLOW and row.name.endswith(", step") for row in rows):
        return
    if (times := cpu_cost_ratio(ranks)) > HEAVY:
        yield (
            f"an image costs {times:.2f} times the CPU-seconds expected from tests of these cores. Check for other programs or "
            "instances that use the memory, and for a clock that drops under load (power cap, heat: turbostat, cpupower)"
        )
    else:
        yield (
            f"an image costs {times:.2f} times the expected CPU-seconds, so the cores are fast but were not always available. "
            "Check for a limiter that stops processes (SIGSTOP, cpulimit), or a suspended or crowded virtual machine"
        )


def _input(ranks: Sequence[Facts], rows: Sequence[QualifyCheck], *, crowded: bool) -> Iterator[str]:
    """The disk, and steps that wait for photos: on a CPU only where nobody else takes time, as both would look the same."""
    by_name = {row.name: row for row in rows}
    disk = by_name.get(TITLES["disk"])
    if disk is not None and disk.verdict == SLOW:
        yield (
            f"the disk reads {disk.measured:,.0f} images/s, and the CPU decodes {disk.expected:,.0f}. Use --copy-data-to LOCAL-DISK, "
            "--system.ram-cache 40GiB, --system.io-threads 8 (slow stores), or `paceline data pack` (fewer, larger reads)"
        )
    for task, name in NAMES.items():
        step, fed, fast = (by_name[TITLES[f"{task}/{part}"]].measured for part in ("step", "photos", "input"))
        if is_cpu(ranks):  # whose photos cost more or less than the made-up batch: what counts is whether its cores compute
            results = [[rank["measured"][f"{task}/{part}"] for rank in ranks] for part in ("photos", "step")]
            cores = [sum(one["rate"] * one["cpu_seconds"] for one in part) for part in results]  # that computed
            starved = not crowded and cores[0] < MIN["fed"] * cores[1]
        else:  # whose input runs beside it
            starved = fed < MIN["fed"] * min(step, fast) or fast < step
        if starved:
            rates = f"{format_number(step)} images/s without input, {format_number(fed)} images/s with input"
            yield f"{name}: the steps wait for images ({rates}). Run `paceline bench input`: docs/how-to/speed-up-data-loading.md"


def format_number(value: float) -> str:
    """As text; "" for 0, which is none."""
    return "" if not value else f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
