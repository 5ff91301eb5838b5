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

  input    photos (with boxes, with masks) into batches, beside torchvision transforms in a torch DataLoader;
           with a recipe: each stage of its input, bare limits, and whether it feeds an accelerator (--emulate a100:8)
  step     a training step, beside torchvision's and timm's model in a plain loop; of SSD, beside the plain
           formulation; of Mask R-CNN, beside torchvision and detectron2; and the shapes that its photos are padded to
  eval     scoring of boxes, beside pycocotools and faster-coco-eval
  comm     all-reduce, broadcast and barrier between ranks at the sizes of gradients, beside plain torch.distributed
  startup  from Enter to the first work, beside `import torch` alone, and what is imported for it

Each answers --help."""
MAX_RANKS_HERE = 256
OURS = "paceline"  # of paceline.distributed.comm.benchmark, whose torch no refusal waits for
ABOUT_COMM = """All-reduce, broadcast and barrier between ranks, beside plain torch.distributed, interleaved. Start it under
torchrun, srun or mpirun as a training is started, with --nodes N --scheduler ... --launcher ... as a launch is, or alone with
--nproc-per-node N. Prints alpha and beta of t = alpha + bytes * beta, fitted to the all-reduces. Exit code 3 where a sum is wrong."""


@dataclass(frozen=True)
class BenchEvalFlags:
    """What to measure."""

    num_images: Annotated[int, Help("images of the synthetic data set")] = 5000
    detections: Annotated[int, Help("detections of an image")] = 100
    num_classes: Annotated[int, Help("classes")] = 80
    rounds: Annotated[int, Help("rounds; every contender is timed once in each, pycocotools for about a minute")] = 1
    output: Annotated[str, Help("also write the JSON here")] = ""


def run_eval(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, BenchEvalFlags(), "bench eval", "Scoring of boxes beside its peers, interleaved.")
    check_user_file(flags.output)
    for name in ("num_images", "detections", "num_classes", "rounds"):
        if getattr(flags, name) < 1:
            raise PacelineError(f"--{name.replace('_', '-')} is {getattr(flags, name)}: must be at least 1.")
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

    tasks: Annotated[tuple[str, ...], Help("whose commands")] = tuple(WORKLOADS)
    rounds: Annotated[int, Help("rounds; each command is started once in every one, after a plain `import torch`")] = 5
    json: Annotated[bool, Help("print one JSON object instead of tables")] = False
    output: Annotated[str, Help("also write the JSON here")] = ""


def run_startup(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print two tables, write the JSON.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, BenchStartupFlags(), "bench startup", "From Enter to the first work, interleaved.")
    check_user_file(flags.output)
    if flags.rounds < 1:
        raise PacelineError(f"--rounds is {flags.rounds}; it must be at least 1.")
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
    times = Table("command", "s (median)", "x torch", "s beyond it", "CPU-s", "x torch")
    imports = Table("command", "modules", "heaviest imports, s of their own")
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
        "x torch: times as long as `import torch` alone"
    )
    console.print(times)
    console.print(imports)


@dataclass(frozen=True)
class BenchCommFlags(RemoteFlags):
    """What to measure, and which nodes to start on."""

    nproc_per_node: Annotated[int, Help("ranks a node to start; 0: the launcher's, else one a device, 2 on a CPU")] = 0
    system: Annotated[str, Help("where to compute: gloo between CPUs, NCCL between CUDA devices; empty: auto")] = ""
    seconds: Annotated[float, Help("a contender's time for each message, of 5 repetitions at least")] = 0.3
    max_message_mib: Annotated[float, Help("leave out messages larger than this; 0: none")] = 0.0
    ddp_bucket_mib: Annotated[float, Help("size of data parallel's buckets; 0: the system's")] = 0.0
    json: Annotated[bool, Help("print one JSON object instead of a table")] = False
    output: Annotated[str, Help("also write the JSON here")] = ""


def run_comm(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON; 0, or 3 where a sum was wrong.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, BenchCommFlags(), "bench comm", ABOUT_COMM)
    check_user_file(flags.output)
    if not 0 <= flags.nproc_per_node <= MAX_RANKS_HERE:
        raise PacelineError(f"--nproc-per-node {flags.nproc_per_node}: must be 2 to {MAX_RANKS_HERE}, or 0 in a launch.")
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
            raise PacelineError("--nproc-per-node 1: one rank has nobody to talk to. Name 2 or more.")
        sizes = (("--max-message-mib", flags.max_message_mib), ("--ddp-bucket-mib", flags.ddp_bucket_mib))
        named = (("--seconds", flags.seconds), *sizes)
        words = ("bench", "comm", *(word for name, value in named for word in (name, f"{value:g}")))
        return launch_command(
            "bench-comm", words, flags, system_name=flags.system, ranks=ranks, json=flags.json, out=flags.output
        )
    if is_launched(arguments):
        raise PacelineError(f"--nodes and the like: {launch.kind} has started this process already. Leave them out.")
    if flags.nproc_per_node not in (0, launch.world):
        raise PacelineError(f"--nproc-per-node {flags.nproc_per_node}: {launch.kind} started {launch.world}. Leave it out.")
    if launch.world == 1:
        raise PacelineError("bench comm: one rank has nobody to talk to. Start two or more.")
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
        f"{facts['world']} ranks on {facts['nodes']} node{'s'[: facts['nodes'] > 1]}, {facts['backend']}, {facts['device']}, "
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load'][0]:.1f}; torch {facts['torch']}. "
        "Times are the slowest rank's, GB/s are of the median."
    )
    print(f"{'':<52}{'bytes':>12}  {'us min':>11}{'median':>11}{'max':>11}{'GB/s':>9}{'bus GB/s':>9}  right")
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
        print("A SUM IS WRONG: see the last column.")


RUN = {"input": run_input, "step": run_step, "eval": run_eval, "comm": run_comm, "startup": run_startup}


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Run one bench."""
    return run_kind(printer, arguments, KINDS, "bench", RUN)
