"""The page of GluonCV's Mask R-CNN, its programs that do not train, and NVIDIA's Mask R-CNN of MLPerf v3.0."""

from __future__ import annotations

from paceline.recipes.migrate.gluoncv_flags import CUSTOM, FLAGS, WORD
from paceline.recipes.migrate.gluoncv_variables import BENCHMARK, FURTHER, LAUNCHER
from paceline.recipes.migrate.table import Line, Page, Section

WEIGHTS = "--weights resnet50-v1b"
DATA = f"--data /data/coco {WEIGHTS}"
P3DN = f"launch maskrcnn-gluoncv-192 --system p3dn --nodes 24 --through hostfile --hostfile hosts {DATA}"
MPIRUN = (
    "mpirun --allow-run-as-root -np {} -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include ens5"
    " -x NCCL_SOCKET_IFNAME=ens5 -x FI_PROVIDER=efa -x FI_EFA_TX_MIN_CREDITS=64 -x LD_LIBRARY_PATH --tag-output ompi_bind_DGX1.sh"
    " python -u train_mask_rcnn.py --horovod --amp --log-interval 100 --use-fpn --static-alloc --clip-gradient 1.5 --use-ext {}"
)
ONE = MPIRUN.format(
    "8 -H localhost:8",
    "-j4 --lr-decay-epoch 8,10 --epochs 12 --val-interval 12 --batch-size 16 --lr 0.02 --lr-warmup-factor 0.03 --lr-warmup 1000",
)
MANY = MPIRUN.format(
    "192 --hostfile hosts",
    "--num-workers 8 --lr-decay-epoch 10,14 --epochs 12 --val-interval 1 --batch-size 192 --lr 0.16 --lr-warmup-factor 0.001"
    " --lr-warmup 1600",
)
FILE = "mask_rcnn_fpn_resnet50_v1b_coco.params"
TRUNK = "--weights resnet50-v1"
PYXIS = f"--through slurm --container pyxis --image IMAGE --walltime auto --data /data/coco {TRUNK}"

TOOLS = (
    Line("installation of MXNet, Horovod, NVIDIA's cocoapi, mpi4py, Cython and GluonCV", "`paceline image build`", "or pip install into Python 3.10 to 3.12: torch brings CUDA and NCCL, nothing is compiled; a V100 wants torch 2.9 with CUDA 12", files=("setup.py",)),
    Line("`apt-get install numactl`", "automatic: each rank binds itself", "`paceline doctor` prints the cores of each"),
    Line("`scripts/datasets/mscoco.py` on all nodes", "`paceline download coco2017 /data/coco`", "once, on a disk that all see; `paceline train maskrcnn-gluoncv --data /data/coco --weights resnet50-v1b --stage /local/coco` copies to each node what it needs. Theirs put a link into ~/.mxnet", files=("mscoco.py",)),
    Line("`mscoco.py --download-dir`", "`paceline download coco2017 /data/coco`"),
    Line("`mscoco.py --no-download`", "`paceline prepare coco /data/coco`"),
    Line("`mscoco.py --overwrite`", "`paceline download coco2017 /data/coco`", "what is whole is kept, what is damaged is brought again"),
    Line("`LD_LIBRARY_PATH` with /opt/amazon/efa/lib64 and aws-ofi-nccl", f"`paceline {P3DN} --system.env LD_LIBRARY_PATH=/opt/amazon/efa/lib64:/opt/aws-ofi-nccl/install/lib`", "without it NCCL falls back to sockets, a fraction of the speed; `paceline bench comm` measures which"),
    Line("its log of 24 nodes", "`paceline show maskrcnn-gluoncv-192 --system p3dn --nodes 24 --data /data/coco`", "it has no MLPerf lines for `paceline mlperf analyse`; rates and losses of ours: `paceline runs runs`"),
    Line("`net.reset_class(...)`", "`paceline train maskrcnn-custom --data mine --weights model.params`", "rows of the same classes are kept by name"),
    Line("`net.set_nms(...)`", "`paceline eval RUN --iou 0.5 --keep 100`"),
    Line("RPNAcc, RPNL1Loss, RCNNAcc, RCNNL1Loss, MaskAcc, MaskFGAcc in its log", f"`paceline train maskrcnn-gluoncv {DATA} --model.accuracies`", "rpn_acc to mask_fg_acc in `events.jsonl` and TensorBoard"),
    Line("COCOInstance's `min_object_area`, and its boxes of 4 pixels", f"`paceline train maskrcnn-gluoncv {DATA}`", "its recipes leave these out unasked; theirs wants an area of more than 1, ours of 1 or more"),
    Line("`fit_mask_rcnn.py`", f"`paceline train maskrcnn-gluoncv {DATA} --global-batch 1 --optim.lr 0.01 --schedule.boundaries 20 24 --epochs 26 --model.loss-group 1 --model.roi.pooling direct`", "its own defaults: batch 1, rate 0.01, falls at 20 and 24 epochs, regions of 7 x 7", files=("fit_mask_rcnn.py",)),
)  # fmt: skip

NVIDIA = (
    Line("`config_DGXH100.sh`", f"`paceline launch maskrcnn-nvidia-96 --system dgx-h100 {PYXIS}`", "theirs starts from the Caffe2 trunk, whose stride stands in the 1x1: docs/deviations.md"),
    Line("its 8 nodes", f"`paceline launch maskrcnn-nvidia-256 --system dgx-h100 --nodes 8 {PYXIS}`"),
    Line("its 48 nodes, `DEDICATED_EVALUATION_RANKS=128`", f"`paceline launch maskrcnn-nvidia-256-48nodes --system dgx-h100 --nodes 48 --eval-ranks 128 {PYXIS.replace('--walltime auto ', '')}`", "256 train, 128 evaluate"),
    Line("`TIME_TAGS`, `NVTX_FLAG`, `EPOCH_PROF`", f"`paceline train maskrcnn-nvidia-96 --data /data/coco {TRUNK} --profile nvtx:50:53`", "inside `nsys profile --capture-range=cudaProfilerApi`; without `nvtx:` torch's profiler writes a trace"),
    Line("`SYNTH_DATA`", f"`paceline train maskrcnn-nvidia-96 --synthetic {TRUNK}`"),
    Line("`DISABLE_CG`", f"`paceline train maskrcnn-nvidia-96 --system dgx-h100 --data /data/coco {TRUNK} --system.no-graph`", "the default; theirs were on"),
    Line("`NCCL_TEST`", "`paceline bench comm`", "on the nodes of the job itself: launch with --preflight"),
)  # fmt: skip

PAGE = Page(
    name="maskrcnn-gluoncv",
    title="Mask R-CNN of GluonCV (MXNet, Horovod, 1 and 24 p3dn)",
    text="""`train_mask_rcnn.py` with its benchmark. Recipes: `maskrcnn-gluoncv` (8 x 2 images), `maskrcnn-gluoncv-192` (192 x 1); system: `p3dn`. What GluonCV did
otherwise than torchvision (wide proposal network, pooling, level 6, best anchors) is part of these recipes. They start from its model zoo's
ImageNet trunk, `--weights resnet50-v1b`: with its stem and first stage frozen a network of random weights would learn nothing.""",
    sections=(
        Section(
            "Commands",
            (
                Line("`mpirun -np 8 -H localhost:8 ... ompi_bind_DGX1.sh python train_mask_rcnn.py --horovod ...`", run=ONE, remark="cores are bound in each rank (`docs/placement.md`)"),
                Line("`mpirun -np 192 --hostfile hosts --tag-output ...`", run=MANY, remark="the hostfile as it is: `ip slots=8`"),
                Line("the same without MPI", f"`paceline {P3DN} --start torchrun`", "torchrun over ssh"),
                Line("`train_mask_rcnn.py --gpus 0,1,2,3,4,5,6,7 --use-fpn`", run="python train_mask_rcnn.py --gpus 0,1,2,3,4,5,6,7 --use-fpn", remark="its own defaults: batch 8, rate 0.01, 26 epochs, float32"),
                Line("`eval_mask_rcnn.py`", "`paceline eval RUN`", f"or of a file: `paceline eval {FILE} --recipe maskrcnn-gluoncv --data /data/coco`"),
                Line("`eval_mask_rcnn.py --eval-all`", run="python eval_mask_rcnn.py --use-fpn --eval-all"),
                Line("`eval_mask_rcnn.py --save-json`, `--save-prefix`", "`paceline eval RUN --out predictions.json`"),
                Line("`eval_mask_rcnn.py --pretrained`", run="python eval_mask_rcnn.py --use-fpn --pretrained model.params"),
                Line("`eval_mask_rcnn.py --network`, `--dataset`, `--use-fpn`", "automatic: the run knows"),
                Line("`eval_mask_rcnn.py --num-workers`, `--gpus`", "`paceline eval RUN --system gpu`", "threads are automatic"),
                Line("`demo_mask_rcnn.py --images`, `--pretrained`", run="python demo_mask_rcnn.py --images photo.jpg --pretrained model.params", remark="or of a run: `paceline predict RUN photo.jpg`"),
                Line("`demo_mask_rcnn.py --network`, `--gpus`", "automatic: the file's own rows tell the network"),
                *TOOLS,
            ),
        ),
        Section("Flags of train_mask_rcnn.py", FLAGS, follows=f"train maskrcnn-gluoncv --system p3dn {DATA}"),
        Section(
            "Flags of its custom-model", (WORD, *CUSTOM), follows=f"train maskrcnn-custom --system p3dn --data mine {WEIGHTS}"
        ),
        Section("Environment: the 21 variables of the benchmark", BENCHMARK, follows=P3DN),
        Section("Further words of its mpirun line, and variables set in the script", (*LAUNCHER, *FURTHER), follows=P3DN),
        Section("NVIDIA's Mask R-CNN (MLPerf v3.0, PyTorch)", NVIDIA),
    ),
)  # fmt: skip
