"""`paceline bench input|step|eval|comm ...`: measurements beside peers, in the same run."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline._utils.atomic_write import check_user_file
from paceline._utils.errors import PacelineError
from paceline.cli.commands.bench_input import run_input
from paceline.cli.commands.bench_step import run_step
from paceline.cli.flags import parse, run_kind
from paceline.cli.printing import Printer, write_answer
from paceline.cli.remote_command import RemoteFlags, is_launched, launch_command
from paceline.config.constraints import Help
from paceline.distributed.comm.launcher import SINGLE, Launch, read_launch
from paceline.distributed.device.systems import choose_system
from paceline.models.registry import WORKLOADS, get_workload
from paceline.tools.bench import require_peers

if TYPE_CHECKING:
    from paceline.config.system import System


KINDS = """usage: paceline bench KIND ...

  input    time data loading, compared with torchvision transforms in a PyTorch DataLoader. With a recipe, time
           each stage of its input, and test whether it keeps an accelerator busy (--emulate a100:8)
  step     time a training step, compared with torchvision, timm, detectron2, or a plain formulation of SSD,
           and count the shapes to which Mask R-CNN pads its images
  eval     time the scoring of boxes, compared with pycocotools and faster-coco-eval
  comm     time all-reduce, broadcast, and barrier for the sizes of gradients, compared with plain torch.distributed
  startup  time the start of each command, compared with `import torch`, and list what it imports

Every kind has --help."""
MAX_RANKS_HERE = 256
OURS = "paceline"  # of paceline.distributed.comm.benchmark, whose torch no refusal waits for
ABOUT_COMM = """Time all-reduce, broadcast, and barrier between ranks, alternating with plain torch.distributed. Start it like a
training run with torchrun, srun, or mpirun, or with the launch flags --nodes N --scheduler ... --launcher ..., or with only
--nproc-per-node N. It prints alpha and beta of t = alpha + bytes * beta, fitted to the all-reduces. Exit code 3: a sum is wrong."""


@dataclass(frozen=True)
class BenchEvalFlags:
    """What to measure."""

    num_images: Annotated[int, Help("number of images in the synthetic dataset")] = 5000
    detections: Annotated[int, Help("number of detections per image")] = 100
    num_classes: Annotated[int, Help("classes")] = 80
    rounds: Annotated[int, Help("number of rounds; each round times every candidate once (pycocotools: about 1 min)")] = 1
    output: Annotated[str, Help("JSON file to write the results to")] = ""


def run_eval(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(
        printer, arguments, BenchEvalFlags(), "bench eval", "Time the scoring of boxes, compared with other libraries."
    )
    check_user_file(flags.output)
    for name in ("num_images", "detections", "num_classes", "rounds"):
        if getattr(flags, name) < 1:
            raise PacelineError(f"--{name.replace('_', '-')} {getattr(flags, name)}: must be at least 1.")
    from rich.console import Console

    from paceline.tools.bench.scoring import run_scoring
    from paceline.tools.bench.tables import print_operations

    result = run_scoring(flags.num_images, flags.detections, flags.num_classes, flags.rounds)
    console = Console()
    console.print(
        f"{flags.num_images:,} images x {flags.detections} detections, {flags.num_classes} classes, {result['device']}"
    )
    print_operations([result], console)
    write_answer(result, out=flags.output, printed=False)
    return 0


@dataclass(frozen=True)
class BenchStartupFlags:
    """What to measure."""

    tasks: Annotated[tuple[str, ...], Help("tasks whose commands are timed")] = tuple(WORKLOADS)
    rounds: Annotated[int, Help("number of rounds; each round starts every command once, after `import torch`")] = 5
    json: Annotated[bool, Help("print one JSON object instead of tables")] = False
    output: Annotated[str, Help("JSON file to write the results to")] = ""


def run_startup(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print two tables, write the JSON.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(
        printer,
        arguments,
        BenchStartupFlags(),
        "bench startup",
        "Time the start of each command, alternating with `import torch`.",
    )
    check_user_file(flags.output)
    if flags.rounds < 1:
        raise PacelineError(f"--rounds {flags.rounds}: must be at least 1.")
    for name in flags.tasks:
        get_workload(name)
    measure = require_peers("startup", "bench startup").measure

    with tempfile.TemporaryDirectory(prefix="paceline-startup-") as folder:
        facts = measure(flags.tasks, flags.rounds, Path(folder), say=(lambda _: None) if flags.json else print)
    write_answer(facts, out=flags.output, printed=flags.json)
    if not flags.json:
        _print_startup(facts)
    return 0


def _print_startup(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.tools.bench.harness import format_ratio

    console, machine = Console(), facts["machine"]
    times = Table("command", "s (median)", "x torch", "s more", "CPU-s", "x torch")
    imports = Table("command", "modules", "slowest imports (own time, s)")
    for name, result in facts["commands"].items():
        times.add_row(
            name,
            f"{result['median_seconds']:.2f}",
            format_ratio(result["times_import_torch"]),
            f"{result['beyond_import_torch']:+.2f}",
            f"{result['median_cpu_seconds']:.2f}",
            format_ratio(result["times_import_torch_cpu"]),
        )
        heavy = "  ".join(f"{module} {seconds:.2f}" for module, seconds in result["imports"]["heaviest"])
        imports.add_row(name, f"{result['imports']['modules']:,}", heavy)
    console.print(
        f"{facts['rounds']} rounds of fresh interpreters on {machine['device']}, {machine['cores']} cores, load "
        f"{machine['load_before'][0]:.1f} before and {machine['load_after'][0]:.1f} after; torch {machine['versions']['torch']}. "
        "x torch: time relative to `import torch`"
    )
    console.print(times)
    console.print(imports)


@dataclass(frozen=True)
class BenchCommFlags(RemoteFlags):
    """What to measure, and which nodes to start on."""

    nproc_per_node: Annotated[int, Help("ranks per node; 0: as started by the launcher, one per device, or 2 on a CPU")] = 0
    system: Annotated[str, Help("system to run on (CPUs: gloo, CUDA devices: NCCL); empty: auto")] = ""
    seconds: Annotated[float, Help("time per candidate and message size (s); at least 5 repetitions")] = 0.3
    max_message_mib: Annotated[float, Help("maximum message size (MiB); 0: no limit")] = 0.0
    ddp_bucket_mib: Annotated[float, Help("size of DDP's gradient buckets (MiB); 0: as in the system")] = 0.0
    json: Annotated[bool, Help("print one JSON object instead of a table")] = False
    output: Annotated[str, Help("JSON file to write the results to")] = ""


def run_comm(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON; 0, or 3 where a sum was wrong.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, BenchCommFlags(), "bench comm", ABOUT_COMM)
    check_user_file(flags.output)
    if not 0 <= flags.nproc_per_node <= MAX_RANKS_HERE:
        raise PacelineError(f"--nproc-per-node {flags.nproc_per_node}: must be 0 (automatic) or 2 to {MAX_RANKS_HERE}.")
    if not 0 < flags.seconds < math.inf:
        raise PacelineError(f"--seconds {flags.seconds:g}: must be above 0.")
    for name, value in (("--max-message-mib", flags.max_message_mib), ("--ddp-bucket-mib", flags.ddp_bucket_mib)):
        if not 0 <= value < math.inf:
            raise PacelineError(f"{name} {value:g}: must be 0 or more.")
    launch = read_launch(os.environ)
    if launch.kind == SINGLE.kind:
        ranks = flags.nproc_per_node
        if not ranks and flags.scheduler == "local":
            ranks = max(2, choose_system(flags.system or "auto").ranks_per_node)
        if ranks == 1 and flags.nodes == 1:
            raise PacelineError("--nproc-per-node 1: must be 2 or more to measure communication between ranks.")
        sizes = (("--max-message-mib", flags.max_message_mib), ("--ddp-bucket-mib", flags.ddp_bucket_mib))
        named = (("--seconds", flags.seconds), *sizes)
        words = ("bench", "comm", *(word for name, value in named for word in (name, f"{value:g}")))
        return launch_command(
            "bench-comm", words, flags, system_name=flags.system, ranks=ranks, json=flags.json, out=flags.output
        )
    if is_launched(arguments):
        raise PacelineError(f"--nodes: not supported in a process that {launch.kind} started. Remove the flag.")
    if flags.nproc_per_node not in (0, launch.world):
        raise PacelineError(
            f"--nproc-per-node {flags.nproc_per_node}: must be {launch.world}, as started by {launch.kind}. Remove the flag."
        )
    if launch.world == 1:
        raise PacelineError("bench comm: requires at least two ranks, because it measures communication. Start more ranks.")
    return _measure_comm(flags, choose_system(flags.system or "auto"), launch)


def _measure_comm(flags: BenchCommFlags, system: System, launch: Launch) -> int:
    import torch

    from paceline._utils.platform import count_cpus
    from paceline.distributed.comm.benchmark import MIB, make_messages, measure
    from paceline.distributed.comm.environment import apply_environment
    from paceline.distributed.comm.world import open_distributed
    from paceline.distributed.device.provenance import get_cpu_name
    from paceline.distributed.device.setup import choose_device
    from paceline.models.registry import WORKLOADS, gradient_sizes

    torch.set_num_threads(1)  # sums of a message are gloo's own threads' work
    results = make_messages(
        flags.ddp_bucket_mib or system.ddp_bucket_mib, {name: gradient_sizes(name) for name in WORKLOADS}
    )
    if flags.max_message_mib:
        results = [message for message in results if message.bytes <= flags.max_message_mib * MIB]
    device = choose_device(system, launch.local_rank, launch.local_world)
    together = Path(flags.output).absolute().parent if flags.output else Path.cwd()  # where ranks find each other's secret
    watched = not flags.json and os.isatty(1) and os.environ.get("TERM") != "dumb"
    with (
        apply_environment(system, launch, named=False) as notes,
        open_distributed(launch, device=device, secret_folder=together) as world,
    ):
        tell = print if world.is_main and watched else (lambda _: None)
        for note in notes if world.is_main else ():
            print(note, file=sys.stderr)
        facts = {"launcher": launch.kind, "nodes": launch.nodes, **measure(world, results, flags.seconds, tell)}
        if world.is_main:
            facts["machine"] = {"cpu": get_cpu_name(), "cores": count_cpus(), "load": os.getloadavg()}
            write_answer(facts, out=flags.output, printed=flags.json)
            if not flags.json:
                _print_comm(facts)
    return 0 if facts["sums_are_right"] else 3


def _print_comm(facts: dict[str, Any]) -> None:
    machine = facts["machine"]
    print(
        f"{facts['world_size']} ranks on {facts['nodes']} node{'s'[: facts['nodes'] > 1]}, {facts['backend']}, {facts['device']}, "
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load'][0]:.1f}; torch {facts['torch']}. "
        "Times are of the slowest rank; GB/s are for the median time."
    )
    print(f"{'':<52}{'bytes':>12}  {'us min':>11}{'median':>11}{'max':>11}{'GB/s':>9}{'bus GB/s':>9}  correct")
    for row in facts["rows"]:
        title = f"{row['kind']} {row['about']} {row['number']}".strip() if row["bytes"] else row["kind"]
        for name, times in row["seconds"].items():
            words = f"{title:<42.42}" if name == OURS else f"{'':<42}"
            speeds = [times.get(f"{kind}_bandwidth") for kind in ("algorithm", "bus")]
            print(
                f"{words}{name:<10}{row['bytes']:>12,}  "
                + "".join(f"{1e6 * times[which]:>11,.1f}" for which in ("min", "median", "max"))
                + "".join(f"{'' if speed is None else format(speed / 1e9, ',.3f'):>9}" for speed in speeds)
                + f"  {'yes' if row['right'][name] else 'NO'}"
            )
    for name, result in facts["fit"].items():
        if result is not None:
            bus = result["bus_bandwidth"]
            print(
                f"{name}: all-reduce = alpha + bytes * beta, alpha {1e6 * result['alpha_seconds']:,.1f} us, beta "
                f"{1e9 * result['beta_seconds_per_byte']:,.4f} ns/B{'' if bus is None else f' (bus {bus / 1e9:,.3f} GB/s)'}, "
                f"off by {result['worst_relative_error']:.0%} at worst"
            )
    if not facts["sums_are_right"]:
        print("error: a sum is wrong; see the last column.")


RUN = {"input": run_input, "step": run_step, "eval": run_eval, "comm": run_comm, "startup": run_startup}


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Run one bench."""
    return run_kind(printer, arguments, KINDS, "bench", RUN)
