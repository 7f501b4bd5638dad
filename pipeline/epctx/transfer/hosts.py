"""Kinds of hosts, by their names and addresses; nothing is looked up.

Apart from `client`, which needs requests, of an extra.
"""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str | None) -> bool:
    """Return whether a host, by its name or address, is this one."""
    address = _address(host or "")
    return host == "localhost" or (address is not None and address.is_loopback)


def is_internal(host: str) -> bool:
    """Return whether a host is an address that is not of the internet, or this host."""
    address = _address(host)
    return host == "localhost" or (address is not None and not address.is_global)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Address that a host is written as, also in fewer than four numbers; None if it is a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
