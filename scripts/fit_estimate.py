"""Fit the estimate's constants to published rows of 8 and 64 devices, and say how wrong it is at 384 and more.

    python scripts/fit_estimate.py            # the tables of results/estimate/README.md

A step of b images a device on N nodes takes b / R + t0 + exchange (paceline/tools/estimate/run_time.py). R and t0 of a workload on
a chip follow from its two rows; nothing else is fitted, and no row of more than 64 devices is looked at before the errors are printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.tools.estimate import run_time as exchange
from paceline.tools.estimate.run_time import LINK_GBIT, exchange_seconds, exposed_seconds

# Trainable numbers of the three networks; gradients travelled in 16 bits.
PARAMETERS = {"classification": 25.56e6, "detection": 19.97e6, "instance-segmentation": 44.18e6}
# Horovod's one group of all gradients hides nothing (bytes 0); PyTorch's buckets of 25 MiB do.
BUCKET = {"MXNet": 0.0, "PyTorch": 25 * 2**20}


@dataclass(frozen=True)
class Row:
    """One published row: devices that train, in how many nodes, images of a step on each, images a second of each."""

    devices: int
    nodes: int
    images: int
    rate: float
    source: str
    software: str = "MXNet"


@dataclass(frozen=True)
class Family:
    """Rows of one workload on one chip: two to fit, and those to be predicted."""

    workload: str
    chip: str
    system: str  # whose links
    eight: Row
    sixty_four: Row
    larger: tuple[Row, ...]
    note: str = ""

    def exposed(self, row: Row, compute: float) -> float:
        """Seconds of exchange that a row's step waited for."""
        link, size = LINK_GBIT[self.system], 2 * PARAMETERS[self.workload]
        return exposed_seconds(row.nodes, size, link, compute_seconds=compute, bucket_bytes=BUCKET[row.software])

    def fit(self) -> tuple[float, float]:
        """-> (R in images per second, t0 in seconds), exactly through both rows."""
        rate, fixed = self.eight.rate, 0.0
        for _ in range(50):  # what is hidden depends on R: settles in a few rounds
            times = [row.images / row.rate - self.exposed(row, row.images / rate) for row in (self.eight, self.sixty_four)]
            rate = (self.eight.images - self.sixty_four.images) / (times[0] - times[1])
            fixed = times[0] - self.eight.images / rate
        return rate, fixed

    def predicted(self, row: Row) -> float:
        """Images per second of one device."""
        rate, fixed = self.fit()
        compute = row.images / rate
        return row.images / (compute + fixed + self.exposed(row, compute))


P = "PyTorch"
FAMILIES = (
    Family(
        "classification", "H100-SXM5", "dgx-h100",
        Row(8, 1, 400, 7009, "v3.0 NVIDIA dgxh100_ngc23.04"),
        Row(64, 8, 50, 4606, "v3.0 NVIDIA dgxh100_n8"),
        (
            Row(512, 64, 40, 4390, "v3.0 NVIDIA dgxh100_n64"),
            Row(768, 96, 42, 4448, "v3.0 NVIDIA dgxh100_n96"),
            Row(2528, 316, 16, 2724, "v4.0 H100 2528, a later round's software"),
            Row(3584, 448, 16, 2815, "v3.0 NVIDIA and CoreWeave, n448"),
        ),
    ),
    Family(
        "classification", "A100-SXM4", "dgx-a100",
        Row(8, 1, 408, 3397, "v2.0 DGX A100"),
        Row(64, 8, 51, 2618, "v2.0 A100 64"),
        (
            Row(1024, 128, 35, 2255219 / 1024, "A100 1024 (round not noted), whole run with evaluations"),
            Row(4216, 527, 16, 1362, "v2.0 A100 4216, whole run with evaluations"),
        ),
    ),
    Family(
        "detection", "A100-SXM4", "dgx-a100",
        Row(8, 1, 114, 1529, "v1.1 A100 8"),
        Row(64, 8, 24, 1190, "v1.1 A100 64"),
        (
            Row(512, 64, 4, 299, "v0.7 NVIDIA dgxa100_n64, an earlier round's software"),
            Row(1024, 128, 3, 380, "v1.1 A100 1024"),
        ),
    ),
    Family(
        "detection", "A100-SXM4 (v0.7)", "dgx-a100",
        Row(8, 1, 114, 1227, "v0.7 NVIDIA dgxa100", P),
        Row(64, 8, 24, 850, "v0.7 NVIDIA dgxa100_n8"),
        (Row(512, 64, 4, 299, "v0.7 NVIDIA dgxa100_n64"),),
        "the row of 8 is another framework's than the others",
    ),
    Family(
        "detection", "V100-SXM", "dgx2",
        Row(8, 1, 120, 601, "v0.7 NVIDIA dgx1", P),
        Row(64, 4, 24, 501, "v0.7 NVIDIA dgx2h_n4", P),
        (Row(1024, 64, 2, 118, "v0.7 NVIDIA dgx2h_n64"),),
        "a DGX-1 and DGX-2H of 450 W; the large row is another framework's",
    ),
    Family(
        "instance-segmentation", "H100-SXM5", "dgx-h100",
        Row(8, 1, 12, 187, "v3.0 NVIDIA dgxh100", P),
        Row(64, 8, 4, 134, "v3.0 NVIDIA dgxh100_n8", P),
        (Row(256, 48, 1, 94, "v3.0 NVIDIA dgxh100_n48: 384, of which 256 train", P),),
    ),
    Family(
        "instance-segmentation", "A100-SXM4", "dgx-a100",
        Row(8, 1, 12, 88, "v2.1 A100 8, whole run with evaluations", P),
        Row(64, 8, 2, 14.4 * 117266 / 8.45 / 60 / 64, "A100 64, 8.45 min (round not noted): whole run with evaluations", P),
        (Row(256, 48, 1, 51, "v2.1 A100 384, of which 256 train, whole run with evaluations", P),),
    ),
)  # fmt: skip

# Eight A100 PCIe in two nodes, 408 images each, with one and with two Omni-Path adapters of 100 Gbit/s a node: v3.0 Dell 2xR750xa.
ONE_ADAPTER, TWO_ADAPTERS, ADAPTER_GBIT = 408 / 2630, 408 / 2682, 100.0


def link_share() -> float:
    """Of an adapter's nominal rate: the second one took G/B of two nodes from twice as long to half of it."""
    size = 2 * PARAMETERS["classification"]
    bytes_per_second = size / 2 / (ONE_ADAPTER - TWO_ADAPTERS)
    return bytes_per_second / (ADAPTER_GBIT * 1e9 / 8)


def main() -> None:
    """Print the fit, the errors, and how much of it the assumed constants decide."""
    print(f"share of a link's nominal rate: {link_share():.3f}\n")
    print("| workload | chip | row of 8 | row of 64 | R img/s | t0 ms |\n| --- | --- | --- | --- | --- | --- |")
    for family in FAMILIES:
        rate, fixed = family.fit()
        rows = [f"{row.images} x {row.rate:,.4g} ({row.source})" for row in (family.eight, family.sixty_four)]
        print(f"| {family.workload} | {family.chip} | {' | '.join(rows)} | {rate:,.1f} | {1e3 * fixed:.2f} |")
    print("\n| workload | chip | devices | images each | published img/s each | predicted | error | row |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for family in FAMILIES:
        for row in family.larger:
            guess = family.predicted(row)
            print(
                f"| {family.workload} | {family.chip} | {row.devices:,} | {row.images} | {row.rate:,.0f} | {guess:,.0f} | "
                f"{100 * (guess / row.rate - 1):+.0f} % | {row.source}{'; ' if family.note else ''}{family.note} |"
            )
    size = 2 * PARAMETERS["classification"]
    print(f"\nexchange of 51 MB on 448 DGX H100: {1e3 * exchange_seconds(448, size, LINK_GBIT['dgx-h100']):.2f} ms")
    print("\nerrors with other seconds a hop, everything fitted anew:\n")
    print("| a hop | " + " | ".join(f"{f.workload} {f.chip}, {f.larger[-1].devices:,}" for f in FAMILIES) + " |")
    print("| --- |" + " --- |" * len(FAMILIES))
    usual = exchange.HOP_SECONDS
    for hop in (0.0, usual, 50e-6, 200e-6):
        exchange.HOP_SECONDS = hop
        errors = [family.predicted(family.larger[-1]) / family.larger[-1].rate - 1 for family in FAMILIES]
        print(f"| {1e6 * hop:.0f} us | " + " | ".join(f"{100 * error:+.0f} %" for error in errors) + " |")
    exchange.HOP_SECONDS = usual


if __name__ == "__main__":
    main()
