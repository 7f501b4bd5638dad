from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import onnx_ir as ir
import pytest

from epctx.errors import CompileError, ManifestError
from epctx.manifest import OptionValue, Tolerance
from epctx.providers.hooks import (
    ChecksCompatibility,
    ExtendsSchema,
    HasDevices,
    KnowsHost,
    PlacesPrefix,
    ReadsBinaries,
    SetsTolerance,
)
from epctx.providers.onnxruntime.qnn import compatibility, match, socs
from epctx.providers.onnxruntime.qnn.binary import QnnContext, QnnGraph, QnnTensor
from epctx.providers.onnxruntime.qnn.compatibility import Compatibility
from epctx.providers.onnxruntime.qnn.options import QnnOptions
from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider

ROOT = Path(__file__).parents[5]
SCHEMA = json.loads(
    (ROOT / "schemas/providers/QNNExecutionProvider.options.json").read_text(encoding="utf-8")
)
installed = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed"
)


def test_the_schema_and_the_table_have_the_same_chips() -> None:
    _, names = SCHEMA["properties"]["soc_model"]["anyOf"]
    assert sorted(names["enum"]) == sorted([*socs.NAMED, *map(str.upper, socs.NAMED)])
    for name in socs.NAMED:
        assert name in SCHEMA["properties"]["soc_model"]["x-epctx"]["expects"]


def test_the_tables_agree() -> None:
    numbers = {soc.number for soc in socs.NAMED.values()}
    assert len(numbers) == len(socs.NAMED)
    assert numbers <= socs.KNOWN
    assert socs.FLOAT <= socs.KNOWN


@pytest.mark.parametrize(
    ("text", "number"), [("60", 60), ("sm8650", 57), ("SC8380XP", 60), ("0", 0), ("QCM6490", 93)]
)
def test_chips_by_name_and_number(text: str, number: int) -> None:
    assert socs.number(text, qairt="2.51.0") == number


@pytest.mark.parametrize("text", ["sm", "-1", "", "none", "60,73", "0x3c", "14", "124", "99999"])
def test_no_other_chips(text: str) -> None:
    with pytest.raises(ManifestError):
        socs.number(text, qairt="2.51.0")


def test_a_later_qairt_may_know_more_chips() -> None:
    assert socs.number("140", qairt="2.60.0") == 140


def test_options_become_what_qnn_takes() -> None:
    options = QnnOptions.parse(
        {
            "soc_model": "sm8650",
            "vtcm_mb": 8,
            "enable_htp_fp16_precision": True,
            "offload_graph_io_quantization": False,
            "backend_type": "htp",
            "partition_binaries": "each",
        }
    )
    assert options.given == {
        "soc_model": "57",
        "vtcm_mb": "8",
        "enable_htp_fp16_precision": "1",
        "offload_graph_io_quantization": "0",
    }
    assert (options.soc, options.vtcm, options.arch, options.one_binary) == (57, 8, None, False)


@pytest.mark.parametrize("name", ["libQnnCpu.so", "libQnnIr.so", "libHtpPrepare.so", "x.txt"])
def test_a_backend_that_makes_no_context_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(ManifestError, match="which is no HTP backend"):
        QnnOptions.parse({"backend_path": str(path)})


def test_a_backend_of_another_sdk(tmp_path: Path) -> None:
    path = tmp_path / "libQnnHtp.so"
    path.touch()
    assert QnnOptions.parse({"backend_path": str(path)}).backend == path


def test_the_compatibility_string() -> None:
    found = Compatibility.parse("v2:6:2.51.0:5.51.0:73:60:8:0")
    assert found == Compatibility(qairt="2.51.0", arch=73, soc=60, vtcm=8)
    for other in ("", "v1:6:2:5:0:60:0:0", "v2:6:2.51.0:5.51.0:0:x:0:0", "v2:60"):
        assert Compatibility.parse(other) is None


@pytest.mark.parametrize(
    ("options", "info", "outcome", "words"),
    [
        ({"soc_model": "60"}, "v2:6:2.51.0:5.51.0:0:60:0:0", "pass", "60 (sc8380xp, v73)"),
        ({}, "v2:6:2.51.0:5.51.0:0:57:0:0", "pass", "57 (sm8650, v75)"),
        ({}, "v2:6:2.51.0:5.51.0:0:0:0:0", "pass", "0 (any chip)"),
        ({"soc_model": "60"}, "v2:6:2.51.0:5.51.0:0:57:0:0", "fail", "soc_model is 57, not 60"),
        ({"htp_arch": "73"}, "v2:6:2.51.0:5.51.0:75:0:0:0", "fail", "htp_arch is 75, not 73"),
        ({"vtcm_mb": 4}, "v2:6:2.51.0:5.51.0:0:0:8:0", "fail", "vtcm_mb is 8, not 4"),
        ({"soc_model": "60"}, None, "fail", "it has no key"),
        ({"soc_model": "60"}, "v9:1", "not checkable", "unknown form"),
    ],
)
def test_what_the_options_ask_for_is_held_against_it(
    options: dict[str, OptionValue], info: str | None, outcome: str, words: str
) -> None:
    verdict = compatibility.verdict(info, QnnOptions.parse(options), key="key")
    assert (verdict.outcome, words in verdict.message) == (outcome, True), verdict


def context(*graphs: QnnGraph, soc: int = 60) -> QnnContext:
    return QnnContext(
        build_id="v2.51.0", api="2.40.0", blob="4.0.6", blob_size=1, soc_model=soc, graphs=graphs
    )


def graph(
    name: str, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]
) -> QnnGraph:
    def tensors(values: dict[str, tuple[int, ...]]) -> tuple[QnnTensor, ...]:
        return tuple(QnnTensor(name=n, dtype="FLOAT_32", shape=s) for n, s in values.items())

    return QnnGraph(name=name, inputs=tensors(inputs), outputs=tensors(outputs))


def node(name: str, inputs: str, outputs: str, overrides: str | None = None) -> ir.Node:
    def value(text: str) -> ir.Value:
        own, _, size = text.partition(":")
        return ir.Value(
            name=own, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, int(size)])
        )

    attributes = [] if overrides is None else [ir.AttrString("io_name_overrides", overrides)]
    return ir.Node(
        "com.microsoft",
        "EPContext",
        [value(text) for text in inputs.split()],
        attributes,
        outputs=[value(text) for text in outputs.split()],
        name=name,
    )


def test_a_binary_of_its_nodes() -> None:
    both = context(
        graph("a", {"x": (1, 4)}, {"y": (1, 4)}), graph("b", {"x": (1, 8)}, {"y": (1, 8)})
    )
    nodes = [node("b", "x:8", "y:8"), node("a", "x:4", "y:4")]
    match.require(both, nodes, soc=60, where="a_qnn.bin")


def test_a_single_graph_is_found_under_another_name_and_by_overrides() -> None:
    one = context(graph("QNN_1", {"x": (1, 4)}, {"y": (1, 4)}))
    named = node("eye_QNN_1", "x_q:4", "y_q:4", overrides="x_q=x;y_q=y;")
    match.require(one, [named], soc=None, where="a_qnn.bin")


@pytest.mark.parametrize(
    ("nodes", "soc", "words"),
    [
        ([node("a", "x:4", "y:4")], 57, "it is for soc_model 60"),
        ([node("a", "x:4", "y:4"), node("b", "x:4", "y:4")], 60, "it holds a;"),
        ([node("a", "x:4 z:4", "y:4")], 60, "has the inputs x;"),
        ([node("a", "x:4", "z:4")], 60, "has the outputs y;"),
        ([node("a", "x:5", "y:4")], 60, "x of graph a has the shape"),
    ],
)
def test_a_binary_of_other_nodes(nodes: list[ir.Node], soc: int, words: str) -> None:
    one = context(graph("a", {"x": (1, 4)}, {"y": (1, 4)}))
    with pytest.raises(CompileError) as caught:
        match.require(one, nodes, soc=soc, where="a_qnn.bin")
    assert words in str(caught.value)


@installed
class TestBound:
    """QNN bound to options, without anything compiled."""

    def bind(self, **options: OptionValue) -> QNNExecutionProvider:
        from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider

        return QNNExecutionProvider(options)

    def test_it_tells_what_only_it_knows(self) -> None:
        bound = self.bind()
        for hook in (
            ReadsBinaries, ChecksCompatibility, HasDevices, KnowsHost, SetsTolerance,
            ExtendsSchema, PlacesPrefix,
        ):  # fmt: skip
            assert isinstance(bound, hook)

    def test_the_fingerprint_has_versions_and_libraries(self) -> None:
        found = self.bind().fingerprint()
        assert found.toolchain["onnxruntime-qnn"]
        assert found.toolchain["onnxruntime"]
        assert any("QnnHtp." in name for name in found.files)
        assert not found.host, "QNN's bytes depend on nothing of the host (real-eps.md section 1)"
        assert not any("Genie" in name or "Gpu" in name for name in found.files)

    def test_another_backend_is_another_fingerprint(self, tmp_path: Path) -> None:
        path = tmp_path / "libQnnHtp.so"
        path.write_bytes(b"another")
        other = self.bind(backend_path=str(path)).fingerprint()
        assert path in other.files.values()
        assert path not in self.bind().fingerprint().files.values()

    def test_it_knows_its_own_binaries(self) -> None:
        bound = self.bind()
        assert bound.recognizes(bytes.fromhex("00000002000000030000000000000001") + bytes(99))
        for head in (b"", bytes(4096), b"OVEP_BIN" + bytes(99), b"\x08\x0a" + bytes(99)):
            assert not bound.recognizes(head)

    def test_tolerances_by_precision(self) -> None:
        bound = self.bind()
        assert bound.tolerance("quantized", "float32") == Tolerance(cosine_min=0.98, max_rel=0.5)
        assert bound.tolerance("float32", "float32").cosine_min == 0.99
        wide = self.bind(soc_model="88", htp_bf16_enable=True).tolerance("float32", "float32")
        assert wide.cosine_min == 0.98

    def test_its_log_says_why_it_left_a_node(self) -> None:
        log = (
            "[V:onnxruntime:, q.cc:1 LogNodeSupport] Validation PASSED for 1 nodes in X :\n"
            "\tOperator type: MatMul Node name: mm0 Node index: 0\n"
            "[V:onnxruntime:, q.cc:1 LogNodeSupport] Validation FAILED for 1 nodes in Y (If) :\n"
            "\tOperator type: If Node name: if Node index: 1\n"
            "\tREASON : If branch op `Unique` is not supported by QNN EP.\n"
            "[V:onnxruntime:, q.cc:1 LogNodeSupport] Validation FAILED for 2 nodes in Z (Det) :\n"
            "\tOperator type: DequantizeLinear Node name: dq Node index: 2\n"
            "\tOperator type: Det Node name: det Node index: 3 (fused)\n"
            "\tREASON : Not supported.Det node `det` will not be assigned to QNN EP.\n"
        )
        assert self.bind().reasons(log) == {
            "if": "If branch op `Unique` is not supported by QNN EP",
            "dq": "Not supported",
            "det": "Not supported",
        }

    def test_a_split_graph_does_not_run_on_x86(self) -> None:
        assert self.bind().cannot_run() is None
        why = self.bind(enable_htp_graph_splitting=True).cannot_run()
        assert why is None or "enable_htp_graph_splitting" in why
