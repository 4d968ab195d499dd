"""On which network interface the collectives of CPUs listen."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable in which gloo reads it. Without it gloo takes the interface of the host's name, which on many machines
is one that others cannot reach."""
_ADDRESS_OF = 0x8915
"""SIOCGIFADDR, of Linux: a name comes back with the interface's IPv4 address."""


def loopback() -> str:
    """Where other machines cannot connect. Empty: it has another name here."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")


def interface_of(address: str) -> str:
    """The interface that has this IPv4 address. Empty: none is known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                found = fcntl.ioctl(probe.fileno(), _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""
