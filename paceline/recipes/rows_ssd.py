"""SSD300-ResNet34 to box AP 0.23: configurations of MLPerf v0.7 and v1.1, of the reference and of Habana's that are no recipes of
the menu. Numbers: configuration files (docs/recipes-published.md names each), checked against what the first run of a result logged.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from paceline.recipes.row import Row
from paceline.recipes.ssd import SSDRecipe, gaudi, gaudi_cosine, mlperf, mxnet, nvidia_pytorch, tpu

# fp16 under a static loss scale of 128, in MXNet and in PyTorch.
SCALE = 128.0
GOOGLE = "network, data treatment, momentum and the length: Habana's, which began from Google's code"


def _mxnet(
    name: str, chip: str, nodes: int, per_node: int, images: int, source: str, *, bn_ranks: int = 1, **facts
) -> Row:
    batch = nodes * per_node * images
    make = partial(mxnet, batch, bn_span=bn_ranks * images, **facts)
    return Row(f"ssd@{name}-{batch}", make, chip, nodes, per_node, source, loss_scale=SCALE)


def _pytorch(name: str, chip: str, nodes: int, per_node: int, images: int, source: str, **facts) -> Row:
    batch = nodes * per_node * images
    make = partial(nvidia_pytorch, batch, bn_span=images, **facts)
    return Row(f"ssd@{name}-{batch}", make, chip, nodes, per_node, source, loss_scale=SCALE)


def _reference(name: str, nodes: int, images: int, source: str) -> Row:
    """Its script says 300 warm-up steps; int() of its 2.619685 epochs makes 299 of them. fp32."""
    batch = nodes * 8 * images
    make = partial(mlperf, batch, warmup=2.619685, bn_span=images)
    return Row(f"ssd@{name}-{batch}", make, "V100-SXM2-32GB", nodes, 8, source, precision="fp32")


def _habana(name: str, chip: str, cards: int, make: partial[SSDRecipe], source: str) -> Row:
    return Row(f"ssd@{name}-{make.args[0]}", make, chip, 1, cards, source, precision="bf16")


def _tpu(name: str, batch: int, cores: int, source: str, **facts) -> Row:
    return Row(
        f"ssd@{name}-{batch}", partial(tpu, batch, **facts), "TPU", 1, cores, source, precision="bf16", ours=GOOGLE
    )


# The MXNet program's own rate and decay, of eight scripts for three sizes; nchw and amp in their names are number formats.
# SCALE_OUT tries a large run's warm-up on one machine, and ends after 10 epochs of its 26.
DGX1: dict[str, Any] = {"lr": 2.5e-3, "decay": 5e-4}
SCALE_OUT: dict[str, Any] = {"lr": 4.57e-3, "warmup": 26, "decay": 4e-5, "boundaries": (61, 76), "epochs": 10}

ROWS = (
    _mxnet("dell-dgx-a100-1x8x2x1", "A100-SXM4-40GB", 1, 8, 2, "v0.7 DellEMC config_DGXA100_1x8x2x1.sh", **SCALE_OUT),
    _mxnet("dell-dgx-a100-1x8x2x8", "A100-SXM4-40GB", 1, 8, 2, "v0.7 DellEMC config_DGXA100_1x8x2x8.sh", bn_ranks=8, **SCALE_OUT),
    _mxnet("dell-dgx1", "V100-SXM2-32GB", 1, 8, 128, "v0.7 DellEMC scripts/train/dgx1/train_mlperf_dgx1_nhwc_fp16.sh",
           warmup=2.619685, **DGX1),
    _mxnet("dell-dgx1-gbn2", "V100-SXM2-32GB", 1, 8, 64, "v0.7 DellEMC scripts/train/dgx1/train_mlperf_dgx1_gbn2_nhwc_fp16.sh",
           warmup=1.3098425, bn_ranks=2, **DGX1),
    _mxnet("dell-dgx1-gbn4", "V100-SXM2-32GB", 1, 8, 32, "v0.7 DellEMC scripts/train/dgx1/train_mlperf_dgx1_gbn4_nhwc_fp16.sh",
           warmup=0.65492125, bn_ranks=4, **DGX1),
    _mxnet("nvidia-dgx-a100-v1.1", "A100-SXM4-80GB", 1, 8, 114, "v1.1 NVIDIA dgxa100_ngc21.09_mxnet",
           lr=3.157e-3, warmup=5, decay=1.3e-4, epochs=65, later=True),
    _mxnet("nvidia-8xdgx-a100-v1.1", "A100-SXM4-80GB", 8, 8, 24, "v1.1 NVIDIA dgxa100_n8_ngc21.09_mxnet",
           lr=4e-3, warmup=15, decay=1.7e-4, boundaries=(48, 60), epochs=70, bn_ranks=2, later=True),
    _mxnet("nvidia-128xdgx-a100", "A100-SXM4-80GB", 128, 8, 3, "v1.1 NVIDIA dgxa100_n128_ngc21.09_mxnet",
           lr=4e-3, warmup=35, decay=4e-5, boundaries=(68, 85), epochs=90, bn_ranks=8, later=True),
    _pytorch("nvidia-dgx1-pytorch", "V100-SXM2-16GB", 1, 8, 120, "v0.7 NVIDIA dgx1_ngc20.06_pytorch",
             lr=2.92e-3, warmup=650, decay=1.6e-4),
    _pytorch("nvidia-dgx2-pytorch", "V100-SXM3-32GB", 1, 16, 56, "v0.7 NVIDIA dgx2h_ngc20.06_pytorch",
             lr=3.2e-3, warmup=650, decay=1.3e-4),
    _pytorch("nvidia-4xdgx2-pytorch", "V100-SXM3-32GB", 4, 16, 24, "v0.7 NVIDIA dgx2h_n4_ngc20.06_pytorch",
             lr=2.9e-3, warmup=850, decay=1.7e-4),
    _pytorch("nvidia-dgx-a100-pytorch", "A100-SXM4-40GB", 1, 8, 114, "v0.7 NVIDIA dgxa100_ngc20.06_pytorch",
             lr=3.2e-3, warmup=650, decay=1.3e-4),
    _pytorch("nvidia-2xdgx-a100-pytorch", "A100-SXM4-40GB", 2, 8, 56, "v0.7 NVIDIA dgxa100_n2_ngc20.06_pytorch",
             lr=3.2e-3, warmup=650, decay=1.3e-4),
    _pytorch("fujitsu-8xv100", "V100-SXM2-32GB", 1, 8, 120, "v0.7 Fujitsu gx_V100x8_ngc20.06_pytorch",
             lr=2.92e-3, warmup=650, decay=1.6e-4),
    _pytorch("inspur-8xa100", "A100-SXM4-40GB", 1, 8, 114, "v0.7 Inspur nf5488_pytorch",
             lr=3.2e-3, warmup=650, decay=1.3e-4),
    _reference("reference-1x8", 1, 128, "mlcommons/training ssd-v1 config_DGX1_singlenode.sh"),
    _reference("reference-2x8", 2, 64, "mlcommons/training ssd-v1 config_DGX1_multinode.sh"),
    _habana("habana-gaudi-50-epochs", "Gaudi", 1, partial(gaudi, 128, epochs=50), "Habana 1.5.0 SSD_ResNet34, default length"),
    _habana("habana-8xgaudi-cosine", "Gaudi", 8, partial(gaudi_cosine, 1024), "Habana 1.7 and later SSD_ResNet34"),
    _habana("habana-gaudi2", "Gaudi2", 1, partial(gaudi_cosine, 240, per_card=240), "Habana 1.14 SSD_ResNet34, -b 240"),
    _habana("habana-8xgaudi2", "Gaudi2", 8, partial(gaudi_cosine, 1920, per_card=240), "Habana 1.14 SSD_ResNet34, -b 240"),
    _tpu("google-tpu-v4", 1024, 8, "v0.7 Google tpu-v4-16-TF", lr=3.1e-3, warmup=577, boundaries=(40, 50), epochs=80),
    _tpu("google-tpu-v4", 2048, 256, "v0.7 Google tpu-v4-512-TF", lr=2.5e-3, warmup=1155, boundaries=(56, 70), epochs=80),
    _tpu("google-tpu-v3", 4096, 4096, "v0.7 Google tpu-v3-8192-TF", lr=1.25e-3, warmup=721, boundaries=(72, 90), epochs=100),
)  # fmt: skip
