"""The options of the reference EP, parsed. Their schema is schemas/providers/
ReferenceExecutionProvider.options.json; what it cannot say (versions compare) is checked here too,
since options also come from the runtime's callers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.manifest import OptionValue
from epctx.providers.reference.versions import Toolchain, number
from epctx.text import did_you_mean

NAME: Final = "ReferenceExecutionProvider"
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.+-]{0,62}[A-Za-z0-9_+-])?")


class ReferenceOptions(Struct, frozen=True, kw_only=True):
    """What a reference EP takes, calls itself, and stands for.

    Attributes:
        ops: the only ops it takes, `Op` or `domain::Op`; empty: all it can.
        exclude_ops: ops it does not take.
        source: its key: the nodes' `source`, and the `[ep]` of the binary's name.
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
        """The versions, as a binary and a host have them."""
        return Toolchain(
            sdk_version=self.sdk_version,
            driver_version=self.driver_version,
            hardware_architecture=self.hardware_architecture,
        )

    @classmethod
    def parse(cls, options: Mapping[str, OptionValue]) -> ReferenceOptions:
        """Check and convert the options of a manifest entry or of a runtime's caller.

        Raises:
            ManifestError: an unknown name, or a value that is not of the option's kind.
        """
        known = cls.__struct_fields__
        values: dict[str, str | tuple[str, ...]] = {}
        for name, value in options.items():
            if name not in known:
                raise _refused(name, "there is no such option", did_you_mean(name, known))
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
            number(value)
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
