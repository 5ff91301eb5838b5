"""The page of the ResNet-50 of MXNet, and its programs that do not train."""

from __future__ import annotations

from dataclasses import replace

from paceline.recipes.migrate.mxnet_resnet_flags import FLAGS
from paceline.recipes.migrate.mxnet_resnet_variables import BECOME, ENVIRONMENT, VARIABLES
from paceline.recipes.migrate.table import Entry, Line, Page, Section

FOLLOWS = "train resnet50-mlperf-3200 --system dgx-h100 --data /data/imagenet"
PYXIS = "source {}; CONT=IMAGE DATADIR=/data/imagenet sbatch -N $DGXNNODES -t $WALLTIME run.sub"
MULTI = "config_DGXH100_multi_{}.sh"


def _line(config: str, remark: str = "", theirs: str = "") -> Line:
    return Line(theirs or f"the same, `{config}`", run=PYXIS.format(config), remark=remark)


def _becoming() -> tuple[Entry, ...]:
    """Variables that become flags: the flag's cell."""
    flags = {entry.names[0]: entry for entry in FLAGS}
    return tuple(replace(flags[flag], names=(name,)) for name, (flag, _) in BECOME.items())


TOOLS = (
    Line("`bindpcie --cpu=exclusive --ib=single`", f"`paceline {FOLLOWS} --system.bind exclusive --system.fabric ib`", files=("bindpcie",)),
    Line("untar loops over `ILSVRC2012_img_train.tar` and its 1,000 tars", "`paceline download imagenet /data/imagenet --from DOWNLOADS`", "checked, unpacked and prepared; to train from the tars as they are: `paceline download imagenet /data/imagenet --from DOWNLOADS --no-unpack`", files=()),
    Line("`valprep.sh`", "`paceline download imagenet /data/imagenet --from DOWNLOADS`", "photos of validation get their classes from the development kit; nothing is moved", files=("valprep.sh",)),
    Line("`prepare_imagenet.sh`, `im2rec.py --list` and `--pass-through`", "`paceline pack /data/imagenet --to recordio --out /data/imagenet-rec`", "photos byte for byte; train from the folders or the tars as well", files=("prepare_imagenet.sh", "im2rec.py")),
    Line("`im2rec.py --resize 256 --quality 95`", "`paceline pack /data/imagenet --to recordio --short 256 --quality 95 --out /data/imagenet-256`"),
    Line("reading `train.rec`, `train.idx`, `val.rec`, `val.idx`", "`paceline prepare recordio /data/train.rec --val /data/val.rec --expect imagenet`"),
    Line("`docker build`, `docker push`", "`paceline image build`", "pushing is the engine's own command"),
    Line("`all_reduce_perf` before each job", "`paceline bench comm`", "on the nodes of the job itself: launch with --preflight", files=("all_reduce_perf", "all_reduce_perf_mpi")),
    Line("`ibv_devinfo --list`, `nvidia-smi topo -m`", "`paceline doctor`", "devices, their links, network cards and cores of each node", files=("ibv_devinfo", "nvidia-smi")),
    Line("`power_monitor.sh`", "automatic: the end event has the run's joules where RAPL, NVML or a meter can be read", "docs/watching.md", files=("power_monitor.sh",)),
    Line("compliance checker after each trial", "`paceline mlperf check OUT`: all trials together, with seeds and convergence points", "each trial is checked when it ends, too"),
)  # fmt: skip

PAGE = Page(
    name="resnet50-mxnet",
    title="ResNet-50 in MXNet (MLPerf v3.0, NVIDIA and partners)",
    text="""`train_imagenet.py` and its scripts. Recipes: `resnet50-mlperf-3200` to `resnet50-mlperf-57344`, `resnet50-a100-3264`, `resnet50-gaudi2-2048`; systems:
`dgx-h100`, `dgx-a100`, `gaudi2x8`. They start from random weights, which `--weights none` says.""",
    sections=(
        Section(
            "Commands",
            (
                _line("config_DGXH100.sh", "trials come one after the other", "`source config_DGXH100.sh; CONT=... DATADIR=... sbatch -N $DGXNNODES -t $WALLTIME run.sub`"),
                *(_line(MULTI.format(one)) for one in ("4x8x100", "8x8x50", "64x8x40", "96x8x42", "448x8x16")),
                Line("ASUSTeK's `config_DGXA100.sh`", run=PYXIS.format("config_DGXA100.sh"), of="mxnet-resnet", remark="NVIDIA's SSD has a file of that name: paceline from wants the file itself, or --system-of mxnet-resnet"),
                _line("config_DGXA100_multi_8x8x51.sh", "", "ASUSTeK's `config_DGXA100_multi_8x8x51.sh`"),
                _line("config_ESC4000-E11.sh", "four A100 PCIe", "ASUSTeK's `config_ESC4000-E11.sh`"),
                _line("config_ESC8000A-E12.sh", "eight H100 PCIe", "ASUSTeK's `config_ESC8000A-E12.sh`"),
                Line("Habana's `batch_256.cfg`", "`paceline show resnet50-gaudi2-2048 --system gaudi2x8`"),
                Line("`run_with_docker.sh`", run="source config_DGXH100.sh; CONT=IMAGE DATADIR=/data/imagenet ./run_with_docker.sh"),
                Line("`run_and_time.sh`", run="source config_DGXH100.sh; DATADIR=/data/imagenet mpirun -np 8 ./run_and_time.sh", remark="without a configuration it is SGD: batch 1664, rate 0.6, falls at epochs 30, 60, 80 of 90"),
                Line("`run_and_time_local.sh`", run="source config_DGXH100.sh; DATADIR=/data/imagenet ./run_and_time_local.sh", remark="its gdb option: none"),
                Line("`a30-run_and_time.sh`, `a30.sub`", "`paceline launch resnet50-mlperf-3200 --system ./my_site.py:a30 --container docker --data /data/imagenet`", "a system of your own: `docs/recipe.md`"),
                *TOOLS,
            ),
        ),
        Section("Flags of train_imagenet.py", FLAGS, follows=FOLLOWS),
        Section(
            "Variables of run_and_time.sh and the configurations", (*_becoming(), *VARIABLES),
            follows="launch resnet50-mlperf-3200 --system dgx-h100 --through slurm --data /data/imagenet",
        ),
        Section("Environment of the image and the configurations", ENVIRONMENT, follows=FOLLOWS),
    ),
)  # fmt: skip
