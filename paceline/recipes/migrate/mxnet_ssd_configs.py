"""Configurations of the MXNet SSD: `config_*.sh` of Dell and NVIDIA, and the scripts of scripts/train/dgx1.

Source: as mxnet_ssd.py; of each file what it exports, as shell text.
"""

from __future__ import annotations


def _dell(nodes: int, gpus: int, flags: str, more: str = "") -> str:
    return f"export NNODES={nodes} NGPU={gpus} WALLTIME=00:30:00 {more}; export EXTRA_PARAMS='{flags}'"


def _dgx(nodes: int, gpus: int, flags: str, walltime: str, more: str = "") -> str:
    return f"export DGXNNODES={nodes} DGXNGPU={gpus} WALLTIME={walltime} {more}; export EXTRA_PARAMS='{flags}'"


SMALL = "--lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"
LARGE = "--lr-warmup-epoch=5 --lr=3.2e-3 --weight-decay=1.3e-4"
DGX2 = f"--batch-size=56 {LARGE} --dali-workers=3"
MANY = "--lr-warmup-epoch=26 --lr=4.57e-3 --weight-decay=4e-5"
TRY = f"--lr-decay-epochs 61 76 --batch-size=2 --eval-batch-size=110 {MANY} --gradient-predivide-factor=32 --input-batch-multiplier=20"
TWO_C4140 = _dell(1, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=5.84e-3 --weight-decay=1.6e-4")
FOUR_C4140 = _dell(4, 4, DGX2)
CONFIGS = {
    "config_C4140.sh": _dell(1, 4, f"--batch-size=128 {SMALL}", "TOBIND=0 NCCL_SOCKET_IFNAME="),
    "config_2xC4140.sh": TWO_C4140,
    "config_2xC4140_01x08x56.sh": TWO_C4140,
    "config_4xC4140.sh": FOUR_C4140,
    "config_4xC4140_01x08x56.sh": FOUR_C4140,
    "config_DSS8440.sh": _dell(
        1, 8, "--batch-size=128 --lr-warmup-epoch=5 --lr=5.84e-3 --weight-decay=1.6e-4", "TOBIND=0 NCCL_SOCKET_IFNAME="
    ),
    "config_DGX1_01x08x56.sh": _dgx(1, 8, f"--batch-size=56 {SMALL}", "$((NEXP * 30))"),
    "config_DGX1_tmpdata_1x8x56.sh": _dgx(1, 8, f"--batch-size=56 {SMALL}", "00:10:00", "NUMEPOCHS=10 CREATE_TMP_FILE_FROM=coco2017.tar"),
    "config_DGX2_01x16x56.sh": _dgx(1, 16, DGX2, "$((NEXP * 20))"),
    "config_DGX2_01x16x56_amp.sh": _dgx(1, 16, f"{DGX2} --precision=amp", "00:20:00"),
    "config_DGX2_01x16x56_fp32.sh": _dgx(1, 16, f"{DGX2} --precision=fp32 --data-layout=NCHW", "01:00:00"),
    "config_DGX2_01x16x56_nchw.sh": _dgx(1, 16, f"{DGX2} --data-layout=NCHW", "00:20:00"),
    "config_DGX2_01x16x56_unfuse_bn.sh": _dgx(1, 16, f"{DGX2} --no-fuse-bn-add-relu --no-fuse-bn-relu", "00:20:00"),
    "config_DGXA100_1x8x114.sh": _dgx(1, 8, f"--batch-size=114 {LARGE}", "$((NEXP * 20))"),
    "config_DGXA100_tmpdata_1x8x114.sh": _dgx(1, 8, f"--batch-size=114 {LARGE}", "00:15:00", "NUMEPOCHS=10 CREATE_TMP_FILE_FROM=coco2017.tar"),
    "config_DGXA100_1x8x2x1.sh": _dgx(1, 8, f"{TRY} --bn-group=1", "00:15:00", "NUMEPOCHS=10"),
    "config_DGXA100_1x8x2x8.sh": _dgx(1, 8, f"{TRY} --bn-group=8", "00:15:00", "NUMEPOCHS=10"),
    "config_DGXA100_multi_8x8x24.sh": _dgx(
        8, 8, "--batch-size=24 --lr-warmup-epoch=11 --lr=2.9e-3 --weight-decay=1.7e-4 --gradient-predivide-factor=8", "$((NEXP * 20))"
    ),
    "config_DGXA100_multi_64x8x4x4.sh": _dgx(
        64, 8, f"--lr-decay-epochs 60 75 --batch-size=4 {MANY} --bn-group=4 --gradient-predivide-factor=16 --input-batch-multiplier=10",
        "$((NEXP * 15))",
    ),
    "config_DGXA100_multi_128x8x2x8.sh": _dgx(
        128, 8, f"--lr-decay-epochs 60 75 --batch-size=2 --eval-batch-size=5 {MANY} --bn-group=8 --gradient-predivide-factor=32 "
        "--input-jpg-decode=cache --input-batch-multiplier=20", "$((NEXP * 15))",
    ),
    "config_DGX2_multi_64x16x02x08.sh": _dgx(
        64, 16, f"--lr-decay-epochs 60 75 --batch-size=2 --eval-batch-size=5 {MANY} --dali-workers=3 --bn-group=8 "
        "--gradient-predivide-factor=64 --input-jpg-decode=cache --input-batch-multiplier=20", "$((NEXP * 15))",
    ),
}  # fmt: skip


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
