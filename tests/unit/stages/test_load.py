"""The load stage as a whole; its parts have tests of their own under tests/unit/graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph import soundness
from epctx.graph.model import LoadedModel
from epctx.graph.serde import canonical, protos
from epctx.graph.serde.reader import OnnxFile
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import MappedTensor
from epctx.manifest import ModelSource
from epctx.stages import load
from tests.kit import onnx_text

RNG = np.random.default_rng(0)
W = RNG.standard_normal((64, 64)).astype(np.float32)
_parsed = partial(onnx_text.proto, opsets='"":17, "l":1, "com.microsoft":1')


def _load(path: Path, **settings: Any) -> LoadedModel:
    return load.run(ModelSource(name="m", path=path, **settings))


def _text(folder: Path, body: str) -> Path:
    onnx.save(_parsed(body), folder / "m.onnx")
    return folder / "m.onnx"


def _refused(path: Path, **settings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        _load(path, **settings)
    message = str(caught.value)
    assert "\n  -> " in message
    assert "Traceback" not in message
    return message


def _proto(*, ir_version: int = 8) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("MatMul", ["y", "bw"], ["bo"])],
        "body",
        [],
        [value("bo", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(W + 2, "bw")],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(W + 1, "k")),
            helper.make_node("MatMul", ["x", "w"], ["t"]),
            helper.make_node("MatMul", ["t", "k"], ["y"]),
            helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["n", 64]), value("c", TensorProto.BOOL, [])],
        [value("z", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(W, "w")],
    )
    graph.node[3].attribute[1].g.node[0].output[0] = "bo2"
    graph.node[3].attribute[1].g.output[0].name = "bo2"
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version
    )


def _tensors(model: ir.Model) -> dict[str, Any]:
    body = model.graph[3].attributes["then_branch"].as_graph()
    return {
        "w": model.graph.initializers["w"].const_value,
        "k": model.graph[0].attributes["value"].as_tensor(),
        "bw": body.initializers["bw"].const_value,
    }


class TestWeights:
    def test_where_they_are_does_not_reach_the_digest(self, tmp_path: Path) -> None:
        onnx.save(_proto(), tmp_path / "a.onnx")
        onnx.save(
            _proto(),
            tmp_path / "b.onnx",
            save_as_external_data=True,
            location="b.data",
            size_threshold=0,
        )
        one, other = (canonical.digest(_load(tmp_path / f"{n}.onnx").model) for n in "ab")
        assert one == other

    def test_a_flipped_byte_changes_the_digests(self, tmp_path: Path) -> None:
        onnx.save(_proto(), tmp_path / "m.onnx")
        before = _load(tmp_path / "m.onnx")
        tensor = _tensors(before.model)["bw"]
        assert isinstance(tensor, MappedTensor)
        data = bytearray((tmp_path / "m.onnx").read_bytes())
        data[tensor.start + 5] ^= 1
        (tmp_path / "m.onnx").unlink()
        (tmp_path / "m.onnx").write_bytes(data)
        after = _load(tmp_path / "m.onnx")
        assert canonical.digest(after.model) != canonical.digest(before.model)
        assert after.sources[0].digest != before.sources[0].digest

    def test_a_folder_for_them_must_be_one(self, tmp_path: Path) -> None:
        onnx.save(_proto(), tmp_path / "m.onnx")
        message = _refused(tmp_path / "m.onnx", external_data_dir=tmp_path / "none")
        assert "`external_data_dir` is not a folder" in message

    def test_an_error_in_one_names_model_and_tensor(self, tmp_path: Path) -> None:
        onnx.save(
            _proto(),
            tmp_path / "m.onnx",
            save_as_external_data=True,
            location="w.data",
            size_threshold=0,
        )
        data = (tmp_path / "w.data").read_bytes()
        (tmp_path / "w.data").write_bytes(data[:-1])
        message = _refused(tmp_path / "m.onnx")
        assert f"{tmp_path / 'm.onnx'}: tensor 'bw'" in message or "tensor 'w'" in message
        assert "cut short" in message

    @pytest.mark.parametrize("key", ["location", "color", "basepath"])
    @pytest.mark.parametrize("place", ["w", "k", "bw", "s"])
    def test_keys_that_onnxruntime_refuses_are_refused(
        self, tmp_path: Path, place: str, key: str
    ) -> None:
        """An initializer, a Constant, an initializer of a body and a sparse one."""
        proto, path = _proto(), tmp_path / "m.onnx"
        sparse = proto.graph.sparse_initializer.add(dims=[64])
        sparse.values.CopyFrom(numpy_helper.from_array(W[0], "s"))
        sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(64), "i"))
        proto.graph.node.append(helper.make_node("Add", ["x", "s"], ["xs"], name="reader"))
        onnx.save(
            proto,
            path,
            save_as_external_data=True,
            location="w.data",
            size_threshold=0,
            convert_attribute=True,
        )
        written = onnx.load(path, load_external_data=False)
        values = written.graph.sparse_initializer[0].values
        if values.data_location != TensorProto.EXTERNAL:
            values.ClearField("raw_data")
            values.data_location = TensorProto.EXTERNAL
            values.external_data.add(key="location", value="w.data")
        path.write_bytes(written.SerializeToString())
        ort.InferenceSession(path)
        assert _load(path).sources
        for tensor in (*protos.tensors(written), values):
            if tensor.name == place:
                tensor.external_data.add(key=key, value="m.onnx")
        path.write_bytes(written.SerializeToString())
        with pytest.raises(Exception, match=r"model format error|duplicate 'location'"):
            ort.InferenceSession(path)
        assert f"tensor {place!r}: has the external data key {key!r}" in _refused(path)


class TestForm:
    def test_onnx_domain_has_one_name(self, tmp_path: Path) -> None:
        proto = _parsed("g (float[2] x) => (float[2] z) { z = Relu(x) }")
        proto.graph.node[0].domain = "ai.onnx"
        proto.opset_import[0].domain = "ai.onnx"
        onnx.save(proto, tmp_path / "m.onnx")
        model = _load(tmp_path / "m.onnx").model
        assert model.graph[0].domain == ""
        assert model.graph.opset_imports[""] == 17

    def test_before_ir_version_4_initializers_are_no_inputs(self, tmp_path: Path) -> None:
        proto = _proto(ir_version=3)
        proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [64, 64]))
        onnx.save(proto, tmp_path / "m.onnx")
        model = _load(tmp_path / "m.onnx").model
        assert [value.name for value in model.graph.inputs] == ["x", "c"]
        assert model.ir_version >= 4

    def test_a_graph_without_a_name_gets_one(self, tmp_path: Path) -> None:
        proto = _proto()
        proto.graph.ClearField("name")
        onnx.save(proto, tmp_path / "m.onnx")
        assert _load(tmp_path / "m.onnx").model.graph.name == "graph"

    def test_a_graph_that_loops_is_loaded(self, tmp_path: Path) -> None:
        path = _text(
            tmp_path,
            "g (float[2] x, int64 n, bool c) => (float[2] z) { z = Loop(n, c, x) "
            "<body = b (int64 i, bool go, float[2] a) => (bool on, float[2] o) "
            "{ on = Identity(go) o = Add(a, x) }> }",
        )
        assert len(_load(path).model.graph) == 1


class TestShapes:
    BODY = "g (float[batch, 3] x) => (float[batch, 5] z) { y = MatMul(x, w) z = Relu(y) }"

    def _path(self, folder: Path) -> Path:
        proto = _parsed(self.BODY)
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 5), np.float32), "w"))
        onnx.save(proto, folder / "m.onnx")
        return folder / "m.onnx"

    def test_wishes_that_cannot_be_met_name_the_model(self, tmp_path: Path) -> None:
        path = self._path(tmp_path)
        assert _refused(path, dimensions={"bacth": 1}).startswith(f"{path}: `dimensions`")


class TestBroken:
    def test_a_missing_model_with_a_near_name(self, tmp_path: Path) -> None:
        _text(tmp_path, "g (float[2] x) => (float[2] z) { z = Relu(x) }")
        message = _refused(tmp_path / "mm.onnx")
        assert message.startswith(f"{tmp_path / 'mm.onnx'}: does not exist")
        assert "did you mean 'm.onnx'?" in message

    def test_a_folder_names_the_models_in_it(self, tmp_path: Path) -> None:
        _text(tmp_path, "g (float[2] x) => (float[2] z) { z = Relu(x) }")
        message = _refused(tmp_path)
        assert "is a folder" in message
        assert "m.onnx" in message

    @pytest.mark.needs("POSIX", "a mapped file cannot be written to")
    def test_a_file_that_changes_while_it_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = _text(tmp_path, "g (float[2] x) => (float[2] z) { z = Relu(x) }")
        hash_parts = DataFile.hash_parts

        def slowly(file: DataFile, ranges: Iterable[tuple[int, int]]) -> None:
            hash_parts(file, ranges)
            with path.open("ab") as stream:
                stream.write(b"more")

        monkeypatch.setattr(DataFile, "hash_parts", slowly)
        assert "was written to while it was read" in _refused(path)

    @pytest.mark.needs("POSIX", "POSIX permissions")
    def test_an_unreadable_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = _text(tmp_path, "g (float[2] x) => (float[2] z) { z = Relu(x) }")

        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("epctx.files.regular.os.open", refuse)
        assert "Permission denied" in _refused(path)

    def test_what_onnx_runtime_takes_is_noted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[OnnxFile] = []
        load_it = soundness.try_loading

        def ask(found: OnnxFile) -> soundness.Verdict:
            asked.append(found)
            return load_it(found)

        monkeypatch.setattr(soundness, "try_loading", ask)
        assert not _load(_text(tmp_path, "g (float[2] x) => (float[2] z) { z = Relu(x) }")).notes
        assert not asked, "nobody objects"
        body = "z = SimplifiedLayerNormalization <axis = -1> (x, s)"
        proto = _parsed(f"g (float[2] x) => (float[2] z) {{ {body} }}")
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "s"))
        onnx.save(proto, tmp_path / "m.onnx")
        (note,) = _load(tmp_path / "m.onnx").notes
        assert note.startswith("ONNX Runtime loads what onnx.checker objects to: No Op registered")
        assert len(asked) == 2, "whether it takes the model, and which types it infers"

    def test_a_compiled_model_is_no_source(self, tmp_path: Path) -> None:
        path = _text(
            tmp_path,
            'g (float[2] x) => (float[2] z) { [n] z = com.microsoft.EPContext<source = "QNN">(x) }',
        )
        message = _refused(path)
        assert "is compiled already: it has EPContext nodes" in message
        assert "node 'n'" in message
        assert "build from the source model of this EPContext model" in message

    def test_a_newer_opset_than_onnxruntime_reads(self, tmp_path: Path) -> None:
        proto = _parsed("g (float[2] x) => (float[2] z) { z = Relu(x) }")
        proto.opset_import[0].version = 99
        onnx.save(proto, tmp_path / "m.onnx")
        assert "uses opset 99" in _refused(tmp_path / "m.onnx")

    def test_a_newer_ir_version_than_onnx_reads(self, tmp_path: Path) -> None:
        proto = _parsed("g (float[2] x) => (float[2] z) { z = Relu(x) }")
        proto.ir_version = 99
        onnx.save(proto, tmp_path / "m.onnx")
        assert "Unsupported model IR version: 99" in _refused(tmp_path / "m.onnx")

    def test_a_map_of_keys_that_are_no_type(self, tmp_path: Path) -> None:
        proto = _parsed(
            "g (map(int64,float) m) => (float[1] z) "
            "{ z = ai.onnx.ml.DictVectorizer <int64_vocabulary = [1]> (m) }"
        )
        proto.opset_import.add(domain="ai.onnx.ml", version=1)
        proto.graph.input[0].type.map_type.key_type = 99
        onnx.save(proto, tmp_path / "m.onnx")
        assert _refused(tmp_path / "m.onnx")

    def test_text_that_is_not_utf8(self, tmp_path: Path) -> None:
        path = _text(tmp_path, 'g (float[2] x) => (float[2] z) { z = mine.Op<texts = ["abc"]>(x) }')
        proto = onnx.load(path)
        proto.opset_import.add(domain="mine", version=1)
        proto.graph.node[0].attribute[0].strings[0] = b"\xff\xfe"
        onnx.save(proto, path)
        assert "cannot be read" in _refused(path)


@pytest.mark.parametrize("data", [b"", b"x", b"\x08\x08", bytes(100), b"PK\x03\x04" * 9])
def test_a_file_that_is_no_model_is_an_error_of_the_model(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    _refused(tmp_path / "m.onnx")


def test_outputs_are_those_of_the_source(tmp_path: Path) -> None:
    onnx.save(_proto(), tmp_path / "m.onnx")
    loaded = _load(tmp_path / "m.onnx", dimensions={"n": 3})
    feeds = {"x": RNG.standard_normal((3, 64)).astype(np.float32), "c": np.array(True)}
    sources = [(tmp_path / "m.onnx").read_bytes(), canonical.serialize(loaded.model)]
    one, other = (
        ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for data in sources
    )
    np.testing.assert_array_equal(one, other)


def test_a_negative_size_is_an_unknown_one(tmp_path: Path) -> None:
    path = _text(tmp_path, "g (float[1, 3] x) => (float[1, 3] y) { y = Relu (x) }")
    proto = onnx.load(path)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(proto, path)
    assert [str(value.shape) for value in _load(path).model.graph.outputs] == ["[None,3]"]
    fixed = _load(path, shapes={"x": (2, 3)}).model
    assert fixed.graph.outputs[0].shape == (2, 3)


def test_a_question_mark_is_no_name_that_makes_two_sizes_one(tmp_path: Path) -> None:
    path = _text(tmp_path, "g (float[N, 3, A, B] x) => (float[N, 3, A, B] y) { y = Relu (x) }")
    proto = onnx.load(path)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = "?"
    onnx.save(proto, path)
    feeds = {"x": RNG.standard_normal((1, 3, 4, 5)).astype(np.float32)}
    stock = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert stock.run(None, feeds)[0].shape == (1, 3, 4, 5), "ONNX Runtime takes it"
    assert _load(path, shapes={"x": (1, 3, 4, 5)}).model.graph.outputs[0].shape == (1, 3, 4, 5)
    with pytest.raises(ModelError, match=r"names '\?', which is not a symbolic dimension"):
        _load(path, dimensions={"?": 1})


def test_sizes_that_do_not_fit_are_blamed_on_who_gave_them(tmp_path: Path) -> None:
    text = (
        "g (float[N, M] x) => (float[N, 4] y) <float[3, 4] w = {1,2,3,4,5,6,7,8,9,1,2,3}>"
        " { y = MatMul (x, w) }"
    )
    with pytest.raises(ModelError) as caught:
        _load(_text(tmp_path, text), dimensions={"M": 5})
    assert caught.value.remedy == (
        "correct `dimensions` and `shapes` of the model: give sizes that fit"
    )
