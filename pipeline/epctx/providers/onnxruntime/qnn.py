"""Qualcomm's QNN execution provider, for the HTP: all that epctx knows of it.

Measured on onnxruntime-qnn 2.7.0 (QAIRT 2.51.0) with onnxruntime 1.31.1, Linux x86-64 without an
NPU: there the HTP backend compiles for every chip, and simulates one to run (real-eps.md). What no
line there says is in the docstrings here.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from epctx.errors import CompileError, InvalidGraph, ManifestError, ProviderUnavailable
from epctx.manifest import OptionValue, Tolerance
from epctx.providers.base import Capability, Fingerprint
from epctx.providers.hooks import BinaryGraph, BinaryInfo, BinaryTensor, Precision, Verdict
from epctx.providers.onnxruntime import packages, qnn_binary, qnn_socs
from epctx.providers.onnxruntime.plugins import Plugin
from epctx.providers.onnxruntime.provider import OrtProvider, text

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort

    from epctx.graph.epcontext import EPContextNode

_INSTALL: Final = 'pip install "epctx[qnn]"'
_QUANTIZERS: Final = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "QLinearConv"}
)
_OVERRIDES: Final = "io_name_overrides"
_COMPILERS: Final = re.compile(r"providers_qnn|QnnHtp\.|HtpPrepare|QnnSystem|\.libs")
"""Of the wheel's libraries, those that a compile loads; the others are for GPU, Genie and tools."""
_REASON: Final = re.compile(
    r"Validation FAILED.*\n\s*Operator type: \S+ Node name: (?P<node>\S*) Node index: \d+"
    r"(?:\s+\(.*\))?\n\s*REASON : (?P<reason>.*)"
)


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """QNN's compatibility string: `v2:6:2.51.0:5.51.0:0:60:0:0`.

    Attributes:
        qairt: version of the SDK.
        arch: HTP architecture as the option asked for it; 0: by the chip.
        soc: the chip's number.
        vtcm: VTCM as the option asked for it, in MiB; 0: QNN decided.
    """

    qairt: str
    arch: int
    soc: int
    vtcm: int

    @classmethod
    def parse(cls, info: str) -> Compatibility | None:
        """None: another form than that of onnxruntime-qnn 2.7."""
        fields = info.split(":")
        if len(fields) != 8 or fields[0] != "v2" or not all(map(str.isdecimal, fields[4:7])):
            return None
        arch, soc, vtcm = (int(field) for field in fields[4:7])
        return cls(qairt=fields[2], arch=arch, soc=soc, vtcm=vtcm)


class QNNExecutionProvider(OrtProvider):
    """QNN bound to its options.

    Raises:
        ProviderUnavailable: onnxruntime-qnn is not installed.
        ManifestError: options that QNN would take for something else without a word.
    """

    name = "QNNExecutionProvider"
    label = "qnn"
    sources = frozenset({"QNNExecutionProvider", "QnnExecutionProvider", "QNN", "qnn"})
    can_share = True
    static_shapes = True
    tried = "onnxruntime-qnn 2.7.0, Linux x86-64, HTP compiled and simulated"
    extra_attributes = frozenset({_OVERRIDES, "is_multi_soc_ep_context"})
    prefixed: frozenset[Literal["name", "partition_name"]] = frozenset({"name", "partition_name"})

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._package = packages.find("onnxruntime-qnn", "onnxruntime_qnn", install=_INSTALL)
        given = {key: text(value) for key, value in options.items()}
        self.parts_share = given.pop("partition_binaries", "one") == "one"
        self._backend = given.pop("backend_path", None)
        given.pop("backend_type", None)  # htp, which is the backend's path; QNN refuses both
        self._soc = given.get("soc_model")
        if self._soc is not None:
            number = qnn_socs.number(self._soc, qairt=_qairt())
            self._soc = given["soc_model"] = str(number)
        _refuse_combinations(given)
        if self._backend is not None:
            _refuse_backend(Path(self._backend))
        self._options = given

    def add_to(self, options: ort.SessionOptions) -> None:
        """Add QNN's HTP: the NPU of this host, or the x86 backend that compiles and simulates."""
        devices = self.ep_devices()
        for kind in ("NPU", "CPU"):
            for device in devices:
                if device.device.type.name == kind:
                    own = {"backend_path": str(self._backend_path()), **self._options}
                    options.add_provider_for_devices([device], own)
                    return
        raise ProviderUnavailable(
            "QNN has no device on this host: it compiles on x86-64 and on Snapdragon only",
            remedy="build on such a host, or for another execution provider",
        )

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """QNN's devices on this host: on x86-64 one of type CPU stands for the HTP."""
        library = Path(_module("get_library_path"))
        plugin = Plugin(registration=self.name, library=library, provider=self.name)
        return plugin.devices()

    def own_fingerprint(self) -> Fingerprint:
        """The package's version, and the libraries that a compile loads."""
        own = [p for p in packages.libraries(self._package) if _COMPILERS.search(str(p))]
        backend = self._backend_path().parent
        if backend != self._package.folder:
            own += [p for p in sorted(backend.iterdir()) if _COMPILERS.search(p.name)]
        return Fingerprint(
            toolchain={"onnxruntime-qnn": self._package.version},
            files=packages.labelled("onnxruntime-qnn", own),
        )

    def refuse_prefix(self, *, several_graphs: bool) -> str | None:
        """QNN finds one of several graphs by the node's name, and chooses that name itself."""
        if not several_graphs:
            return None
        return (
            "QNN ignores it, and in a context binary with several graphs it finds each graph by "
            "the name that it gave to the node: another name cannot be loaded"
        )

    def place_prefix(self, node: ir.Node, prefix: str) -> None:
        """Into node name and partition name; the graph in the binary keeps its own."""
        import onnx_ir as ir

        name = node.attributes["partition_name"].as_string()
        node.attributes["partition_name"] = ir.AttrString("partition_name", f"{prefix}{name}")
        super().place_prefix(node, prefix)

    def cannot_run(self) -> str | None:
        """A split graph compiles, and ends in QNN_COMMON_ERROR_GENERAL when it is simulated."""
        if self._options.get("enable_htp_graph_splitting") == "1" and self._simulated():
            return "the x86 simulator does not run a split graph (enable_htp_graph_splitting)"
        return None

    def get_capability(self, model: ir.Model) -> Capability:
        """All nodes but those that it cannot take.

        Raises:
            ModelError: inputs have no static shape: QNN compiles nothing then, without an error.
            CompileError: a float model for a chip that computes integers only: of it QNN compiles
                little nodes that compute nothing, without an error.
        """
        soc = int(self._soc or "0")
        known = _qairt().startswith(f"{qnn_socs.MEASURED}.") and soc not in qnn_socs.FLOAT
        if known and not any(node.op_type in _QUANTIZERS for node in model.graph):
            raise CompileError(
                f"for soc_model {qnn_socs.words(soc)} QAIRT {_qairt()} compiles quantized models "
                "only, and this one is not",
                remedy="quantize it (onnxruntime.quantization, QDQ), or choose another chip",
            )
        return super().get_capability(model)

    def nothing_compiled_remedy(self) -> str:
        """What of the options decides what QNN takes."""
        return "check soc_model, and which operators and types QNN supports"

    def reasons(self, log: str) -> Mapping[str, str]:
        """Why QNN did not take a node, as it logs it when it is verbose."""
        return {
            # Of several sentences without a space between them, the first says it.
            found["node"]: re.split(r"(?<=\.)(?=[A-Z])", found["reason"].strip())[0].rstrip(".")
            for found in _REASON.finditer(log)
        }

    def abandon(self) -> None:
        """Let a tiny session stop sharing: else the process ends with SIGABRT."""
        from epctx.providers.onnxruntime import qnn_stop

        qnn_stop.stop_sharing(self)

    def check_binary(self, binary: Path, nodes: Sequence[ir.Node]) -> None:
        """Graphs, inputs, outputs and chip of the binary against the nodes that refer to it."""
        from epctx.providers.onnxruntime import qnn_match

        try:
            context = qnn_binary.read(self._system_library(), binary)
        except InvalidGraph as error:
            raise CompileError(
                "QNN wrote a context binary that its own system library does not read",
                where=binary.name,
                why=error.why,
                remedy="build again; if it stays, report it with the model",
            ) from error
        soc = None if self._soc is None else int(self._soc)
        qnn_match.require(context, nodes, soc=soc, where=binary.name)

    def recognizes(self, head: bytes) -> bool:
        """A QNN context binary begins with two small big-endian numbers, 2 and 3 in QAIRT 2.51."""
        zeros = head[:3] + head[4:7] + head[8:12]
        return len(head) >= 16 and not any(zeros) and 0 < head[3] < 16 and 0 < head[7] < 16

    def inspect_binary(self, path: Path) -> BinaryInfo:
        """What the system library says of a context binary, in a process of its own.

        Raises:
            InvalidGraph: it is broken.
            ProviderUnavailable: the system library cannot be loaded.
        """
        context = qnn_binary.read(self._system_library(), path)
        properties = {"SDK": context.build_id, "core API": context.api, "HTP blob": context.blob}
        if context.soc_model is not None:
            properties["SoC"] = qnn_socs.words(context.soc_model)
        return BinaryInfo(
            kind="QNN context binary",
            properties=properties,
            graphs=tuple(
                BinaryGraph(
                    name=graph.name, inputs=_tensors(graph.inputs), outputs=_tensors(graph.outputs)
                )
                for graph in context.graphs
            ),
        )

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """The chip, architecture and VTCM that the model says it is for, against the options."""
        if info is None:
            return (
                Verdict(
                    outcome="fail",
                    message=f"it has no ep_compatibility_info.{self.name}",
                    remedy="build it again; onnxruntime-qnn 2 and later write it",
                ),
            )
        found = Compatibility.parse(info)
        if found is None:
            return (Verdict(outcome="not checkable", message=f"{info!r} is of an unknown form"),)
        return tuple(self._verdicts(found))

    def _verdicts(self, found: Compatibility) -> Iterable[Verdict]:
        words = f"it is for soc_model {qnn_socs.words(found.soc)}, made by QAIRT {found.qairt}"
        asked = {
            "soc_model": (found.soc, self._soc),
            "htp_arch": (found.arch, self._options.get("htp_arch")),
            "vtcm_mb": (found.vtcm, self._options.get("vtcm_mb")),
        }
        wrong = [
            f"{option} is {have}, not {want}"
            for option, (have, want) in asked.items()
            if want is not None and have != int(want)
        ]
        if wrong:
            yield Verdict(
                outcome="fail",
                message=f"{words}: {', '.join(wrong)}",
                remedy="build it again with the options that it is to have",
            )
        else:
            yield Verdict(outcome="pass", message=words)

    def cannot_load(
        self, nodes: Sequence[EPContextNode], folder: Path, *, sharing: bool
    ) -> str | None:
        """A context that sessions share ends the x86 simulator with SIGSEGV (section 6)."""
        if not self._simulated():
            return None
        if sharing or self._is_shared(nodes, folder):
            return (
                "its context holds graphs of several sessions, which QNN's x86 simulator cannot "
                "load; a host with an NPU can"
            )
        return None

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """The HTP computes float32 in float16, and quantized models in integers of its own."""
        if precision == "quantized":
            return Tolerance(cosine_min=0.98)
        if precision == "bfloat16" or self._options.get("htp_bf16_enable") == "1":
            return Tolerance(cosine_min=0.995, max_rel=0.1)
        return Tolerance(cosine_min=0.999, max_rel=0.05)

    def _is_shared(self, nodes: Sequence[EPContextNode], folder: Path) -> bool:
        """Whether a context has other graphs than those of one session's nodes."""
        mains = [node.context_path for node in nodes if node.context_path is not None]
        if len(mains) != len(set(mains)):
            return True
        if len(mains) != 1 or not (folder / mains[0]).is_file():
            return False
        try:
            context = qnn_binary.read(self._system_library(), folder / mains[0])
        except (InvalidGraph, ProviderUnavailable):
            return False  # the load will say what is wrong with it
        return len(context.graphs) != len(nodes)

    def _simulated(self) -> bool:
        return all(device.device.type.name != "NPU" for device in self.ep_devices())

    def _backend_path(self) -> Path:
        return Path(self._backend or _module("get_qnn_htp_path"))

    def _system_library(self) -> Path:
        name = "QnnSystem.dll" if sys.platform == "win32" else "libQnnSystem.so"
        beside = self._backend_path().with_name(name)
        return beside if beside.is_file() else Path(_module("get_qnn_htp_path")).with_name(name)


def _refuse_combinations(options: Mapping[str, str]) -> None:
    """What each option allows, and both together do not."""
    soc = options.get("soc_model")
    if soc is not None and "htp_arch" in options:
        raise ManifestError(
            "soc_model and htp_arch are both given",
            why="QNN compiles for the soc_model, and writes the htp_arch into the compatibility "
            "string all the same",
            remedy="leave htp_arch out",
        )
    if options.get("htp_bf16_enable") == "1" and (soc is None or int(soc) < 88):
        raise ManifestError(
            "htp_bf16_enable needs a soc_model of at least 88",
            remedy="set soc_model: sc8480xp, or leave htp_bf16_enable out",
        )
    if options.get("enable_htp_fp16_precision") == "1" and soc in (None, "0"):
        raise ManifestError(
            "enable_htp_fp16_precision needs a soc_model",
            remedy="set soc_model, or leave enable_htp_fp16_precision out",
        )


def _refuse_backend(path: Path) -> None:
    """A library that is missing or no HTP backend: QNN compiles nothing then, without an error."""
    if not path.is_file():
        raise ManifestError(
            f"backend_path is {path}: there is no such file",
            remedy="write the path of libQnnHtp.so (QnnHtp.dll), or leave it out for the one of "
            "onnxruntime-qnn",
        )
    if not re.fullmatch(r"(lib)?QnnHtp\.(so|dll)", path.name):
        raise ManifestError(
            f"backend_path is {path}, which is no HTP backend",
            why="QNN makes contexts with its HTP backend only; with the CPU, IR and saver "
            "backends it compiles nothing, without an error",
            remedy="write the path of libQnnHtp.so (QnnHtp.dll)",
        )


def _tensors(tensors: Iterable[qnn_binary.QnnTensor]) -> tuple[BinaryTensor, ...]:
    return tuple(
        BinaryTensor(name=tensor.name, dtype=tensor.dtype.lower(), shape=tensor.shape)
        for tensor in tensors
    )


@functools.cache
def _qairt() -> str:
    """The QAIRT version of the installed package."""
    try:
        module = importlib.import_module("onnxruntime_qnn.build_and_package_info")
    except ImportError:
        return ""
    return str(getattr(module, "qnn_version", ""))


def _module(function: str) -> str:
    """What a function of the package returns: a path. Its layout differs by platform."""
    try:
        return str(getattr(importlib.import_module("onnxruntime_qnn"), function)())
    except (ImportError, AttributeError, OSError) as error:
        raise ProviderUnavailable(
            "the package onnxruntime-qnn cannot be used",
            why=f"{type(error).__name__}: {error}",
            remedy=f"run `{_INSTALL} --upgrade`",
        ) from error
