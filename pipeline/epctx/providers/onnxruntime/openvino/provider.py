"""Intel's OpenVINO plugin EP, with all facts that epctx knows about it.

Measured on onnxruntime-ep-openvino 1.8.1 (OpenVINO 2026.4.1) with onnxruntime 1.31.1, Linux x86-64,
CPU device (real-eps.md). Further facts: the plugin offers virtual NPUs if its registration name
ends with `.virtual` (platforms 4000, 5010, 5020, 6010), but they compile only where the NPU
compiler is installed, and the Linux wheel lacks it. With `ep.share_ep_contexts` and external
weights it writes the weights' locations (file, offset) into the binary instead of the weights, and
refuses two models that have weights of the same name at different locations. It loads no model with
two embedded contexts ("Multiple embedded native EPContext main contexts are not supported"). On a
CPU by another vendor (AMD EPYC) the plugin registers without an error and offers no CPU device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from epctx.error_codes import Code
from epctx.errors import CompileError, InvalidGraph, ManifestError, ProviderUnavailable
from epctx.files.digest import Buffer, canonical_json
from epctx.files.entries import read_document
from epctx.graph.epcontext import COMPATIBILITY, EPContextNode
from epctx.graph.model import Partition
from epctx.manifest import OptionValue, Tolerance
from epctx.providers.base import (
    BinaryGraph,
    BinaryInfo,
    DeviceKind,
    Fingerprint,
    KnownFault,
    OnDevice,
    Precision,
    PrefixPlace,
    Verdict,
)
from epctx.providers.onnxruntime import host, packages
from epctx.providers.onnxruntime.ep import text
from epctx.providers.onnxruntime.openvino import binary as openvino_binary
from epctx.providers.onnxruntime.plugins import Plugin, describe
from epctx.providers.onnxruntime.provider import OrtProvider

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort


def config_of(inline: str | None, file: str | None) -> Mapping[str, Mapping[str, object]]:
    """Read the properties by device from JSON text or a JSON file; empty if neither is given.

    Raises:
        ManifestError: both are given, the file cannot be read, or the JSON is not an object of
            objects.
    """
    if inline is not None and file is not None:
        raise ManifestError(
            "load_config and load_config_file are both given",
            remedy="leave one of them out",
            code=Code.OPTIONS_DISAGREE,
        )
    if file is not None:
        try:
            inline = read_document(Path(file), _CONFIG_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(
                f"load_config_file {file} cannot be read",
                why=str(error),
                remedy="write the path of a JSON file",
                code=Code.WRONG_OPTION_VALUE,
            ) from error
    if inline is None:
        return {}
    where = "load_config" if file is None else f"load_config_file {file}"
    try:
        config = json.loads(inline)
    except (ValueError, RecursionError) as error:
        raise _bad_config(where, str(error)) from error
    if not isinstance(config, dict) or not all(isinstance(v, dict) for v in config.values()):
        raise _bad_config(where, "it is not an object of objects")
    return config


def properties_of(config: Mapping[str, Mapping[str, object]], device: str) -> Mapping[str, object]:
    """Return the device's own properties.

    Raises:
        ManifestError: OpenVINO would ignore a property, or epctx must set it.
    """
    kind = device.partition(".")[0]
    for name, properties in config.items():
        if name not in (kind, device):
            raise ManifestError(
                f"load_config has properties of {name}, but device_type is {device}",
                why="OpenVINO ignores the properties of other devices",
                remedy=f"put them under {device}, or set device_type: {name}",
                code=Code.OPTIONS_DISAGREE,
            )
        if "CACHE_DIR" in properties:
            raise ManifestError(
                "load_config sets CACHE_DIR",
                why="epctx has its own cache, and OpenVINO's cache would change the result of the "
                "build",
                remedy="leave CACHE_DIR out",
                code=Code.OWNED_SETTING,
            )
    return {**config.get(kind, {}), **config.get(device, {})}


def _bad_config(where: str, why: str) -> ManifestError:
    return ManifestError(
        f"{where} is not an OpenVINO configuration",
        why=why,
        remedy='write JSON like {"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}',
    )


def _is_decoding(node: ir.Node) -> bool:
    """Tell whether a Softmax is attention of a decoder at sequence 1: single-row scores plus a
    bias.
    """
    scores = node.inputs[0]
    if scores is None or scores.shape is None or len(scores.shape) < 2:
        return False
    producer = scores.producer()
    return scores.shape[-2] == 1 and producer is not None and producer.op_type == "Add"


def _in_bfloat16(node: ir.Node) -> bool:
    given = node.inputs[0]
    single = given is not None and given.dtype is not None and given.dtype.name == "FLOAT"
    return single and "amx_bf16" in host.cpu().flags


FAULTS: Final = (
    KnownFault(
        op_type="Softmax",
        concerns=_is_decoding,
        what="on a CPU with AMX OpenVINO computes attention at sequence 1 wrongly where its bias "
        "is an input: cosine 0.18 to 0.55, or NaN",
        remedy="keep Softmax, or the Add before it, off OpenVINO",
    ),
    *(
        KnownFault(
            op_type=op_type,
            concerns=_in_bfloat16,
            what="on a CPU with AMX OpenVINO computes float32 in bfloat16: errors of 3e-3 to 3e-2",
            remedy='set load_config: \'{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}\'',
        )
        for op_type in ("MatMul", "Gemm", "Conv")
    ),
)


_CONFIG_BYTES: Final = 1 << 24
_INSTALL: Final = 'pip install "epctx[openvino]"'
_MEASURED: Final = "1.8.1"
_OFFERS: Final = "offers devices on Intel CPUs only"
_OTHER_DEVICES: Final = ("gpu_plugin", "npu_plugin", "auto_plugin", "hetero_plugin", "auto_batch")
_INSTRUCTIONS: Final = ("sse", "ssse", "avx", "amx", "fma", "f16c", "pni", "popcnt", "bmi", "asimd")
"""Prefixes of the instruction set extensions in the fingerprint. A CPU's other flags change with
microcode and kernel, and do not affect the bytes."""


class OpenVINOExecutionProvider(OrtProvider):
    """OpenVINO bound to its options.

    Raises:
        ProviderUnavailable: onnxruntime-ep-openvino is not installed.
        ManifestError: the plugin would silently ignore an option.
    """

    name = "OpenVINOExecutionProvider"
    label = "OpenVINOExecutionProvider"
    sources = frozenset({"OpenVINOExecutionProvider"})
    can_share = True
    parts_share = True
    shares_outside = True
    embeds_parts = False
    tried = "onnxruntime-ep-openvino 1.8.1, Linux x86-64, Intel CPU"
    prefixed: frozenset[PrefixPlace] = frozenset({"name", "partition_name", "graph"})
    finds_graphs_by: Literal["name", "partition_name"] = "partition_name"
    faults = FAULTS
    foresees = True
    binds_by_name = True
    reads_one_binary = True

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._package = packages.find(
            "onnxruntime-ep-openvino", "onnxruntime_ep_openvino", install=_INSTALL
        )
        given = {key: text(value) for key, value in options.items()}
        self._device = given.pop("device_type", "CPU")
        self._platform = given.pop("npu_platform", None)
        if self._platform is not None and self._device != "NPU":
            raise ManifestError(
                f"npu_platform is given, but device_type is {self._device}",
                remedy="set device_type: NPU, or leave npu_platform out",
                code=Code.OPTIONS_DISAGREE,
            )
        config = config_of(given.pop("load_config", None), given.pop("load_config_file", None))
        self._properties = properties_of(config, self._device)
        if config:
            given["load_config"] = canonical_json(config).decode()
        self._options = given

    def add_to(self, options: ort.SessionOptions) -> None:
        """Add OpenVINO's device of `device_type`, since the plugin itself ignores that option."""
        devices = self.ep_devices()
        for device in devices:
            if self._is_wanted(device):
                options.add_provider_for_devices([device], self._options)
                return
        raise self.unavailable() or self._lacking(devices)

    def unavailable(self) -> ProviderUnavailable | None:
        """Return an error if the EP's devices are hidden, or if `device_type` is CPU and the CPU is
        not Intel's; else None.

        For plugin versions that were not measured, and for GPUs and NPUs, which may be Intel's
        beside any CPU, only the device list tells (`add_to`).
        """
        if (obstacle := super().unavailable()) is not None:
            return obstacle
        if self._device != "CPU" or self._package.version != _MEASURED:
            return None
        return self._refused() if _foreign_cpu() else None

    def _lacking(self, devices: Sequence[ort.OrtEpDevice]) -> ProviderUnavailable:
        """Make the error for a host without the wanted device."""
        if self._device == "CPU" and not devices and _foreign_cpu():
            return self._refused()
        have = "; ".join(describe(device) for device in devices)
        return ProviderUnavailable(
            f"its plugin {self._package.version} offers no device {self._wanted()} on this host",
            where=self.name,
            why=f"it offers {have}" if have else "it offers none at all",
            remedy="set device_type to one of them; for an NPU elsewhere, set npu_platform"
            if have
            else "check that the device's driver is installed; `epctx doctor` shows the devices",
            code=Code.NO_DEVICE,
        )

    def _refused(self) -> ProviderUnavailable:
        """Make the error for a CPU of another vendor, which the plugin silently ignores."""
        return ProviderUnavailable(
            f"its plugin {self._package.version} {_OFFERS}, but this CPU is {_vendor()}",
            where=self.name,
            remedy="build and run groups that need it on a host with an Intel CPU; here "
            "`epctx build --only GROUP@TARGET` builds the other groups",
            code=Code.NO_DEVICE,
        )

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """Return OpenVINO's devices on this host; with `npu_platform` the virtual NPUs.

        AUTO is a separate EP in onnxruntime, and cannot make a context.
        """
        virtual = ""
        if self._platform is not None:
            virtual = ".virtual"
            if not any(self._package.folder.glob("*npu_compiler*")):
                raise ProviderUnavailable(
                    "this OpenVINO plugin has no NPU compiler",
                    file=str(self._package.folder),
                    why="the Linux wheel does not ship it",
                    remedy="build on Windows, or where the NPU's driver contains it; or set "
                    "device_type to CPU or GPU",
                    code=Code.NO_DEVICE,
                )
        library = packages.path_from(
            "onnxruntime_ep_openvino", "get_library_path", remedy=f"run `{_INSTALL} --upgrade`"
        )
        registration = f"{self.name}{virtual}"
        plugin = Plugin(registration=registration, library=library, provider=self.name)
        return plugin.devices()

    def own_fingerprint(self) -> Fingerprint:
        """Return the package's version, its libraries for the device, and the host's instruction
        set.

        OpenVINO compiles for the instruction set and writes it into the binary (section 1). The
        number of cores is left out, since the compile runs on one core.
        """
        skipped = () if self._device != "CPU" else _OTHER_DEVICES
        own = [
            path
            for path in packages.libraries(self._package)
            if not any(part in path.name for part in skipped)
        ]
        cpu = host.cpu()
        flags = [flag for flag in cpu.flags if flag.startswith(_INSTRUCTIONS)]
        return Fingerprint(
            toolchain={self._package.distribution: self._package.version},
            files=packages.labelled(self._package.distribution, own),
            host={
                "cpu vendor": cpu.vendor,
                "cpu family": cpu.family,
                "cpu model": cpu.model,
                "cpu instructions": " ".join(flags),
            },
        )

    def compiling(self) -> AbstractContextManager[None]:
        """Keep the process on one core, since OpenVINO's graphs depend on the number of cores
        (section 1).

        OpenVINO counts the cores when its library is loaded, and no property changes the count.
        """
        return host.one_core()

    def place_prefix(self, node: ir.Node, prefix: str) -> None:
        """Put the prefix into the node name. The partition name, which is the blob's name, has it
        already from the file's stem.
        """
        name = node.attributes["partition_name"].as_string()
        if not name.startswith(prefix):
            raise CompileError(
                f"OpenVINO named a partition {name!r}, without the prefix {prefix!r}",
                remedy="leave node_name_prefix out; report it with the plugin's version",
            )
        super().place_prefix(node, prefix)

    def foresee(self, model: ir.Model, partition: Partition) -> Mapping[ir.Node, str]:
        """Ask the EP node by node, since its log does not tell."""
        from epctx.providers.onnxruntime import capability

        return capability.left_one_by_one(model, partition, self)

    def check_binary(self, binary: Path, nodes: Sequence[ir.Node]) -> None:
        """Check that each node's partition is a blob of the binary."""
        try:
            content = openvino_binary.read(binary)
        except openvino_binary.Malformed as error:
            raise _misfit(binary, str(error)) from error
        blobs = {blob.name for blob in content.blobs}
        names = {node.attributes["partition_name"].as_string() for node in nodes}
        if blobs != names:
            why = f"it holds {', '.join(sorted(blobs))}; the nodes are {', '.join(sorted(names))}"
            raise _misfit(binary, why)

    def recognizes(self, head: bytes) -> bool:
        """Tell whether the file begins with OVEP_BIN."""
        return head.startswith(openvino_binary.MAGIC)

    def merge_binaries(self, binaries: Sequence[Path]) -> Iterator[Buffer]:
        """Merge binaries into one, since a session looks for every graph in the first binary.

        With several binaries, onnxruntime-ep-openvino 1.8.1 fails with "Blob not found"; with
        several embedded contexts, with "Multiple embedded native EPContext main contexts are not
        supported".
        """
        try:
            yield from openvino_binary.merge(binaries)
        except openvino_binary.Malformed as error:
            raise InvalidGraph(
                "the context binaries cannot be merged into one",
                where=", ".join(path.name for path in binaries),
                why=str(error),
                remedy="build the models in one group, sharing one context: `sharing_groups`",
            ) from error

    def inspect_binary(self, path: Path) -> BinaryInfo:
        """Describe the blobs of a context binary."""
        content = _read(path)
        return BinaryInfo(
            kind="OpenVINO context binary",
            properties={"made by": content.producer, "table version": content.version},
            graphs=tuple(
                BinaryGraph(
                    name=blob.name,
                    properties={"bytes": str(blob.size), "offset": str(blob.offset)},
                )
                for blob in content.blobs
            ),
        )

    def misfits(self, path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
        """Yield a message for each node whose partition is not a blob of the binary."""
        blobs = {blob.name for blob in _read(path).blobs}
        for node in nodes:
            attribute = node.attributes.get("partition_name")
            name = attribute.as_string() if attribute is not None else ""
            if name not in blobs:
                yield f"it has no blob {name!r} for node {node.name!r}"

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """Check that the model has a compatibility string in the plugin's form."""
        again = "build it again; onnxruntime-ep-openvino 1.8 and later write it"
        if info is None:
            message = f"it has no {COMPATIBILITY}{self.name}"
            return (Verdict(outcome="fail", message=message, remedy=again),)
        try:
            fields = json.loads(info)
            words = f"{fields['ov_compat_string']}, made by plugin {fields['ovep_ver']}"
        except (ValueError, KeyError, TypeError, RecursionError):
            message = f"its ep_compatibility_info is {info[:80]!r}, which is not the plugin's JSON"
            return (Verdict(outcome="fail", message=message, remedy=again),)
        return (Verdict(outcome="pass", message=f"it is for {words}"),)

    def cannot_load(
        self,
        nodes: Sequence[EPContextNode],
        folder: Path,
        *,
        sharing: bool,
    ) -> str | None:
        """Return why this host's device cannot load a model; None if nothing speaks against it."""
        if self._platform is not None:
            return f"it is for an NPU of platform {self._platform}, which this host does not have"
        if (obstacle := self.unavailable()) is not None:
            return f"{self.name}: {obstacle.what}"
        devices = self.ep_devices()
        if not any(self._is_wanted(device) for device in devices):
            return f"{self.name}: {self._lacking(devices).what}"
        return None

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """Return float32's limits, unless a property, the model or the CPU's bfloat16 units lower
        the precision.
        """
        if precision == "quantized":
            return Tolerance(cosine_min=0.99, max_rel=0.5)
        if self._computes_float32() and precision in ("float32", "float64"):
            return Tolerance(cosine_min=0.99999, max_rel=1e-3)
        return Tolerance(cosine_min=0.99, max_rel=0.2)

    def device_kind(self) -> DeviceKind:
        """Return the kind of `device_type`: `GPU.1` is a GPU."""
        kinds: Mapping[str, DeviceKind] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}
        return kinds[self._device.partition(".")[0]]

    def inference_options(self) -> Mapping[str, str]:
        """Return all options except the device, which is selected separately. OpenVINO applies
        properties on import.
        """
        return self._options

    def on_device(self, nodes: Sequence[EPContextNode], *, sharing: bool) -> OnDevice:
        """Describe the device of `device_type`; among several of a kind, the one with its
        number.
        """
        return OnDevice(
            ep=self.name,
            registration=self.name,
            package=self._package.distribution,
            module="onnxruntime_ep_openvino",
            kinds=(self.device_kind().upper(),),
            metadata={"ov_device": self._device} if "." in self._device else {},
            options=self._options,
        )

    def _computes_float32(self) -> bool:
        hint = str(self._properties.get("INFERENCE_PRECISION_HINT", "")).lower()
        if hint:
            return hint in ("f32", "fp32", "float")
        # By default OpenVINO computes in bfloat16 on CPUs with units for it, and in float16 on GPUs
        # and NPUs.
        native = {"amx_bf16", "amx_tile", "avx512_bf16", "bf16"}
        return self._device == "CPU" and not native & set(host.cpu().flags)

    def _is_wanted(self, device: ort.OrtEpDevice) -> bool:
        metadata = dict(device.ep_metadata)
        if self._platform is not None:
            return metadata.get("npu_platform") == self._platform
        own = metadata.get("ov_device", "")
        return own == self._device or (self._device == "GPU" and own == "GPU.0")

    def _wanted(self) -> str:
        return self._device if self._platform is None else f"NPU of platform {self._platform}"


def _foreign_cpu() -> bool:
    """Tell whether this host's CPU is known to be another vendor's; macOS does not tell the
    vendor.
    """
    return sys.platform != "darwin" and host.cpu().vendor not in ("", "GenuineIntel")


def _vendor() -> str:
    """Return the CPU's vendor in words. On ARM the vendor is a number."""
    vendor = host.cpu().vendor
    return f"Arm's implementer {vendor}" if vendor.startswith("0x") else vendor


def _read(path: Path) -> openvino_binary.OpenVinoBinary:
    try:
        return openvino_binary.read(path)
    except openvino_binary.Malformed as error:
        raise InvalidGraph(
            "is a broken OpenVINO context binary",
            file=str(path),
            why=str(error),
            remedy="copy it again from where it was built, or build it again",
        ) from error


def _misfit(binary: Path, why: str) -> CompileError:
    return CompileError(
        "the context binary that OpenVINO wrote does not match its models",
        file=binary.name,
        why=why,
        remedy="build again; if the error stays, report it with the models",
    )
