"""What `paceline bench input RECIPE` prints: the stages as a table, the bare limits, and one line of advice.

RATES is how many training images a second published runs reached on one accelerator: what an input has to deliver.
Source: MLPerf Training's result logs, computed from `tracked_stats` (training alone) where a log has it, else over the whole run,
evaluations included, which is a few percent less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.table import Table

from paceline._utils.commands import install_command
from paceline._utils.errors import RecipeError
from paceline.config.reference_rates import usual_rates

# Below this share of computing cores, threads wait for something; above this utilisation an accelerator
# counts as fed (MLPerf Storage asks for it).
COMPUTING, FED = 0.75, 0.9
STAGES = {
    "read": "read",
    "draw": "header, sampling",
    "decode": "decode",
    "augment": "resize, flip, colors",
    "batch": "batch",
    "transfer": "transfer",
}

Report = Mapping[str, Any]


def stage_microseconds(report: Report) -> dict[str, float]:
    """CPU time of an image by stage, all threads being at it; what is not done here is left out."""
    cpu = {name: cost["cpu_microseconds"] for name, cost in report["alone"].items()}
    result = {
        "read": cpu["read"],
        "draw": cpu["draw"],
        "decode": cpu["decode"],
        "augment": max(0.0, cpu["decode and augment"] - cpu["decode"]),
        "batch": cpu["batch"],
    }
    if report["transfer_microseconds"] is not None:
        result["transfer"] = report["transfer_microseconds"]
    return result


def format_stages(report: Report) -> Table:
    """A row a stage: CPU time for an image where all loader threads are at it, its share, and the rate that they reach."""
    shown = Table(title=f"one training image, from the store to a batch, with {report['num_workers']} threads")
    for column in ("stage", "CPU us per image", "share", "images/s"):
        shown.add_column(column, justify="left" if column == "stage" else "right")
    costs = stage_microseconds(report)
    whole = sum(costs.values())
    for name, cost in costs.items():
        rate = report["alone"].get(name, {}).get("images_per_second")
        shown.add_row(STAGES[name], f"{cost:,.0f}", f"{cost / whole:.0%}", "" if rate is None else f"{rate:,.0f}")
    together = report["together"]
    shown.add_section()
    shown.add_row("sum", f"{whole:,.0f}", "", "")
    shown.add_row("all stages", f"{together['cpu_microseconds']:,.0f}", "", f"{together['images_per_second']:,.0f}")
    shown.add_section()
    if (bare := report["limits"]["decoder"]) is not None:
        shown.add_row("limit: decoding only", f"{bare['cpu_microseconds']:,.0f}", "", f"{bare['images_per_second']:,.0f}")
    if (disk := report["limits"]["disk"]) is not None:
        rate = f"{disk['images_per_second']:,.0f}, {disk['mib_per_second']:,.0f} MiB/s"
        shown.add_row("limit: uncached reads", "", "", rate)
    return shown


def describe_gap(report: Report) -> str:
    """What lies between decoding whole photos and the loader, in a line; "" where nothing was decoded bare."""
    bare = report["limits"]["decoder"]
    if bare is None:
        return ""
    costs, together = stage_microseconds(report), report["together"]["cpu_microseconds"]
    rest = together - sum(costs.values())
    parts = {
        "partial decoding": costs["decode"] - bare["cpu_microseconds"],
        "reading": costs["read"],
        "header and sampling": costs["draw"],
        "resize, flip, colors": costs["augment"],
        "batch": costs["batch"],
        "threads": rest,
    }
    words = ", ".join(f"{name} {cost:+,.0f}" for name, cost in parts.items())
    return (
        f"compared with decoding only ({bare['cpu_microseconds']:,.0f} CPU us per image), the loader needs {together:,.0f} CPU us, "
        f"{bare['cpu_microseconds'] / together:.2f} of the speed. Differences: {words}"
    )


def describe_emulation(report: Report) -> str:
    """The emulated accelerators' utilisation, in a line; "" without them."""
    result = report["emulated"]
    if result is None:
        return ""
    cores = math.ceil(result["cores_needed"])
    return (
        f"{result['accelerators']} need {result['images_per_second']:,.0f} images/s: {result['utilisation']:.1%} busy, "
        f"{result['delivered_images_per_second']:,.0f} images/s from {report['cores']} core{'s'[: report['cores'] > 1]}; "
        f"about {cores:,} core{'s'[: cores > 1]} of this type would be enough"
    )


def give_advice(report: Report) -> str:
    """What limits this input, and the flag that changes it, in a line."""
    costs, together = stage_microseconds(report), report["together"]
    wanted, cores, threads = report["emulated"], report["cores"], report["num_workers"]
    rate = together["images_per_second"]
    if wanted is not None and wanted["utilisation"] >= FED:
        disk, much = report["limits"]["disk"], wanted["images_per_second"]
        if disk is not None and disk["images_per_second"] < much:
            return (
                f"the input is fast enough while images are cached in memory. The disk reads {disk['images_per_second']:,.0f} "
                "images/s. If the dataset is larger than memory, use --system.io-threads 8, or a faster disk"
            )
        return f"the input is fast enough ({wanted['utilisation']:.0%} busy); no change is needed"
    computing = rate * together["cpu_microseconds"] / 1e6 / cores
    read = report["alone"]["read"]
    waiting = max(0.0, read["alone_microseconds"] - read["alone_cpu_microseconds"])  # of one thread, for a photo
    if computing < COMPUTING and waiting > 0.2 * sum(costs.values()):
        more = max(8, 2 * report["io_threads"])
        return (
            f"reading waits for the store ({waiting:,.0f} us per image). Set --system.io-threads {more}, and if the images fit "
            "in memory, --system.ram-cache 40GiB"
        )
    if threads < cores:
        return f"only {threads} of {cores} cores decode. Set --system.num-workers {cores}"
    if computing < COMPUTING:
        return f"other processes run here, or reads are slow. Measure again, or try --system.num-workers {2 * cores}"
    most = max(costs, key=lambda name: costs[name])
    if most == "decode":
        pack = "paceline data pack DIR --format recordio --resize-shorter-side 352 --output-dir SMALLER"
        more = f"use more cores, or smaller images ({pack})"
        if report["decoder"] == "simplejpeg":
            more = f"use --input.decoder nvimgcodec to decode only the crop ({install_command('fast')}), or {more}"
        return f"decoding is the bottleneck ({costs['decode'] / sum(costs.values()):.0%} of the work): {more}"
    if most == "augment":
        return "resizing and color transforms are the bottleneck. Use more cores, or weaker augmentation (--input.* flags)"
    if most == "read":
        return "copying images from the page cache is the bottleneck. Use more cores, or smaller images"
    return f"{STAGES[most]} is the bottleneck, and no flag changes it. Use more cores"


# workload -> accelerator -> images a second of one, its usual row of config/published_rates.json.
RATES = {workload: usual_rates(workload) for workload in ("classification", "instance-segmentation", "detection")}
MAX_ACCELERATORS, MAX_RATE = 1024, 1e7


class Demand(NamedTuple):
    """What accelerators ask of their input."""

    name: str  # in words
    rate: float  # images a second, of all together


def parse_demand(text: str, task: str) -> Demand:
    """What `--emulate` means: "h200", "h200:8" or images a second such as "2500".

    Raises RecipeError for anything else, naming the accelerators whose rate in this workload is known.
    """
    name, colon, count = text.strip().lower().partition(":")
    known = RATES.get(task, {})
    try:
        if name in known:
            number = int(count) if colon else 1
            if 1 <= number <= MAX_ACCELERATORS:
                return Demand(f"{number} x {name}", known[name] * number)
        elif not colon and 0 < float(name) <= MAX_RATE:
            return Demand(f"{float(name):g} images/s", float(name))
    except ValueError:  # it is neither
        pass
    names = f"NAME or NAME:COUNT with one of {', '.join(known)}, or " if known else ""
    raise RecipeError(f"--emulate {text!r}: must be {names}images per second. Example: --emulate 2500")
