"""Verdicts of onnx's checker and of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError, StorageError
from epctx.graph import soundness
from epctx.graph.serde import reader
from epctx.graph.serde.reader import OnnxFile
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder
from tests.kit import onnx_text

NEWEST = 26 if ort.__version__.startswith("1.31.") else 28
"""The newest opset of the default domain that the installed onnxruntime reads."""


def _model(body: str, opsets: str = '"":17', ir_version: int = 8) -> onnx.ModelProto:
    return onnx_text.proto(body, opsets=opsets, ir_version=ir_version)


def _reason(model: onnx.ModelProto) -> str:
    message = soundness.objection(model)
    assert message is not None
    assert "epctx-check-" not in message
    return message


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (
            "g (float[N] x) => (float[N] z) { [bad] z = Relu<color = 3>(x) }",
            ["Unrecognized attribute: color", "Name: bad OpType: Relu"],
        ),
        ("g (float[N] x) => (float[N] z) { [bad] z = Nope(x) }", ["No Op registered for Nope"]),
        ("g (float[N] x) => (float[N] z) { [bad] z = Add(x) }", ["Name: bad OpType: Add"]),
        ("g (float[N] x) => (float[N] z) { z = other.Op(x) }", ["No opset import for domain"]),
    ],
)
def test_the_checkers_words_name_the_node(body: str, parts: list[str]) -> None:
    message = _reason(_model(body))
    for part in parts:
        assert part in message


def test_a_tensor_with_two_kinds_of_data_is_refused() -> None:
    model = _model("g (float[2] x) => (float[2] z) { z = Add(x, w) }")
    weight = numpy_helper.from_array(np.zeros(2, np.float32), "w")
    weight.float_data.extend([1, 2])
    model.graph.initializer.append(weight)
    assert "one and only one value field" in _reason(model)


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    with pytest.raises(StorageError, match="temporary files cannot be written") as caught:
        soundness.objection(model)
    assert "TMPDIR" in str(caught.value)


def test_a_border_of_unknown_rank_is_no_fault() -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    before = model.SerializeToString()
    assert soundness.objection(model) is None
    assert model.SerializeToString() == before


@pytest.mark.parametrize("opsets", ['"":17', '"":26', '"":17, "com.microsoft":1, "mine":99'])
def test_opsets_that_onnxruntime_reads(opsets: str) -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }", opsets)
    soundness.require_known_opsets(model, where="m.onnx")


@pytest.mark.parametrize(
    ("opsets", "parts"),
    [
        ('"":99', ["opset 99 of domain 'ai.onnx'", "does not read it", f"till opset {NEWEST}"]),
        ('"":17, "com.microsoft":9', ["opset 9 of domain 'com.microsoft'", "till opset 1"]),
        ('"":17, "ai.onnx.ml":50', ["opset 50 of domain 'ai.onnx.ml'"]),
    ],
)
def test_opsets_that_it_does_not_read(opsets: str, parts: list[str]) -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    del model.opset_import[:]
    for each in opsets.split(", "):
        domain, version = each.split(":")
        model.opset_import.add(domain=domain.strip('"'), version=int(version))
    with pytest.raises(ModelError) as caught:
        soundness.require_known_opsets(model, where="m.onnx")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("domain", "version"), [("", NEWEST), ("ai.onnx.ml", 5), ("com.microsoft", 1), ("own", None)]
)
def test_the_newest_opset_of_a_domain(domain: str, version: int | None) -> None:
    assert soundness.newest(domain) == version


BIG = np.ones((64, 64), np.float32)


def _read(model: onnx.ModelProto, folder: Path, data: Path | None = None) -> OnnxFile:
    onnx.save(model, folder / "m.onnx")
    return _opened(folder / "m.onnx", data)


def _opened(model: Path, data: Path | None = None) -> OnnxFile:
    file = DataFile.open(model)
    return reader.read_source(file, DataFolder.of_model(model, file, data), where="m.onnx")


def _said(model: onnx.ModelProto, folder: Path) -> str:
    said = soundness.try_loading(_read(model, folder)).refusal
    assert said is not None
    return said


def _everywhere() -> onnx.ModelProto:
    """A model with large tensors as initializer, Constant, in a body and in other attributes."""
    value = helper.make_tensor_value_info
    big = numpy_helper.from_array(BIG, "w")

    def branch(
        out: str, nodes: list[onnx.NodeProto], *weights: onnx.TensorProto
    ) -> onnx.GraphProto:
        nodes.append(helper.make_node("MatMul", ["t", "b"], [out]))
        return helper.make_graph(nodes, out, [], [value(out, TensorProto.FLOAT, [1, 64])], weights)

    own = numpy_helper.from_array(BIG, "b")
    labels = {
        "keys_tensor": numpy_helper.from_array(np.arange(512, dtype=np.int64)),
        "values_tensor": numpy_helper.from_array(np.arange(512, dtype=np.float32)),
        "default_tensor": numpy_helper.from_array(np.zeros(1, np.float32)),
    }
    graph = helper.make_graph(
        [
            helper.make_node("LabelEncoder", ["x"], ["l"], domain="ai.onnx.ml", **labels),
            helper.make_node("Constant", [], ["k"], value=big),
            helper.make_node("MatMul", ["l", "w"], ["m"]),
            helper.make_node("MatMul", ["m", "k"], ["t"]),
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                then_branch=branch("p", [], own),
                else_branch=branch("q", [helper.make_node("Constant", [], ["b"], value=big)]),
            ),
        ],
        "g",
        [value("x", TensorProto.INT64, [1, 64]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [1, 64])],
        [big],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_onnx_runtime_is_given_every_tensor(
    tmp_path: Path, external: bool, elsewhere: bool
) -> None:
    written = _everywhere()
    data = tmp_path / "data" if elsewhere else tmp_path
    data.mkdir(exist_ok=True)
    if external:
        onnx.save(
            written,
            data / "m.onnx",
            save_as_external_data=True,
            location="w.data",
            convert_attribute=True,
            size_threshold=0,
        )
        written = onnx.load(data / "m.onnx", load_external_data=False)
    assert soundness.try_loading(_read(written, tmp_path, data)).refusal is None


@pytest.mark.needs("links")
@pytest.mark.parametrize("beside", [False, True])
def test_onnx_runtime_is_given_what_links_lead_to(tmp_path: Path, beside: bool) -> None:
    """Links of the model alone, and of its data too, as in the cache of Hugging Face."""
    blobs, folder = tmp_path / "blobs", tmp_path / "folder"
    blobs.mkdir()
    folder.mkdir()
    onnx.save(
        _everywhere(), blobs / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    for name in ("m.onnx", "w"):
        (folder / name).symlink_to(blobs / name)
    if beside:
        (folder / "w").unlink()
        (blobs / "w").rename(folder / "w")
    assert soundness.try_loading(_opened(folder / "m.onnx")).refusal is None


def test_initializers_and_constants_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _read(_everywhere(), tmp_path)
    seen: list[int] = []

    def session(model: bytes, entries: object) -> str:
        seen.append(len(model))
        return "not now"

    monkeypatch.setattr(soundness, "session", session)
    soundness.try_loading(found)
    assert sum(weight.length for weight in found.weights) > 4 * BIG.nbytes
    assert 6144 < seen[0] < 10_000, "the tensors of LabelEncoder, and no other"


def test_outputs_are_as_onnx_runtime_infers_them(tmp_path: Path) -> None:
    model = onnx_text.proto(
        "g (float16[N, 3] x) => (float16 y, float16 s, seq(float16[N]) q) "
        "{ y = com.microsoft.FastGelu(x) s = ReduceSum <keepdims = 0> (y) "
        "q = SequenceConstruct(y) }",
        opsets='"" : 17, "com.microsoft" : 1',
        ir_version=8,
    )
    for value in model.graph.output:
        value.ClearField("type")
    y, s = soundness.try_loading(_read(model, tmp_path)).outputs
    assert [each.type.tensor_type.elem_type for each in (y, s)] == [TensorProto.FLOAT16] * 2
    assert [d.dim_value or d.dim_param for d in y.type.tensor_type.shape.dim] == ["N", 3]
    assert not s.type.tensor_type.HasField("shape"), "no session tells a scalar from any rank"


def test_a_tensor_in_an_attribute_is_judged(tmp_path: Path) -> None:
    model = _everywhere()
    labels = {each.name: each.t for each in model.graph.node[0].attribute}
    labels["values_tensor"].CopyFrom(numpy_helper.from_array(np.zeros(511, np.float32)))
    assert "LabelEncoder" in _said(model, tmp_path) or "keys" in _said(model, tmp_path)


_X = "g (float[2] x) => (float[2] z)"


@pytest.mark.parametrize(
    ("body", "opsets", "told"),
    [
        (
            f"{_X} {{ [bad] z = Nope(x) }}",
            '"" : 17',
            "m.onnx: node 'bad' (Nope): ONNX Runtime has no kernel for op Nope of domain ai.onnx "
            "(version 17)",
        ),
        (
            f"{_X} {{ z = own.Made(x) }}",
            '"" : 17, "own" : 3',
            "m.onnx: the own::Made node that makes 'z': ONNX Runtime has no kernel for op Made of "
            "domain own (version 3)",
        ),
        (
            f"{_X} {{ z = own.Made(x) }}",
            '"" : 17',
            "m.onnx: the own::Made node that makes 'z': ONNX Runtime has no kernel for op Made of "
            "domain own (version not imported)",
        ),
        (
            f"{_X} {{ z = com.microsoft.Made(x) }}",
            '"" : 17, "com.microsoft" : 1',
            "m.onnx: the com.microsoft::Made node that makes 'z': ONNX Runtime has no kernel for "
            "op Made of domain com.microsoft (version 1)",
        ),
        (
            f"{_X} {{ [bad] z = Relu<color = 3>(x) }}",
            '"" : 17',
            "m.onnx: ONNX Runtime does not load it: node 'bad' (Relu): Unrecognized attribute: "
            "color for operator Relu",
        ),
        (
            f"{_X} {{ z = Relu(x) }}",
            '"" : 99',
            "Opset 99 is under development and support for this is limited",
        ),
    ],
)
def test_the_words_of_onnx_runtime_are_quoted(
    body: str, opsets: str, told: str, tmp_path: Path
) -> None:
    model = onnx_text.proto(body, opsets=opsets, ir_version=8)
    message = str(soundness.load_error(_said(model, tmp_path), model, where="m.onnx"))
    assert told in message
    assert "onnxruntime_src" not in message
    assert "ONNXRuntimeError" not in message
    assert "\n  -> " in message


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_what_onnx_runtime_knows_and_has_no_kernel_for(domain: str, tmp_path: Path) -> None:
    model = onnx_text.proto("g (bfloat16[2] x) => (bfloat16[2] z) { z = Relu(x) }", ir_version=8)
    model.opset_import[0].domain = domain
    message = str(soundness.load_error(_said(model, tmp_path), model, where="m.onnx"))
    assert "no kernel for op Relu of domain ai.onnx (version 21)" in message


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (None, ["has a cycle: a -> b", "ONNX Runtime loads it, epctx cannot read it"]),
        (
            "[ONNXRuntimeError] : 1 : FAIL : This is an invalid model. Error: the graph is bad.",
            ["has a cycle: a -> b; ONNX Runtime: Error: the graph is bad."],
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : status.IsOK() was false. "
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : \n",
            ["ONNX Runtime: status.IsOK() was false."],
        ),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ", ["ONNX Runtime: it does not say why"]),
    ],
)
def test_an_objection_of_epctx_is_told_with_the_verdict(said: str | None, parts: list[str]) -> None:
    objection = ModelError.broken("has a cycle", where="m.onnx", why="a -> b")
    message = str(soundness.with_verdict(objection, said))
    for part in parts:
        assert part in message
    assert ("the file is broken" in message) == (said is not None)


def test_names_of_any_length_take_no_time() -> None:
    said = f"[ONNXRuntimeError] : 1 : FAIL : Duplicate definition of name ({'n' * (10 << 20)})"
    objection = ModelError.broken("is made twice", where="m.onnx")
    assert len(str(soundness.with_verdict(objection, said))) < 10_000
    assert len(str(soundness.load_error(said, onnx.ModelProto(), where="m.onnx"))) < 10_000


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_a_file_that_lacks_an_ep_alone_is_not_refused(kind: str, tmp_path: Path) -> None:
    """ONNX Runtime has other words where an EPContext node takes float16."""
    context = 'source = "x", embed_mode = 1, main_context = 1, ep_cache_context = "c"'
    body = f"g ({kind}[2] x) => ({kind}[2] y) {{ y = com.microsoft.EPContext <{context}> (x) }}"
    model = onnx_text.proto(body, opsets='"" : 17, "com.microsoft" : 1', ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert soundness.session_error(str(tmp_path / "m.onnx")) is not None
    assert soundness.refusal_of_file(tmp_path / "m.onnx", tmp_path) is None
    model.graph.output[0].type.tensor_type.shape.dim.add(dim_value=3)
    model.graph.node.add(op_type="Relu", input=["gone"], output=["z"])
    onnx.save(model, tmp_path / "m.onnx")
    assert soundness.refusal_of_file(tmp_path / "m.onnx", tmp_path) is not None


@pytest.mark.parametrize(
    ("op", "opset", "custom"),
    [
        ("Nope", 17, False),
        ("Gelu", 13, False),
        ("ai.onnx.ml.Nope", 17, False),
        ("com.microsoft.Nope", 17, False),
        ("acme.Nope", 17, True),
    ],
)
def test_only_an_operator_of_a_foreign_domain_is_custom(op: str, opset: int, custom: bool) -> None:
    domains = ("ai.onnx.ml", "com.microsoft", "acme")
    imports = ", ".join([f'"" : {opset}', *(f'"{each}" : 1' for each in domains)])
    model = _model(f"g (float[2] x) => (float[2] y) {{ y = {op} (x) }}", opsets=imports)
    said = soundness.session_error(model.SerializeToString())
    assert said is not None and soundness.unknown_op(said) is not None
    assert soundness.is_custom_op(said) is custom, said
