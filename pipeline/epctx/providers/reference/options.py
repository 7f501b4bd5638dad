"""The parsed options of the reference EP. Their schema is
schemas/providers/ReferenceExecutionProvider.options.json. This module checks them again, since
options also come from the runtime's callers, and it checks rules that a schema cannot express
(comparing versions).

A host can load a context binary if versions of SDK and driver, and hardware architecture, match.

A version is one to four whole numbers with dots; missing ones are 0 (`1.2` is `1.2.0`).

- `sdk_version`: at build the SDK that makes the binary, at load the runtime's SDK. Refused: another
  major version, or a runtime older than the SDK that made the binary.
- `driver_version`: at build the least driver that the binary needs, at load the driver of this
  host. Refused: an older driver.
- `hardware_architecture`: at build the target of the compile, at load the architecture of this
  host. Refused: any other.

Source: spec/ep-context-design.md, "Error Handling During EP Context Binary Loading".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import InvalidGraph, ManifestError
from epctx.manifest import OptionValue
from epctx.text import did_you_mean

_SAYS = "the EP's options say what this host has"
VERSION_PATTERN = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}")


class Toolchain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SDK, driver and hardware that a binary needs, or that a host has."""

    sdk_version: str
    driver_version: str
    hardware_architecture: str


def version_number(version: str) -> tuple[int, int, int, int]:
    """Parse a version into a tuple of numbers that can be compared.

    Raises:
        ValueError: the text is not a version.
    """
    if not VERSION_PATTERN.fullmatch(version):
        raise ValueError(f"{version!r} is not a version like 1.2.3")
    parts = [int(part) for part in version.split(".")]
    first, second, third, fourth = parts + [0] * (4 - len(parts))
    return first, second, third, fourth


def check_versions(needed: Toolchain, host: Toolchain, *, where: str) -> None:
    """Check that `host` can load a binary made with `needed`.

    Raises:
        InvalidGraph: the host cannot load the binary (names both versions), or `needed` holds an
            invalid version.
    """
    try:
        sdk, driver = version_number(needed.sdk_version), version_number(needed.driver_version)
    except ValueError as error:
        raise InvalidGraph(
            "has a broken version", where=where, why=str(error), remedy="build it again"
        ) from error
    runtime = version_number(host.sdk_version)
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
    elif version_number(host.driver_version) < driver:
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


NAME: Final = "ReferenceExecutionProvider"
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.+-]{0,62}[A-Za-z0-9_+-])?")


class ReferenceOptions(Struct, frozen=True, kw_only=True):
    """Options of a reference EP: the ops it takes, its key, and the toolchain it stands for.

    Attributes:
        ops: the only ops that the EP takes, as `Op` or `domain::Op`; empty for all ops that it can
            run.
        exclude_ops: ops that the EP does not take.
        source: the EP's key, used as the nodes' `source` and as the `[ep]` of the binary's name.
        hardware_architecture: at build the target's, at load this host's.
        sdk_version: at build the SDK that makes the binary, at load the runtime's.
        driver_version: at build the least driver needed, at load this host's.
        notes: free text for the nodes' `notes`.
    """

    ops: tuple[str, ...] = ()
    exclude_ops: tuple[str, ...] = ()
    source: str = "reference"
    hardware_architecture: str = "generic"
    sdk_version: str = "1.0.0"
    driver_version: str = "1.0.0"
    notes: str = ""

    @property
    def toolchain(self) -> Toolchain:
        """The toolchain that the options describe."""
        return Toolchain(
            sdk_version=self.sdk_version,
            driver_version=self.driver_version,
            hardware_architecture=self.hardware_architecture,
        )

    @classmethod
    def parse(cls, options: Mapping[str, OptionValue]) -> ReferenceOptions:
        """Check and convert options from a manifest entry or from a caller of the runtime.

        Raises:
            ManifestError: a name is unknown, or a value has the wrong type.
        """
        fields = cls.__struct_fields__
        values: dict[str, str | tuple[str, ...]] = {}
        for name, value in options.items():
            if name not in fields:
                raise _refused(name, "there is no such option", did_you_mean(name, fields))
            values[name] = _ops(name, value) if name.endswith("ops") else _text(name, value)
        return cls(**values)  # type: ignore[arg-type]


def _ops(name: str, value: object) -> tuple[str, ...]:
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise _refused(name, f"{value!r} is not a list of ops", 'write it like ["Conv", "Relu"]')
    return tuple(names)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _refused(name, f"{value!r} is not text", "put it in quotes")
    if name in ("sdk_version", "driver_version"):
        try:
            version_number(value)
        except ValueError as error:
            raise _refused(name, str(error), "write it like 1.2.3") from error
    elif name != "notes" and not _NAME_PATTERN.fullmatch(value):
        raise _refused(
            name,
            f"{value!r} is not a name",
            "use up to 64 ASCII letters, digits and . _ + -, as in a file name",
        )
    return value


def _refused(option: str, why: str, remedy: str) -> ManifestError:
    return ManifestError(
        f"option {option!r} is refused",
        where=NAME,
        why=why,
        remedy=remedy,
        code=Code.WRONG_OPTION_VALUE,
    )
