"""Which context binaries a host can load: versions of SDK and driver, hardware architecture.

A version is one to four whole numbers with dots; missing ones are 0 (`1.2` is `1.2.0`).

- `sdk_version`: at build the SDK that makes the binary, at load the runtime's SDK. Refused: another
  major version, or a runtime older than what made it.
- `driver_version`: at build the least driver that the binary needs, at load the driver of this
  host. Refused: an older driver.
- `hardware_architecture`: at build what the binary is compiled for, at load what this host is.
  Refused: any other.

Source: spec/ep-context-design.md, "Error Handling During EP Context Binary Loading".
"""

from __future__ import annotations

import re

import msgspec

from epctx.errors import InvalidGraph

_SAYS = "the EP's options say what this host has"
VERSION_PATTERN = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}")


class Toolchain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An SDK, a driver and a hardware: those that a binary needs, or those of a host."""

    sdk_version: str
    driver_version: str
    hardware_architecture: str


def number(version: str) -> tuple[int, int, int, int]:
    """A version as numbers that compare.

    Raises:
        ValueError: it is not a version.
    """
    if not VERSION_PATTERN.fullmatch(version):
        raise ValueError(f"{version!r} is not a version like 1.2.3")
    parts = [int(part) for part in version.split(".")]
    first, second, third, fourth = parts + [0] * (4 - len(parts))
    return first, second, third, fourth


def check(needed: Toolchain, host: Toolchain, *, where: str) -> None:
    """Make sure that `host` can load what `needed` made.

    Raises:
        InvalidGraph: it cannot; both sides are named. Also when `needed` holds no versions.
    """
    try:
        sdk, driver = number(needed.sdk_version), number(needed.driver_version)
    except ValueError as error:
        raise InvalidGraph(
            "has a broken version", where=where, why=str(error), remedy="build it again"
        ) from error
    runtime = number(host.sdk_version)
    if runtime[0] != sdk[0]:
        what = f"was made by SDK {needed.sdk_version}, which SDK {host.sdk_version} of this "
        what += "runtime cannot load: another major version"
        remedy = f"build it again with SDK {host.sdk_version}, or run it where SDK {sdk[0]}.x is "
        remedy += "installed"
    elif runtime < sdk:
        what = f"was made by SDK {needed.sdk_version}, newer than SDK {host.sdk_version} of this "
        what += "runtime"
        remedy = f"update the runtime's SDK to {needed.sdk_version} or later, or build it with "
        remedy += host.sdk_version
    elif number(host.driver_version) < driver:
        what = f"needs driver {needed.driver_version}, this host has {host.driver_version}"
        remedy = f"update the driver to {needed.driver_version} or later, or build with "
        remedy += f"`driver_version: {host.driver_version}`"
    elif needed.hardware_architecture != host.hardware_architecture:
        what = f"was compiled for the hardware architecture {needed.hardware_architecture!r}, "
        what += f"this host is {host.hardware_architecture!r}"
        remedy = f"build with `hardware_architecture: {host.hardware_architecture}`, or run it on "
        remedy += "the hardware that it was built for"
    else:
        return
    raise InvalidGraph(what, where=where, remedy=f"{remedy} ({_SAYS})")
