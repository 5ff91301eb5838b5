"""The tables of results/gpu/README.md with what a campaign has measured: predictions stand beside measurements.

    python scripts/gpu/tables.py DIR         DIR is a campaign's --out; the campaign itself writes DIR/tables.md after each item

A row is filled by its first words (`FILL`); what an item has not found, or not yet, is a dash.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[2] / "results" / "gpu" / "README.md"
NETWORKS = ("resnet", "ssd", "maskrcnn")
ABSENT = "-"
# The first is one of tests/gpu, whose log says it; the other is asked by nobody yet.
TRIALS = tuple(f"`{item}`" for item in ("all-resnet", "all-ssd", "all-maskrcnn", "autotune"))
NOT_FILLED = ("fused SGD, LARS, AdamW", "6 GiB for ResNet-50")
Facts = Mapping[str, Any]


def read(file: Path) -> list[dict[str, Any]]:
    """Lines of results; one that a kill has torn is none."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


class Results:
    """What is known of each item: of lines about the same thing the last one counts."""

    def __init__(self, lines: Iterable[dict[str, Any]], *, tiny: bool = False) -> None:
        self.of: dict[str, dict[str, Facts]] = defaultdict(dict)
        self.ends: dict[str, Facts] = {}
        for line in lines:
            if line.get("tiny", False) != tiny:
                continue
            if "exit" in line:
                # An item that a later call had no time for keeps what it had.
                if line["exit"] is not None or line["item"] not in self.ends:
                    self.ends[line["item"]] = line
            else:
                self.of[line["item"]][line.get("what", "")] = line

    def get(self, item: str, what: str, *keys: str) -> Any:
        """The value under these keys; None where it is not known."""
        found: Any = self.of.get(item, {}).get(what)
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def cell(values: Iterable[Any], form: str = ",.0f") -> str:
    """Numbers side by side, each in this form."""
    return " / ".join(format(value, form) if isinstance(value, (int, float)) else ABSENT for value in values)


def over(a: Any, b: Any) -> float | None:
    """a / b, where both are known."""
    return a / b if a is not None and b else None


def rate(item: str, name: str, *, known: Results) -> Any:
    """images/s of a contender; of one that was left out of the rounds, before them."""
    (facts,) = (known.get(item, "", "step") or {"": {}}).values()
    found = {**(facts.get("before_the_rounds") or {}), **(facts.get("images_per_second") or {})}
    return found.get(name)


def steps(item: str, peer: str, detail: str = "", *, known: Results) -> str:
    """images/s of a step: bf16, fp16, one graph, compiled, compiled as one graph, Triton, Triton as one graph, and the peer's."""
    forms = ("", " fp16", " CUDA graph", " compiled", " compiled CUDA graph", " Triton", " Triton CUDA graph")
    names = [*(f"paceline{form}{detail}" for form in forms), peer]
    return cell(rate(item, name, known=known) for name in names)


def trial(item: str, name: str, *, known: Results) -> str:
    """images/s of a trial, and whether its first loss is that of the form which it changes."""
    off = known.get(item, "trials", "found", name)
    said = "" if off is None else ", agrees" if off["agrees"] else f", LOSS OFF BY {off['first_loss_off']:.1e}"
    value = rate(item, name, known=known)
    return f"{cell([value], ',.0f' if value is None or value >= 1000 else '.1f')}{said}"


def ceilings(*, known: Results) -> str:
    """TB/s of copies on the device, TFLOP/s of products in bf16."""
    copies = over(known.get("ceilings", "copy on the device", "gb_per_second"), 1000)
    return f"{cell([copies], '.2f')}; {cell([known.get('ceilings', 'matrix product bf16', 'tflop_per_second')])}"


def copied(*, known: Results) -> str:
    """Milliseconds of 39 MB at the rate of the bus."""
    return f"{cell([over(39, known.get('ceilings', 'copy to the device', 'gb_per_second'))], '.2f')} ms at the bus's rate"


def beside_a_cpu(key: str, formats: Sequence[str], *, known: Results) -> str:
    """The largest of the three networks, in each number format."""
    found = [[known.get("against-cpu", f"{name} {number}", key) for name in NETWORKS] for number in formats]
    return cell((max((one for one in row if one is not None), default=None) for row in found), ".1e")


def waits_of_steps(*, known: Results) -> str:
    """Of our eager steps."""
    found = []
    for item in (f"all-{name}" for name in NETWORKS):
        scenes = (known.get(item, "", "step") or {}).values()
        said = [facts.get("waits_for_the_device") for facts in scenes]
        found.append(ABSENT if not said or None in said else next(filter(None, said), "none"))
    return " / ".join(found)


def decoded(*, known: Results) -> str:
    """photos/s, and levels off on average; or why it was refused."""
    rows = [known.get("decode", f"decode {number} photos on cuda") or {} for number in (64, 256)]
    refused = [row["refused"] for row in rows if "refused" in row]
    if refused:
        return refused[0][:100]
    return (
        f"{cell(row.get('images_per_second') for row in rows)}, levels off {cell([rows[-1].get('mean_levels_off')], '.2f')}"
    )


def loaded(*, known: Results) -> str:
    """images/s by the number of workers."""
    found = {what: facts for what, facts in known.of["input"].items() if "our loader" in what}
    return "; ".join(f"{cell([facts.get('images_per_second')])} ({what.split(', ')[-1]})" for what, facts in found.items())


def joined(*, known: Results) -> str:
    """Times apart over times together in bf16: 1x1 kernels, and larger ones."""
    rows = {what: facts for what, facts in known.of["conv-relu"].items() if what.startswith("torch.bfloat16 relu")}
    refused = [facts["refused"] for facts in rows.values() if "refused" in facts]
    if not rows or refused:
        return refused[0][:100] if refused else ABSENT
    found: dict[bool, list[float]] = {True: [], False: []}
    for what, facts in rows.items():
        found[" 1x1/" in what].append(facts["separate_ms"] / facts["together_ms"])
    return cell((statistics.median(found[one]) if found[one] else None for one in (True, False)), ".2f")


def rate_of_loop(known: Results, name: str, what: str) -> float | None:
    """images/s of a run's later half."""
    rates = known.get(f"throughput-{name}", f"{name} {what}", "images_per_second")
    return statistics.median(rates[len(rates) // 2 :]) if rates else None


def loops(top: str, bottom: str, *, known: Results) -> str:
    """images/s of one kind of run beside another's."""
    return cell((over(rate_of_loop(known, name, top), rate_of_loop(known, name, bottom)) for name in NETWORKS), ".2f")


def of_loops(item: str, what: str, key: str, form: str, below: str = "", *, known: Results) -> str:
    """A fact of each network's run; over another key of the same run."""

    def fact(name: str, key: str) -> Any:
        return known.get(item.format(name), what.format(name), key)

    return cell((over(fact(name, key), fact(name, below)) if below else fact(name, key) for name in NETWORKS), form)


def replayed_memory(*, known: Results) -> str:
    """Peaks of memory, replayed over sent."""

    def peak(name: str, form: str) -> Any:
        return known.get(f"throughput-{name}", f"{name} photos {form}", "memory_peak_gib")

    return cell((over(peak(name, "graph"), peak(name, "eager")) for name in NETWORKS), ".2f")


def waits_of_loops(*, known: Results) -> str:
    """In a step, sent and replayed."""
    found = []
    for name in NETWORKS:
        rows = [known.get("syncs", f"{name} {form}", "a_step") for form in ("eager", "graph")]
        found.append(ABSENT if None in rows else ", ".join(sorted({place for row in rows for place in row})) or "none")
    return " / ".join(found)


def captured(*, known: Results) -> str:
    """Captures; recompilations and captures once the clock ran."""
    found = []
    for name in NETWORKS:
        facts = known.get(f"throughput-{name}", f"{name} photos graph") or {}
        late = [facts.get(key) for key in ("recompilations", "late_captures")]
        found.append(f"{facts['captures']}; {sum(late)}" if "captures" in facts and None not in late else ABSENT)
    return " / ".join(found)


def sent_and_replayed(key: str, *, known: Results) -> str:
    """A fact of each network's run, sent and replayed."""
    rows = (
        [known.get(f"throughput-{name}", f"{name} photos {form}", key) for form in ("eager", "graph")] for name in NETWORKS
    )
    return " / ".join(cell(row, ".1f").replace(" / ", ", ") for row in rows)


def losses_replayed(*, known: Results) -> str:
    """Off what is sent: the most of the first five, the mean of the last ten."""
    rows = (
        [known.get(f"gate-{name}", f"{name} graph bf16", f"{part}_off_eager") for part in ("first_five", "last_ten")]
        for name in NETWORKS
    )
    return " / ".join(cell(row, ".1e").replace(" / ", ", ") for row in rows)


def resumed(form: str, *, known: Results) -> str:
    """Whether the bytes are those of the unbroken run."""
    found = []
    for recipe in ("classify-demo", "ssd-demo"):
        facts = known.get("resume", f"{recipe} {form}") or {}
        agrees, as_eager = facts.get("agrees"), facts.get("as_eager")
        same = agrees if form == "eager" or agrees is None else agrees and as_eager
        found.append(
            facts["refused"][:80] if "refused" in facts else {True: "the same", False: "OTHER", None: ABSENT}[same]
        )
    return " / ".join(found)


def targets(*, known: Results) -> str:
    """Seconds from Enter, where the target was reached."""
    rows = [known.get(f"target-{recipe}", recipe) or {} for recipe in ("classify-demo", "ssd-demo")]
    return cell((row.get("seconds_from_enter") if row.get("agrees") else None for row in rows), ".0f")


FILL: dict[str, Callable[..., str]] = {
    "ResNet-50, 256 x 224 px": partial(steps, "all-resnet", "torchvision"),
    "ResNet-50, 32 x 224 px": partial(steps, "resnet-32", "torchvision"),
    "SSD, 128 x 300 px": partial(steps, "all-ssd", "plain eager channels_last"),
    "the same, fused heads": partial(steps, "all-ssd", "", ", fused heads"),
    "Mask R-CNN, 12": partial(steps, "all-maskrcnn", "torchvision"),
    "Mask R-CNN, 4": partial(steps, "maskrcnn-4", "torchvision"),
    "copies on the device": ceilings,
    "losses of one step": partial(beside_a_cpu, "loss_off", ("fp32", "bf16")),
    "gradients, norm": partial(beside_a_cpu, "gradient_off", ("fp32", "tf32", "bf16")),
    "waits for the device inside a step": waits_of_steps,
    "GPU JPEG decoder": decoded,
    "our loader": loaded,
    "`cudnn_convolution_relu`": joined,
    "300 steps from photos": partial(loops, "photos eager", "one batch eager"),
    "peak memory beside the estimate": partial(
        of_loops, "throughput-{}", "{} photos eager", "memory_peak_gib", ".2f", "memory_predicted_gib"
    ),
    "resumed beside unbroken": partial(resumed, "eager"),
    "`classify-demo`, `ssd-demo`": targets,
    "host's own time for a step, ms: sent": partial(of_loops, "syncs", "{} eager", "host_milliseconds_a_step", ".1f"),
    "host's own time for a step, ms: replayed": partial(of_loops, "syncs", "{} graph", "host_milliseconds_a_step", ".1f"),
    "images/s replayed beside sent, one batch": partial(loops, "one batch graph", "one batch eager"),
    "images/s replayed beside sent, from photos": partial(loops, "photos graph", "photos eager"),
    "waits for the device in a step": waits_of_loops,
    "captures of a run": captured,
    "seconds that the warm-up takes": partial(sent_and_replayed, "warm_up_seconds"),
    "memory: peak beside the estimate, sent": partial(
        of_loops, "throughput-{}", "{} photos eager", "memory_peak_gib", ".2f", "memory_predicted_gib"
    ),
    "memory: replayed beside sent": replayed_memory,
    "50 losses replayed": losses_replayed,
    "resumed under `--deterministic` with": partial(resumed, "graph"),
    "copies of the loader into": copied,
    "a host that is a ring ahead": lambda *, known: cell(
        (max(known.get(f"throughput-{name}", f"{name} one batch eager", "data_wait") or [None]) for name in NETWORKS), ".3f"
    ),
}  # fmt: skip


def rows_of(text: str) -> list[str]:
    """Lines of the tables that have a column for measurements, an empty line after each table."""
    found, lines, inside = [], text.splitlines(), False
    for line in lines:
        inside = line.startswith("|") and (inside or line.rstrip().endswith("| measured |"))
        if inside or (found and found[-1]):
            found.append(line if inside else "")
    return found


def measured(fill: Callable[..., str], known: Results) -> str:
    """A row's cell. What was found in another shape than expected costs this cell alone: results.jsonl still has it."""
    try:
        return fill(known=known) or ABSENT
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        return f"not readable: {type(problem).__name__}: {problem}"


def fill_of(line: str) -> Callable[..., str] | None:
    """What fills a row: a trial's has the contender in its first cell and the item in its second."""
    name, item, *_ = [*(cell.strip() for cell in line.split("|")[1:]), "", ""]
    if item in TRIALS:
        return partial(trial, item.strip("`"), name.strip("`"))
    return next((FILL[words] for words in FILL if line.startswith(f"| {words}")), None)


def filled(text: str, known: Results) -> str:
    """The tables of that page with their last column filled."""
    out = []
    for line in rows_of(text):
        fill = fill_of(line)
        cells = line.rstrip().removesuffix("|").rstrip().rpartition("|")
        out.append(f"{cells[0]}| {measured(fill, known)} |" if fill else line)
    ends = [
        f"| {item} | {ABSENT if line['exit'] is None else ', '.join(map(str, line['exit']))} | {line.get('seconds', ABSENT)} |"
        for item, line in known.ends.items()
    ]
    return "\n".join([*out, "", "| item | exit | seconds |", "| --- | --- | --- |", *ends, ""])


def write(out: Path, *, tiny: bool = False) -> None:
    """DIR/tables.md, whole."""
    part = out / "tables.part"
    part.write_text(filled(README.read_text(), Results(read(out / "results.jsonl"), tiny=tiny)))
    os.replace(part, out / "tables.md")


if __name__ == "__main__":
    write(Path(sys.argv[1]), tiny="--tiny" in sys.argv)
