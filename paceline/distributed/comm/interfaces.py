"""This host's network interfaces, for errors and for the way to another host, and its free ports.

Source: netdevice(7), SIOCGIFADDR. Where the ioctl does not exist (macOS), interfaces are named without addresses.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import sys

from paceline.distributed.comm.launcher import derive_port

# An address reserved for documentation (RFC 5737): asking for the route there sends nothing, and finds the default one.
ANYWHERE = "198.51.100.1"
SIOCGIFADDR = 0x8915  # linux/sockios.h


def list_interfaces() -> dict[str, str]:
    """Name -> IPv4 address of every interface that is up; '' where it has none."""
    result = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            result[name] = ""
            if sys.platform != "linux":
                continue
            import fcntl

            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # an interface without an IPv4 address answers with an error
                result[name] = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
    return result


def describe_interfaces() -> str:
    """'lo 127.0.0.1, eth0 10.0.0.1', for an error's text."""
    return ", ".join(f"{name} {address}".rstrip() for name, address in list_interfaces().items() if address) or "none"


def is_address_of_this_host(address: str) -> bool:
    """Whether `address` (a name or a number) is one of this host's own."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def find_interface_towards(address: str) -> str | None:
    """Name of the interface whose address a packet to `address` would carry; None if there is no telling.

    Towards one of this host's own addresses that is the interface which owns it, not the loopback.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # a UDP connect sends nothing; it only picks the route
            mine = probe.getsockname()[0]
    except OSError:
        return None
    return next((name for name, own in list_interfaces().items() if own == mine), None)


def find_free_port() -> int:
    """A free TCP port, from a range that the kernel does not use for outgoing connections."""
    while True:
        port = derive_port(secrets.token_hex(8))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
