"""Hostfiles: which hosts a job runs on, one a line, as Open MPI and MPICH write them.

    node1 slots=8        # Open MPI
    node2:8              # MPICH, and mpirun's -H
    10.0.0.3             # as many ranks as the system has a node

Nothing of a line is guessed: what is no host, no `slots=` and no comment is refused with its file and line.
Source: Open MPI, mpirun(1), "Specifying Host Nodes"; MPICH, hydra's -f.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.plain_file import read_plain_text
from paceline.config.printable import short
from paceline.config.system import MOST_RANKS

# The longest line that makes sense (RFC 1123: a name has at most 255 characters), times the most hosts.
MOST_BYTES = 2**20
MOST_NAME = 255
# A leading minus would be an option of ssh's.
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
LOOPBACK = re.compile(r"localhost(?:\..*)?|127\.\d+\.\d+\.\d+", re.IGNORECASE)
WANTED = "write `node1`, `node1 slots=8` or `node1:8`"


@dataclass(frozen=True)
class Host:
    """One line of a hostfile: a name or number that ssh understands, and how many ranks there is room for."""

    address: str
    slots: int


def read_hostfile(path: Path, per_node: int) -> tuple[Host, ...]:
    """Every host of the file, in its order.

    per_node  slots of a host whose line says none
    Raises UserError naming file and line: unreadable, no host at all, a host twice, anything that is not understood.
    """
    try:
        text = read_plain_text(path, MOST_BYTES)
    except OSError as problem:
        raise UserError(f"--hostfile {path}: {problem.strerror or problem}.") from None
    except UnicodeDecodeError:
        raise UserError(f"--hostfile {path}: is no text. Expected a host a line: {WANTED}.") from None
    hosts: dict[str, Host] = {}
    lines: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        try:
            host = _read_line(line, per_node)
        except ValueError as why:
            raise UserError(f"{path}, line {number}: {why}.") from None
        key = host.address.lower()
        if key in lines:
            raise UserError(
                f"{path}, line {number}: {host.address} stands in line {lines[key]} already. Give it one line with all "
                "its slots."
            )
        hosts[key], lines[key] = host, number
    if not hosts:
        raise UserError(f"--hostfile {path}: names no host. Expected a host a line: {WANTED}.")
    return tuple(hosts.values())


def first_hosts(hosts: tuple[Host, ...], nodes: int, per_node: int, path: Path) -> tuple[Host, ...]:
    """The `nodes` hosts that a job of `per_node` ranks a node takes: the first ones.

    Raises UserError where there are too few, where one has too few slots, or where a loopback stands among several.
    """
    if len(hosts) < nodes:
        raise UserError(
            f"--nodes {nodes}: {path} names {len(hosts)} host{'s'[: len(hosts) > 1]}. Add {nodes - len(hosts)}, or ask "
            f"for --nodes {len(hosts)}."
        )
    taken = hosts[:nodes]
    for host in taken:
        if host.slots < per_node:
            raise UserError(
                f"{path}: {host.address} has {host.slots} slot{'s'[: host.slots > 1]}, and the system has {per_node} ranks "
                f"a node. Raise its slots, or ask for --system.per-node {host.slots}."
            )
        if nodes > 1 and LOOPBACK.fullmatch(host.address):
            raise UserError(f"{path}: {host.address} is another machine on every host. Give it the name that all know.")
    return taken


def _read_line(line: str, per_node: int) -> Host:
    """Raises ValueError in a few words, without a full stop."""
    name, *rest = line.split()
    slots = None
    if name.count(":") > 1 or name.startswith("["):
        raise ValueError(f"'{short(name)}' is an IPv6 address: use a host name that stands for it")
    if ":" in name:
        name, _, text = name.partition(":")
        slots = _count(text)
    if "@" in name:
        raise ValueError(f"'{short(name)}': which user logs in belongs into ~/.ssh/config, not into the hostfile")
    if len(name) > MOST_NAME or not NAME.fullmatch(name):
        raise ValueError(f"'{short(name)}' is no host name: {WANTED}")
    for word in rest:
        keyword, equals, text = word.partition("=")
        if keyword != "slots" or not equals:
            raise ValueError(f"'{short(word)}' is not understood: {WANTED}")
        if slots is not None:
            raise ValueError("says its slots twice")
        slots = _count(text)
    return Host(name, per_node if slots is None else slots)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= MOST_RANKS:
        raise ValueError(f"'{short(text)}' is no number of slots, 1 to {MOST_RANKS}")
    return int(text)
