"""Qualcomm's QNN execution provider for the HTP, with all facts that epctx knows about it.

Measured on onnxruntime-qnn 2.7.0 (QAIRT 2.51.0) with onnxruntime 1.31.1, Linux x86-64 without an
NPU: there the HTP backend compiles for every chip, and runs models on a simulated chip
(real-eps.md). Facts that real-eps.md lacks are in the docstrings here.

Not every binary is reproducible. The compiler writes uninitialized memory into some binaries, as 16
of every 32 bits beside constants in half precision: bytes past the end of another constant, remains
of earlier work, parts of heap addresses. Weights are named by a hash that includes these bytes, so
names differ too. Where equal weights are stored once, offsets differ as well. A plain onnxruntime
script gives the same result. The causes (QAIRT 2.51, one graph each, repeated):

- Mul and Div by a constant that has the other operand's shape, such as the weight of a norm written
  as nodes where the sequence is 1: [1, 1, 256] by [256], not [1, 64, 256] by [256], and none of 64
  elements or fewer;
- Expand, which becomes a Mul by ones: repeated key and value heads;
- a constant causal mask in a prefill graph, in one of twelve builds.

A transformer without these (`scripts/transformer.py --npu`) gave the same bytes 90 times, on two
chips, and so did MatMul, LayerNormalization, MLPs and SqueezeNet. Options, a single core, zeroed
allocations with 4 KB of padding, and fixed addresses do not make the unstable graphs stable.
"""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from epctx.errors import CompileError, EpctxError, InvalidGraph, ProviderUnavailable
from epctx.graph.epcontext import COMPATIBILITY, OVERRIDES, EPContextNode
from epctx.graph.model import Partition, Refusal
from epctx.manifest import OptionValue, Tolerance
from epctx.providers.base import (
    FLOAT16_MAX,
    BinaryGraph,
    BinaryInfo,
    Capability,
    DeviceKind,
    Fingerprint,
    OnDevice,
    Precision,
    PrefixPlace,
    Trace,
    Verdict,
)
from epctx.providers.onnxruntime import packages, session
from epctx.providers.onnxruntime.plugins import Plugin
from epctx.providers.onnxruntime.provider import OrtProvider
from epctx.providers.onnxruntime.qnn import binary as qnn_binary
from epctx.providers.onnxruntime.qnn import dlc, faults, match, socs
from epctx.providers.onnxruntime.qnn.faults import FAULTS, KEPT_OFF, kept_off, why_unstable
from epctx.providers.onnxruntime.qnn.options import INSTALL, QnnOptions, package_path, qairt

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort


_QUANTIZERS: Final = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "QLinearConv"}
)
_BORDER: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})
_OFFLOAD: Final = "offload_graph_io_quantization"
_WHERE_LOADED: Final = frozenset(
    {
        *("htp_performance_mode", "rpc_control_latency", "disable_file_mapped_weights"),
        *("enable_htp_shared_memory_allocator", "skip_qnn_version_check"),
    }
)
_OLDEST: Final = 68
_NO_MEMORY: Final = "QNN_COMMON_ERROR_MEM_ALLOC"
_OPENVINO: Final = "OpenVINOExecutionProvider"
_X86_LINUX: Final = sys.platform == "linux" and platform.machine() == "x86_64"
_COMPILERS: Final = re.compile(
    rf"providers_qnn|QnnHtp\.|QnnSystem|\.libs{'' if _X86_LINUX else '|HtpPrepare'}"
)
"""Libraries of the wheel that a compile loads; the others are for GPU, Genie and tools. On Linux
for x86-64 libQnnHtp.so contains what the equally large libHtpPrepare.so contains elsewhere
(2.7.0)."""


_STOP = "stop.onnx"
_STOP_MODEL = """
<ir_version: 9, opset_import: ["": 17]>
stop (float[1, 4] x) => (float[1, 4] y)
<
    float scale = {0.5}, uint8 zero = {128},
    uint8[4, 4] weight = {
        129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129
    }
>
{
    xq = QuantizeLinear (x, scale, zero)
    xd = DequantizeLinear (xq, scale, zero)
    wd = DequantizeLinear (weight, scale, zero)
    m = MatMul (xd, wd)
    mq = QuantizeLinear (m, scale, zero)
    y = DequantizeLinear (mq, scale, zero)
}
"""
"""Model of one quantized MatMul, which compiles for every chip."""


class QNNExecutionProvider(OrtProvider):
    """QNN bound to its options.

    Raises:
        ProviderUnavailable: onnxruntime-qnn is not installed.
        ManifestError: QNN would silently misread an option.
    """

    name = "QNNExecutionProvider"
    label = "qnn"
    sources = frozenset({"QNNExecutionProvider", "QnnExecutionProvider", "QNN", "qnn"})
    can_share = True
    static_shapes = True
    wants_inputs = True  # 2.7.0: "Having zero graph inputs is not supported on this backend"
    judging_devices = frozenset({"NPU"})
    tried = "onnxruntime-qnn 2.7.0, Linux x86-64, HTP compiled and simulated"
    extra_attributes = frozenset({OVERRIDES, match.FLEXIBLE})
    prefixed: frozenset[PrefixPlace] = frozenset({"name", "partition_name"})
    faults = FAULTS
    foresees = True
    unstable = (
        "QAIRT 2.51 writes uninitialized memory beside some constants: for Mul and Div by a "
        "constant of the other operand's shape (norms written as nodes), for Expand, for "
        "constant attention masks, and for weights in blocks (`weight_only`, MatMulNBits) whose "
        "columns are not a multiple of 32; fold the weights of norms into the layers after them, "
        "repeat with Tile or Concat, let the mask be an input, and give weights such columns"
    )

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._package = packages.find("onnxruntime-qnn", "onnxruntime_qnn", install=INSTALL)
        self._options = QnnOptions.parse(options)
        self._given = options
        self._flexible = len(self._options.chips) > 1
        # 2.7.0: "Multi-SoC EP context is currently unsupported with shared EP context usage"
        self.can_share = not self._flexible
        self.parts_share = self._options.one_binary and not self._flexible

    def add_to(self, options: ort.SessionOptions) -> None:
        """Add QNN's HTP: the NPU of this host, or the x86 backend that compiles and simulates."""
        devices = self.ep_devices()
        for kind in ("NPU", "CPU"):
            for device in devices:
                if device.device.type.name == kind:
                    own = {"backend_path": str(self._backend_path()), **self._options.given}
                    if self._flexible and not session.generates(options):
                        del own["soc_model"]  # 2.7.0 takes several chips only to generate a context
                    options.add_provider_for_devices([device], own)
                    return
        raise self.unavailable() or ProviderUnavailable(
            "QNN has no device on this host: it compiles on x86-64 and on Snapdragon only",
            remedy="build on such a host, or for another execution provider",
        )

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        """Return QNN's devices on this host. On x86-64 a device of type CPU stands for the HTP."""
        library = package_path("get_library_path")
        plugin = Plugin(registration=self.name, library=library, provider=self.name)
        return plugin.devices()

    def own_fingerprint(self) -> Fingerprint:
        """Return the package's version, and the libraries that a compile loads."""
        own = [
            p
            for p in packages.libraries(self._package)
            if _COMPILERS.search(f"{p.parent.name}/{p.name}")
        ]
        backend = self._backend_path().parent
        if backend != self._package.folder:
            own += [p for p in sorted(backend.iterdir()) if _COMPILERS.search(p.name)]
        return Fingerprint(
            toolchain={"onnxruntime-qnn": self._package.version},
            files=packages.labelled("onnxruntime-qnn", own),
        )

    def refuse_prefix(self, *, several_graphs: bool) -> str | None:
        """Refuse a prefix for several graphs: QNN finds them by the node's name, and chooses that
        name itself.
        """
        if not several_graphs:
            return None
        return (
            "QNN ignores it, and in a context binary with several graphs it finds each graph by "
            "the name that it gave to the node, so it cannot load a node with another name"
        )

    def place_prefix(self, node: ir.Node, prefix: str) -> None:
        """Put the prefix into node and partition name; the graph in the binary keeps its name."""
        import onnx_ir as ir

        name = node.attributes["partition_name"].as_string()
        node.attributes["partition_name"] = ir.AttrString("partition_name", f"{prefix}{name}")
        super().place_prefix(node, prefix)

    def cannot_run(self) -> str | None:
        """Refuse to run split graphs: they compile, but the simulator fails with
        QNN_COMMON_ERROR_GENERAL.
        """
        if self._options.has("enable_htp_graph_splitting") and self._simulated():
            return "the x86 simulator does not run a split graph (enable_htp_graph_splitting)"
        return None

    def get_capability(self, model: ir.Model) -> Capability:
        """Return all nodes except those that QNN cannot take.

        Raises:
            ModelError: inputs have no static shape: QNN compiles nothing then, without an error.
            CompileError: the model is float, but the chip computes integers only. QNN would
                silently compile only small nodes that compute nothing.
        """
        measured = qairt().startswith(f"{socs.MEASURED}.")
        integers = [chip for chip in self._options.chips or (0,) if chip not in socs.FLOAT]
        float_ = not any(node.op_type in _QUANTIZERS for node in model.graph)
        if measured and integers and float_:
            raise CompileError(
                f"for soc_model {socs.listed(integers)} QAIRT {qairt()} compiles quantized models "
                "only, and this model is not quantized",
                remedy="choose another chip, or quantize the model: `epctx init --quantize` writes "
                "such a manifest",
            )
        capability = super().get_capability(model)
        declined = {**capability.declined, **dict.fromkeys(kept_off(capability.nodes), KEPT_OFF)}
        nodes = [node for node in model.graph if node not in declined]
        return Capability(nodes=nodes, declined=declined)

    def packaged(self) -> frozenset[str]:
        """Return the op types that `op_packages` names."""
        packages = self._options.given.get("op_packages", "").split(",")
        return frozenset(each.split(":")[0] for each in packages)

    def why_unstable(self, nodes: Sequence[ir.Node]) -> str | None:
        """Name the nodes for which QAIRT 2.51 writes uninitialized memory."""
        return why_unstable(nodes)

    def device_kind(self) -> DeviceKind:
        """Return NPU, since the HTP is the NPU of a Snapdragon."""
        return "npu"

    def chips(self) -> str:
        """Return each chip by number, part and architecture, and the SDK that compiles for it."""
        return f"{socs.listed(self._options.chips or (0,))}, QAIRT {qairt()}"

    def inference_options(self) -> Mapping[str, str]:
        """Return the options that matter at load. The others are in the binary, and the device is
        the chip.
        """
        given = self._options.given
        return {name: value for name, value in given.items() if name in _WHERE_LOADED}

    def on_device(self, nodes: Sequence[EPContextNode], *, sharing: bool) -> OnDevice:
        """Describe the NPU, or the x86 simulator for models that it can load (`cannot_load`)."""
        several = sharing or any(node.unknown.get(match.FLEXIBLE) == 1 for node in nodes)
        return OnDevice(
            ep=self.name,
            registration=self.name,
            package="onnxruntime-qnn",
            module="onnxruntime_qnn",
            kinds=("NPU",) if several else ("NPU", "CPU"),
            options=self.inference_options(),
            paths={"backend_path": "get_qnn_htp_path"},
        )

    def failed_remedy(self, why: str) -> str | None:
        """Return remedies for a failed compile for HTP 68, the minimum of all chips: for HTP 68
        QAIRT 2.51 cannot compile HardSigmoid or Where in floating point.
        """
        old = {soc.number for soc in socs.NAMED.values() if soc.arch == _OLDEST}
        chips = {*self._options.chips} - {0}
        if _NO_MEMORY not in why or (chips and chips.isdisjoint(old)):
            return None
        remedy = (
            "keep ops that the oldest chips cannot compute in floating point off QNN (2.7.0: "
            "HardSigmoid, and Where of a mask): `partition: {exclude: {op_types: [Where]}}`"
        )
        anyones = "set `soc_model`, without which the context is for any chip; or "
        return remedy if chips else anyones + remedy

    def nothing_compiled_remedy(self) -> str:
        """Name the option that decides which nodes QNN takes."""
        return "check soc_model, and which operators and types QNN supports"

    def why_left(self, node: ir.Node) -> str | None:
        """Explain that the border of a quantized model stays on the CPU, QNN's default (real-eps.md
        section 10).
        """
        if node.op_type not in _BORDER or self._options.given.get(_OFFLOAD) == "0":
            return None
        return f"QNN leaves the quantization of inputs and outputs to the CPU ({_OFFLOAD})"

    def reasons(self, log: str) -> Mapping[str, Refusal]:
        """Return why QNN did not take nodes, from its verbose log."""
        return faults.refusals(log)

    def foresee(self, model: ir.Model, partition: Partition) -> Mapping[ir.Node, str | Refusal]:
        """Read QNN's log, which has a verdict on each node before the compile."""
        from epctx.providers.onnxruntime import capability

        return capability.left_by_log(model, partition, self)

    def take_trace(self, nodes: Iterable[ir.Node]) -> Trace | None:
        """Read and remove `qnn_op_trace.json`, which QNN writes after each compile."""
        path = Path(faults.TRACE)
        if not path.is_file():
            return None
        content = path.read_bytes()
        path.unlink()
        return faults.trace(content, {node.name for node in nodes})

    def abandon(self) -> None:
        """Compile a tiny model as the last of the group, in the current folder.

        Sharing sessions that were never stopped end the process with SIGABRT at exit (real-eps.md
        section 6). This session's output is removed with the folder. A failure of this session is
        ignored, since the error that led here matters more.
        """
        import onnx

        onnx.save(onnx.parser.parse_model(_STOP_MODEL), _STOP)
        with contextlib.suppress(EpctxError):
            session.generate(
                _STOP,
                self,
                embed_mode=0,
                entries={"ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": "1"},
            )

    def check_binary(self, binary: Path, nodes: Sequence[ir.Node]) -> None:
        """Check graphs, inputs, outputs and chip of the binary against the nodes that refer
        to it.
        """
        try:
            content = qnn_binary.read_here(self._system_library(), binary)
        except InvalidGraph as error:
            raise CompileError(
                "QNN wrote a context binary that its own system library cannot read",
                file=binary.name,
                why=error.why,
                remedy="build again; if the error stays, report it with the model",
            ) from error
        match.require(content, nodes, chips=self._options.chips, where=binary.name)

    def variants(self) -> Mapping[str, QNNExecutionProvider]:
        """Return the chips of a flexible binary, which the x86 simulator cannot load (2.7.0)."""
        if not self._flexible:
            return {}
        return {
            _words(chip): QNNExecutionProvider({**self._given, "soc_model": str(chip)})
            for chip in self._options.chips
        }

    def cost(self, *, numbers: bool) -> str | None:
        """Return the cost of several chips: QNN compiles once for each chip (QAIRT 2.51)."""
        if not self._flexible:
            return None
        count = len(self._options.chips)
        words = f"QNN compiles each model for {count} chips"
        if not numbers:
            return words
        return f"{words}; to check numbers, it compiles and runs each model again for each chip"

    def graphs(self, binary: Path) -> Mapping[str, Sequence[BinaryGraph]]:
        """Return the graphs of a binary for each chip."""
        content = qnn_binary.read(self._system_library(), binary)
        return {_words(each.soc_model): each.graphs for each in content.contexts}

    def recognizes(self, head: bytes) -> bool:
        """Tell whether a file is a QNN context binary. It begins with two small big-endian numbers,
        2 and 3 in QAIRT 2.51. A flexible binary is a ZIP whose first entry has one of QNN's names.
        """
        if head.startswith(dlc.MAGIC):
            return b"htp." in head or b"dlc." in head
        zeros = head[:3] + head[4:7] + head[8:12]
        return len(head) >= 16 and not any(zeros) and 0 < head[3] < 16 and 0 < head[7] < 16

    def canonicalize(self, binary: Path) -> bool:
        """Remove the build time of a flexible binary (`dlc`); other binaries have none."""
        return dlc.canonicalize(binary)

    def inspect_binary(self, path: Path) -> BinaryInfo:
        """Ask the system library, in a process of its own."""
        content = qnn_binary.read(self._system_library(), path)
        first = content.contexts[0]
        properties = {"SDK": first.build_id, "core API": first.api, "HTP blob": first.blob}
        if not content.flexible:
            if first.soc_model is not None:
                properties["SoC"] = socs.words(first.soc_model)
            return BinaryInfo(kind="QNN context binary", properties=properties, graphs=first.graphs)
        for each in content.contexts:
            properties[_words(each.soc_model)] = f"{each.size:,} bytes"
        return BinaryInfo(
            kind="QNN flexible context binary, weights stored once for all chips",
            properties=properties,
            graphs=tuple(
                replace(graph, properties={"SoC": socs.words(each.soc_model or 0)})
                for each in content.contexts
                for graph in each.graphs
            ),
            stored=content.shared,
        )

    def wrap_binary(self, path: Path, *, quantized: bool) -> Mapping[str, ir.Model]:
        """Return a model for each graph, as onnxruntime's gen_qnn_ctx_onnx_model.py does."""
        from epctx.providers.onnxruntime.qnn import wrapper  # it loads onnx_ir

        binary = qnn_binary.read(self._system_library(), path)
        chips = [each.soc_model for each in binary.contexts if each.soc_model is not None]
        missing = sorted({*self._options.chips} - {*chips})
        if missing:
            raise InvalidGraph(
                "is for another chip",
                file=str(path),
                why=f"its chip is {socs.listed(chips) or 'not named'}, not {socs.listed(missing)}",
                remedy="compile it for this chip, or name the chip that it is for",
            )
        return wrapper.models(binary, path.name, source=self.name, quantized=quantized)

    def misfits(self, path: Path, nodes: Sequence[ir.Node]) -> Iterator[str]:
        """Yield each difference in graphs, inputs, outputs and chips between a binary and the
        nodes.
        """
        content = qnn_binary.read(self._system_library(), path)
        chips = self._options.chips
        try:
            match.require(content, nodes, chips=chips, where=path.name, all_nodes=False)
        except CompileError as error:
            yield f"{error.what}: {error.why}"

    def check_compatibility(
        self, info: str | None, nodes: Sequence[EPContextNode]
    ) -> Sequence[Verdict]:
        """Compare the model's chip, architecture and VTCM with the options."""
        key = COMPATIBILITY + self.name
        return (match.compatibility_verdict(info, self._options, key=key),)

    def cannot_load(
        self,
        nodes: Sequence[EPContextNode],
        folder: Path,
        *,
        sharing: bool,
    ) -> str | None:
        """Refuse contexts that the x86 simulator cannot load: a shared context crashes it with
        SIGSEGV (real-eps.md section 6), and it finds no chip of its own in a context for several
        chips.
        """
        if self._simulated() and any(node.unknown.get(match.FLEXIBLE) == 1 for node in nodes):
            return (
                "its context is for several chips, and QNN's x86 simulator loads none of them; a "
                "host with one of these chips can"
            )
        if self._simulated() and (sharing or self._is_shared(nodes, folder)):
            return (
                "its context holds graphs of several sessions, which QNN's x86 simulator cannot "
                "load; a host with an NPU can"
            )
        return None

    def runs_apart(self, beside: Collection[str]) -> str | None:
        """Require separate sessions for QNN and OpenVINO on the x86 simulator, since every run of a
        common session fails.

        QNN takes OpenVINO's memory for its own: "No HTP or DX12 allocation found" (real-eps.md
        section 11). Separate sessions in one process compute the right numbers.
        """
        if _OPENVINO in beside and self._simulated():
            return "QNN's x86 simulator does not run in one session with OpenVINO"
        return None

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """Return wider limits: the HTP computes float32 in float16, and quantized models in its own
        integers.

        A cosine does not detect a wrong scale, so the scale has a bound too. Float16 alone moves
        ResNet-50 with random weights to cosine 0.9987, with errors of 0.09 of the largest output,
        on the HTP and on the CPU. A mask of -1e9 becomes -65536 (QAIRT 2.51's simulator).
        """
        if precision == "quantized":
            return Tolerance(cosine_min=0.98, max_rel=0.5, saturates_at=FLOAT16_MAX)
        if precision == "bfloat16" or self._options.has("htp_bf16_enable"):
            return Tolerance(cosine_min=0.98, max_rel=0.3, saturates_at=FLOAT16_MAX)
        return Tolerance(cosine_min=0.99, max_rel=0.2, saturates_at=FLOAT16_MAX)

    def _is_shared(self, nodes: Sequence[EPContextNode], folder: Path) -> bool:
        """Tell whether a context has graphs beyond those of one session's nodes."""
        mains = [node.context_path for node in nodes if node.context_path is not None]
        if len(mains) != len(set(mains)):
            return True
        if len(mains) != 1 or not (folder / mains[0]).is_file():
            return False
        try:
            content = qnn_binary.read(self._system_library(), folder / mains[0])
        except (InvalidGraph, ProviderUnavailable):
            return False  # the load reports the fault
        return len(content.contexts[0].graphs) != len(nodes)

    def _simulated(self) -> bool:
        return all(device.device.type.name != "NPU" for device in self.ep_devices())

    def _backend_path(self) -> Path:
        return self._options.backend or package_path("get_qnn_htp_path")

    def _system_library(self) -> Path:
        name = "QnnSystem.dll" if sys.platform == "win32" else "libQnnSystem.so"
        beside = self._backend_path().with_name(name)
        return beside if beside.is_file() else package_path("get_qnn_htp_path").with_name(name)


def _words(chip: int | None) -> str:
    return f"SoC {socs.words(chip or 0)}"
