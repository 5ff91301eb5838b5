"""ResNet-50 in MXNet: what its scripts and configurations set. BECOME is run_and_time.sh's own defaults, not the program's."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.recipes.migrate.table import Entry, direct, gone, settled

# Variable -> (flag of train_imagenet.py that it becomes, run_and_time.sh's default; None = a configuration must say it).
BECOME: dict[str, tuple[str, str | None]] = {
    "OPTIMIZER": ("--optimizer", "sgd"),
    "BATCHSIZE": ("--batch-size", "1664"),
    "INPUT_BATCH_MULTIPLIER": ("--input-batch-multiplier", "1"),
    "KVSTORE": ("--kv-store", "device"),
    "LR": ("--lr", "0.6"),
    "MOM": ("--mom", "0.9"),
    "LRSCHED": ("--lr-step-epochs", "30,60,80"),
    "WARMUP_EPOCHS": ("--warmup-epochs", "5"),
    "LARSETA": ("--lars-eta", "0.001"),
    "DALI_HW_DECODER_LOAD": ("--dali-hw-decoder-load", "0.0"),
    "WD": ("--wd", "0.0001"),
    "LABELSMOOTHING": ("--label-smoothing", "0.0"),
    "SEED": ("--seed", "1"),
    "EVAL_OFFSET": ("--eval-offset", "2"),
    "EVAL_PERIOD": ("--eval-period", "4"),
    "DALI_PREFETCH_QUEUE": ("--dali-prefetch-queue", "2"),
    "DALI_NVJPEG_MEMPADDING": ("--dali-nvjpeg-memory-padding", "64"),
    "DALI_THREADS": ("--dali-threads", "3"),
    "DALI_CACHE_SIZE": ("--dali-cache-size", "0"),
    "DALI_ROI_DECODE": ("--dali-roi-decode", "0"),
    "DALI_PREALLOCATE_WIDTH": ("--dali-preallocate-width", "0"),
    "DALI_PREALLOCATE_HEIGHT": ("--dali-preallocate-height", "0"),
    "DALI_TMP_BUFFER_HINT": ("--dali-tmp-buffer-hint", "25273239"),
    "DALI_DECODER_BUFFER_HINT": ("--dali-decoder-buffer-hint", "1315942"),
    "DALI_CROP_BUFFER_HINT": ("--dali-crop-buffer-hint", "165581"),
    "DALI_NORMALIZE_BUFFER_HINT": ("--dali-normalize-buffer-hint", "441549"),
    "DALI_DONT_USE_MMAP": ("--dali-dont-use-mmap", "0"),
    "NUMEPOCHS": ("--num-epochs", "90"),
    "NETWORK": ("--network", "resnet-v1b-fl"),
    "BN_GROUP": ("--bn-group", "1"),
    "NUMEXAMPLES": ("--num-examples", "1281167"),
    "NUMVALEXAMPLES": ("--num-val-examples", "-1"),
    "E2E_CUDA_GRAPHS": ("--e2e-cuda-graphs", "0"),
    "USE_NVSHMEM": ("--use-nvshmem", "0"),
}
# What it passes besides is train_imagenet.py's own default, but for the pooling's layout.
CALL = "train_imagenet.py --pooling-layout NHWC --use-dali " + " ".join(
    f"{flag} ${{{name}:-{default}}}" for name, (flag, default) in BECOME.items()
)

HOROVOD = "dead: no Horovod"
ENGINE = "dead: MXNet's engine"
KERNELS = "dead: MXNet's kernels"


def _env(name: str, example: str, remark: str = "") -> Entry:
    """A variable of NCCL or its network that means the same here."""
    return direct(f"{name}={example}", str, None, f"--system.env {name}={{}}", remark, example=example)


# Of the job: those that are no flag of the program.
VARIABLES = (
    settled("DGXNNODES", str, None, "", "--nodes 8", by="launch"),
    settled("DGXNGPU", str, None, "", "--system.per-node 8", by="launch"),
    direct("DGXNSOCKET", str, None, "--system.sockets {}", example="2"),
    direct("DGXSOCKETCORES", str, None, "--system.cores-per-socket {}", "the H100 configurations carry the A100's 64; a DGX H100 has 56", example="56", values={}),
    direct("DGXHT", str, None, "--system.threads-per-core {}", example="2"),
    settled("DGXSYSTEM", str, None, "", "--system dgx-h100", by="launch"),
    direct("WALLTIME", str, None, "--walltime auto", "or 25m: auto is predicted, theirs was measured", slurm=True),
    direct("SBATCH_NETWORK=sharp", str, None, "--slurm.network {}", "by itself where it was published: on 64, 96 and 448 nodes", example="sharp", slurm=True),
    settled("CONT", str, None, "", "--container pyxis --image paceline:mine", by="launch"),
    settled("DATADIR", str, None, "", "--data /data/imagenet", by="data"),
    settled("LOGDIR", str, None, "", "--out runs/rn50", by="launch"),
    direct("NEXP", str, None, "--trials {}", "one after the other", example="5"),
    direct("CLEAR_CACHES", str, None, "--between 'sync; sysctl vm.drop_caches=3'", values={}),
    direct("COPY_DATASET", str, None, "--stage {}", "a local folder; theirs names where from", example="/raid/scratch", values={}),
    direct("CHECK_COMPLIANCE", str, None, "paceline mlperf check OUT"),
    direct("MLPERF_RULESET", str, None, "paceline mlperf check OUT --ruleset 3.0.0"),
    direct("NCCL_TEST", str, None, "paceline bench comm"),
    gone("API_LOGGING", str, None, "none: library calls are not logged"),
    gone("LOGGER", str, None, "none: library calls are not logged"),
    direct("TIME_TAGS", str, None, "paceline bench step --task classification", "forward, backward, update by themselves; `--profile 50:53` has them in a trace; 4 epochs there"),
    direct("NVTX_FLAG", str, None, "--profile nvtx:50:53", "inside `nsys profile --capture-range=cudaProfilerApi`; without `nvtx:` torch's profiler writes a trace; 4 epochs there", values={"1": "--profile nvtx:50:53"}),
    gone("EPOCH_PROF", str, None, "fixed: `events.jsonl` has every interval's time"),
    settled("SYNTH_DATA", str, None, "", "--synthetic", by="launch"),
    direct("DISABLE_CG", str, None, "--system.no-graph", "the default", values={}),
    gone("NV_GPU", str, None, "automatic: CUDA_VISIBLE_DEVICES"),
    gone("THR", str, None, "fixed: the recipes' 0.759", "`--quality.targets top1 0.759`"),
)  # fmt: skip

# Of the image and the configurations.
ENVIRONMENT = (
    _env("NCCL_DEBUG", "WARN", "one already set stays"),
    direct("OMP_NUM_THREADS=1", str, None, "--system.intra-op-threads {}", example="1"),
    gone("OMPI_MCA_btl=^openib", str, None, "dead: Open MPI starts ranks alone and carries no tensors"),
    gone("OMPI_MCA_coll_hcoll_enable=0 HCOLL_ENABLE_MCAST=0", str, None, "dead: Open MPI carries no tensors"),
    gone("OPENCV_FOR_THREADS_NUM=1", str, None, "dead: no OpenCV"),
    _env("NCCL_COLLNET_ENABLE", "1", "part of the 448-node pairing"),
    direct("NCCL_ALGO=COLLNETCHAIN", str, None, "--system.env NCCL_ALGO={}", "not set for you: today's NCCL refuses broadcasts under it", example="COLLNETCHAIN", values={}),
    _env("SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING", "0", "part of the 448-node pairing"),
    direct("HOROVOD_FUSION_THRESHOLD=67108864", str, None, "--system.bucket-mib 64", "bytes there", values={"67108864": "--system.bucket-mib 64", "134217728": "--system.bucket-mib 128"}),
    gone("HOROVOD_CYCLE_TIME=0.1", str, None, HOROVOD),
    gone("HOROVOD_NUM_NCCL_STREAMS", str, None, HOROVOD),
    gone("HOROVOD_BATCH_D2D_MEMCOPIES=1", str, None, HOROVOD),
    gone("HOROVOD_GROUPED_ALLREDUCES=1", str, None, HOROVOD),
    gone("HOROVOD_ENABLE_ASYNC_COMPLETION=1", str, None, HOROVOD),
    gone("MXNET_HOROVOD_NUM_GROUPS=1", str, None, HOROVOD),
    gone("MXNET_UPDATE_ON_KVSTORE=0", str, None, "dead: no parameter store"),
    gone("MXNET_EXEC_ENABLE_ADDTO=1", str, None, ENGINE),
    gone("MXNET_ASYNC_GPU_ENGINE=1", str, None, ENGINE),
    gone("MXNET_USE_TENSORRT=0", str, None, "dead: MXNet's"),
    gone("MXNET_GPU_WORKER_NTHREADS=1 MXNET_GPU_WORKER_NSTREAMS=1", str, None, ENGINE),
    gone("MXNET_GPU_COPY_NTHREADS=1", str, None, ENGINE),
    gone("MXNET_CUDNN_AUTOTUNE_DEFAULT=0", str, None, "dead: cuDNN searches once a shape"),
    gone("MXNET_CUDNN_WARN_ON_IGNORED_FLAGS=0", str, None, "dead: MXNet's"),
    gone("MXNET_OPTIMIZER_AGGREGATION_SIZE=54", str, None, "fixed: one fused update over all tensors"),
    gone("MXNET_EXTENDED_NORMCONV_SUPPORT=1", str, None, "none: no convolution that normalises its own input"),
    gone("MXNET_ENABLE_CUDA_GRAPHS=1", str, None, "none: no graph of parts of a step", "of the whole step: `--system.graph`"),
    gone("MXNET_CUDNN_NHWC_BN_HEURISTIC_FWD=1 MXNET_CUDNN_NHWC_BN_HEURISTIC_BWD=1", str, None, KERNELS),
    gone("MXNET_CUDNN_NHWC_BN_ADD_HEURISTIC_FWD=1 MXNET_CUDNN_NHWC_BN_ADD_HEURISTIC_BWD=1", str, None, KERNELS),
    gone("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=999 MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=999", str, None, ENGINE),
    gone("MXNET_FUSE_CONV_BN_RELU=1 MXNET_FUSE_CONV_BN_DUAL_ADD_RELU=1", str, None, "none: no such kernels"),
    gone("MXNET_CUDNN_NHWC_BN_HEURISTIC_GBN=3", str, None, "dead: MXNet's group BatchNorm"),
)  # fmt: skip


CONFIGS: dict[str, str] = json.loads(Path(__file__).with_name("mxnet_resnet_configs.json").read_text("utf-8"))
