"""Commands on other hosts, over the user's own ssh: its keys, names and users come from ~/.ssh/config and nothing else.

A host that is this machine is reached without ssh.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from paceline.config.printable import one_line
from paceline.launch.job import Words
from paceline.ranks.interfaces import is_address_of_this_host

LIKE_A_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR")
# ssh's own exit code where it could not connect, or lost the connection; else the command's.
NO_CONNECTION = 255


def options() -> Words:
    """ssh's options: nobody is there to type a password; a dead host is noticed when connecting, and within 15 s later on."""
    said = {"BatchMode": "yes", "ConnectTimeout": 10, "ServerAliveInterval": 5, "ServerAliveCountMax": 3}
    return tuple(word for name, value in said.items() for word in ("-o", f"{name}={value}"))


def on_host(address: str, command: Words) -> Words:
    """What runs `command` on the host `address`, standard input and output included."""
    if is_address_of_this_host(address):
        return command
    return ("ssh", "-T", *options(), "--", address, shlex.join(command))


def environment_for(command: Words, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What `command`, of `on_host`, is started with: a host that is this machine has no more than a login gives the others.

    Else ranks here would have what the ranks on other hosts have not, from PACELINE_SECRET to NCCL's switches.
    """
    if command[0] == "ssh":
        return dict(environ)
    return {name: value for name, value in environ.items() if name in LIKE_A_LOGIN}


def why_not_connected(said: str) -> str:
    """The line of ssh's own words that tells why, for a message; ssh writes what it tried before what failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return one_line(lines[-1].rstrip(".")[:300]) if lines else "ssh says nothing"
