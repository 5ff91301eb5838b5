"""Mask R-CNN to box AP 0.377 and mask AP 0.339: configurations of MLPerf Training v3.0 that are no recipes of the menu, and GluonCV's
own defaults. Numbers: as logged by the first run of each result (opt_*, num_image_candidates); the length from configuration files.
"""

from __future__ import annotations

from functools import partial

from paceline.recipes.maskrcnn import gluoncv, nvidia
from paceline.recipes.row import Row

# Rates, warm-ups, ramps and falls, which submissions share.
AT_48 = {"lr": 0.06, "warmup": 625, "ramp": 9.6e-5, "decays": (24_000, 32_000)}
SLOW = {"lr": 0.08, "warmup": 1250, "ramp": 6.4e-5, "decays": (24_000, 32_000)}
AT_64 = {"lr": 0.08, "warmup": 800, "ramp": 1e-4, "decays": (18_000, 24_000)}
AT_96 = {"lr": 0.12, "warmup": 625, "ramp": 1.92e-4, "decays": (12_000, 16_000)}
AT_128 = {"lr": 0.16, "warmup": 625, "ramp": 2.56e-4, "decays": (9_000, 12_000)}
AT_256 = {"lr": 0.24, "warmup": 1800, "ramp": 1.33e-4, "decays": (5_625, 7_500)}


def _row(
    name: str, chip: str, nodes: int, per_node: int, images: int, candidates: int, source: str, facts: dict, **more
) -> Row:
    """images: of one accelerator; candidates: proposals of these together."""
    batch = nodes * per_node * images
    make = partial(nvidia, batch, per_gpu=images, candidates=candidates, **facts, **more)
    return Row(f"maskrcnn@{name}-{batch}", make, chip, nodes, per_node, source)


ROWS = (
    _row("dell-4xa100-pcie", "A100-PCIE-80GB", 1, 4, 12, 12_000, "v3.0 Dell R750xax4A100-PCIE-80GB", AT_48),
    _row("dell-4xh100-pcie", "H100-PCIE-80GB", 1, 4, 12, 12_000, "v3.0 Dell R760xax4H100-PCIE-80GB", AT_48),
    _row("lenovo-4xa100-40gb", "A100-SXM4-40GB", 1, 4, 12, 12_000, "v3.0 Lenovo SR670v2-4xA100_SXM4_40GB_400W", AT_48),
    _row("dell-4xa100-40gb", "A100-SXM4-40GB", 1, 4, 12, 12_000, "v3.0 Dell XE8545x4A100-SXM-40GB", SLOW,
         most_steps=80_000),
    _row("supermicro-4xh100", "H100-SXM5-80GB", 1, 4, 12, 12_000, "v3.0 Supermicro SYS-421GU-TNX", SLOW),
    _row("asus-4xa100-pcie", "A100-PCIE-80GB", 1, 4, 16, 12_000, "v3.0 ASUSTeK ESC4000-E11-4xA100-PCIE-80GB", SLOW),
    _row("iei-8xa40", "A40", 1, 8, 8, 6_000, "v3.0 IEI nf5468m6_pytorch", AT_64),
    _row("xfusion-8xl40", "L40", 1, 8, 11, 12_000, "v3.0 xFusion G5500V7x8xL40", AT_96),
    _row("dell-4xa100", "A100-SXM4-80GB", 1, 4, 24, 24_000, "v3.0 Dell XE8545x4A100-SXM-80GB", AT_96),
    _row("dell-8xa100", "A100-SXM4-80GB", 1, 8, 12, 12_000, "v3.0 Dell XE9680x8A100-SXM-80GB", AT_96),
    _row("dell-2x4xa100", "A100-SXM4-80GB", 2, 4, 12, 12_000, "v3.0 Dell 2xXE8545x4A100-SXM-80GB", AT_96),
    _row("dell-2x4xa100-40gb", "A100-SXM4-40GB", 2, 4, 12, 6_000, "v3.0 Dell 2xXE8545x4A100-SXM-40GB", AT_96),
    _row("lenovo-8xa100-pcie", "A100-PCIE-80GB", 1, 8, 12, 12_000, "v3.0 Lenovo SR670v2-8xA100_PCIe_80GB_300W", AT_96),
    _row("gigabyte-8xh100", "H100-SXM5-80GB", 1, 8, 12, 6_000, "v3.0 GIGABYTE G593-SD0_pytorch", AT_96),
    _row("xfusion-10xl40", "L40", 1, 10, 11, 12_000, "v3.0 xFusion G5500V7x10xL40", AT_96),
    _row("dell-4x4xa100", "A100-SXM4-80GB", 4, 4, 8, 4_000, "v3.0 Dell 4xXE8545x4A100-SXM-80GB", AT_128),
    _row("dell-4x4xa100-40gb", "A100-SXM4-40GB", 4, 4, 8, 6_000, "v3.0 Dell 4xXE8545x4A100-SXM-40GB", AT_128),
    _row("dell-8x4xa100-40gb", "A100-SXM4-40GB", 8, 4, 4, 6_000, "v3.0 Dell 8xXE8545x4A100-SXM-40GB", AT_128),
    _row("dell-16x4xa100-40gb", "A100-SXM4-40GB", 16, 4, 2, 2_000, "v3.0 Dell 16xXE8545x4A100-SXM-40GB", AT_128),
    _row("dell-32x4xa100-40gb", "A100-SXM4-40GB", 32, 4, 2, 2_000, "v3.0 Dell config_32xXE8545x4A100-SXM4-40GB.sh", AT_256),
    Row("maskrcnn@gluoncv-26-epochs-8",
        partial(gluoncv, 8, lr=0.01, warmup_from=1 / 3, boundaries=(17, 23), epochs=26, clip=0.0, per_gpu=8, at=()),
        "V100-SXM2-32GB", 1, 1, "GluonCV train_mask_rcnn.py: its own defaults, with --use-fpn", precision="fp32", ours="the machine"),
)  # fmt: skip
