"""`paceline bench step`: the training step beside plain loops around the same network, ResNet's, SSD's or Mask R-CNN's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from paceline._utils.atomic_write import check_user_file
from paceline._utils.errors import PacelineError, RecipeError
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, write_answer
from paceline.config.constraints import Help
from paceline.config.system import Precision
from paceline.distributed.device.systems import choose_system
from paceline.models.registry import WORKLOADS
from paceline.tools.bench import require_peers

if TYPE_CHECKING:
    from paceline.tools.bench.step import StepBench


Part = Literal["all", "ops", "step", "eval", "predict", "shapes"]


@dataclass(frozen=True)
class BenchStepFlags:
    """What to measure. 0 means the task's usual value; usual values stand in the order of the tasks."""

    task: Annotated[str, Help("task whose training step is timed")] = "classification"
    depth: Annotated[int, Help("depth of the ResNet: 18, 34, 50, 101, or 152; 0: default of the network")] = 0
    batch_size: Annotated[int, Help("images per step; 0: 32 (ResNet), 8 (SSD), or 1 (Mask R-CNN)")] = 0
    image_size: Annotated[int, Help("side of the input (pixels); 0: 224 (ResNet) or 300 (SSD)")] = 0
    height: Annotated[int, Help("height of the input (pixels); Mask R-CNN only")] = 800
    width: Annotated[int, Help("width of the input (pixels); Mask R-CNN only")] = 1216
    num_classes: Annotated[int, Help("number of classes without background; SSD and Mask R-CNN only")] = 80
    objects: Annotated[int, Help("number of objects per image; Mask R-CNN only")] = 7
    positives: Annotated[tuple[int, ...], Help("numbers of positive regions per image; Mask R-CNN only")] = (30, 128)
    part: Annotated[Part, Help("operations, step, evaluation, prediction, or shapes; SSD and Mask R-CNN only")] = "all"
    rounds: Annotated[int, Help("number of rounds; each round times every candidate once")] = 5
    seconds: Annotated[float, Help("time per candidate and round (s); at least one step")] = 4.0
    compile: Annotated[bool, Help("also time models compiled by torch.compile; not for Mask R-CNN")] = False
    precision: Annotated[str, Help("dtypes, such as bf16,fp16; empty: as in the system (SSD, Mask R-CNN: also fp32)")] = ""
    matmul_size: Annotated[int, Help("side of the matrices whose product measures peak performance")] = 2048
    threads: Annotated[int, Help("compute threads on a CPU; 0: default of torch")] = 0
    data: Annotated[Path | None, Help("dataset whose shapes are counted, with --part shapes")] = None
    system: Annotated[str, Help("system to run on")] = "auto"
    output: Annotated[str, Help("JSON file to write the results to")] = ""


def run_step(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON; 0, or 1 where a step is faster than the ceiling, which then is wrong.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, BenchStepFlags(), "bench step", "Time a training step, compared with plain loops.")
    check_user_file(flags.output)
    for name, least in (
        ("depth", 0), ("batch_size", 0), ("image_size", 0), ("num_classes", 1), ("rounds", 1),
        ("matmul_size", 1), ("threads", 0), ("objects", 1),
    ):  # fmt: skip
        if getattr(flags, name) < least:
            raise PacelineError(f"--{name.replace('_', '-')} {getattr(flags, name)}: must be at least {max(1, least)}.")
    if not set(flags.precision.split(",")) <= {"", *get_args(Precision)}:
        raise PacelineError(
            f"--precision {flags.precision}: must be {', '.join(get_args(Precision))}, or several: bf16,fp16."
        )
    measure = find_step_bench(flags.task, "step", STEPS)
    if flags.compile and (reason := WORKLOADS[flags.task].network.no_compile):
        raise PacelineError(f"--compile: not supported with --task {flags.task}: {reason}. Remove the flag.")
    return measure(flags)


def find_step_bench(task: str, kind: str, menu: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """What `paceline bench KIND` measures that workload of ours with. Raises PacelineError for others."""
    if task not in menu:
        raise PacelineError(f"--task {task}: not supported by bench {kind}. Use one of {', '.join(menu)}.")
    return menu[task]


def _parts(flags: BenchStepFlags, parts: Sequence[Part]) -> None:
    if flags.part not in parts:
        raise PacelineError(f"--part {flags.part}: must be one of {', '.join(parts)} with --task {flags.task}.")


def _common(flags: BenchStepFlags, *usual: Precision) -> dict[str, Any]:
    """What every workload's benchmark is told in the same way; usual: number formats beside the system's, where none is asked for."""
    system = choose_system(flags.system)
    precisions = flags.precision.split(",") if flags.precision else dict.fromkeys((*usual, system.precision))
    same = {name: getattr(flags, name) for name in ("rounds", "seconds", "compile", "threads")}
    same["matrix"] = flags.matmul_size
    from paceline.training.step_variants import find_layout

    if system.channels_last == "auto" and (layout := find_layout(flags.task, replace(system, precision="fp32"))):
        system = replace(system, channels_last=layout.faster)
    part = "predict" if flags.part == "eval" else flags.part
    return {**same, "precisions": tuple(precisions), "part": part, "system": system}


def bench_classification(flags: BenchStepFlags) -> int:
    """Of a ResNet."""
    from paceline.tools.bench.step_resnet import ResNetBench

    _parts(flags, ("all", "step"))
    bench = ResNetBench(
        batch=flags.batch_size or 32, depth=flags.depth or 50, size=flags.image_size or 224, **_common(flags)
    )
    return _measure(flags, bench, f"ResNet-{bench.depth}, {bench.batch} x {bench.size} px")


def bench_ssd(flags: BenchStepFlags) -> int:
    """Of SSD."""
    from paceline.tools.bench.step_ssd import SSDBench

    _parts(flags, ("all", "ops", "step", "eval"))
    depth = flags.depth or 34
    if depth not in (18, 34):
        raise PacelineError(f"--depth {depth}: must be 18 or 34 with --task detection.")
    if flags.image_size and flags.image_size < 64:
        raise PacelineError(f"--image-size {flags.image_size}: must be at least 64 pixels with --task detection.")
    bench = SSDBench(
        batch=flags.batch_size or 8, depth=depth, size=flags.image_size or 300, classes=flags.num_classes,
        **_common(flags, "fp32"),
    )  # fmt: skip
    return _measure(flags, bench, f"SSD, ResNet-{depth}, {bench.batch} x {bench.size} px, {bench.classes} classes")


def bench_maskrcnn(flags: BenchStepFlags) -> int:
    """Of Mask R-CNN."""
    from paceline.config.maskrcnn import MaskRCNNModel
    from paceline.tools.bench.step_maskrcnn import MaskRCNNBench

    _parts(flags, ("all", "ops", "step", "predict", "shapes"))
    if flags.part == "shapes":
        return _shapes(flags)
    depth = flags.depth or 50
    if depth not in (18, 34, 50, 101):
        raise PacelineError(f"--depth {depth}: must be 18, 34, 50, or 101 with --task instance-segmentation.")
    for name in ("height", "width"):
        if getattr(flags, name) < 64 or getattr(flags, name) % 32:
            raise PacelineError(
                f"--{name} {getattr(flags, name)}: must be a multiple of 32 (the largest stride), at least 64."
            )
    net = MaskRCNNModel(depth=depth)  # type: ignore[arg-type]
    most = int(net.roi.samples_per_image * net.roi.positive_fraction)
    if not flags.positives or not all(flags.objects <= count <= most for count in flags.positives):
        raise PacelineError(
            f"--positives {' '.join(map(str, flags.positives))}: each value must be from {flags.objects} (--objects, all "
            f"of them positive) to {most}, the maximum per image."
        )
    bench = MaskRCNNBench(
        batch=flags.batch_size or 1, height=flags.height, width=flags.width, classes=flags.num_classes, objects=flags.objects,
        positives=flags.positives, net=net, **_common(flags, "fp32"),
    )  # fmt: skip
    size = f"{bench.batch} x {bench.height} x {bench.width} px"
    return _measure(flags, bench, f"Mask R-CNN, ResNet-{depth}, {size}, {bench.classes} classes")


STEPS = {"classification": bench_classification, "detection": bench_ssd, "instance-segmentation": bench_maskrcnn}


def _measure(flags: BenchStepFlags, bench: StepBench, title: str) -> int:
    from rich.console import Console

    from paceline.distributed.device.setup import choose_device
    from paceline.tools.bench.step import run_step_bench
    from paceline.tools.bench.tables import print_operations, print_prediction, print_step

    # Written after each part: a machine that is taken away leaves what it has measured.
    facts = run_step_bench(
        bench, choose_device(bench.system, 0), lambda known: write_answer(known, out=flags.output, printed=False)
    )
    console = Console()
    console.print(f"{title}, on {facts['device']}, {facts['threads']} threads", markup=False)
    if facts["peers"]:
        console.print(f"{facts['peers']}: only paceline is timed", markup=False)
    if "operations" in facts:
        print_operations(facts["operations"], console)
    for words, step in facts.get("step", {}).items():
        print_step(words, step, console)
    for precision, row in facts.get("predict", {}).items():
        print_prediction(precision, row, bench.batch, console)
    wrong = [step["above_the_ceiling"] for step in facts.get("step", {}).values() if step["above_the_ceiling"]]
    for sentence in wrong:
        console.print(sentence, markup=False)
    return 1 if wrong else 0


def _shapes(flags: BenchStepFlags) -> int:
    """Count the shapes of an epoch, and what of them is empty. Raises RecipeError without a data set."""
    from rich.console import Console

    from paceline.config.maskrcnn import InstanceInput

    if flags.data is None:
        raise RecipeError(
            "--data is required, with masks: paceline bench step --task instance-segmentation --part shapes --data DIR"
        )
    batch = flags.batch_size or 2
    facts = require_peers("shapes_maskrcnn", "--part shapes").count_shapes(
        flags.data, InstanceInput(), batch=batch, each=batch, positives=flags.positives, epochs=1
    )
    write_answer(facts, out=flags.output, printed=False)
    console = Console()
    console.print(
        f"{facts['images']:,} images, {facts['objects']:,} objects, {batch} per forward pass: {facts['distinct_shapes']} shapes of "
        f"{len(facts['buckets'])} buckets; {facts['padding']:.1%} of pixels are padding, {facts['empty_object_slots']:.1%} of "
        "object slots are empty"
    )
    for count, slots in facts["mask_slots"].items():
        console.print(
            f"mask-head slots with {count} positive regions per image: {slots['empty_on_an_accelerator']:.1%} of {slots['slots']} "
            f"empty on an accelerator ({slots['gflop_of_empty_slots_forward']:.0f} GFLOP per image in the forward pass), none on a CPU"
        )
    return 0
