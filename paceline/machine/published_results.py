"""What the published systems measured: epochs and minutes to the target, and images per second of one accelerator.

Others' measurements, computed from their public logs (MLPerf Training v0.7 to v4.0); ours stand in results/.
Minutes: from run_start to run_stop, the mean without the fastest and the slowest of five runs.
Rate: of training alone, evaluations left out, over the accelerators that train (of 384 H100, 256).
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.machine.published import Workload


@dataclass(frozen=True)
class Result:
    """One published row."""

    workload: Workload  # what was learned
    system: str  # name in SYSTEMS that the machine is, or is like
    nodes: int  # machines
    accelerators: int  # that train
    global_batch: int  # images of one step
    epochs: float  # to the target; the median where runs differ
    minutes: float  # to the target
    rate: float  # images per second of one training accelerator; 0 = not logged
    source: str  # round, submitter and system, software
    recipe: str = ""  # ours with the same settings; empty where the row has others, or does not tell them


def _row(workload: Workload, system: str, nodes: int, ranks: int, *facts, recipe: str = "") -> Result:
    return Result(workload, system, nodes, ranks, *facts, recipe=recipe)


RESULTS: tuple[Result, ...] = (
    # SSD300-ResNet34 to box AP 0.23.
    _row("ssd", "c4140", 1, 4, 512, 50, 43.87, 570, "v0.7 DellEMC C4140, MXNet", recipe="ssd-mlperf-512"),
    _row("ssd", "c4140", 2, 8, 1024, 50, 22.67, 552, "v0.7 DellEMC 2xC4140, MXNet", recipe="ssd-mlperf-1024"),
    _row("ssd", "c4140", 4, 16, 896, 50, 12.44, 503, "v0.7 DellEMC 4xC4140, MXNet", recipe="ssd-mlperf-896"),
    _row("ssd", "dss8440", 1, 8, 1024, 50, 25.37, 494, "v0.7 DellEMC DSS8440, MXNet", recipe="ssd-mlperf-1024-dss8440"),
    _row("ssd", "dgx-a100", 8, 64, 1536, 60, 2.25, 850, "v0.7 NVIDIA dgxa100_n8, MXNet", recipe="ssd-mlperf-1536"),
    _row("ssd", "dgx-a100", 64, 512, 2048, 65, 0.89, 299, "v0.7 NVIDIA dgxa100_n64, MXNet", recipe="ssd-mlperf-2048"),
    _row("ssd", "dgx2", 64, 1024, 2048, 65, 1.13, 118, "v0.7 NVIDIA dgx2h_n64, MXNet", recipe="ssd-mlperf-2048"),
    _row("ssd", "dgx1-16gb", 1, 8, 960, 50, 20.69, 601, "v0.7 NVIDIA dgx1, PyTorch"),
    _row("ssd", "dgx2", 1, 16, 896, 50, 9.65, 656, "v0.7 NVIDIA dgx2h (450 W), PyTorch"),
    _row("ssd", "dgx2", 4, 64, 1536, 60, 3.93, 501, "v0.7 NVIDIA dgx2h_n4, PyTorch"),
    _row("ssd", "dgx-a100", 1, 8, 912, 50, 10.21, 1227, "v0.7 NVIDIA dgxa100, PyTorch"),
    _row("ssd", "dgx-a100", 2, 16, 896, 50, 5.68, 1122, "v0.7 NVIDIA dgxa100_n2, PyTorch"),
    _row("ssd", "a100x8", 1, 8, 912, 51, 8.26, 1529, "v1.1 A100 8, MXNet"),
    _row("ssd", "a100x8", 8, 64, 1536, 58, 1.52, 1190, "v1.1 A100 64, MXNet"),
    _row("ssd", "a100x8", 128, 1024, 3072, 75, 0.45, 380, "v1.1 A100 1024, MXNet"),
    # ResNet-50 to top-1 0.759.
    _row("classification", "dgx-h100", 1, 8, 3200, 35, 13.601, 7009, "v3.0 NVIDIA dgxh100, MXNet",
         recipe="resnet50-mlperf-3200"),
    _row("classification", "dgx-h100", 8, 64, 3200, 35, 2.664, 4606, "v3.0 NVIDIA dgxh100_n8, MXNet",
         recipe="resnet50-mlperf-3200-8x8"),
    _row("classification", "dgx-h100", 64, 512, 20480, 50, 0.503, 4390, "v3.0 NVIDIA dgxh100_n64, MXNet",
         recipe="resnet50-mlperf-20480"),
    _row("classification", "dgx-h100", 96, 768, 32256, 56, 0.369, 4448, "v3.0 NVIDIA dgxh100_n96, MXNet",
         recipe="resnet50-mlperf-32256"),
    _row("classification", "dgx-h100", 448, 3584, 57344, 77, 0.183, 2815, "v3.0 CoreWeave hgxh100_n448, MXNet",
         recipe="resnet50-mlperf-57344"),
    _row("classification", "dgx-h100", 1, 8, 3200, 35, 13.27, 7165, "v4.0 NVIDIA eos, MXNet"),
    _row("classification", "dgx-h100", 8, 64, 3200, 35, 2.49, 4971, "v3.1 NVIDIA eos, MXNet"),
    _row("classification", "dgx-a100", 1, 8, 3264, 35, 28.65, 3397, "v2.0 NVIDIA DGX A100, MXNet"),
    _row("classification", "gaudi2x8", 1, 8, 2048, 35, 16.460, 5806, "v3.0 Habana HLS-Gaudi2-PT, PyTorch",
         recipe="resnet50-gaudi2-2048"),
    _row("classification", "gaudi2x8", 1, 8, 2048, 35, 15.991, 5945, "v3.0 Habana HLS-Gaudi2-TF, TensorFlow"),
    _row("classification", "gaudi2x8", 1, 8, 2048, 35, 16.409, 5842, "v3.0 Supermicro SYS-820GH-TNR2"),
    _row("classification", "h100x8", 1, 8, 3200, 35, 13.760, 6979, "v3.0 Azure ND_H100_v5, MXNet"),
    _row("classification", "h100x8", 1, 8, 3200, 35, 13.410, 7012, "v3.0 Dell XE9680, MXNet"),
    _row("classification", "h100x8", 1, 8, 3200, 35, 13.443, 6996, "v3.0 GIGABYTE G593-SD0, MXNet"),
    _row("classification", "h100x8", 1, 8, 3200, 35, 13.501, 7045, "v3.0 Supermicro SYS-821GE-TNHR, MXNet"),
    _row("classification", "h100x8", 1, 8, 3200, 35, 13.603, 6979, "v3.0 Supermicro AS-8125GS-TNHR, MXNet"),
    _row("classification", "h100x8", 1, 8, 3264, 35, 13.661, 6937, "v3.0 Quanta D74H-7U, MXNet"),
    _row("classification", "h100x8", 2, 16, 3200, 35, 7.814, 6031, "v3.0 Dell 2xXE9680, MXNet"),
    _row("classification", "h200x8", 1, 8, 3200, 35, 12.03, 7950, "v4.0 H200 8, MXNet"),
    _row("classification", "a100x8", 1, 8, 3264, 36, 27.048, 3573, "v3.0 Dell XE9680 A100 80 GB, MXNet"),
    _row("classification", "a100x8", 2, 16, 3264, 36, 14.397, 3359, "v3.0 Dell 2xXE9680 A100 80 GB, MXNet"),
    _row("classification", "a100x8", 8, 64, 3264, 35, 4.50, 2618, "v2.0 A100 64, MXNet"),
    # Mask R-CNN to box AP 0.377 and mask AP 0.339.
    _row("maskrcnn", "dgx-h100", 1, 8, 96, 14, 19.180, 187, "v3.0 NVIDIA dgxh100, PyTorch", recipe="maskrcnn-nvidia-96"),
    _row("maskrcnn", "dgx-h100", 8, 64, 256, 18, 4.264, 134, "v3.0 NVIDIA dgxh100_n8, PyTorch",
         recipe="maskrcnn-nvidia-256"),
    _row("maskrcnn", "dgx-h100", 48, 256, 256, 17, 1.466, 94, "v3.0 NVIDIA dgxh100_n48, PyTorch",
         recipe="maskrcnn-nvidia-256-48nodes"),
    _row("maskrcnn", "h100x8", 1, 8, 96, 14, 19.835, 181, "v3.0 Azure ND_H100_v5, PyTorch"),
    _row("maskrcnn", "h100x8", 1, 8, 96, 14, 19.244, 187, "v3.0 GIGABYTE G593-SD0, PyTorch"),
    _row("maskrcnn", "h100x8", 1, 8, 96, 14, 19.520, 184, "v3.0 Quanta D74H-7U, PyTorch"),
    _row("maskrcnn", "h100x8", 1, 8, 96, 14, 19.985, 181, "v3.0 Dell XE9680, PyTorch"),
    _row("maskrcnn", "h100x8", 1, 8, 96, 14, 20.439, 175, "v3.0 Supermicro AS-8125GS-TNHR, PyTorch"),
    _row("maskrcnn", "h100x8", 1, 8, 96, 14, 21.493, 166, "v3.0 Supermicro SYS-821GE-TNHR, PyTorch"),
    _row("maskrcnn", "a100x8", 1, 8, 96, 14, 38.579, 92, "v3.0 Dell XE9680 A100 80 GB, PyTorch"),
    _row("maskrcnn", "a100x8", 1, 8, 96, 14.4, 40.13, 86.4, "v2.1 A100 8, PyTorch"),
    _row("maskrcnn", "a100x8", 48, 256, 256, 17.2, 2.75, 51, "v2.1 A100 384, PyTorch"),
)  # fmt: skip


def results_of(workload: str, system_name: str, recipe_name: str = "") -> list[Result]:
    """The published results of a workload on a system, by number of nodes; those with a recipe's own settings where named."""
    found = [
        result
        for result in RESULTS
        if (result.workload, result.system) == (workload, system_name) and recipe_name in ("", result.recipe)
    ]
    return sorted(found, key=lambda result: result.nodes)
