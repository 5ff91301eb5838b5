"""Mask R-CNN of GluonCV: the benchmark's variables, and the words of its mpirun lines."""

from __future__ import annotations

from paceline.recipes.migrate.table import Entry, direct, gone

HOROVOD = "dead: no Horovod"
ENGINE = "dead: MXNet's engine"
OF_NONE = "dead: of no Horovod that was published"


def _env(name: str, example: str, remark: str = "the system's") -> Entry:
    """A variable of NCCL or EFA that means the same here."""
    return direct(f"{name}={example}", str, None, f"--system.env {name}={{}}", remark, example=example)


# The 21 that its README exports.
BENCHMARK = (
    direct("HOROVOD_FUSION_THRESHOLD=134217728", str, None, "--system.bucket-mib 128", "the system's; bytes there", values={"134217728": "--system.bucket-mib 128", "67108864": "--system.bucket-mib 64"}),
    gone("HOROVOD_CYCLE_TIME=0.1", str, None, HOROVOD),
    gone("HOROVOD_NUM_STREAMS=2", str, None, HOROVOD),
    gone("HOROVOD_NUM_NCCL_STREAMS=2", str, None, HOROVOD),
    gone("HOROVOD_HIERARCHICAL_ALLREDUCE=0", str, None, "dead: no Horovod; NCCL chooses ring or tree"),
    gone("HOROVOD_CACHE_CAPACITY=0", str, None, HOROVOD),
    gone("HOROVOD_MPI_THREADS_DISABLE=1", str, None, HOROVOD),
    gone("HOROVOD_TWO_STAGE_LOOP=1", str, None, OF_NONE),
    gone("HOROVOD_ALLREDUCE_MODE=1", str, None, OF_NONE),
    gone("HOROVOD_FIXED_PAYLOAD=161", str, None, OF_NONE),
    gone("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=999", str, None, ENGINE),
    gone("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=25", str, None, ENGINE),
    direct("MXNET_USE_FUSION=0", str, None, "--system.no-compile", values={"0": "--system.no-compile"}),
    direct("OMP_NUM_THREADS=2", str, None, "--system.intra-op-threads {}", "the system's", example="2"),
    _env("NCCL_DEBUG", "VERSION", ""),
    _env("NCCL_MIN_NRINGS", "1"),
    gone("NCCL_TREE_THRESHOLD=4294967296", str, None, "dead: NCCL has no such variable since 2.5", "NCCL_ALGO=Tree says the same: `--system.env NCCL_ALGO=Tree`"),
    _env("NCCL_NSOCKS_PERTHREAD", "8"),
    _env("NCCL_SOCKET_NTHREADS", "2"),
    _env("NCCL_BUFFSIZE", "16777216"),
    _env("NCCL_NET_GDR_READ", "1"),
)  # fmt: skip

# What its mpirun lines set or forward besides, and what train_mask_rcnn.py sets itself.
FURTHER = (
    direct("NCCL_SOCKET_IFNAME=ens5", str, None, "--system.interface {}", "the system's", example="ens5"),
    direct("FI_PROVIDER=efa", str, None, "--system.fabric {}", "the system's", example="efa"),
    _env("FI_EFA_TX_MIN_CREDITS", "64"),
    direct("LD_LIBRARY_PATH", str, None, "--system.env LD_LIBRARY_PATH={}", "what this shell has goes along to hosts; without aws-ofi-nccl's folder NCCL falls back to sockets", example="/opt/amazon/efa/lib64:/opt/aws-ofi-nccl/lib"),
    gone("HOROVOD_STALL_CHECK_TIME_SECONDS HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str, None, "fixed: a rank that falls silent is named, and the others end"),
    gone("HOROVOD_MLSL_BGT_AFFINITY", str, None, HOROVOD),
    gone("MXNET_CUDNN_AUTOTUNE_DEFAULT=0", str, None, "dead: MXNet's"),
    gone("MXNET_GPU_MEM_POOL_TYPE=Round MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF=28", str, None, "dead: MXNet's memory"),
    gone("MXNET_GPU_COPY_NTHREADS=1", str, None, ENGINE),
    gone("MXNET_OPTIMIZER_AGGREGATION_SIZE=54", str, None, "fixed: one fused update over all tensors"),
)  # fmt: skip
VARIABLES = (*BENCHMARK, *FURTHER)

LAUNCHER = (
    gone("-bind-to -map-by --bind-to --map-by", str, None, "fixed: mpirun binds nothing, each rank binds itself"),
    direct("ompi_bind_DGX1.sh", bool, False, "--system.bind exclusive", "the same cores: 6r..6r+5 and 48+6r..53+6r"),
    gone("-mca --mca", str, None, "dead: Open MPI carries no tensors", "`btl_tcp_if_include ens5`: `--system.interface ens5`"),
    gone("--tag-output", bool, False, "fixed: lines carry the rank or the host"),
)  # fmt: skip
