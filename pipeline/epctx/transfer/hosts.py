"""Kinds of hosts, by their names and addresses, without a DNS look-up.

Separate from `client`, which needs `requests` from an extra.
"""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str | None) -> bool:
    """Return whether a host, by its name or address, is this one."""
    address = _address(host or "")
    return host == "localhost" or (address is not None and address.is_loopback)


def is_internal(host: str) -> bool:
    """Return whether a host is this host, or an address outside of the public internet."""
    address = _address(host)
    return host == "localhost" or (address is not None and not address.is_global)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse a host as an address, also with fewer than four numbers; None if it is a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
