"""Plugin EP libraries, registered with onnxruntime once per process, and the devices of EPs.

Only `listed` asks onnxruntime for devices. It leaves out the devices of the EPs in
`EPCTX_HIDE_DEVICES` (names, separated by commas), which simulates a host without these devices.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError, ProviderUnavailable

if TYPE_CHECKING:
    import onnxruntime as ort

HIDE: Final = "EPCTX_HIDE_DEVICES"
"""Environment variable that hides devices; workers inherit it."""
_LACKING: Final = re.compile(r"(\S+): cannot open shared object file")
"""Message of Linux's loader about a missing dependency of a library."""
_LOCK = threading.Lock()
_REGISTERED: dict[str, Path] = {}


class Plugin(Struct, frozen=True, kw_only=True):
    """A plugin EP library.

    Attributes:
        registration: name under which the library is registered. With `.virtual` at its end, the
            library offers devices that this host does not have.
        library: the shared library.
        provider: ONNX Runtime's name of the EP in it.
    """

    registration: str
    library: Path
    provider: str

    def devices(self) -> tuple[ort.OrtEpDevice, ...]:
        """Register the library and return the host's devices for the EP, in onnxruntime's order.

        Raises:
            ProviderUnavailable: the library is missing, or onnxruntime refuses it.
        """
        with _LOCK:
            if _REGISTERED.get(self.registration) != self.library:
                self._register()
        library = str(self.library)
        return tuple(
            device
            for device in listed(self.provider)
            if device.ep_metadata.get("library_path", library) == library
        )

    def _register(self) -> None:
        import onnxruntime as ort

        if not self.library.is_file():
            raise ProviderUnavailable(
                f"the library of {self.provider} is missing",
                file=str(self.library),
                remedy="install its package again, or correct the path",
                code=Code.NOT_INSTALLED,
            )
        ort.set_default_logger_severity(2)
        try:
            ort.register_execution_provider_library(self.registration, str(self.library))
        except Exception as error:
            if lacking := _LACKING.search(str(error)):
                raise ProviderUnavailable(
                    f"the library of {self.provider} needs {lacking[1]}, which this host lacks",
                    file=str(self.library),
                    remedy=f"install the device driver or the package that contains {lacking[1]}",
                    code=Code.NOT_INSTALLED,
                ) from error
            raise ProviderUnavailable(
                f"onnxruntime {ort.__version__} refuses the library of {self.provider}",
                file=str(self.library),
                why=" ".join(str(error).split())[:400],
                remedy="install versions of onnxruntime and of the EP that work together",
                code=Code.PACKAGES_CLASH,
            ) from error
        _REGISTERED[self.registration] = self.library


class Wanted(Struct, frozen=True, kw_only=True):
    """Choice among an EP's devices; None in a field allows any.

    Attributes:
        kind: CPU, GPU or NPU.
        name: a part of the vendor's or the device's name, in any case.
        index: index among the devices that match the other fields, from 0.
    """

    kind: str | None = None
    name: str | None = None
    index: int = 0

    def choose(self, devices: Sequence[ort.OrtEpDevice], *, provider: str) -> ort.OrtEpDevice:
        """Return the chosen device.

        Raises:
            ProviderUnavailable: this host has no matching device.
        """
        matching = [device for device in devices if self._fits(device)]
        if self.index < len(matching):
            return matching[self.index]
        have = "; ".join(describe(device) for device in devices)
        raise ProviderUnavailable(
            f"{provider} has no device {self._words()} on this host",
            why=f"it has {have}" if have else "it has no device at all here",
            remedy="run `epctx doctor` to see the devices, and choose one of them",
            code=Code.NO_DEVICE,
        )

    def _fits(self, device: ort.OrtEpDevice) -> bool:
        if self.kind is not None and device.device.type.name != self.kind:
            return False
        return self.name is None or self.name.casefold() in describe(device).casefold()

    def _words(self) -> str:
        words = [self.kind, f"named {self.name!r}" if self.name else None]
        words.append(f"number {self.index}" if self.index else None)
        return " ".join(word for word in words if word) or "to use"


def listed(provider: str) -> tuple[ort.OrtEpDevice, ...]:
    """Return the host's devices for a registered EP, in onnxruntime's order; none if hidden."""
    import onnxruntime as ort

    if provider in hidden():
        return ()
    return tuple(device for device in ort.get_ep_devices() if device.ep_name == provider)


def hidden() -> tuple[str, ...]:
    """Return ONNX Runtime's names of the EPs whose devices are hidden, sorted and unchecked."""
    names = (name.strip() for name in os.environ.get(HIDE, "").split(","))
    return tuple(sorted({name for name in names if name}))


def hidden_error(provider: str) -> ProviderUnavailable | None:
    """Return an error if the EP's devices are hidden, so that it can compile and run nothing; else
    None.
    """
    if provider not in hidden():
        return None
    return ProviderUnavailable(
        f"{HIDE} hides its devices",
        where=provider,
        remedy=f"unset {HIDE}; with it, `epctx build --only GROUP@TARGET` builds groups that do "
        f"not need {provider}",
        code=Code.NO_DEVICE,
    )


def describe(device: ort.OrtEpDevice) -> str:
    """Describe a device in words: `CPU Intel(R) Xeon(R) Processor, Intel`."""
    metadata = dict(device.ep_metadata)
    name = metadata.get("FULL_DEVICE_NAME") or metadata.get("ov_device") or ""
    words = " ".join(word for word in (device.device.type.name, name) if word)
    return f"{words}, {device.device.vendor}" if device.device.vendor else words


def wanted_index(value: object, *, option: str) -> int:
    """Read a device number from an option's value.

    Raises:
        ManifestError: the value is not a device number.
    """
    text = str(value)
    if not text.isdecimal():
        raise ManifestError(f"{option} is {value!r}", remedy="write the number of a device, from 0")
    return int(text)
