"""Command lines, scripts and configurations of the four systems' READMEs, launch scripts and fact sheets.

Command lines and values are theirs; configs/ has files with the variables that their configurations set. Sources:
dell, nvidia-mxnet, nvidia-pytorch: github.com/mlcommons/training_results_v0.7 (READMEs, config_*.sh, scripts/train/dgx1, tests/);
reference: github.com/mlcommons/training, retired_benchmarks/ssd-v1; gaudi: github.com/HabanaAI/Model-References,
TensorFlow/computer_vision/SSD_ResNet34 (README of 1.3 to 1.5); nvidia-resnet, asus-resnet:
github.com/mlcommons/training_results_v3.0; gluoncv: github.com/dmlc/gluon-cv, scripts/instance/mask_rcnn.
"""

from lines import Line


def _dell(batch, warmup, lr, wd, **more):
    return {
        "batch_size": batch, "lr_warmup_epochs": warmup, "lr": lr, "weight_decay": wd, "pretrained_backbone": True, **more,
    }  # fmt: skip


C4140 = _dell(128, 5.25, 2.92e-3, 1.6e-4)
TWO = _dell(128, 5.25, 5.84e-3, 1.6e-4)
FOUR = _dell(56, 5, 3.2e-3, 1.3e-4)
DSS = _dell(128, 5, 5.84e-3, 1.6e-4)
DGX1 = _dell(56, 5.25, 2.92e-3, 1.6e-4)
DGX2 = _dell(56, 5, 3.2e-3, 1.3e-4)
A100 = _dell(114, 5, 3.2e-3, 1.3e-4)
DEBUG = _dell(2, 26, 4.57e-3, 4e-5, lr_decay_epochs=(61, 76), epochs=10)
N8 = _dell(24, 11, 2.9e-3, 1.7e-4)
N64 = _dell(4, 26, 4.57e-3, 4e-5, lr_decay_epochs=(60, 75))
N128 = _dell(2, 26, 4.57e-3, 4e-5, lr_decay_epochs=(60, 75))


def _slurm(folder, config, ranks, given, nodes, environment=False, system="mxnet-ssd"):
    line = f'source {config}; CONT="registry/ssd:mxnet" DATADIR=/d LOGDIR=/l sbatch -N $DGXNNODES -t $WALLTIME run.sub'
    return Line(system, line, ranks, given, nodes=nodes, folder=folder, environment=environment)


def _docker(folder, config, ranks, given, environment=False, system="mxnet-ssd"):
    line = f"source {config}; CONT=mlperf:x DATADIR=/d LOGDIR=/l ./run_with_docker.sh"
    return Line(system, line, ranks, given, folder=folder, environment=environment)


MXNET_SSD = (
    # Dell's README.
    Line("mxnet-ssd", "DATADIR=/d LOGDIR=/l PRETRAINED_DIR=/p SYSTEM=C4140 sbatch -N 1 -n 4 run.slurm", 4, C4140, folder="dell"),
    Line("mxnet-ssd", "DATADIR=/d LOGDIR=/l PRETRAINED_DIR=/p SYSTEM=2xC4140 sbatch -N 2 -n 8 run.slurm", 8, TWO, nodes=2, folder="dell"),
    Line("mxnet-ssd", "DATADIR=/d LOGDIR=/l PRETRAINED_DIR=/p SYSTEM=4xC4140 sbatch -N 4 -n 16 run.slurm", 16, FOUR, nodes=4, folder="dell"),
    Line("mxnet-ssd", "CONT=mlperf-nvidia:ssd DATADIR=/d LOGDIR=/l PRETRAINED_DIR=/p SYSTEM=DSS8440 ./run_with_docker.sh", 8, DSS, folder="dell"),
    # The scripts of run_config.sh's suite, and the configurations by themselves.
    Line("mxnet-ssd", "config_DGX1_01x08x56.sh", 8, DGX1, folder="dell"),
    Line("mxnet-ssd", "config_DGX1_tmpdata_1x8x56.sh", 8, DGX1 | {"epochs": 10}, folder="dell"),
    Line("mxnet-ssd", "config_DGX2_01x16x56.sh", 16, DGX2, folder="dell"),
    Line("mxnet-ssd", "config_DGX2_01x16x56_amp.sh", 16, DGX2, folder="dell"),
    Line("mxnet-ssd", "config_DGX2_01x16x56_fp32.sh", 16, DGX2, folder="dell"),
    Line("mxnet-ssd", "config_DGX2_01x16x56_nchw.sh", 16, DGX2, folder="dell"),
    Line("mxnet-ssd", "config_DGX2_01x16x56_unfuse_bn.sh", 16, DGX2, folder="dell"),
    Line("mxnet-ssd", "config_DGXA100_1x8x114.sh", 8, A100, folder="dell"),
    Line("mxnet-ssd", "config_DGXA100_tmpdata_1x8x114.sh", 8, A100 | {"epochs": 10}, folder="dell"),
    Line("mxnet-ssd", "config_DGXA100_1x8x2x1.sh", 8, DEBUG, folder="dell"),
    Line("mxnet-ssd", "config_DGXA100_1x8x2x8.sh", 8, DEBUG, folder="dell"),
    # NVIDIA's READMEs.
    _slurm("nvidia-mxnet", "config_DGXA100_multi_8x8x24.sh", 64, N8, 8),
    _slurm("nvidia-mxnet", "config_DGXA100_multi_64x8x4x4.sh", 512, N64, 64),
    _slurm("nvidia-mxnet", "config_DGXA100_multi_128x8x2x8.sh", 1024, N128, 128),
    _slurm("nvidia-mxnet", "config_DGX2_multi_64x16x02x08.sh", 1024, N128, 64),
)  # fmt: skip

# scripts/train/dgx1: warm-up epochs, images, BatchNorm group, layout; each with fp16 and amp.
DGX1_SCRIPTS = tuple(
    Line(
        "mxnet-ssd",
        f"WARMUP_EPOCHS={warmup}\n\nmpirun -np 8 \\\n    -bind-to none \\\n    -map-by slot \\\n    --allow-run-as-root \\\n"
        f"    -x NCCL_DEBUG=INFO \\\n    -x LD_LIBRARY_PATH \\\n    -x PATH \\\n    -mca pml ob1 -mca btl ^openib \\\n"
        f"    python ssd_main_async.py \\\n        --log-interval 20 \\\n        --batch-size {images} \\\n        {flag} $WARMUP_EPOCHS \\\n"
        f"        --pretrained-backbone /datasets/backbones/resnet34-333f7ec4.pickle \\\n        --data-layout {layout}{group} \\\n"
        f"        --precision {precision}\n",
        8,
        {"batch_size": images, "lr_warmup_epochs": warmup, "pretrained_backbone": True},
    )
    for warmup, images, group, layout, flag in (
        (2.619685, 128, "", "NHWC", "--lr-warmup-epochs"),
        (2.619685, 128, "", "NCHW", "--lr-warmup-epochs"),
        (1.3098425, 64, " --bn-group 2", "NHWC", "--lr-warmup-epoch"),
        (0.65492125, 32, " --bn-group 4", "NHWC", "--lr-warmup-epoch"),
    )
    for precision in ("fp16", "amp")
)

PYTORCH = "nvidia-pytorch-ssd"
PYTORCH_SSD = (
    _docker("nvidia-pytorch", "config_DGX1.sh", 8, {"batch_size": 120, "warmup": 650, "lr": 2.92e-3, "wd": 1.6e-4}, system=PYTORCH),
    _docker("nvidia-pytorch", "config_DGX2.sh", 16, {"batch_size": 56, "warmup": 650, "lr": 3.2e-3, "wd": 1.3e-4}, system=PYTORCH),
    _docker("nvidia-pytorch", "config_DGXA100.sh", 8, {"batch_size": 114, "warmup": 650, "lr": 3.2e-3, "wd": 1.3e-4}, system=PYTORCH),
    _slurm("nvidia-pytorch", "config_DGXA100_multi_2x8x56.sh", 16, {"batch_size": 56, "warmup": 650, "lr": 3.2e-3, "wd": 1.3e-4}, 2, system=PYTORCH),
    _slurm("nvidia-pytorch", "config_DGX2_multi_4x16x24.sh", 64, {"batch_size": 24, "warmup": 850, "lr": 2.9e-3, "wd": 1.7e-4}, 4, system=PYTORCH),
)  # fmt: skip

REFERENCE_SSD = (
    Line("reference-ssd", "DATADIR=/d LOGDIR=/l DGXSYSTEM=DGX1_32 ./run.sub", 1, {"batch_size": 32, "epochs": 70}, folder="reference"),
    Line("reference-ssd", "DATADIR=/d LOGDIR=/l DGXSYSTEM=DGX1_singlenode ./run.sub", 8, {"batch_size": 128, "warmup": 2.619685, "epochs": 70}, folder="reference"),
    Line("reference-ssd", "source config_DGX1_multinode.sh; DATADIR=/d LOGDIR=/l DGXSYSTEM=DGX1_multinode sbatch -N $DGXNNODES -t $WALLTIME run.sub",
         16, {"batch_size": 64, "warmup": 2.619685, "epochs": 70}, nodes=2, folder="reference"),
)  # fmt: skip

CKPT = "--data_dir /data/tensorflow/coco2017/ssd_tf_records --resnet_checkpoint /data/ssd_r34-mlperf/mlperf_artifact"
GAUDI_SSD = (
    Line("gaudi-ssd", f"$PYTHON ssd.py -e 64 -b 128 -d bf16 --model_dir /tmp/ssd_1_hpu --save_summary_steps 10 {CKPT}", 1, {"epochs": 64}),
    Line("gaudi-ssd", f"$PYTHON ssd.py -e 64 -b 128 -d fp32 --model_dir /tmp/ssd_1_hpu {CKPT}", 1, {"epochs": 64}),
    Line("gaudi-ssd", "mpirun --allow-run-as-root --bind-to core --map-by socket:PE=7 --np 8 \\\n  $PYTHON /root/ssd.py --use_horovod --epochs 64"
         f" --batch_size 128 --dtype bf16 --model_dir /tmp/ssd_8_hpus --save_summary_steps 10 --save_checkpoints_epochs 64 \\\n {CKPT}", 8, {"epochs": 64}),
    Line("gaudi-ssd", f"$PYTHON demo_ssd.py -e 50 -b 128 -d bf16 --model_dir /tmp/ssd_1_hpu --save_summary_steps 10 {CKPT}", 1, {}),
    Line("gaudi-ssd", f"$PYTHON demo_ssd.py -e 50 -b 128 -d fp32 --model_dir /tmp/ssd_1_hpu {CKPT}", 1, {}),
    Line("gaudi-ssd", f"$PYTHON demo_ssd.py -e 50 -b 128 -d bf16 --model_dir /tmp/ssd_8_hpus --hvd_workers 8 {CKPT}", 8, {}),
    Line("gaudi-ssd", "$PYTHON ssd.py --steps 100 --profile 50,53 -b 128 -d bf16 --model_dir /tmp/ssd", 1, {"steps": 100}),
    Line("gaudi-ssd", f"$PYTHON ssd.py --mode eval --model_dir /tmp/ssd_1_hpu {CKPT}", 0),
    Line("gaudi-ssd", "$PYTHON ssd.py --inference photo.jpg --model_dir /tmp/ssd_1_hpu", 0),
)  # fmt: skip


def _lars(images, lr, warmup, epochs, wd, mom=0.9):
    return {
        "batch_size": images, "lr": lr, "optimizer": "sgdwfastlars", "lr_step_epochs": "pow2", "num_epochs": epochs,
        "warmup_epochs": warmup, "wd": wd, "mom": mom,
    }  # fmt: skip


H100 = "config_DGXH100"
MXNET_RESNET = (
    *(
        _slurm("nvidia-resnet", config, nodes * 8, given, nodes, environment=True, system="mxnet-resnet")
        for config, nodes, given in (
            (f"{H100}.sh", 1, _lars(400, 11.0, 2, 37, 5e-5)),
            (f"{H100}_multi_4x8x100.sh", 4, _lars(100, 10.7, 5, 37, 5e-5)),
            (f"{H100}_multi_8x8x50.sh", 8, _lars(50, 11.0, 2, 37, 5e-5)),
            (f"{H100}_multi_64x8x40.sh", 64, _lars(40, 22.0, 12, 52, 2.5e-5)),
            (f"{H100}_multi_96x8x42.sh", 96, _lars(42, 21.2, 16, 58, 2.5e-5, 0.95)),
            (f"{H100}_multi_448x8x16.sh", 448, _lars(16, 23.0, 32, 78, 2.5e-5, 0.95)),
        )
    ),
    _slurm("asus-resnet", "config_DGXA100.sh", 8, _lars(408, 10.5, 2, 37, 5e-5), 1, environment=True, system="mxnet-resnet"),
    _slurm("asus-resnet", "config_DGXA100_multi_8x8x51.sh", 64, _lars(51, 10.5, 2, 37, 5e-5), 8, environment=True, system="mxnet-resnet"),
    _slurm("asus-resnet", "config_ESC4000-E11.sh", 4, _lars(408, 7.5, 2, 37, 5e-5), 1, environment=True, system="mxnet-resnet"),
    _slurm("asus-resnet", "config_ESC8000A-E12.sh", 8, _lars(400, 11.0, 2, 37, 5e-5), 1, environment=True, system="mxnet-resnet"),
    _docker("nvidia-resnet", f"{H100}.sh", 8, _lars(400, 11.0, 2, 37, 5e-5), environment=True, system="mxnet-resnet"),
    Line("mxnet-resnet", f"{H100}.sh", 8, _lars(400, 11.0, 2, 37, 5e-5), folder="nvidia-resnet", environment=True),
    Line("mxnet-resnet", f"source {H100}.sh; NVTX_FLAG=1 CONT=x DATADIR=/d sbatch -N $DGXNNODES -t $WALLTIME run.sub", 8,
         _lars(400, 11.0, 2, 4, 5e-5), folder="nvidia-resnet", environment=True),
    Line("mxnet-resnet", f"source {H100}.sh; mpirun --allow-run-as-root --bind-to none --np ${{DGXNGPU}} ./run_and_time.sh", 8,
         _lars(400, 11.0, 2, 37, 5e-5), folder="nvidia-resnet", environment=True),
)  # fmt: skip

EXPORTS = """export HOROVOD_FUSION_THRESHOLD=134217728
export HOROVOD_NUM_STREAMS=2
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=999
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=25
export OMP_NUM_THREADS=2
export NCCL_DEBUG=VERSION
export HOROVOD_CYCLE_TIME=0.1
export HOROVOD_HIERARCHICAL_ALLREDUCE=0
export HOROVOD_CACHE_CAPACITY=0
export NCCL_MIN_NRINGS=1
export NCCL_TREE_THRESHOLD=4294967296
export NCCL_NSOCKS_PERTHREAD=8
export NCCL_SOCKET_NTHREADS=2
export NCCL_BUFFSIZE=16777216
export HOROVOD_NUM_NCCL_STREAMS=2
export NCCL_NET_GDR_READ=1
export HOROVOD_TWO_STAGE_LOOP=1
export HOROVOD_ALLREDUCE_MODE=1
export HOROVOD_FIXED_PAYLOAD=161
export HOROVOD_MPI_THREADS_DISABLE=1
export MXNET_USE_FUSION=0
"""
BEFORE = (
    "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include ens5 -x NCCL_SOCKET_IFNAME=ens5"
    ' -x FI_PROVIDER="efa" -x FI_EFA_TX_MIN_CREDITS=64 -x HOSTNAME -x LD_LIBRARY_PATH -x PATH -x OMP_NUM_THREADS'
    " -x MXNET_USE_FUSION --tag-output $HOME/ompi_bind_DGX1.sh"
    " python -u $HOME/gluoncv/scripts/instance/mask_rcnn/train_mask_rcnn.py"
)
ONE_NODE = (
    f"mpirun --allow-run-as-root \\\n-np 8 -H localhost:8 {BEFORE} \\\n-j4 --horovod --amp --lr-decay-epoch 8,10 --epochs 12"
    " --log-interval 100 --val-interval 12 --batch-size 16 --use-fpn --lr 0.02 --lr-warmup-factor 0.03 --lr-warmup 1000"
    " --static-alloc --clip-gradient 1.5 --use-ext"
)
MANY_NODES = (
    f"mpirun --allow-run-as-root \\\n-np 192 --hostfile $HOME/hosts_24 {BEFORE} \\\n--num-workers 8 --horovod --amp"
    " --lr-decay-epoch 10,14 --epochs 12 --log-interval 100 --val-interval 1 --batch-size 192 --use-fpn --lr 0.16"
    " --lr-warmup-factor 0.001 --lr-warmup 1600 --static-alloc --clip-gradient 1.5 --use-ext"
)
ONE = {"batch_size": 16, "lr": 0.02, "lr_warmup": 1000, "lr_warmup_factor": 0.03, "lr_decay_epoch": (8, 10), "epochs": 12}
MANY = {
    "batch_size": 192,
    "lr": 0.16,
    "lr_warmup": 1600,
    "lr_warmup_factor": 0.001,
    "lr_decay_epoch": (10, 14),
    "epochs": 12,
}
GLUONCV = (
    Line("gluoncv-maskrcnn", ONE_NODE, 8, ONE),
    Line("gluoncv-maskrcnn", ONE_NODE.replace("\\\n", " "), 8, ONE),  # in one line, longer than any file's name
    Line("gluoncv-maskrcnn", f"{EXPORTS}{ONE_NODE}\n", 8, ONE),
    Line("gluoncv-maskrcnn", MANY_NODES, 192, MANY, nodes=24),
    Line("gluoncv-maskrcnn", f"{EXPORTS}{MANY_NODES}\n", 192, MANY, nodes=24),
    Line("gluoncv-maskrcnn", "python train_mask_rcnn.py --gpus 0", 1, {}),
    Line("gluoncv-maskrcnn", "python train_mask_rcnn.py --gpus 0,1,2,3", 4, {}),
    Line("gluoncv-maskrcnn", "python train_mask_rcnn.py --gpus 0,1,2,3,4,5,6,7 --use-fpn", 8, {}),
    Line("gluoncv-maskrcnn", "python eval_mask_rcnn.py --use-fpn --gpus 0 --pretrained True", 0),
    Line("gluoncv-maskrcnn", "python demo_mask_rcnn.py --images a.jpg,b.jpg --pretrained mask.params", 0),
)  # fmt: skip

CORPUS = (
    *MXNET_SSD, *DGX1_SCRIPTS, *PYTORCH_SSD, *REFERENCE_SSD, *GAUDI_SSD, *MXNET_RESNET, *GLUONCV,
)  # fmt: skip
