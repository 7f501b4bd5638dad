"""The runtime's session: the spec's inference workflow, step by step."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import InvalidGraph, ModelError, ProviderUnavailable, UsageError
from epctx.graph.epcontext import EPContextNode
from epctx.graph.weights.data_file import DataFile
from epctx.inference.loading import SHARED
from epctx.inference.session import Session
from epctx.manifest import ExternalInitializers
from epctx.providers.reference import ReferenceExecutionProvider, reader
from epctx.runtime import InferenceSession, release_shared_contexts
from tests.kit import surface
from tests.kit.building import assert_close, build, cpu, mlp, model_of, normal, reference

REFERENCE = "ReferenceExecutionProvider"
SHARE = {"ep.share_ep_contexts": "1"}
X = normal((1, 64))


@pytest.fixture(autouse=True)
def empty_workspace() -> Iterator[None]:
    release_shared_contexts()
    yield
    release_shared_contexts()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The context binaries that are read, in order."""
    found: list[str] = []
    real = reader.read_file

    def spy(file: DataFile) -> reader.Context:
        found.append(file.location)
        return real(file)

    monkeypatch.setattr(reader, "read_file", spy)
    return found


def split(tmp_path: Path, **options: Any) -> Path:
    """A model of several partitions with default-EP nodes between them."""
    ep = reference(exclude_ops=("Relu",))
    return build(tmp_path, {"m": mlp()}, providers=[ep], **options) / "m_ctx.onnx"


def wanted(model: onnx.ModelProto, x: np.ndarray = X) -> list[np.ndarray]:
    return list(cpu(model).run(None, {"x": x}))


class TestPlainModels:
    """No EPContext nodes: onnxruntime's own workflow."""

    def test_from_a_path_and_from_bytes(self, tmp_path: Path) -> None:
        onnx.save(mlp(), tmp_path / "m.onnx")
        for given in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), mlp().SerializeToString()):
            session = InferenceSession(given)
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], wanted(mlp())[0])
            assert session.get_providers() == ["CPUExecutionProvider"]

    def test_from_bytes_with_external_data_elsewhere(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        onnx.save(mlp(), path, save_as_external_data=True, location="w.data", size_threshold=0)
        key = "session.model_external_initializers_file_folder_path"
        native = ort.SessionOptions()
        native.add_session_config_entry(key, str(tmp_path))
        for options in ({key: str(tmp_path)}, native):
            session = InferenceSession(path.read_bytes(), session_options=options)
            assert_close(session.run(None, {"x": X}), wanted(mlp()))

    def test_what_is_no_model_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_bytes(b"\xff" * 100)
        for given in (tmp_path / "m.onnx", b"\xff" * 100, tmp_path / "absent.onnx"):
            with pytest.raises(ModelError):
                InferenceSession(given)

    def test_what_onnxruntime_refuses_is_told(self) -> None:
        model = mlp()
        model.graph.node[0].op_type = "NoSuchOp"
        with pytest.raises(ModelError, match="NoSuchOp"):
            InferenceSession(model.SerializeToString())


class TestPaths:
    def test_from_a_path_the_binary_is_beside_the_model(self, tmp_path: Path) -> None:
        session = InferenceSession(split(tmp_path))
        assert_close(session.run(None, {"x": X}), wanted(mlp()))
        assert session.get_providers() == [REFERENCE, "CPUExecutionProvider"]

    def test_from_a_relative_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(split(tmp_path).parent)
        assert_close(InferenceSession("m_ctx.onnx").run(None, {"x": X}), wanted(mlp()))

    def test_from_bytes_the_folder_is_that_of_context_file_path(self, tmp_path: Path) -> None:
        path = split(tmp_path)
        options = {"ep.context_file_path": str(path.parent / "it_need_not_exist.onnx")}
        session = InferenceSession(path.read_bytes(), session_options=options)
        assert_close(session.run(None, {"x": X}), wanted(mlp()))
        with pytest.raises(InvalidGraph, match=r"set the session option ep\.context_file_path"):
            InferenceSession(path.read_bytes())

    def test_an_embedded_context_needs_no_path(self, tmp_path: Path) -> None:
        path = split(tmp_path, embed_mode=1)
        for given in (path, path.read_bytes()):
            assert_close(InferenceSession(given).run(None, {"x": X}), wanted(mlp()))

    def test_a_binary_in_a_subfolder(self, tmp_path: Path) -> None:
        path = split(tmp_path)
        (path.parent / "sub").mkdir()
        (path.parent / "m_reference.bin").rename(path.parent / "sub" / "m_reference.bin")
        with pytest.raises(InvalidGraph, match="cannot be used"):
            InferenceSession(path)
        model = onnx.load(path)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "ep_cache_context":
                    attribute.s = b"sub/m_reference.bin"
        onnx.save(model, path)
        assert_close(InferenceSession(path).run(None, {"x": X}), wanted(mlp()))

    def test_a_copied_folder_runs_without_its_sources(self, tmp_path: Path) -> None:
        path = split(tmp_path, external_initializers=ExternalInitializers(file="{model}.data"))
        shutil.copytree(path.parent, tmp_path / "elsewhere")
        for name in ("sources", "scratch", "out"):
            shutil.rmtree(tmp_path / name)
        session = InferenceSession(tmp_path / "elsewhere" / "m_ctx.onnx")
        assert_close(session.run(None, {"x": X}), wanted(mlp()))


class TestProviders:
    def test_each_ep_gets_the_nodes_of_its_source(self, tmp_path: Path) -> None:
        one: dict[str, Any] = {"source": "one", "ops": ("MatMul",)}
        two: dict[str, Any] = {"source": "two", "ops": ("Add", "Tanh")}
        eps = [reference(**one), reference(**two)]
        path = build(tmp_path, {"m": mlp()}, providers=eps) / "m_ctx.onnx"
        sources = [
            a.s for n in onnx.load(path).graph.node for a in n.attribute if a.name == "source"
        ]
        assert (sources.count(b"one"), sources.count(b"two")) == (3, 4)
        for order in ([(REFERENCE, one), (REFERENCE, two)], [(REFERENCE, two), (REFERENCE, one)]):
            assert_close(InferenceSession(path, providers=order).run(None, {"x": X}), wanted(mlp()))
        separate = InferenceSession(
            path, providers=[REFERENCE, REFERENCE], provider_options=[one, two]
        )
        assert_close(separate.run(None, {"x": X}), wanted(mlp()))
        with pytest.raises(InvalidGraph, match="is for source 'two', but the EPs of this session"):
            InferenceSession(path, providers=[(REFERENCE, one), "CPUExecutionProvider"])
        with pytest.raises(InvalidGraph, match="no installed EP accepts by default") as raised:
            InferenceSession(path)
        assert '"source": "one"' in raised.value.remedy

    def test_a_node_without_a_source_is_for_nobody(self, tmp_path: Path) -> None:
        path = split(tmp_path)
        model = onnx.load(path)
        for node in model.graph.node:
            kept = [a for a in node.attribute if a.name != "source"]
            del node.attribute[:]
            node.attribute.extend(kept)
        with pytest.raises(InvalidGraph, match="no `source`"):
            InferenceSession(model.SerializeToString())

    def test_a_mismatch_of_this_host_is_an_invalid_graph(self, tmp_path: Path) -> None:
        path = build(tmp_path, {"m": mlp()}, providers=[reference(driver_version="3")])
        with pytest.raises(InvalidGraph, match="needs driver 3"):
            InferenceSession(path / "m_ctx.onnx")
        host = [(REFERENCE, {"driver_version": "4"})]
        assert InferenceSession(path / "m_ctx.onnx", providers=host)

    def test_a_model_that_this_host_cannot_load_is_not_given_to_onnxruntime(
        self, tmp_path: Path
    ) -> None:
        class Npu(ReferenceExecutionProvider):
            """As QNN is to a host without an NPU: onnxruntime would load its nodes, and crash."""

            native = True
            why: str | None = "its NPU is missing"

            def cannot_load(
                self, nodes: Sequence[EPContextNode], folder: Path, *, sharing: bool
            ) -> str | None:
                return self.why

            def add_to(self, options: object) -> None:
                """Nothing: the CPU EP refuses the nodes."""

        path = split(tmp_path)
        with pytest.raises(ProviderUnavailable, match="this host cannot run it: its NPU is") as no:
            Session(path, providers=[Npu({})])
        assert no.value.exit_code == 5 and no.value.remedy == "run it on the device"
        Npu.why = None
        with pytest.raises(InvalidGraph, match="ONNX Runtime refuses it"):
            Session(path, providers=[Npu({})])

    def test_an_ep_that_fails_with_anything_is_an_invalid_graph(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = split(tmp_path)

        def broken(*args: object) -> None:
            raise KeyError("oops")

        monkeypatch.setattr(type(reference()), "load", broken)
        with pytest.raises(InvalidGraph, match="failed in `load`: KeyError: 'oops'"):
            InferenceSession(path)

    def test_a_node_inside_control_flow_is_refused(self, tmp_path: Path) -> None:
        body = onnx.load(build(tmp_path, {"m": mlp()}) / "m_ctx.onnx").graph
        del body.input[:]
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)],
            "g",
            [info("x", TensorProto.FLOAT, [1, 64]), info("c", TensorProto.BOOL, [])],
            [info("z", TensorProto.FLOAT, [1, 64])],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        with pytest.raises(InvalidGraph, match="inside a control-flow body"):
            InferenceSession(model.SerializeToString())


class TestSharing:
    @pytest.fixture
    def group(self, tmp_path: Path) -> Path:
        return build(tmp_path, {n: mlp(batch=b) for n, b in (("a", 1), ("b", 2), ("c", 3))})

    def run(self, session: InferenceSession, batch: int) -> None:
        x = normal((batch, 64))
        assert_close(session.run(None, {"x": x}), wanted(mlp(batch=batch), x))

    @pytest.mark.parametrize("order", ["abc", "cba", "bac"])
    def test_the_first_session_reads_the_binary_and_the_others_nothing(
        self, group: Path, reads: list[str], order: str
    ) -> None:
        sessions = [InferenceSession(group / f"{n}_ctx.onnx", session_options=SHARE) for n in order]
        assert reads == ["a_reference.bin"]
        assert len(SHARED) == 0, "every graph has moved to its session"
        for session, name in zip(sessions, order, strict=True):
            self.run(session, "_abc".index(name))
        for session in reversed(sessions):
            session.close()

    def test_a_second_session_on_the_same_graph_reads_the_binary_again(
        self, group: Path, reads: list[str]
    ) -> None:
        sessions = [InferenceSession(group / "b_ctx.onnx", session_options=SHARE) for _ in range(2)]
        assert len(reads) == 2
        for session in sessions:
            self.run(session, 2)

    def test_graphs_left_outlive_the_session_that_read_them(
        self, group: Path, reads: list[str]
    ) -> None:
        InferenceSession(group / "a_ctx.onnx", session_options=SHARE).close()
        self.run(InferenceSession(group / "b_ctx.onnx", session_options=SHARE), 2)
        assert len(reads) == 1

    def test_without_the_option_nothing_is_shared(self, group: Path, reads: list[str]) -> None:
        for _ in range(2):
            InferenceSession(group / "a_ctx.onnx")
        assert len(reads) == 2 and len(SHARED) == 0

    def test_the_session_that_stops_sharing_clears_the_workspace(
        self, group: Path, reads: list[str]
    ) -> None:
        InferenceSession(group / "a_ctx.onnx", session_options=SHARE)
        stop = SHARE | {"ep.stop_share_ep_contexts": "1"}
        self.run(InferenceSession(group / "b_ctx.onnx", session_options=stop), 2)
        assert len(SHARED) == 0 and len(reads) == 1

    def test_sessions_made_by_many_threads_read_once(self, group: Path, reads: list[str]) -> None:
        def make(name: str) -> InferenceSession:
            return InferenceSession(group / f"{name}_ctx.onnx", session_options=SHARE)

        with ThreadPoolExecutor(3) as pool:
            sessions = list(pool.map(make, "abc"))
        assert len(reads) == 1
        for batch, session in enumerate(sessions, 1):
            self.run(session, batch)

    def test_a_rebuilt_group_is_not_taken_for_the_one_before(
        self, group: Path, tmp_path: Path
    ) -> None:
        other = build(tmp_path / "new", {n: mlp(batch=b, seed=9) for n, b in (("a", 1), ("b", 2))})
        InferenceSession(group / "a_ctx.onnx", session_options=SHARE)
        session = InferenceSession(other / "b_ctx.onnx", session_options=SHARE)
        x = normal((2, 64))
        assert_close(session.run(None, {"x": x}), wanted(mlp(batch=2, seed=9), x))

    def test_a_secondary_node_takes_its_graph_from_the_workspace(
        self, group: Path, reads: list[str], tmp_path: Path
    ) -> None:
        model = onnx.load(group / "b_ctx.onnx")
        for attribute in model.graph.node[0].attribute:
            if attribute.name == "main_context":
                attribute.i = 0
        onnx.save(model, tmp_path / "b.onnx")  # a folder without the binary
        with pytest.raises(InvalidGraph, match="main_context = 0"):
            InferenceSession(tmp_path / "b.onnx", session_options=SHARE)
        InferenceSession(group / "a_ctx.onnx", session_options=SHARE)
        self.run(InferenceSession(tmp_path / "b.onnx", session_options=SHARE), 2)
        assert len(reads) == 1


class TestWhatLiesBetween:
    """Parts that the default EP runs: every kind of value crosses."""

    def run_both(
        self, tmp_path: Path, model: onnx.ModelProto, feeds: Mapping[str, object], **options: Any
    ) -> InferenceSession:
        ep = reference(**options)
        path = build(tmp_path, {"m": model}, providers=[ep]) / "m_ctx.onnx"
        session = InferenceSession(path)
        assert session.get_providers()[0] == REFERENCE
        found, right = session.run(None, feeds), cpu(model).run(None, feeds)
        for one, other in zip(found, right, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5) if np.asarray(
                other
            ).dtype.kind == "f" else np.testing.assert_array_equal(one, other)
        return session

    def info(
        self, name: str, shape: list[int | str], kind: int = TensorProto.FLOAT
    ) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    def test_values_that_control_flow_captures(self, tmp_path: Path) -> None:
        def body(op: str) -> onnx.GraphProto:
            node = helper.make_node(op, ["r", "w"], [f"{op}_y"])
            return helper.make_graph([node], op, [], [self.info(f"{op}_y", [2, 2])])

        graph = helper.make_graph(
            [
                helper.make_node("Relu", ["x"], ["r"]),
                helper.make_node(
                    "If", ["c"], ["i"], then_branch=body("Add"), else_branch=body("Mul")
                ),
                helper.make_node("Neg", ["i"], ["y"]),
            ],
            "g",
            [self.info("x", [2, 2]), self.info("c", [], TensorProto.BOOL)],
            [self.info("y", [2, 2])],
            [numpy_helper.from_array(normal((2, 2)), "w")],
        )
        for flag in (True, False):
            feeds = {"x": normal((2, 2)), "c": np.array(flag)}
            folder = tmp_path / str(flag)
            self.run_both(folder, model_of(graph), feeds, ops=("Relu", "Neg"))

    def test_strings_and_sequences(self, tmp_path: Path) -> None:
        graph = helper.make_graph(
            [
                helper.make_node("Relu", ["x"], ["r"]),
                helper.make_node("SequenceConstruct", ["r", "x"], ["s"]),
                helper.make_node("SequenceAt", ["s", "zero"], ["at"]),
                helper.make_node("Neg", ["at"], ["y"]),
                helper.make_node("StringConcat", ["t", "t"], ["tt"]),
                helper.make_node("SequenceLength", ["s"], ["n"]),
            ],
            "g",
            [self.info("x", [3]), self.info("t", [2], TensorProto.STRING)],
            [
                self.info("y", [3]),
                self.info("tt", [2], TensorProto.STRING),
                self.info("n", [], TensorProto.INT64),
            ],
            [numpy_helper.from_array(np.array(0, np.int64), "zero")],
        )
        feeds = {"x": normal((3,)), "t": np.array(["ab", "ü"], object)}
        self.run_both(tmp_path, model_of(graph), feeds, ops=("Relu", "Neg"))

    def test_a_sequence_is_fed_and_given_back(self, tmp_path: Path) -> None:
        sequence = helper.make_tensor_sequence_value_info
        graph = helper.make_graph(
            [
                helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
                helper.make_node("Relu", ["c"], ["r"]),
                helper.make_node("SequenceInsert", ["s", "r"], ["out"]),
            ],
            "g",
            [sequence("s", TensorProto.FLOAT, None)],
            [sequence("out", TensorProto.FLOAT, None), self.info("r", ["n", 2])],
        )
        model = model_of(graph)
        path = build(tmp_path, {"m": model}, providers=[reference(ops=("Relu",))]) / "m_ctx.onnx"
        feeds = {"s": [normal((1, 2)), normal((2, 2), seed=1)]}
        found = InferenceSession(path).run(None, feeds)
        right = cpu(model).run(None, feeds)
        assert_close(found[0], right[0])
        assert_close(found[1:], right[1:])

    def test_an_input_with_a_default_may_be_fed_or_left_out(self, tmp_path: Path) -> None:
        graph = helper.make_graph(
            [
                helper.make_node("Add", ["x", "b"], ["a"]),
                helper.make_node("Relu", ["a"], ["r"]),
                helper.make_node("Mul", ["r", "b"], ["y"]),
            ],
            "g",
            [self.info("x", [2]), self.info("b", [2])],
            [self.info("y", [2])],
            [numpy_helper.from_array(np.array([2, 3], np.float32), "b")],
        )
        model = model_of(graph)
        for number, ops in enumerate([("Add",), ("Relu",), ("Mul",), ("Add", "Mul")]):
            feeds: dict[str, object] = {"x": normal((2,))}
            session = self.run_both(tmp_path / f"{number}", model, feeds, ops=ops)
            assert [arg.name for arg in session.get_inputs()] == ["x"]
            assert [arg.name for arg in session.get_overridable_initializers()] == ["b"]
            feeds["b"] = np.array([5, 7], np.float32)
            assert_close(session.run(None, feeds), cpu(model).run(None, feeds))

    def test_outputs_that_are_inputs_or_initializers(self, tmp_path: Path) -> None:
        graph = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])],
            "g",
            [self.info("x", [2])],
            [self.info("x", [2]), self.info("w", [2]), self.info("y", [2]), self.info("z", [2])],
            [numpy_helper.from_array(np.array([2, 3], np.float32), "w")],
        )
        self.run_both(tmp_path, model_of(graph), {"x": normal((2,))}, ops=("Relu",))

    def test_external_initializers_of_the_default_ep(self, tmp_path: Path) -> None:
        external = ExternalInitializers(file="{model}.data")
        out = build(
            tmp_path,
            {"m": mlp(width=64)},
            providers=[reference(exclude_ops=("MatMul",))],
            external_initializers=external,
        )
        path = out / "m_ctx.onnx"
        assert (out / "m.data").stat().st_size >= 3 * 64 * 64 * 4
        options = {
            "ep.context_file_path": str(path),
            "session.model_external_initializers_file_folder_path": str(out),
        }
        native = ort.SessionOptions()
        for key, value in options.items():
            native.add_session_config_entry(key, value)
        for session in (
            InferenceSession(path),
            InferenceSession(path, session_options=ort.SessionOptions()),
            InferenceSession(path.read_bytes(), session_options=options),
            InferenceSession(path.read_bytes(), session_options=native),
        ):
            assert_close(session.run(None, {"x": X}), wanted(mlp()))
        (out / "m.data").write_bytes(b"short")
        with pytest.raises(InvalidGraph, match="reaches to byte"):
            InferenceSession(path)
        (out / "m.data").unlink()
        with pytest.raises(InvalidGraph, match=r"m\.data"):
            InferenceSession(path)

    def test_a_broken_graph_is_an_invalid_graph(self, tmp_path: Path) -> None:
        path = split(tmp_path)
        model = onnx.load(path)
        model.graph.node[-1].input[0] = "nothing"
        onnx.save(model, path)
        with pytest.raises(InvalidGraph, match="which nothing makes"):
            InferenceSession(path)

    def test_a_kernel_that_makes_what_the_model_does_not_say_is_an_invalid_graph(
        self, tmp_path: Path
    ) -> None:
        path = build(tmp_path, {"m": mlp()}) / "m_ctx.onnx"
        model = onnx.load(path)
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 65
        onnx.save(model, path)
        with pytest.raises(InvalidGraph, match=r"its shape is \[1, 64\], not \[1, 65\]"):
            InferenceSession(path).run(None, {"x": X})


class TestGluedModels:
    """EPContext nodes of different models in one, as the spec's prefix is for."""

    def test_two_models_in_a_row(self, tmp_path: Path) -> None:
        first = build(tmp_path / "1", {"one": mlp(seed=1)}, prefix="p1_")
        second = build(tmp_path / "2", {"two": mlp(seed=2)}, prefix="p2_", embed_mode=1)
        one, two = onnx.load(first / "one_ctx.onnx"), onnx.load(second / "two_ctx.onnx")
        joined = onnx.compose.merge_models(
            one, onnx.compose.add_prefix(two, "second/"), io_map=[("y", "second/x")]
        )
        onnx.save(joined, first / "joined.onnx")
        found = InferenceSession(first / "joined.onnx").run(None, {"x": X})
        middle = wanted(mlp(seed=1))[0]
        assert_close(found, wanted(mlp(seed=2), middle))


class TestTheApi:
    @pytest.fixture
    def session(self, tmp_path: Path) -> InferenceSession:
        return InferenceSession(split(tmp_path))

    def test_inputs_and_outputs_are_those_that_onnxruntime_tells(
        self, session: InferenceSession
    ) -> None:
        theirs = cpu(mlp())
        for own, other in (
            (session.get_inputs(), theirs.get_inputs()),
            (session.get_outputs(), theirs.get_outputs()),
        ):
            assert [(a.name, a.type, a.shape) for a in own] == [
                (a.name, a.type, a.shape) for a in other
            ]

    def test_ort_values(self, session: InferenceSession) -> None:
        value = ort.OrtValue.ortvalue_from_numpy(X)
        (found,) = session.run_with_ort_values(["y"], {"x": value})
        assert_close([found.numpy()], wanted(mlp()))
        assert_close(session.run(["y"], {"x": value}), wanted(mlp()))

    def test_feeds_and_names_that_do_not_fit(self, session: InferenceSession) -> None:
        for feeds, names in (
            ({}, None),
            ({"x": X, "z": X}, None),
            ({"x": X.astype(np.float64)}, None),
            ({"x": normal((2, 64))}, None),
            ({"x": X}, ["z"]),
        ):
            with pytest.raises(UsageError):
                session.run(names, feeds)

    def test_many_threads(self, session: InferenceSession) -> None:
        inputs = [normal((1, 64), seed) for seed in range(4)]
        right = [wanted(mlp(), x)[0] for x in inputs]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda i: session.run(None, {"x": inputs[i % 4]}), range(200)))
        for i, one in enumerate(found):
            assert_close(one, [right[i % 4]])

    def test_a_closed_session(self, session: InferenceSession, tmp_path: Path) -> None:
        with session as same:
            assert same is session
        session.close()
        for call in (session.get_inputs, session.get_outputs, session.get_providers):
            with pytest.raises(UsageError, match="closed"):
                call()
        with pytest.raises(UsageError, match="closed"):
            session.run(None, {"x": X})
        shutil.rmtree(tmp_path)  # nothing holds the files

    def test_an_output_keeps_its_numbers_when_everything_else_is_gone(self, tmp_path: Path) -> None:
        session = InferenceSession(split(tmp_path))
        (y,) = session.run(None, {"x": X.copy()})
        session.close()
        del session
        assert_close([y], wanted(mlp()))

    def test_options_of_onnxruntime_reach_the_default_ep(self, tmp_path: Path) -> None:
        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        InferenceSession(split(tmp_path), session_options=options).run(None, {"x": X})
        assert list(tmp_path.glob("profile*"))


def described(model: onnx.ModelProto) -> None:
    """Fill in all that onnxruntime's ModelMetadata tells."""
    model.producer_name, model.domain, model.model_version = "someone", "a.b", 7
    model.doc_string, model.graph.doc_string = "a model", "a graph"
    helper.set_model_props(model, {"labels": "[1, 2]", "": "x"})


class TestOnnxruntimesMethods:
    """The class has each method of onnxruntime's, with its results, or with a clear error."""

    @pytest.fixture
    def session(self, tmp_path: Path) -> InferenceSession:
        return InferenceSession(split(tmp_path))

    @pytest.mark.parametrize("name", surface.methods(ort.InferenceSession))
    def test_each_has_the_same_name_and_signature(self, name: str) -> None:
        """This fails if a later onnxruntime has a public method that ours lacks."""
        own = surface.methods(InferenceSession).get(name)
        assert own is not None, f"onnxruntime {ort.__version__} has a new method"
        assert surface.parameters(own) == surface.parameters(getattr(ort.InferenceSession, name))
        text = inspect.getdoc(own) or ""
        assert text and not text.startswith("None"), "help() says nothing"

    def test_each_of_a_model_that_onnxruntime_runs_has_onnxruntimes_result(self) -> None:
        model = mlp(batch=2)
        described(model)
        options = ort.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        data = model.SerializeToString()
        own = InferenceSession(data, sess_options=options)
        theirs = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        compared = surface.compare(own, theirs, {"x": normal((2, 64))})
        rest = {*surface.methods(ort.InferenceSession)} - compared
        assert rest == {"enable_fallback", "set_providers"}, "these have tests of their own"

    def test_a_profile_of_a_model_that_onnxruntime_runs(self, tmp_path: Path) -> None:
        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        session = InferenceSession(mlp().SerializeToString(), options)
        assert session.get_profiling_start_time_ns() > 0
        session.run(None, {"x": X})
        assert [Path(session.end_profiling())] == list(tmp_path.iterdir())

    @pytest.mark.parametrize("versioned", [True, False])
    def test_the_metadata_of_a_model_of_several_steps(
        self, tmp_path: Path, versioned: bool
    ) -> None:
        path = split(tmp_path)
        compiled, source = onnx.load(path), mlp()
        for model in (compiled, source):
            described(model)
            if not versioned:
                model.ClearField("model_version")
        onnx.save(compiled, path)
        found = surface.fields(InferenceSession(path).get_modelmeta())
        assert found == surface.fields(cpu(source).get_modelmeta())
        assert found["custom_metadata_map"] == {"labels": "[1, 2]", "": "x"}
        assert found["description"] == "a model" and found["graph_description"] == "a graph"
        assert (found["version"] == 7) is versioned

    def test_the_options_of_a_model_of_several_steps(self, tmp_path: Path) -> None:
        given: dict[str, Any] = {"driver_version": "4"}
        entries = {"session.intra_op.allow_spinning": "0"}
        session = InferenceSession(split(tmp_path), entries, [(REFERENCE, given)])
        assert session.get_provider_options() == {REFERENCE: given, "CPUExecutionProvider": {}}
        key = "session.intra_op.allow_spinning"
        assert session.get_session_options().get_session_config_entry(key) == "0"
        options = ort.SessionOptions()
        own = InferenceSession(tmp_path / "out" / "m_ctx.onnx", sess_options=options)
        assert own.get_session_options() is options
        own.disable_fallback()
        with pytest.raises(UsageError, match="both given"):
            InferenceSession(mlp().SerializeToString(), options, sess_options=options)

    @pytest.mark.parametrize(
        ("name", "arguments", "remedy"),
        [
            ("create_ortvalue_from_shape_and_type", ([1], np.float32, "cpu"), "`onnxruntime.Ort"),
            ("end_profiling", (), "each step writes a file"),
            ("get_input_epdevices", (), "`get_providers()`"),
            ("get_input_memory_infos", (), "on the CPU"),
            ("get_output_memory_infos", (), "on the CPU"),
            ("get_profiling_start_time_ns", (), "the file that each step writes"),
            ("get_provider_graph_assignment_info", (), "`get_node_counts()`"),
            ("get_tuning_results", (), "are not tuned"),
            ("io_binding", (), "`run_with_ort_values`"),
            ("release_captured_graph", (), "no graph is captured"),
            ("run_with_iobinding", (None,), "`run_with_ort_values`"),
            ("run_with_ortvaluevector", (None,) * 6, "`run_with_ort_values`"),
            ("set_ep_dynamic_options", ({},), "`set_providers`"),
            ("set_tuning_results", ([],), "are not tuned"),
        ],
    )
    def test_what_one_session_answers_is_refused_for_several_steps(
        self, session: InferenceSession, name: str, arguments: tuple[Any, ...], remedy: str
    ) -> None:
        with pytest.raises(UsageError, match=f"`{name}` is for models that one session") as raised:
            getattr(session, name)(*arguments)
        assert raised.value.why == f"{REFERENCE} and CPUExecutionProvider run this one in steps"
        assert remedy in raised.value.remedy
        assert remedy in str(inspect.getdoc(getattr(InferenceSession, name)))

    def test_a_run_in_another_thread(self, session: InferenceSession) -> None:
        results, error = surface.by_callback(session, {"x": X})
        assert_close(results, wanted(mlp()))
        assert error == ""
        for names, feeds, text in (
            (["z"], {"x": X}, "the model has no output 'z'"),
            (None, {"x": X, "z": X}, "the model has no input 'z'"),
            (None, {"x": X.astype(np.float64)}, "tensor(double)"),
            (None, {}, "inputs are missing: x"),
        ):
            results, error = surface.by_callback(session, feeds, names)
            assert results == [] and text in error

    def test_a_run_that_was_asked_for_ends_after_the_session_is_closed(
        self, session: InferenceSession
    ) -> None:
        answers: list[tuple[Any, ...]] = []
        for _ in range(50):
            session.run_async(None, {"x": X}, lambda *given: answers.append(given), None)
        threads = session._threads
        session.close()
        threads.shutdown(wait=True)
        assert [error for _, _, error in answers] == [""] * 50
        assert_close(answers[-1][0], wanted(mlp()))
        with pytest.raises(UsageError, match="closed"):
            session.run_async(None, {"x": X}, print, None)

    def test_a_dictionary_of_inputs_may_be_used_again(self, session: InferenceSession) -> None:
        expected = [session.run(None, {"x": X * number})[0] for number in range(50)]
        answers: dict[int, Any] = {}
        feeds = {"x": X}
        for number in range(50):
            feeds["x"] = X * number
            session.run_async(None, feeds, lambda r, n, _: answers.update({n: r[0]}), number)
        session._threads.shutdown(wait=True)
        assert all(np.array_equal(answers[n], expected[n]) for n in range(50))

    def test_the_error_of_a_callback_is_printed(
        self, session: InferenceSession, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def callback(*_: object) -> None:
            raise ValueError("oops")

        session.run_async(None, {"x": X}, callback, None)
        session._threads.shutdown(wait=True)
        assert "ValueError: oops" in capsys.readouterr().err

    def test_fallback_cannot_be_enabled(self, session: InferenceSession) -> None:
        with pytest.raises(UsageError, match="cannot be enabled: a session of epctx"):
            session.enable_fallback()

    def test_other_eps(self, session: InferenceSession) -> None:
        session.set_providers([REFERENCE], provider_options=[{"driver_version": "5"}])
        assert session.get_provider_options()[REFERENCE] == {"driver_version": "5"}
        assert_close(session.run(None, {"x": X}), wanted(mlp()))
        for providers, error in (
            ([(REFERENCE, {"source": "other"})], InvalidGraph),
            (["NoSuchExecutionProvider"], ProviderUnavailable),
            (["CPUExecutionProvider"], InvalidGraph),
        ):
            with pytest.raises(error):
                session.set_providers(providers)
            assert session.get_provider_options()[REFERENCE] == {"driver_version": "5"}
            assert_close(session.run(None, {"x": X}), wanted(mlp()))
        session.set_providers()
        assert session.get_provider_options()[REFERENCE] == {}
        session.close()
        with pytest.raises(UsageError, match="closed"):
            session.set_providers()
