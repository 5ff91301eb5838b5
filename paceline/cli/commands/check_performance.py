"""`paceline check-performance`: is this machine as fast as it should be? With several devices and nodes, all at the same time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from paceline._utils.atomic_write import check_user_file, write_user_file
from paceline._utils.cache import cache_folder
from paceline._utils.errors import PacelineError
from paceline._utils.platform import count_cpus
from paceline._utils.text import WORDS, escape_line, format_count, text_width
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, write_answer
from paceline.cli.remote_command import RemoteFlags, is_launched, launch_for_answer
from paceline.config.constraints import Help
from paceline.distributed.comm.launcher import SINGLE, Launch, read_launch
from paceline.distributed.device.systems import choose_system

if TYPE_CHECKING:
    from paceline.config.system import System
    from paceline.tools.qualify.judgment import QualifyCheck, QualifyReport

RANK_GIB = 3.0  # of memory that a rank takes on a CPU, where each core has one, as the rates were recorded
MAX_MINUTES = 24 * 60.0
JSON_FILE, PAGE = "qualify.json", "qualify.html"
ABOUT = """Measure whether this machine is as fast as expected. The command times training steps, data loading, scoring, the
disk, and an all-reduce on all devices at the same time. It compares them with published speeds, or on a CPU with recorded
speeds, scaled by tests of its cores. Exit code 0: as fast as expected; 1: slower; 2: invalid input.
See docs/how-to/cluster/check-performance.md."""


@dataclass(frozen=True)
class QualifyFlags(RemoteFlags):
    """How long to measure, where to write, and which nodes to start on."""

    minutes: Annotated[float, Help("duration (minutes); 3: finds gross faults; 30: also heat and noisy neighbors")] = 30.0
    check_dir: Annotated[str, Help("folder for test images, on the disk of the datasets; empty: paceline's cache")] = ""
    system: Annotated[str, Help("system of each node (paceline list systems); empty: this machine, detected")] = ""
    nproc_per_node: Annotated[int, Help("ranks per node; 0: one per device, or per CPU core as far as memory allows")] = 0
    json: Annotated[bool, Help("print one JSON object instead of a table")] = False
    output_dir: Annotated[str, Help("folder for qualify.json and qualify.html; empty: no files")] = ""
    raw: Annotated[bool, Help("print the measurements of each rank as JSON, without results")] = False
    output: Annotated[str, Help("file to write the JSON of --raw to, instead of stdout")] = ""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, judge, print; 0 as fast as expected, 1 slower.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, QualifyFlags(), "check-performance", ABOUT)
    if not 0 < flags.minutes <= MAX_MINUTES:
        raise PacelineError(f"--minutes {flags.minutes:g}: must be above 0 and at most {MAX_MINUTES:g}.")
    if flags.output_dir if flags.raw else flags.output:
        raise PacelineError("--output FILE requires --raw; --output-dir DIR is not supported with --raw.")
    if flags.output_dir:
        if Path(flags.output_dir).is_file():
            raise PacelineError(f"--output-dir {flags.output_dir}: is a file. Choose a folder for {JSON_FILE} and {PAGE}.")
        for name in (JSON_FILE, PAGE):
            check_user_file(Path(flags.output_dir) / name)
    folder = Path(flags.check_dir).expanduser().absolute() if flags.check_dir else cache_folder()
    if flags.check_dir and not folder.is_dir():
        raise PacelineError(f"--check-dir {flags.check_dir}: folder not found.")
    launch = read_launch(os.environ)
    if launch.kind != SINGLE.kind:
        if is_launched(arguments):
            raise PacelineError(f"--nodes: not supported in a process that {launch.kind} started. Remove the flag.")
        return _finish(flags, _measured(printer, flags, choose_system(flags.system or "auto"), launch, folder))
    if flags.scheduler == "local":
        system = choose_system(flags.system or "auto")
        ranks = flags.nproc_per_node or (cpu_ranks(system) if system.device == "cpu" else system.ranks_per_node)
        if (ranks, flags.container_runtime, flags.nodes) == (1, "none", 1):
            return _finish(flags, _measured(printer, flags, system, SINGLE, folder))
        flags = replace(flags, nproc_per_node=ranks)
    quiet = ("--quiet",) if printer.quiet else ()
    words = ("check-performance", "--raw", "--minutes", f"{flags.minutes:g}", "--check-dir", str(folder), *quiet)
    silent = flags.json or printer.quiet  # stdout is for the answer alone
    same = {"system_name": flags.system, "ranks": flags.nproc_per_node, "json": silent, "writes": (str(folder),)}
    code, text = launch_for_answer("check-performance", words, flags, **same)
    return _finish(flags, json.loads(text)) if text and not code else code


def cpu_ranks(system: System) -> int:
    """One a core, as many as the memory that training may plan with holds."""
    return max(1, min(count_cpus(), int(system.memory_gib / RANK_GIB)))


def _measured(printer: Printer, flags: QualifyFlags, system: System, launch: Launch, folder: Path) -> dict[str, Any] | None:
    """What all ranks found; None but on rank 0."""
    from paceline.distributed.comm.environment import apply_environment
    from paceline.distributed.comm.world import open_distributed
    from paceline.distributed.device.provenance import collect_versions
    from paceline.distributed.device.setup import choose_device
    from paceline.tools.qualify.measurements import measure_rank

    # One table for CPUs with and without bf16.
    system = replace(system, precision="fp32") if system.device == "cpu" else system
    device = choose_device(system, launch.local_rank, launch.local_world)
    watched = launch.rank == 0 and not printer.quiet
    say = (lambda text: print(text, file=sys.stderr, flush=True)) if watched else (lambda _: None)
    together = Path(flags.output).absolute().parent if flags.output else Path.cwd()  # which all nodes see
    with apply_environment(system, launch, named=False):
        with open_distributed(launch, device=device, secret_folder=together) as world:
            own = measure_rank(world, launch, system, minutes=flags.minutes, folder=folder, say=say)
            ranks = world.gather_bytes(json.dumps(own).encode())
        # Last, when clocks and heat are as training leaves them.
        problems = _examined(flags, launch, together)
    if problems is None or ranks is None:
        return None
    results = [json.loads(rank) for rank in ranks]
    return {"minutes": flags.minutes, "versions": collect_versions(), "doctor": problems, "ranks": results}


def _examined(flags: QualifyFlags, launch: Launch, folder: Path) -> list[str] | None:
    """What `paceline doctor` calls a problem; None but on rank 0."""
    from paceline.data.transforms.decode import require_decoder
    from paceline.launch.doctor.compare import examine_nodes, name_nodes
    from paceline.launch.doctor.local_checks import check_node
    from paceline.launch.doctor.multi_node import examine_together

    if launch.world == 1:
        findings = check_node(folder, require_decoder=require_decoder)
        return [f"{finding.about}: {finding.text}" for finding in findings if finding.level == "problem"]
    # A store of ours has its port for itself.
    again = replace(launch, port=launch.port + (not launch.agent_store), job=f"{launch.job}-doctor")
    if (nodes := examine_together(again, folder)) is None:
        return None
    called, expected = name_nodes(nodes), choose_system(flags.system) if flags.system else None
    results = [finding.with_names(called) for finding in examine_nodes(nodes, expected) if finding.level == "problem"]
    problems = [f"{finding.about}: {finding.text}" for finding in results]
    for name, node in zip(called, nodes):
        if "NV" in node.links and node.network.endswith("by SHM"):
            problems.append(f"{name}: NCCL uses host memory, not NVLink ({node.links}). Check NCCL_P2P_DISABLE and IOMMU")
    return problems


def _finish(flags: QualifyFlags, facts: dict[str, Any] | None) -> int:
    """Judge, print and write, on rank 0; -> the exit code."""
    if facts is None:
        return 0
    if flags.raw:
        write_answer(facts, out=flags.output, printed=not flags.output)
        return 0
    from paceline.tools.qualify.judgment import judge_ranks

    verdict = judge_ranks(facts["ranks"], facts["doctor"])
    rows = [{**asdict(row), "ratio": row.ratio, "verdict": row.verdict} for row in verdict.rows]
    answer = {"good": verdict.good, "rows": rows, "slowest": verdict.slowest, "advice": list(verdict.advice), **facts}
    write_answer(answer, out=str(Path(flags.output_dir) / JSON_FILE) if flags.output_dir else "", printed=flags.json)
    if flags.output_dir:
        write_user_file(Path(flags.output_dir) / PAGE, _page(verdict, facts))
    if not flags.json:
        print("\n".join(format_report(verdict, facts)))
        if flags.output_dir:
            print(f"report: {Path(flags.output_dir) / PAGE}")
    return 0 if verdict.good else 1


def format_report(verdict: QualifyReport, facts: Mapping[str, Any]) -> list[str]:
    """The table, who is slowest, the verdict and what to look at, at most as wide as the terminal."""
    wide = min(text_width(), 120)
    results = wrap(escape_line(describe_machine(facts)), wide, **WORDS)
    results.append(f"{'':<30}{'measured':>10}{'expected':>10}{'':10}{'ratio':>6}")
    for row in verdict.rows:
        words = format_check(row)
        results.append(f"{row.name:<30.30}{words[0]:>10}{words[1]:>10} {row.unit:<9}{words[2]:>6}  {row.verdict}")
    for basis in dict.fromkeys(row.basis for row in verdict.rows if row.basis):
        results += wrap(f"expected values: {escape_line(basis)}", wide, subsequent_indent="  ", **WORDS)
    if verdict.slowest:
        results += wrap(f"slowest: {escape_line(verdict.slowest)}", wide, subsequent_indent="  ", **WORDS)
    slow = sum(row.verdict == "slower" for row in verdict.rows)
    results.append(f"slower than expected: {slow} of {len(verdict.rows)}" if slow else "as fast as expected")
    for text in verdict.advice:
        results += wrap(f"check: {escape_line(text)}", wide, subsequent_indent="  ", **WORDS)
    return results


def describe_machine(facts: Mapping[str, Any]) -> str:
    """The machine, in a line."""
    ranks, first = facts["ranks"], facts["ranks"][0]
    where = f"{format_count(len(ranks), 'rank')} on {format_count(len({rank['node'] for rank in ranks}), 'node')}"
    return (
        f"{where}, {first['device']}, {format_count(first['threads'], 'thread')} each of {first['cores']} cores, torch "
        f"{facts['versions']['torch']}, {facts['minutes']:g} minutes"
    )


def format_check(row: QualifyCheck) -> tuple[str, str, str]:
    """Measured, expected and ratio as text."""
    from paceline.tools.qualify.judgment import format_number

    return format_number(row.measured), format_number(row.expected), f"{row.ratio:.2f}" if row.expected else ""


def _page(verdict: QualifyReport, facts: Mapping[str, Any]) -> str:
    from paceline.tools.qualify.judgment import TITLES
    from paceline.tools.report.html import render_page

    content = {
        "name": "Qualify",
        "verdict": ("good", "as fast as expected") if verdict.good else ("bad", "slower than expected"),
        "about": describe_machine(facts),
        "cards": [],
        "titles": TITLES,
        "ranks": facts["ranks"],
        "judged": verdict,
        "spelled": format_check,
    }
    return render_page("qualify.html.jinja", content)
