"""System: where a recipe runs. Nothing in it changes a result beyond the order of floating-point sums and their precision.

Every field's comment stands on the field's own line: it is that field's help text on the command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from paceline._utils.errors import RecipeError
from paceline.config.bounds import Ge, Gt, Le, check_bounds

# Named, so that its field fits on one line with its comment.
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
HALF: tuple[Precision, ...] = ("bf16", "fp16")
# Fields that choose among forms of the same step, and what they are if nothing faster has been measured.
FORMS = {"channels_last": "on", "compile": "off", "graph": "off", "kernels": "torch"}
# torch's device types; AMD's ROCm calls itself cuda too.
Accelerator = Literal["cpu", "cuda", "hpu", "xpu", "mps"]
Kernels = Literal["auto", "torch", "triton"]
Form = Literal["auto", "on", "off"]
Fabric = Literal["", "tcp", "roce", "ib", "efa"]
Binding = Literal["off", "node", "no-smt", "exclusive"]
# More than any machine has, or can use; at too many threads OpenMP would end the process without a word.
MOST_THREADS, MOST_RANKS, MOST_PREFETCH, MOST_IMAGES, MOST_GIB = 4096, 4096, 4096, 2**20, 2.0**20
Threads = Annotated[int, Ge(0), Le(MOST_THREADS)]
Forward = Annotated[int, Ge(0), Le(MOST_IMAGES)]
Size = Annotated[float, Gt(0), Le(MOST_GIB)]
# What a launcher tells a process about its place (ranks/launcher.py), and our secret, which must not stand in run.json.
NOT_OURS_TO_SET = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|GROUP_.*|ROLE_.*|MASTER_(ADDR|PORT)|(SLURM|OMPI|PMI|PMIX|PALS|TORCHELASTIC)_.*|PACELINE_SECRET"
)


@dataclass(frozen=True)
class System:
    """One kind of machine, as the Plan and the loop need to know it."""

    accelerator: Accelerator = "cpu"  # what computes: torch's device type (cuda is ROCm too)
    per_node: Annotated[int, Ge(1), Le(MOST_RANKS)] = 1  # ranks on one node (accelerators; on a CPU, processes)
    memory_gib: Size = 8.0  # memory of one rank, in GiB
    images_per_forward: Forward = 0  # most images in one forward; 0 = what the memory estimate allows
    precision: Precision = "fp32"  # of convolutions and products (tf32: NVIDIA Ampere or newer); weights stay fp32
    loss_scale: Annotated[float, Ge(0), Le(2.0**127)] = 0.0  # fp16 only: a fixed loss scale; 0 = dynamic
    channels_last: Form = "auto"  # NHWC memory for images and activations
    compile: Form = "auto"  # compile the model with torch.compile
    graph: Form = "auto"  # capture the step of each input shape as a CUDA graph and replay it; one GPU
    kernels: Kernels = "auto"  # triton: paceline's own for matching, NMS, RoIAlign and BatchNorm, on CUDA
    loader_threads: Threads = 0  # worker processes per rank that read and decode; 0: cores of the node / ranks on it
    fetch_threads: Threads = 0  # threads a rank that fetch photos ahead of decoding; 0 = 2 for buckets, none for files
    store_cache: str = "off"  # local disk for what buckets and web servers send, e.g. 200GiB, in PACELINE_CACHE; off
    intra_op_threads: Threads = 0  # compute threads a rank on a CPU; 0 = OMP_NUM_THREADS, else cores / ranks of a node
    prefetch: Annotated[int, Ge(1), Le(MOST_PREFETCH)] = 3  # steps that the loader keeps ready
    cache: str = "auto"  # memory of a node for encoded photos, e.g. 40GiB; off; auto = half of the free, for far stores
    check_photos: bool = True  # compare the bytes of each photo that is read with the digest that prepare noted
    score_beside: bool = True  # compute an evaluation's metrics in a thread while training goes on
    bind: Binding = "off"  # cores of a rank: exclusive = its own near its device, no-smt = one thread a core, node, off
    interface: str = ""  # network interface between nodes, of NCCL and gloo alike; empty = the one that leads to rank 0
    fabric: Fabric = ""  # network between nodes: tcp, roce, ib or efa; empty = unknown, nothing is set for it
    env: tuple[str, ...] = ()  # environment variables of every rank, NAME=VALUE; those that are set already stay
    bucket_mib: Size = 25.0  # gradients travel in buckets of this many MiB, while the backward goes on
    compress: Literal["none", "bf16", "fp16"] = "none"  # number format in which gradients travel; refused by --exact
    chip: str = ""  # the accelerator's name, for people and for published rates
    sockets: Threads = 0  # CPU sockets of a node; 0 = unknown
    cores_per_socket: Threads = 0  # physical cores of a socket; 0 = unknown
    threads_per_core: Threads = 0  # hardware threads of a core; 0 = unknown
    host_memory_gib: Annotated[float, Ge(0), Le(MOST_GIB)] = 0.0  # main memory of a node, in GiB; 0 = unknown


def check_system(system: System) -> None:
    """Refuse numbers that cannot describe a machine.

    Raises RecipeError naming the flag.
    """
    check_bounds(system, "--system.")
    if system.loss_scale and system.precision != "fp16":
        raise RecipeError(f"--system.loss-scale {system.loss_scale:g}: only --system.precision fp16 scales losses.")
    if system.precision == "tf32" and system.accelerator != "cuda":
        raise RecipeError(
            f"--system.precision tf32: only NVIDIA GPUs compute in TF32, and this run uses {system.accelerator}. Use fp32."
        )
    for flag, value, needs_cuda in (("graph", system.graph, "on"), ("kernels", system.kernels, "triton")):
        if value == needs_cuda and system.accelerator != "cuda":
            raise RecipeError(
                f"--system.{flag} {value}: this needs cuda, and the run computes on {system.accelerator}. Remove the flag."
            )
    if not re.fullmatch(r"[A-Za-z0-9_.:@+-]{0,15}", system.interface):
        raise RecipeError(
            f"--system.interface {system.interface!r}: a network interface has a name such as eth0, of at most 15 letters."
        )
    env_pairs(system)
    cache_bytes(system.cache)
    store_cache_bytes(system.store_cache)


def env_pairs(system: System) -> dict[str, str]:
    """--system.env as name -> value.

    Raises RecipeError for what is no NAME=VALUE, a name that stands there twice, and one that a launcher sets.
    """
    found: dict[str, str] = {}
    for pair in system.env:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise RecipeError(f"--system.env {pair!r}: write NAME=VALUE, e.g. NCCL_DEBUG=WARN.")
        if NOT_OURS_TO_SET.fullmatch(name):
            raise RecipeError(f"--system.env {name}: that is the launcher's to set, in the environment of the command.")
        if found.setdefault(name, value) != value:
            raise RecipeError(f"--system.env {name}: named twice, as {found[name]!r} and {value!r}.")
    return found


def merged_env(below: tuple[str, ...], above: tuple[str, ...]) -> tuple[str, ...]:
    """Pairs NAME=VALUE of both; of one name that stands in both, `above`'s."""
    names = {pair.partition("=")[0] for pair in above}
    return (*(pair for pair in below if pair.partition("=")[0] not in names), *above)


def cache_bytes(text: str) -> int | None:
    """Bytes that --system.cache means: of "40GiB" or "500MiB"; 0 for "off", None for "auto".

    Raises RecipeError for anything else.
    """
    if text == "auto":
        return None
    return _size("--system.cache", text, "auto, off")


def store_cache_bytes(text: str) -> int:
    """Bytes that --system.store-cache means, 0 for "off". Raises RecipeError for anything else."""
    return _size("--system.store-cache", text, "off")


def _size(flag: str, text: str, words: str) -> int:
    if text == "off":
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B", text.strip(), re.IGNORECASE)
    size = float(match[1]) * 1024.0 ** ("KMGT".index(match[2].upper()) + 1) if match else 0.0
    if not 0 < size <= MOST_GIB * 2**30:
        raise RecipeError(f"{flag} {text!r}: write {words}, or a size such as 40GiB or 500MiB.")
    return int(size)
