"""Variables that a System asks for, set in each process before anything reads them: its own, its fabric's and its interface's.

Sources: NCCL's documentation (environment variables), gloo (GLOO_SOCKET_IFNAME), libfabric's fi_efa(7), Habana's HCCL.
What a library reads when the process starts (LD_LIBRARY_PATH, OMP_PROC_BIND) comes too late here; a launch script sets it in time.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

from paceline._utils.errors import RecipeError
from paceline.config.system import System, parse_env
from paceline.distributed.comm.interfaces import list_interfaces
from paceline.distributed.comm.launcher import Launch


@dataclass(frozen=True)
class EnvVariable:
    """One environment variable of every rank."""

    name: str
    value: str
    why: str  # what it is for, in a line


# What a network between nodes wants of NCCL and of libfabric.
FABRICS = {
    "": (),
    "tcp": (
        EnvVariable("NCCL_NET", "Socket", "fabric tcp: NCCL uses plain sockets instead of an installed plugin"),
        EnvVariable("NCCL_IB_DISABLE", "1", "fabric tcp: NCCL does not use InfiniBand or RoCE adapters"),
    ),
    "roce": (EnvVariable("NCCL_IB_DISABLE", "0", "fabric roce: NCCL uses the RoCE adapters"),),
    "ib": (EnvVariable("NCCL_IB_DISABLE", "0", "fabric ib: NCCL uses the InfiniBand adapters"),),
    "efa": (EnvVariable("FI_PROVIDER", "efa", "fabric efa: libfabric, which NCCL uses on AWS, selects EFA"),),
}  # fmt: skip


def recommended_variables(
    system: System, *, nodes: int, named: bool = True, there: Collection[str] = ()
) -> list[EnvVariable]:
    """What `system` asks for on `nodes` machines; a variable in --system.env stands over the same one of fabric or interface.

    named  whether the interface was named by hand: a menu's is for several nodes, and one alone may not have it
    there  names of a host's interfaces, where known: NCCL takes a name for the beginning of one, so "eth1" would be eth10 too
    """
    result = {name: EnvVariable(name, value, "--system.env") for name, value in parse_env(system).items()}
    if nodes > 1 and system.device == "cuda":
        for variable in FABRICS[system.fabric]:
            result.setdefault(variable.name, variable)
    if system.cuda_graph == "on":
        why = "NCCL's error watchdog is not supported while a collective is captured (see PyTorch's notes on CUDA graphs)"
        result.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", EnvVariable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", why))
    if system.interface and (named or nodes > 1):
        why = "network interface between nodes (--system.interface)"
        alone = sum(name.startswith(system.interface) for name in there) <= 1
        exact = system.interface if alone else f"={system.interface}"
        library = "HCCL" if system.device == "hpu" else "NCCL"
        for name, value in ((f"{library}_SOCKET_IFNAME", exact), ("GLOO_SOCKET_IFNAME", system.interface)):
            result.setdefault(name, EnvVariable(name, value, why))
    return list(result.values())


def check_interface(name: str, there: Mapping[str, str]) -> None:
    """Raises RecipeError, naming this host's interfaces, where none has this name ('' is none asked for).

    there  name -> address of this host's interfaces
    """
    if name and name not in there:
        described = ", ".join(f"{one} {address}".rstrip() for one, address in there.items()) or "none"
        raise RecipeError(
            f"--system.interface {name}: interface not found on {platform.node()}. Available: {described}. Choose one of them, "
            "or leave the flag empty."
        )


@contextmanager
def apply_environment(
    system: System, launch: Launch, *, named: bool, environ: MutableMapping[str, str] = os.environ
) -> Iterator[list[str]]:
    """Set what `system` asks for inside the block; gives notes about variables that were set already, to another value.

    named  as for `recommended_variables`
    raise RecipeError  this host has no such interface
    """
    there = list_interfaces()
    if named or launch.nodes > 1:
        check_interface(system.interface, there)
    notes, ours = [], []
    for variable in recommended_variables(system, nodes=launch.nodes, named=named, there=there):
        if (before := environ.get(variable.name)) is None:
            environ[variable.name] = variable.value
            ours.append(variable.name)
        elif before != variable.value:
            notes.append(f"{variable.name}={before} is already set and is kept; the system would set {variable.value}")
    try:
        yield notes
    finally:
        for name in ours:
            environ.pop(name, None)
