"""Address of a cluster (`dask://…`), and the security of its connections."""

from __future__ import annotations

import contextlib
import importlib
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ProviderUnavailable, UsageError
from epctx.transfer.hosts import is_loopback

if TYPE_CHECKING:
    from distributed.security import Security

_LOCAL: Final = "local"
_OPTIONS: Final = "--tls-ca, --tls-cert and --tls-key"
_PROBE: Final = 5.0
"""Seconds within which a port must answer a TLS greeting."""
_FORMS: Final = "write dask://HOST:PORT, or dask://local?workers=2"


class Tls(Struct, frozen=True, kw_only=True):
    """PEM files that authenticate both ends of a connection; either all are given, or none.

    Attributes:
        insecure: whether other machines may be used without them.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False


class Address(Struct, frozen=True, kw_only=True):
    """Address of the scheduler.

    Attributes:
        workers: number of workers that this machine starts, with the scheduler; None if the
            scheduler is at `host`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    workers: int | None = None


def parsed(url: str, *, where: str = "--on") -> Address:
    """Parse a `dask://…` address.

    Raises:
        UsageError: it is invalid.
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme != "dask" or not host or parts.path or parts.username or parts.fragment:
        raise _strange(url, where)
    if host == _LOCAL and port is None and where == "--on" and query.keys() <= {"workers"}:
        workers = query.get("workers", "2")
        if not (workers.isdecimal() and 0 < int(workers) <= 256):
            raise _strange(url, where)
        return Address(workers=int(workers))
    if port is None or query:
        raise _strange(url, where)
    return Address(host=host, port=port)


def contact(address: Address, tls: Tls) -> tuple[str, Security | None]:
    """Return the scheduler's address for dask, and its security; None for a connection without TLS.

    Raises:
        UsageError: another machine would be used without TLS and without `insecure`; a file is
            missing.
        ProviderUnavailable: dask is not installed.
    """
    refuse_without_dask()
    host = f"[{address.host}]" if ":" in address.host else address.host
    files = {"--tls-ca": tls.ca, "--tls-cert": tls.cert, "--tls-key": tls.key}
    given = {name for name, path in files.items() if path is not None}
    if not given:
        if not (tls.insecure or is_loopback(address.host)):
            raise UsageError(
                f"whoever reaches {address.host} can run code on every machine, this one included",
                where="--on",
                remedy=f"name certificates with {_OPTIONS}, or accept this with --insecure",
                code=Code.COMMAND_LINE,
            )
        return f"tcp://{host}:{address.port}", None
    if len(given) < len(files):
        missing = " and ".join(name for name in files if name not in given)
        raise UsageError(
            f"TLS also needs {missing}",
            where=" ".join(sorted(given)),
            remedy="name the authority's certificate, your own certificate, and its key",
            code=Code.COMMAND_LINE,
        )
    return f"tls://{host}:{address.port}", security(*(str(path) for path in files.values()))


def security(ca: str, cert: str, key: str) -> Security:
    """Return the security of connections whose ends both need a certificate of `ca`."""
    from distributed.security import Security

    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        **{f"tls_{role}_cert": cert for role in ("client", "worker", "scheduler")},
        **{f"tls_{role}_key": key for role in ("client", "worker", "scheduler")},
    )


def unreachable(contact: str, tls: Security | None, why: str) -> ProviderUnavailable:
    """Return the error of a scheduler that does not answer, after a check whether it speaks TLS.

    Args:
        contact: its address, as `contact` returns it.
        tls: the security of the failed connection.
        why: message of dask.
    """
    answers = speaks_tls(contact)
    what = "there is no scheduler"
    remedy = "start one with `dask scheduler`, and check address and certificates"
    if answers and tls is None:
        what = "the scheduler requires TLS, but no certificates are given"
        remedy = f"name certificates of its authority with {_OPTIONS}"
    elif answers:
        what = "the scheduler and this machine do not accept each other's certificates"
        remedy = f"name certificates of the same authority with {_OPTIONS}, here and there"
    elif answers is False and tls is not None:
        what = "the scheduler does not use TLS, but certificates are given"
        remedy = "start it with `dask scheduler --protocol tls` and its certificates"
    return ProviderUnavailable(
        what, where=contact, why=why or None, remedy=remedy, code=Code.MACHINES
    )


def speaks_tls(contact: str) -> bool | None:
    """Tell whether a port answers a TLS greeting; None if nobody answers. No data is sent."""
    parts = urlsplit(contact)
    place = (parts.hostname or "", parts.port or 0)
    greeting = ssl.create_default_context()
    greeting.check_hostname = False
    greeting.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(place, timeout=_PROBE) as raw, greeting.wrap_socket(raw):
            return True
    except OSError as error:
        if "ALERT" in (getattr(error, "reason", None) or ""):  # TLS, but refused
            return True
    with contextlib.suppress(OSError), socket.create_connection(place, timeout=_PROBE) as raw:
        return False if raw.recv(1) else None  # a scheduler without TLS speaks first
    return None


def refuse_without_dask() -> None:
    """Raise ProviderUnavailable if the extra for dask is not installed."""
    try:
        importlib.import_module("distributed")
    except ImportError as error:
        raise ProviderUnavailable(
            "builds on other machines need dask.distributed",
            why=str(error),
            remedy="pip install 'epctx[dask]'",
            code=Code.NOT_INSTALLED,
        ) from error


def _strange(url: str, where: str) -> UsageError:
    return UsageError(
        f"{url!r} is not an address of machines", where=where, remedy=_FORMS, code=Code.COMMAND_LINE
    )
