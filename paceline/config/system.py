"""Define a system: the hardware that a recipe runs on.

Its fields change a result only by the order of floating-point sums and by their precision. The `Help` of each field is also the help
of its flag.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from paceline._utils.errors import RecipeError
from paceline.config.constraints import Ge, Gt, Help, Le, check_bounds

# Named, so that its field fits on one line with its comment.
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
HALF: tuple[Precision, ...] = ("bf16", "fp16")
# Fields that choose among forms of the same step, and what they are if nothing faster has been measured.
FORMS = {"channels_last": "on", "compile": "off", "cuda_graph": "off", "kernels": "torch"}
# torch's device types; AMD's ROCm calls itself cuda too.
Accelerator = Literal["cpu", "cuda", "hpu", "xpu", "mps"]
Kernels = Literal["auto", "torch", "triton"]
Form = Literal["auto", "on", "off"]
Fabric = Literal["", "tcp", "roce", "ib", "efa"]
Binding = Literal["off", "node", "no-smt", "exclusive"]
# More than any machine has, or can use; at too many threads OpenMP would end the process without a word.
MAX_THREADS, MAX_RANKS, MAX_PREFETCH, MAX_IMAGES, MAX_GIB = 4096, 4096, 4096, 2**20, 2.0**20
Threads = Annotated[int, Ge(0), Le(MAX_THREADS)]
Forward = Annotated[int, Ge(0), Le(MAX_IMAGES)]
Size = Annotated[float, Gt(0), Le(MAX_GIB)]
# What a launcher tells a process about its place (distributed/comm/launcher.py), and our secret, which must not stand in run.json.
NOT_OURS_TO_SET = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|GROUP_.*|ROLE_.*|MASTER_(ADDR|PORT)|(SLURM|OMPI|PMI|PMIX|PALS|TORCHELASTIC)_.*|PACELINE_SECRET"
)


@dataclass(frozen=True)
class System:
    """Describe one type of machine for the batch plan and the training loop.

    Attributes:
        device (str): torch device type: ``"cpu"``, ``"cuda"`` (also for ROCm), ``"hpu"``, ``"xpu"``, or ``"mps"``.
        ranks_per_node (int): ranks per node, which are accelerators, or processes on a CPU.
        memory_gib (float): memory per rank in GiB.
        micro_batch_size (int): maximum micro-batch size. 0: the largest that fits the memory estimate.
        precision (str): dtype of convolutions and matrix products: ``"fp32"``, ``"tf32"``, ``"bf16"``, or ``"fp16"``. Weights stay
            fp32.
        loss_scale (float): fixed loss scale, only for fp16. 0: dynamic.
        channels_last (str): use the NHWC memory format for images and activations: ``"auto"``, ``"on"``, or ``"off"``.
        compile (str): compile the model with `torch.compile`: ``"auto"``, ``"on"``, or ``"off"``.
        cuda_graph (str): capture the step of each input shape as a CUDA graph: ``"auto"``, ``"on"``, or ``"off"``. One GPU only.
        kernels (str): ``"auto"``, ``"torch"``, or ``"triton"`` (custom kernels for matching, NMS, RoIAlign, and BatchNorm).
        num_workers (int): decoding processes per rank. 0: node cores / ranks per node.
        io_threads (int): prefetching threads per rank. 0: 2 for buckets, none for files.
        disk_cache (str): local disk cache for images from buckets and web servers, such as ``"200GiB"``, or ``"off"``.
        intra_op_threads (int): compute threads per rank. 0: OMP_NUM_THREADS if set, or cores / ranks.
        prefetch_steps (int): number of steps that the loader prepares ahead.
        ram_cache (str): memory per node for encoded images, such as ``"40GiB"``, ``"off"``, or ``"auto"`` (half of the free
            memory, only if the images are remote).
        verify_checksums (bool): compare each image with the checksum that ``paceline prepare`` recorded.
        async_metrics (bool): compute metrics in a background thread while training continues.
        cpu_bind (str): CPU cores per rank: ``"exclusive"``, ``"no-smt"`` (one thread per core), ``"node"``, or ``"off"``.
        interface (str): network interface between nodes. Empty: the one with the route to rank 0.
        fabric (str): network type between nodes: ``"tcp"``, ``"roce"``, ``"ib"``, or ``"efa"``. Empty: unknown.
        env (tuple[str, ...]): environment variables for every rank, unless they are already set: ``"NAME=VALUE"``.
        ddp_bucket_mib (float): size of the gradient buckets in the backward pass in MiB.
        grad_compression (str): dtype of gradients in communication: ``"none"``, ``"bf16"``, or ``"fp16"``.
        device_name (str): name of the accelerator, for display and for published speeds.
        sockets, cores_per_socket, threads_per_core (int): CPU sockets per node, physical cores per socket, and hardware threads per
            core. 0: unknown.
        host_memory_gib (float): main memory per node in GiB. 0: unknown.
    """

    device: Annotated[Accelerator, Help("torch device type; cuda: also for ROCm")] = "cpu"
    ranks_per_node: Annotated[int, Ge(1), Le(MAX_RANKS), Help("ranks per node: accelerators, or processes on a CPU")] = 1
    memory_gib: Annotated[Size, Help("memory per rank (GiB)")] = 8.0
    micro_batch_size: Annotated[Forward, Help("maximum micro-batch size; 0: the largest that fits the memory estimate")] = 0
    precision: Annotated[Precision, Help("dtype of convolutions and matrix products; weights stay fp32")] = "fp32"
    loss_scale: Annotated[float, Ge(0), Le(2.0**127), Help("fixed loss scale, for fp16 only; 0: dynamic")] = 0.0
    channels_last: Annotated[Form, Help("use the NHWC memory format for images and activations")] = "auto"
    compile: Annotated[Form, Help("compile the model with torch.compile")] = "auto"
    cuda_graph: Annotated[Form, Help("capture the step of each input shape as a CUDA graph; one GPU only")] = "auto"
    kernels: Annotated[Kernels, Help("triton: custom kernels for matching, NMS, RoIAlign, and BatchNorm")] = "auto"
    num_workers: Annotated[Threads, Help("decoding processes per rank; 0: node cores / ranks per node")] = 0
    io_threads: Annotated[Threads, Help("prefetching threads per rank; 0: 2 for buckets, none for files")] = 0
    disk_cache: Annotated[str, Help("local disk cache for images from buckets and web servers, e.g. 200GiB; off")] = "off"
    intra_op_threads: Annotated[Threads, Help("compute threads per rank; 0: OMP_NUM_THREADS if set, or cores / ranks")] = 0
    prefetch_steps: Annotated[int, Ge(1), Le(MAX_PREFETCH), Help("number of steps that the loader prepares ahead")] = 3
    ram_cache: Annotated[str, Help("RAM per node for encoded images: 40GiB, off; auto: half of it, if remote")] = "auto"
    verify_checksums: Annotated[bool, Help("compare each image with the checksum that `prepare` recorded")] = True
    async_metrics: Annotated[bool, Help("compute metrics in a background thread while training continues")] = True
    cpu_bind: Annotated[Binding, Help("CPU cores per rank: exclusive, no-smt (one thread per core), node, or off")] = "off"
    interface: Annotated[str, Help("network interface between nodes; empty: the one with the route to rank 0")] = ""
    fabric: Annotated[Fabric, Help("network type between nodes: tcp, roce, ib, or efa; empty: unknown")] = ""
    env: Annotated[tuple[str, ...], Help("environment variables for every rank, unless already set: NAME=VALUE")] = ()
    ddp_bucket_mib: Annotated[Size, Help("size of the gradient buckets in the backward pass (MiB)")] = 25.0
    grad_compression: Annotated[Literal["none", "bf16", "fp16"], Help("dtype of gradients in communication")] = "none"
    device_name: Annotated[str, Help("name of the accelerator, for display and for published speeds")] = ""
    sockets: Annotated[Threads, Help("CPU sockets per node; 0: unknown")] = 0
    cores_per_socket: Annotated[Threads, Help("physical cores per socket; 0: unknown")] = 0
    threads_per_core: Annotated[Threads, Help("hardware threads per core; 0: unknown")] = 0
    host_memory_gib: Annotated[float, Ge(0), Le(MAX_GIB), Help("main memory per node (GiB); 0: unknown")] = 0.0


def check_system(system: System) -> None:
    """Reject values that cannot describe a machine.

    Raises RecipeError that names the flag.
    """
    check_bounds(system, "--system.")
    if system.loss_scale and system.precision != "fp16":
        raise RecipeError(f"--system.loss-scale {system.loss_scale:g}: requires --system.precision fp16.")
    if system.precision == "tf32" and system.device != "cuda":
        raise RecipeError(
            f"--system.precision tf32: requires an NVIDIA GPU, and this run uses {system.device}. Use --system.precision fp32."
        )
    for flag, value, needs_cuda in (("cuda-graph", system.cuda_graph, "on"), ("kernels", system.kernels, "triton")):
        if value == needs_cuda and system.device != "cuda":
            raise RecipeError(
                f"--system.{flag} {value}: requires cuda, and this run uses {system.device}. Remove the flag."
            )
    if not re.fullmatch(r"[A-Za-z0-9_.:@+-]{0,15}", system.interface):
        raise RecipeError(
            f"--system.interface {system.interface!r}: must be a network interface, such as eth0, with at most 15 characters."
        )
    parse_env(system)
    parse_cache_bytes(system.ram_cache)
    parse_store_cache_bytes(system.disk_cache)


def parse_env(system: System) -> dict[str, str]:
    """Parse --system.env to a dict of variable names and values.

    Raises RecipeError for text that is not NAME=VALUE, for a name with two values, and for a variable that a launcher sets.
    """
    result: dict[str, str] = {}
    for pair in system.env:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise RecipeError(f"--system.env {pair!r}: must be NAME=VALUE. Example: NCCL_DEBUG=WARN")
        if NOT_OURS_TO_SET.fullmatch(name):
            raise RecipeError(f"--system.env {name}: the launcher sets this variable. Remove it.")
        if result.setdefault(name, value) != value:
            raise RecipeError(f"--system.env {name}: given twice, as {result[name]!r} and {value!r}. Remove one of them.")
    return result


def merge_env(below: tuple[str, ...], above: tuple[str, ...]) -> tuple[str, ...]:
    """Merge two lists of NAME=VALUE. If a name is in both, the value in `above` is used."""
    names = {pair.partition("=")[0] for pair in above}
    return (*(pair for pair in below if pair.partition("=")[0] not in names), *above)


def parse_cache_bytes(text: str) -> int | None:
    """Parse --system.ram-cache, such as "40GiB", to bytes. Return 0 for "off", None for "auto".

    Raises RecipeError for any other text.
    """
    if text == "auto":
        return None
    return _size("--system.ram-cache", text, "auto, off")


def parse_store_cache_bytes(text: str) -> int:
    """Parse --system.disk-cache to bytes. Return 0 for "off". Raise RecipeError for invalid text."""
    return _size("--system.disk-cache", text, "off")


def _size(flag: str, text: str, words: str) -> int:
    if text == "off":
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B", text.strip(), re.IGNORECASE)
    size = float(match[1]) * 1024.0 ** ("KMGT".index(match[2].upper()) + 1) if match else 0.0
    if not 0 < size <= MAX_GIB * 2**30:
        raise RecipeError(f"{flag} {text!r}: must be {words}, or a size such as 40GiB or 500MiB.")
    return int(size)
