"""Configurations of the MXNet SSD: `config_*.sh` of Dell and NVIDIA, and the scripts of scripts/train/dgx1.

Source: as mxnet_ssd.py; of each file what it exports, as shell text (mxnet_ssd_configs.json).
"""

from __future__ import annotations

import json
from pathlib import Path

CONFIGS: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


def _dgx1(batch: int, warmup: str, layout: str, form: str, group: int = 1) -> str:
    """One of the eight scripts of scripts/train/dgx1."""
    sharing = f"--bn-group {group} " if group > 1 else ""
    return (
        f"mpirun -np 8 python ssd_main_async.py --log-interval 20 --batch-size {batch} --lr-warmup-epochs {warmup} --pretrained-backbone "
        f"/datasets/backbones/resnet34-333f7ec4.pickle --data-layout {layout} {sharing}--precision {form}"
    )


DGX1 = {
    f"train_mlperf_dgx1_{name}_{form}.sh": _dgx1(batch, warmup, layout, form, group)
    for name, batch, warmup, layout, group in (
        ("nchw", 128, "2.619685", "NCHW", 1),
        ("nhwc", 128, "2.619685", "NHWC", 1),
        ("gbn2_nhwc", 64, "1.3098425", "NHWC", 2),
        ("gbn4_nhwc", 32, "0.65492125", "NHWC", 4),
    )
    for form in ("fp16", "amp")
}
