"""`paceline bench input --data DIR`: photos to training batches beside torchvision in a DataLoader; loader simulations.

With a recipe's name first: each stage of that recipe's input (--emulate: whether it keeps an accelerator busy).
With `--task detection` the photos' boxes go along, with `--task instance-segmentation` their boxes and masks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from paceline._utils.atomic_write import check_user_file
from paceline._utils.errors import PacelineError, RecipeError
from paceline.cli.commands.bench_step import find_step_bench
from paceline.cli.flags import parse, parse_run_args
from paceline.cli.printing import Printer, write_answer
from paceline.config.constraints import Help
from paceline.config.resnet import Decoder
from paceline.config.run import RunOptions
from paceline.tools.bench import require_peers
from paceline.training.open_data import open_task
from paceline.training.request import check_request


@dataclass(frozen=True)
class BenchInputFlags:
    """What to measure."""

    data: Annotated[tuple[Path, ...], Help("folder of JPEG images, or a dataset with objects for --task")] = ()
    task: Annotated[str, Help("task whose training input is timed")] = "classification"
    decoders: Annotated[tuple[Decoder, ...], Help("decoders to time; empty: the default and installed extras")] = ()
    image_size: Annotated[int, Help("side of the output (pixels); 0: 224, ssd 300, maskrcnn 800 (shorter side)")] = 0
    seconds: Annotated[float, Help("time per candidate and round (s)")] = 3.0
    rounds: Annotated[int, Help("number of rounds; each round times every candidate once")] = 5
    output: Annotated[Path | None, Help("JSON file to write the results to")] = None
    scaling: Annotated[tuple[int, ...], Help("numbers of workers to time; 0: 1, 2, 4, ... up to twice the cores")] = ()
    simulate_threads: Annotated[int, Help("number of workers to simulate, which sleep instead of decoding")] = 0
    latency_ms: Annotated[float, Help("delay to add to each read (ms), to time prefetching and caching")] = 0.0
    baselines: Annotated[tuple[str, ...], Help("other libraries: dali, ffcv, mxnet, webdataset, grain, spdl, or all")] = ()
    baselines_dir: Annotated[Path | None, Help("folder of the baselines' environments; empty: in the cache")] = None
    install_baselines: Annotated[bool, Help("install missing baselines, each in its own environment")] = False
    memory: Annotated[bool, Help("measure memory and the wait between two epochs of 1.3 million records")] = False


def run_input(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure and print.

    Raises RecipeError when there is nothing to measure.
    """
    if arguments and not arguments[0].startswith("-"):
        return run_stages(printer, arguments)
    flags = parse(printer, arguments, BenchInputFlags(), "bench input", "Time data loading, compared with other libraries.")
    check_user_file(flags.output or "")
    if flags.simulate_threads > 0 or flags.memory:
        simulation = require_peers("input_simulation", "--simulate-threads" if flags.simulate_threads > 0 else "--memory")

        if flags.simulate_threads > 0:
            simulation.simulate(flags.simulate_threads)
        if flags.memory:
            simulation.memory()
            simulation.boundary()
        return 0
    if flags.seconds <= 0 or flags.rounds < 1:
        raise RecipeError("--seconds must be above 0, and --rounds must be 1 or more.")
    if flags.baselines or flags.install_baselines:
        return _peers(printer, flags)
    if not flags.data:
        raise RecipeError("--data is required: paceline bench input --data DIR (or use --simulate-threads 16 or --memory).")
    if len(flags.data) > 1:
        raise RecipeError(f"--data: multiple folders ({len(flags.data)}) require --baselines.")
    data = next(iter(flags.data))
    if flags.latency_ms < 0:
        raise RecipeError(f"--latency-ms {flags.latency_ms:g}: must be 0 (off) or more (ms).")
    if flags.latency_ms > 0:
        if flags.task != BenchInputFlags.task or flags.decoders:
            raise RecipeError("--latency-ms: requires the default --task and --decoders. Remove these flags.")
        run: Callable[..., dict[str, Any]] = require_peers("input_fetch", "--latency-ms").run_fetch_bench
        further: dict[str, Any] = {"milliseconds": flags.latency_ms, "size": flags.image_size or 224}
    elif flags.scaling:
        from paceline.tools.bench.input import CONTESTS, parse_worker_counts, run_scaling

        run = partial(
            run_scaling, find_step_bench(flags.task, "input", CONTESTS), workers=parse_worker_counts(flags.scaling)
        )
        further = {"size": flags.image_size}
    else:
        from paceline.tools.bench.input import CONTESTS, run_input_bench

        run = partial(run_input_bench, find_step_bench(flags.task, "input", CONTESTS))
        further = {"size": flags.image_size, "decoders": list(flags.decoders) or None}
    report = run(data, seconds=flags.seconds, rounds=flags.rounds, **further)
    write_answer(report, out=str(flags.output or ""), printed=False)
    return 0


def _peers(printer: Printer, flags: BenchInputFlags) -> int:
    """Other libraries beside ours."""
    from paceline._utils.cache import cache_folder

    installs = require_peers("peer_installs", "--baselines")
    names = installs.named_peers(flags.baselines or ("all",))
    if flags.task != BenchInputFlags.task:
        raise RecipeError("--baselines: only supported for classification. Remove --task.")
    path = flags.baselines_dir or cache_folder() / "peers"
    absent = installs.install_peers(path, names, printer.say) if flags.install_baselines else {}
    if not flags.data:
        if flags.install_baselines:
            return 0
        raise RecipeError("--baselines: requires a folder of images: paceline bench input --baselines all --data DIR")
    for folder in flags.data:
        if not folder.is_dir():
            raise PacelineError(f"--data {folder}: folder not found.")

    report = require_peers("input_peers", "--baselines").run_peers_bench(
        flags.data,
        peers=names,
        environments=path,
        absent=absent,
        seconds=flags.seconds,
        rounds=flags.rounds,
        size=flags.image_size or 224,
        decoders=list(flags.decoders) or None,
    )
    write_answer(report, out=str(flags.output or ""), printed=False)
    return 0


# Columns of a table that nobody's terminal limits.
PIPED = 160


@dataclass(frozen=True)
class BenchInputStageFlags:
    """What to measure."""

    data: Annotated[str, Help("dataset, as for train; empty: the built-in shapes")] = ""
    emulate: Annotated[str, Help("accelerator to simulate: a100:8, h100, ..., or images per second")] = ""
    seconds: Annotated[float, Help("time per measurement (s)")] = 2.0
    output: Annotated[Path | None, Help("JSON file to write the results to")] = None


def run_stages(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table and a line of advice."""
    args = parse_run_args(
        arguments,
        BenchInputStageFlags(),
        verb="bench input",
        description="Time each stage of this recipe's input and all stages together, measure their limits, and recommend flags.",
        printer=printer,
    )
    flags = args.options
    check_user_file(flags.output or "", "--output")
    if not 0 < flags.seconds <= 600:
        raise RecipeError(f"--seconds {flags.seconds:g}: must be above 0 and at most 600.")
    from paceline.tools.bench.input_advice import parse_demand

    wanted = parse_demand(flags.emulate, args.recipe.task) if flags.emulate else None
    check_request(args.recipe, flags.data)

    from rich.console import Console

    from paceline.distributed.comm.launcher import read_launch
    from paceline.distributed.comm.world import open_distributed
    from paceline.distributed.device.setup import choose_device, set_threads
    from paceline.tools.bench.harness import machine_facts
    from paceline.tools.bench.input_advice import describe_emulation, describe_gap, format_stages, give_advice
    from paceline.tools.bench.input_stages import bench_task_recipe, measure_stages
    from paceline.training.data_cache import open_memory_cache

    recipe, device = bench_task_recipe(args.recipe), choose_device(args.system, 0)
    with open_distributed(read_launch({}), device=device) as world:
        task = open_task(recipe, RunOptions(data=flags.data), world, printer)
        threads = set_threads(args.system, world, printer)["loader"]
        printer.say(
            f"{task.data.train_images:,} images, {recipe.input.decoder}, {threads} workers, {flags.seconds:g} s per stage"
        )
        bare = task.data.train_index.records
        with open_memory_cache(task.data, args.system, world, printer):
            result = measure_stages(
                task, args.system, bare=bare, threads=threads, device=device, seconds=flags.seconds, wanted=wanted
            )
    report = {"recipe": args.name, **result, "advice": give_advice(result), "machine": machine_facts(device)}
    write_answer(report, out=str(flags.output or ""), printed=False, flag="--output")
    # What is piped has no width; a table that is cut there is of no use.
    Console(width=None if sys.stdout.isatty() else PIPED).print(format_stages(report))
    for line in filter(None, (describe_gap(report), describe_emulation(report), report["advice"])):
        printer.say(line)
    return 0
