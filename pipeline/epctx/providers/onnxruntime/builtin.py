"""EPs without a module in epctx: built into the installed onnxruntime, or plugins given by options.

Built in: TensorRT, Vitis AI and whatever `onnxruntime.get_available_providers()` lists. A plugin,
such as TensorRT RTX, has the option `plugin.library` (a path) or `plugin.package` (an installed
Python package that contains the library). If the host has several devices, `plugin.device_type`
(CPU, GPU, NPU), `plugin.device_name` and `plugin.device_index` choose one. `plugin.registration` is
the name under which the library is registered; the default is the EP's name.

The code path is the same as for QNN and OpenVINO. None of these EPs was tried on any host.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epctx.error_codes import Code
from epctx.errors import ManifestError, ProviderUnavailable
from epctx.graph.epcontext import EPContextNode
from epctx.manifest import DEFAULT_EP, OptionValue
from epctx.providers.base import Fingerprint, OnDevice
from epctx.providers.onnxruntime import packages
from epctx.providers.onnxruntime.ep import text
from epctx.providers.onnxruntime.plugins import Plugin, Wanted, listed, wanted_index
from epctx.providers.onnxruntime.provider import OrtProvider

if TYPE_CHECKING:
    import onnxruntime as ort


_PREFIX: Final = "plugin."
_PLUGIN_KEYS: Final = frozenset(
    {"library", "package", "registration", "device_type", "device_name", "device_index"}
)
_KINDS: Final = ("CPU", "GPU", "NPU")
_BUILT_INTO: Final = "install {} instead of onnxruntime"
_INSTALL: Final = {
    "TensorrtExecutionProvider": _BUILT_INTO.format("onnxruntime-gpu"),
    "NvTensorRTRTXExecutionProvider": "install onnxruntime-ep-nv-tensorrt-rtx beside onnxruntime, "
    "and set plugin.package: onnxruntime_ep_nv_tensorrt_rtx; it needs NVIDIA's driver",
    "VitisAIExecutionProvider": _BUILT_INTO.format("onnxruntime-vitisai"),
    "MIGraphXExecutionProvider": _BUILT_INTO.format("onnxruntime-migraphx"),
}
"""Remedies that say how to get an EP: a distribution of onnxruntime with the EP built in, or a
plugin."""
_OTHER: Final = _BUILT_INTO.format("the onnxruntime that has it") + (
    "; for a plugin, set plugin.library or plugin.package"
)


class BuiltInProvider(OrtProvider):
    """An EP built into the installed onnxruntime, bound to its options."""

    can_share = False

    def __init__(self, name: str, options: Mapping[str, OptionValue]) -> None:
        self.name = self.label = name
        self.sources = frozenset({name})
        self._options = {key: text(value) for key, value in options.items()}

    def add_to(self, options: ort.SessionOptions) -> None:
        """Add the EP in the form that the installed onnxruntime has."""
        import onnxruntime as ort

        available = ort.get_available_providers()
        if self.name not in available:
            raise ProviderUnavailable(
                f"the installed onnxruntime {ort.__version__} has no {self.name}",
                why=f"it has {', '.join(available)}",
                remedy=_INSTALL.get(self.name, _OTHER),
                code=Code.NOT_INSTALLED,
            )
        if (obstacle := self.unavailable()) is not None:
            raise obstacle
        options.add_provider(self.name, self._options)

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """Return the devices that onnxruntime lists for the EP; none for older built-in EPs."""
        return listed(self.name)

    def own_fingerprint(self) -> Fingerprint:
        """Return an empty fingerprint, since the EP's libraries are onnxruntime's."""
        return Fingerprint(toolchain={})


class PluginProvider(OrtProvider):
    """A plugin EP without a module in epctx, bound to its options."""

    can_share = False

    def __init__(self, name: str, options: Mapping[str, OptionValue]) -> None:
        self.name = self.label = name
        self.sources = frozenset({name})
        own = {
            key.removeprefix(_PREFIX): text(value)
            for key, value in options.items()
            if key.startswith(_PREFIX)
        }
        if unknown := sorted(own.keys() - _PLUGIN_KEYS):
            raise ManifestError(
                f"unknown option {_PREFIX}{unknown[0]}",
                remedy=f"write one of {', '.join(_PREFIX + key for key in sorted(_PLUGIN_KEYS))}",
                code=Code.UNKNOWN_OPTION,
            )
        self._library, self._version = _locate(own)
        self._registration = own.get("registration", name)
        kind = own.get("device_type")
        if kind is not None and kind not in _KINDS:
            raise ManifestError(
                f"{_PREFIX}device_type is {kind!r}",
                remedy=f"write one of {', '.join(_KINDS)}",
                code=Code.WRONG_OPTION_VALUE,
            )
        index = wanted_index(own.get("device_index", "0"), option=f"{_PREFIX}device_index")
        self._wanted = Wanted(kind=kind, name=own.get("device_name"), index=index)
        self._options = {
            key: text(value) for key, value in options.items() if not key.startswith(_PREFIX)
        }

    def add_to(self, options: ort.SessionOptions) -> None:
        """Add the EP on the device that the options choose, or on its first device."""
        devices = self.ep_devices()
        if (obstacle := self.unavailable()) is not None:
            raise obstacle
        device = self._wanted.choose(devices, provider=self.name)
        options.add_provider_for_devices([device], self._options)

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """Return the plugin's devices on this host."""
        plugin = Plugin(registration=self._registration, library=self._library, provider=self.name)
        return plugin.devices()

    def on_device(self, nodes: Sequence[EPContextNode], *, sharing: bool) -> OnDevice:
        """Describe the plugin; its package may tell the library's path."""
        module = next(iter(self._version), None)
        kinds = () if self._wanted.kind is None else (self._wanted.kind,)
        return OnDevice(
            ep=self.name,
            registration=self._registration,
            package=(module or "").replace("_", "-"),
            module=module,
            kinds=kinds,
            options=self._options,
        )

    def own_fingerprint(self) -> Fingerprint:
        """Return the version of the plugin's package, if there is one, and the libraries beside the
        plugin.
        """
        folder = self._library.parent
        with ProviderUnavailable.if_refused(
            f"{folder}, with the library of {self.name}, cannot be listed",
            remedy="allow yourself to read that folder, or move the library to a folder of its own",
        ):
            beside = [path for path in sorted(folder.iterdir()) if packages.is_library(path)]
        own = dict.fromkeys((self._library, *beside))
        return Fingerprint(toolchain=self._version, files=packages.labelled(self.name, own))


def known() -> tuple[str, ...]:
    """Return the EPs that epctx knows how to get, installed or not."""
    return tuple(_INSTALL)


def create(name: str, options: Mapping[str, OptionValue]) -> BuiltInProvider | PluginProvider:
    """Make an EP without a module in epctx, by ONNX Runtime's name of the EP."""
    plugin = any(key.startswith(_PREFIX) for key in options)
    return PluginProvider(name, options) if plugin else BuiltInProvider(name, options)


def offers(name: str, options: Mapping[str, OptionValue]) -> bool:
    """Tell whether `create` can make an EP: a known EP, one of the installed onnxruntime, or a
    plugin.
    """
    if name in _INSTALL or any(key.startswith(_PREFIX) for key in options):
        return True
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    import onnxruntime as ort

    return name in ort.get_available_providers() and name != DEFAULT_EP


def _locate(own: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """Return the plugin's library, and the version of its package."""
    if ("library" in own) == ("package" in own):
        raise ManifestError(
            "a plugin EP needs either plugin.library or plugin.package",
            remedy="write the path of its library, or the name of its Python package",
        )
    if "library" in own:
        path = Path(own["library"])
        what, remedy = f"plugin.library is {path}", "write the path of the plugin's library"
        with ManifestError.if_refused(what, remedy=remedy):  # as of a name that is too long
            there = path.is_file()
        if not path.is_absolute() or not there:
            why = "there is no such file" if path.is_absolute() else "the path is relative"
            raise ManifestError(what, why=why, remedy=remedy)
        return path, {}
    return packages.plugin_library(own["package"])
