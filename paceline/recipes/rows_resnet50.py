"""ResNet-50 to top-1 0.759: configurations of MLPerf Training v2.0, v3.0 and v4.0 that are no recipes of the menu.

Numbers: as logged by the first run of each result (lars_opt_*, model_bn_span, global_batch_size, the first evaluation); of v2.0 and
v4.0 from the configuration files. All but Habana's are NVIDIA's MXNet code. Of submissions with the same numbers on as many
accelerators one stands here.
"""

from __future__ import annotations

from functools import partial

from paceline.recipes.resnet50 import lars
from paceline.recipes.row import Row


def _row(
    name: str,
    chip: str,
    nodes: int,
    per_node: int,
    images: int,
    lr: float,
    source: str,
    *,
    warmup: float = 2,
    epochs: float = 37,
    first: int = 3,
    decay: float = 5e-5,
    bn_ranks: int = 1,
    **more,
) -> Row:
    """images: of one accelerator. Gradients were sums over these, and no loss was scaled: ours are means, so that is the scale."""
    batch = nodes * per_node * images
    make = partial(
        lars, batch, lr=lr, warmup=warmup, epochs=epochs, decay=decay, first=first, bn_span=bn_ranks * images, **more
    )
    return Row(f"resnet50@{name}-{batch}", make, chip, nodes, per_node, source, loss_scale=images)


ROWS = (
    _row("asus-4xa100-pcie", "A100-PCIE-80GB", 1, 4, 408, 7.5, "v3.0 ASUSTeK ESC4000-E11-4xA100-PCIE-80GB"),
    _row("dell-4xa100", "A100-SXM4-80GB", 1, 4, 408, 7.5, "v3.0 Dell XE8545x4A100-SXM-80GB"),
    _row("dell-4xa100-pcie", "A100-PCIE-80GB", 1, 4, 408, 6.32, "v3.0 Dell R750xax4A100-PCIE-80GB"),
    _row("dell-2x4xa100-40gb", "A100-SXM4-40GB", 2, 4, 204, 7.3, "v3.0 Dell 2xXE8545x4A100-SXM-40GB"),
    _row("dell-2x4xa100", "A100-SXM4-80GB", 2, 4, 408, 10.5, "v3.0 Dell 2xXE8545x4A100-SXM-80GB"),
    _row("dell-2x4xa100-pcie", "A100-PCIE-80GB", 2, 4, 408, 12.5, "v3.0 Dell 2xR750xax4A100-PCIE-80GB"),
    _row("dell-4x4xa100", "A100-SXM4-80GB", 4, 4, 204, 10.5, "v3.0 Dell 4xXE8545x4A100-SXM-80GB"),
    _row("dell-4x4xa100-40gb", "A100-SXM4-40GB", 4, 4, 204, 10.5, "v3.0 Dell 4xXE8545x4A100-SXM-40GB"),
    _row("dell-4x4xa100-pcie", "A100-PCIE-80GB", 4, 4, 204, 10.5, "v3.0 Dell 4xR750xax4A100-PCIE-80GB"),
    _row("dell-2x8xa100", "A100-SXM4-80GB", 2, 8, 204, 10.5, "v3.0 Dell 2xXE9680x8A100-SXM-80GB", first=4),
    _row("dell-8x4xa100-40gb", "A100-SXM4-40GB", 8, 4, 102, 10.5, "v3.0 Dell 8xXE8545x4A100-SXM-40GB"),
    _row("dell-8x4xa100-pcie", "A100-PCIE-80GB", 8, 4, 102, 10.5, "v3.0 Dell 8xR750xax4A100-PCIE-80GB"),
    _row("dell-16x4xa100-40gb", "A100-SXM4-40GB", 16, 4, 204, 20.0, "v3.0 Dell 16xXE8545x4A100-SXM-40GB",
         warmup=9, epochs=48, first=1, decay=2.5e-5),
    _row("dell-32x4xa100-40gb", "A100-SXM4-40GB", 32, 4, 128, 22.0, "v3.0 Dell 32xXE8545x4A100-SXM-40GB",
         warmup=9, epochs=48, decay=2e-4),
    _row("dell-4xh100", "H100-SXM5-80GB", 1, 4, 816, 11.0, "v3.0 Dell XE8640x4H100-SXM-80GB", first=4),
    _row("dell-4xh100-pcie", "H100-PCIE-80GB", 1, 4, 816, 11.0, "v3.0 Dell R760xax4H100-PCIE-80GB"),
    _row("dell-2x8xh100", "H100-SXM5-80GB", 2, 8, 200, 10.7, "v3.0 Dell 2xXE9680x8H100-SXM-80GB", warmup=5),
    _row("quanta-2xh100-pcie", "H100-PCIE-80GB", 1, 2, 408, 5.3, "v3.0 Quanta_Cloud_Technology D54Q-2U"),
    _row("quanta-8xh100", "H100-SXM5-80GB", 1, 8, 408, 11.0, "v3.0 Quanta_Cloud_Technology D74H-7U_preview"),
    _row("supermicro-4xh100", "H100-SXM5-80GB", 1, 4, 400, 9.4, "v3.0 Supermicro SYS-421GU-TNXR"),
    _row("supermicro-4xh100", "H100-SXM5-80GB", 1, 4, 800, 11.0, "v3.0 Supermicro SYS-421GU-TNX", epochs=39, first=1),
    _row("lenovo-4xa100-40gb", "A100-SXM4-40GB", 1, 4, 256, 6.0, "v3.0 Lenovo SR670v2-4xA100_SXM4_40GB_400W",
         decay=2.5e-5),
    _row("lenovo-8xa100-pcie", "A100-PCIE-80GB", 1, 8, 408, 10.5, "v3.0 Lenovo SR670v2-8xA100_PCIe_80GB_300W"),
    _row("fujitsu-10xa100-pcie", "A100-PCIE-80GB", 1, 10, 256, 12.0, "v3.0 Fujitsu primergy-mxnet"),
    _row("iei-8xa40", "A40", 1, 8, 408, 10.5, "v3.0 IEI nf5468m6_mxnet"),
    _row("h3c-2xa30", "A30", 1, 2, 204, 3.0, "v3.0 H3C R4900G6x2A30-PCIE-24GB", first=4),
    _row("h3c-8xa30", "A30", 1, 8, 204, 6.0, "v3.0 H3C R5350G6x8A30-PCIE-24GB", first=4),
    _row("h3c-10xa30", "A30", 1, 10, 204, 6.0, "v3.0 H3C R5350G6x10A30-PCIE-24GB", first=4),
    _row("xfusion-8xa30", "A30", 1, 8, 180, 6.0, "v3.0 xFusion G5500V7x8xA30"),
    _row("xfusion-10xa30", "A30", 1, 10, 150, 6.0, "v3.0 xFusion G5500V7x10xA30"),
    _row("xfusion-6xl4", "L4", 1, 6, 110, 5.0, "v3.0 xFusion 2288H_V7x6xL4"),
    _row("xfusion-8xl40", "L40", 1, 8, 300, 10.0, "v3.0 xFusion G5500V7x8xL40", first=4),
    _row("xfusion-10xl40", "L40", 1, 10, 300, 10.0, "v3.0 xFusion G5500V7x10xL40", first=4),
    _row("krai-2xa5000", "RTX-A5000", 1, 2, 204, 3.0, "v3.0 Krai 7920T_2xA5000_mxnet22.04"),
    _row("nvidia-316x8xh100", "H100-SXM5-80GB", 316, 8, 16, 19.4, "v4.0 NVIDIA eos_n316, config_DGXH100_multi_316x8x16.sh",
         warmup=24, epochs=70, first=2, decay=1e-4, momentum=0.95, bn_ranks=2),
    _row("nvidia-527x8xa100", "A100-SXM4-80GB", 527, 8, 16, 24.699,
         "v2.0 NVIDIA, config_DGXA100_multi_527x8x16xgbn2_larsv2.sh",
         warmup=31, epochs=90, first=2, decay=1e-4, momentum=0.951807, bn_ranks=2, decay_on="all"),
)  # fmt: skip
