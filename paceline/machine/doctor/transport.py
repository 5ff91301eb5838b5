"""Which way NCCL took between ranks: read from its own log.

Left alone, NCCL takes the fastest network that it finds, and falls to sockets without an error where a plugin or a library is
missing: the run works, at a tenth of the speed. Only its log (NCCL_DEBUG=INFO) says so.
Source: NCCL's user guide, environment variables NCCL_DEBUG, NCCL_DEBUG_FILE; aws-ofi-nccl's README for EFA's lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# "Using network" up to NCCL 2.26, "Assigned NET plugin" from 2.27 on.
_CHOSEN = re.compile(r"NCCL INFO (?:Using network (.+?)|Assigned NET plugin (.+?) to comm\b.*)\s*$", re.MULTILINE)
_PORTS = re.compile(r"NCCL INFO NET/IB : Using (.*?)(?:;|$)", re.MULTILINE)
_PORT = re.compile(r"\[\d+\]([\w.-]+):\d+/(IB|RoCE)")
_PROVIDER = re.compile(r"NCCL INFO NET/OFI Selected [Pp]rovider is ([\w;+-]+)")
_SOCKETS = re.compile(r"NCCL INFO NET/Socket : Using (.*)$", re.MULTILINE)
_BOOTSTRAP = re.compile(r"NCCL INFO Bootstrap\s*:\s*Using (.*)$", re.MULTILINE)
_INTERFACE = re.compile(r"(?:\[\d+\])?([\w.-]+):")
_WARNING = re.compile(r"NCCL WARN (.*)$", re.MULTILINE)
_CHANNEL = re.compile(r"NCCL INFO Channel .*? via (\w+)(/[^\s]*)?")
MOST_WARNINGS, LONGEST_WARNING = 3, 200


@dataclass(frozen=True)
class Transport:
    """What carries messages. "" and empty are unknown.

    network   "InfiniBand", "RoCE", "OFI/efa", "OFI/...", "sockets", or NCCL's own word for another
    devices   its adapters or interfaces
    direct    GPU memory is read and written by the adapter itself (GPUDirect RDMA)
    within    what carries messages inside a node: P2P, SHM
    warnings  NCCL's own, the first few
    """

    network: str = ""
    devices: tuple[str, ...] = ()
    bootstrap: str = ""
    direct: bool = False
    within: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def in_words(self, nodes: int = 2) -> str:
        """As "NCCL chose OFI/efa", "NCCL fell to sockets on eth0". One node has no use for a network."""
        if nodes == 1:
            return f"NCCL within the node by {' and '.join(self.within) or 'a way that it did not tell'}"
        if not self.network:
            return "NCCL did not say which network it chose"
        where = f" on {', '.join(self.devices)}" if self.devices else ""
        if self.network == "sockets":
            return f"NCCL fell to sockets{where}"
        return f"NCCL chose {self.network}{where}{', GPUDirect' if self.direct else ''}"


def read_log(text: str) -> Transport:
    """What one rank's NCCL log says. Pure; lines that NCCL never wrote count for nothing."""
    chosen = [first or second for first, second in _CHOSEN.findall(text)]
    ports = [port for line in _PORTS.findall(text) for port in _PORT.findall(line)]
    provider = _PROVIDER.search(text)
    sockets = [name for line in _SOCKETS.findall(text) for name in _names(line)]
    network, devices = _network(chosen[-1] if chosen else "", ports, provider[1] if provider else "", sockets)
    bootstrap = _BOOTSTRAP.search(text)
    ways = _CHANNEL.findall(text)
    return Transport(
        network,
        devices,
        next(iter(_names(bootstrap[1])), "") if bootstrap else "",
        any("GDRDMA" in rest for _, rest in ways),
        tuple(sorted({way for way, _ in ways if way in ("P2P", "SHM")})),
        tuple(line.strip()[:LONGEST_WARNING] for line in _WARNING.findall(text)[:MOST_WARNINGS]),
    )


def _network(
    chosen: str, ports: list[tuple[str, str]], provider: str, sockets: list[str]
) -> tuple[str, tuple[str, ...]]:
    """-> (network, its devices) by NCCL's word for what it chose."""
    word = chosen.strip()
    if word.startswith("IB") or (not word and ports):
        kinds = {kind for _, kind in ports}
        network = "RoCE" if kinds == {"RoCE"} else "InfiniBand and RoCE" if len(kinds) > 1 else "InfiniBand"
        return network, tuple(dict.fromkeys(name for name, _ in ports))
    if word in ("AWS Libfabric", "OFI", "Libfabric") or (not word and provider):
        return f"OFI/{provider or 'libfabric'}", ()
    if word == "Socket" or (not word and sockets):
        return "sockets", tuple(dict.fromkeys(sockets))
    return word, ()


def _names(line: str) -> list[str]:
    """Interfaces in "[0]eth0:10.0.0.1<0> [1]eth1:10.0.0.2<0>"."""
    found = (_INTERFACE.match(part) for part in line.split())
    return [match[1] for match in found if match]
