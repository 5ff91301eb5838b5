"""What is wrong with one node, whatever the others have: facts in, sentences out."""

from __future__ import annotations

from paceline.config.system import System
from paceline.machine.doctor.finding import LOW_DISK_GIB, Level
from paceline.machine.doctor.node import NodeFacts
from paceline.machine.doctor.nvidia import too_old
from paceline.machine.topology import listed

Trouble = tuple[Level, str]
# A clock further off than this spoils what is told by time: file ages, logs side by side, tickets of a login service.
FAR_SECONDS, NOTED_SECONDS = 1.0, 0.1
# A node with less of a system's memory than this share is another machine.
SMALL_SHARE = 0.9
LOW_SHM_GIB = 0.25


def troubles(node: NodeFacts) -> list[Trouble]:
    """What is wrong with one node, whatever the others have."""
    found: list[Trouble] = []
    if why := too_old(node.driver_cuda, node.torch_cuda):
        found.append(("problem", why))
    if node.driver_devices > len(node.devices):
        found.append(
            ("problem", f"nvidia-smi lists {node.driver_devices} GPUs, torch sees {len(node.devices)}: CUDA_VISIBLE_DEVICES, the "
             "container's device flags, or Slurm's --gpus-per-task hide them")
        )  # fmt: skip
    if node.devices and node.ranks > len(node.devices):
        found.append(("problem", f"{node.ranks} ranks for {len(node.devices)} GPUs: start fewer a node"))
    for index, device in enumerate(node.devices):
        for reason in device.slowed:
            found.append(("problem", f"GPU {index} is {reason}"))
        if device.errors:
            found.append(
                ("problem", f"GPU {index} has {device.errors:.0f} uncorrected memory errors: reset or replace it")
            )
    for trouble in node.network_trouble:
        found.append(("problem", trouble))
    for text in node.network_warnings:
        found.append(("note", f"NCCL warns: {text}"))
    if "sockets" in node.network and node.adapters:
        found.append(
            ("problem", f"{node.network} although {', '.join(node.adapters)} is there: NCCL's plugin or its library is missing, or "
             "NCCL_IB_DISABLE, NCCL_NET or NCCL_IB_HCA is set")
        )  # fmt: skip
    if node.run_trouble:
        found.append(("problem", node.run_trouble))
    elif 0 <= node.run_gib < LOW_DISK_GIB:
        found.append(("note", f"{node.run_gib:g} GiB free where runs go: three checkpoints may not fit"))
    if node.devices and node.ranks > 1 and 0 <= node.shm_gib < LOW_SHM_GIB:
        found.append(
            ("problem", f"/dev/shm has {node.shm_gib:g} GiB: NCCL needs some 0.1 GiB (docker run --shm-size=1g)")
        )
    narrow = [share for share in node.shares if len(listed(share)) == 1]
    if narrow and len(listed(node.allowed)) < node.cores:
        found.append(
            ("problem", f"ranks may run on one hardware thread each ({', '.join(node.shares[:4])}): the launcher bound them; "
             "mpirun --bind-to none, srun --cpu-bind=none, and --system.bind exclusive deals cores out")
        )  # fmt: skip
    if abs(node.offset) > NOTED_SECONDS + node.offset_error:
        far = abs(node.offset) > FAR_SECONDS + node.offset_error
        ahead = "ahead of" if node.offset > 0 else "behind"
        found.append(
            ("problem" if far else "note", f"its clock is {abs(node.offset):.3g} s {ahead} rank 0's (+-{node.offset_error:.1g} s): "
             "is a time service running (chrony, ntpd)?")
        )  # fmt: skip
    return found


def unexpected(node: NodeFacts, system: System) -> list[Trouble]:
    """What a node of this system would have."""
    found: list[Trouble] = []
    if system.accelerator == "cuda" and len(node.devices) < system.per_node:
        found.append(("problem", f"{len(node.devices)} GPUs, its system has {system.per_node}"))
    if system.sockets and 0 < node.sockets != system.sockets:
        found.append(("note", f"{node.sockets} sockets, its system has {system.sockets}"))
    cores = system.sockets * system.cores_per_socket
    if cores and 0 < node.cores != cores:
        found.append(("note", f"{node.cores} cores, its system has {cores}"))
    if cores and system.threads_per_core and 0 < node.threads != node.cores * system.threads_per_core:
        each = f"{system.threads_per_core} thread{'s'[: system.threads_per_core != 1]} a core"
        found.append(("note", f"{node.threads} hardware threads on {node.cores} cores, its system has {each}"))
    if system.host_memory_gib and 0 < node.memory_gib < SMALL_SHARE * system.host_memory_gib:
        found.append(("note", f"{node.memory_gib:.0f} GiB of memory, its system has {system.host_memory_gib:.0f}"))
    return found
