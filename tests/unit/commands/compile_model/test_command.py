"""`epctx.compile_model` and generating sessions: the spec's options for one model at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest

import epctx
from epctx.commands.compile_model import command
from epctx.errors import (
    CompileError,
    InvalidGraph,
    ManifestError,
    ModelError,
    ProviderUnavailable,
    UsageError,
)
from epctx.graph.epcontext import EPContextNode, read_all
from epctx.manifest import PartitionSettings, ProviderSpec
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.providers.reference.workspace import ReferenceWorkspace
from epctx.runtime import InferenceSession, release_shared_contexts
from tests.kit.building import assert_close, cpu, mlp, normal
from tests.kit.composite_provider import Composite

REFERENCE = "ReferenceExecutionProvider"
SHARE = {"ep.share_ep_contexts": "1"}
STOP = SHARE | {"ep.stop_share_ep_contexts": "1"}
FOLDER = "session.model_external_initializers_file_folder_path"


@pytest.fixture(autouse=True)
def empty_workspaces() -> Iterator[None]:
    yield
    release_shared_contexts()
    while command._open:
        command._open.pop().close()
    command._waiting.clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    onnx.save(mlp(), tmp_path / "in" / "m.onnx")
    return tmp_path / "in" / "m.onnx"


def compile_(model: Path | bytes, **arguments: Any) -> Path:
    return epctx.compile_model(model, **{"providers": [REFERENCE]} | arguments)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def nodes(path: Path) -> tuple[EPContextNode, ...]:
    return read_all(onnx.load(path, load_external_data=False))


def check(path: Path, model: onnx.ModelProto, batch: int = 1, **arguments: Any) -> None:
    x = normal((batch, 64))
    found = InferenceSession(path, **arguments).run(None, {"x": x})
    assert_close(found, cpu(model).run(None, {"x": x}))


class TestWhereFilesGo:
    def test_beside_the_source_by_default(self, source: Path) -> None:
        path = compile_(source)
        assert path == source.with_name("m_ctx.onnx")
        assert names(source.parent) == ["m.onnx", "m_ctx.onnx", "m_reference.bin"]
        check(path, mlp())

    @pytest.mark.parametrize("how", ["output", "mapping", "native"])
    def test_where_the_caller_says(self, source: Path, tmp_path: Path, how: str) -> None:
        wanted = tmp_path / "out" / "deep" / "other.onnx"
        native = ort.SessionOptions()
        native.add_session_config_entry("ep.context_file_path", str(wanted))
        ways: dict[str, dict[str, Any]] = {
            "output": {"output": wanted},
            "mapping": {"session_options": {"ep.context_file_path": str(wanted)}},
            "native": {"session_options": native},
        }
        arguments = ways[how]
        assert compile_(source, **arguments) == wanted
        assert names(wanted.parent) == ["other.onnx", "other_reference.bin"]
        check(wanted, mlp())

    def test_existing_files_are_replaced_and_others_stay(self, source: Path) -> None:
        (source.parent / "m_reference.bin").write_bytes(b"stale")
        (source.parent / "m_ctx.onnx").write_bytes(b"stale")
        (source.parent / "other").write_bytes(b"kept")
        check(compile_(source), mlp())
        assert (source.parent / "other").read_bytes() == b"kept"

    def test_the_same_bytes_each_time(self, source: Path, tmp_path: Path) -> None:
        one = compile_(source, output=tmp_path / "1" / "m_ctx.onnx")
        data = source.read_bytes()
        two = compile_(data, output=tmp_path / "2" / "m_ctx.onnx")
        assert one.read_bytes() == two.read_bytes()
        binaries = [path.with_name("m_reference.bin").read_bytes() for path in (one, two)]
        assert binaries[0] == binaries[1]

    @pytest.mark.parametrize("output", ["m.onnx", "../in/m.onnx"])
    def test_never_over_the_source(self, source: Path, output: str) -> None:
        before = source.read_bytes()
        with pytest.raises(UsageError, match="is the source itself"):
            compile_(source, output=source.parent / output)
        assert source.read_bytes() == before

    def test_two_outputs_must_agree(self, source: Path, tmp_path: Path) -> None:
        options = {"ep.context_file_path": str(tmp_path / "a_ctx.onnx")}
        assert compile_(source, output=tmp_path / "a_ctx.onnx", session_options=options)
        with pytest.raises(UsageError, match="give one of them"):
            compile_(source, output=tmp_path / "b_ctx.onnx", session_options=options)

    @pytest.mark.parametrize("name", ["model", "model.bin"])
    def test_an_output_is_an_onnx_file(self, source: Path, name: str) -> None:
        with pytest.raises(UsageError, match=r"is not an \.onnx file"):
            compile_(source, output=source.parent / name)

    def test_a_failure_leaves_no_file(self, source: Path) -> None:
        with pytest.raises(CompileError, match="nothing compiled"):
            compile_(source, providers=[(REFERENCE, {"ops": ("Conv",)})])
        assert names(source.parent) == ["m.onnx"]


class TestFromBytes:
    def test_a_path_is_required(self, source: Path) -> None:
        with pytest.raises(UsageError, match=r"ep\.context_file_path"):
            compile_(source.read_bytes())

    def test_with_external_data(self, tmp_path: Path) -> None:
        weights = tmp_path / "weights"
        weights.mkdir()
        model = weights / "m.onnx"
        onnx.save(mlp(), model, save_as_external_data=True, location="w.data", size_threshold=0)
        out = tmp_path / "out" / "m_ctx.onnx"
        options = {"ep.context_file_path": str(out), FOLDER: str(weights)}
        check(compile_(model.read_bytes(), session_options=options), mlp())
        with pytest.raises(ModelError, match=r"w\.data"):
            compile_(model.read_bytes(), output=out)

    def test_external_data_is_looked_for_in_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = tmp_path / "m.onnx"
        onnx.save(mlp(), model, save_as_external_data=True, location="w.data", size_threshold=0)
        monkeypatch.chdir(tmp_path)
        check(compile_(model.read_bytes(), output=Path("out/m_ctx.onnx")), mlp())

    def test_new_files_do_not_need_the_old_ones(self, tmp_path: Path) -> None:
        model = tmp_path / "m.onnx"
        onnx.save(mlp(), model, save_as_external_data=True, location="w.data", size_threshold=0)
        path = compile_(model, output=tmp_path / "out" / "m_ctx.onnx",
                        providers=[(REFERENCE, {"exclude_ops": ("Add",)})])  # fmt: skip
        model.unlink()
        (tmp_path / "w.data").unlink()
        check(path, mlp())


class TestOptions:
    def test_embed_mode(self, source: Path) -> None:
        path = compile_(source, session_options={"ep.context_embed_mode": "1"})
        assert names(source.parent) == ["m.onnx", "m_ctx.onnx"]
        assert nodes(path)[0].embed_mode == 1
        check(path, mlp())

    def test_prefix(self, source: Path) -> None:
        path = compile_(source, session_options={"ep.context_node_name_prefix": "pre_"})
        (node,) = nodes(path)
        assert node.name == node.partition_name == "pre_m_reference_0"

    def test_external_initializers(self, source: Path, tmp_path: Path) -> None:
        options = {"ep.context_model_external_initializers_file_name": "m.data"}
        path = compile_(
            source,
            output=tmp_path / "out" / "m_ctx.onnx",
            session_options=options,
            providers=[(REFERENCE, {"exclude_ops": ("MatMul",)})],
        )
        assert names(path.parent) == ["m.data", "m_ctx.onnx", "m_reference.bin"]
        assert path.stat().st_size < 3 * 64 * 64 * 4
        check(path, mlp())

    @pytest.mark.parametrize("name", ["sub/m.data", "../m.data", "/m.data", "..", "m_ctx.onnx"])
    def test_an_external_initializers_file_is_a_bare_name_of_its_own(
        self, source: Path, name: str
    ) -> None:
        options = {"ep.context_model_external_initializers_file_name": name}
        with pytest.raises(UsageError):
            compile_(source, session_options=options)
        assert names(source.parent) == ["m.onnx"]

    def test_external_initializers_over_the_binary(self, source: Path) -> None:
        options = {"ep.context_model_external_initializers_file_name": "m_reference.bin"}
        providers = [(REFERENCE, {"exclude_ops": ("MatMul",)})]
        with pytest.raises((ManifestError, UsageError)):
            compile_(source, session_options=options, providers=providers)
        assert names(source.parent) == ["m.onnx"]

    def test_dimensions_optimize_and_partition(self, tmp_path: Path) -> None:
        model = mlp()
        for value in (model.graph.input[0], model.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
        onnx.save(model, tmp_path / "m.onnx")
        path = compile_(
            tmp_path / "m.onnx",
            dimensions={"batch": 4},
            optimize="none",
            partition=PartitionSettings(exclude_nodes=("relu*",)),
        )
        session = InferenceSession(path)
        assert session.get_inputs()[0].shape == [4, 64]
        assert sum(node.op_type == "Relu" for node in onnx.load(path).graph.node) == 3

    def test_two_eps_in_one_model(self, source: Path) -> None:
        providers = [
            (REFERENCE, {"source": "one", "ops": ("MatMul",)}),
            (REFERENCE, {"source": "two", "ops": ("Relu",)}),
            "CPUExecutionProvider",
        ]
        path = compile_(source, providers=providers)
        assert names(path.parent) == ["m.onnx", "m_ctx.onnx", "m_one.bin", "m_two.bin"]
        check(path, mlp(), providers=providers)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"providers": None}, UsageError, "no execution provider is given"),
            ({"providers": ["CPUExecutionProvider"]}, UsageError, "no execution provider"),
            ({"providers": ["Acme"]}, ProviderUnavailable, "Acme"),
            ({"providers": [(REFERENCE, {"sorce": "x"})]}, ManifestError, "source"),
            ({"session_options": {"ep.context_enabled": "1"}}, UsageError, "ep.context_enable"),
            ({"session_options": {"ep.stop_share_ep_contexts": "1"}}, UsageError, "without"),
            ({"session_options": STOP | {"ep.context_embed_mode": "1"}}, UsageError, "embedded"),
            ({"session_options": {"session.optimized_model_filepath": "x"}}, ManifestError, ""),
            ({"session_options": {"ep.context_node_name_prefix": "a b"}}, ManifestError, ""),
            ({"optimize": "most"}, ManifestError, "basic"),
        ],
        ids=str,
    )
    def test_what_cannot_be_is_told(
        self, source: Path, arguments: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error) as raised:
            compile_(source, **arguments)
        assert message in str(raised.value) and "compile-model" not in str(raised.value)
        assert names(source.parent) == ["m.onnx"]

    def test_a_source_that_is_missing_or_broken(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError):
            compile_(tmp_path / "absent.onnx")
        (tmp_path / "m.onnx").write_bytes(b"\xff\xff")
        with pytest.raises(ModelError):
            compile_(tmp_path / "m.onnx")
        with pytest.raises(ModelError):
            compile_(b"\xff\xff", output=tmp_path / "x_ctx.onnx")

    def test_an_epcontext_model_is_no_source(self, source: Path) -> None:
        with pytest.raises((ModelError, CompileError)):
            compile_(compile_(source))


class TestSharing:
    @pytest.fixture
    def sources(self, tmp_path: Path) -> dict[str, Path]:
        paths = {name: tmp_path / f"{name}.onnx" for name in "abc"}
        for batch, path in enumerate(paths.values(), 1):
            onnx.save(mlp(batch=batch, width=64), path)
        return paths

    def out(self, path: Path) -> Path:
        return path.parent / "out" / f"{path.stem}_ctx.onnx"

    def test_the_first_names_the_last_writes_n_plus_1_files(self, sources: dict[str, Path]) -> None:
        folder = self.out(sources["a"]).parent
        compile_(sources["a"], output=self.out(sources["a"]), session_options=SHARE)
        assert names(folder) == ["a_ctx.onnx"]
        compile_(sources["b"].read_bytes(), output=self.out(sources["b"]), session_options=SHARE)
        assert names(folder) == ["a_ctx.onnx", "b_ctx.onnx"]
        compile_(sources["c"], output=self.out(sources["c"]), session_options=STOP)
        assert names(folder) == ["a_ctx.onnx", "a_reference.bin", "b_ctx.onnx", "c_ctx.onnx"]
        for batch, name in enumerate("abc", 1):
            check(self.out(sources[name]), mlp(batch=batch), batch, session_options=SHARE)
        size = (folder / "a_reference.bin").stat().st_size
        alone = compile_(sources["a"], output=folder.parent / "alone" / "a_ctx.onnx")
        assert size <= 1.1 * alone.with_name("a_reference.bin").stat().st_size

    def test_after_the_last_the_next_session_is_the_first(self, sources: dict[str, Path]) -> None:
        a, b, c = sources.values()
        compile_(a, output=self.out(a), session_options=SHARE)
        compile_(b, output=self.out(b), session_options=STOP)
        compile_(c, output=self.out(c), session_options=STOP)
        assert "c_reference.bin" in names(self.out(c).parent)

    def test_a_session_that_does_not_share_leaves_the_group_alone(
        self, sources: dict[str, Path]
    ) -> None:
        a, b, c = sources.values()
        compile_(a, output=self.out(a), session_options=SHARE)
        check(compile_(b, output=b.parent / "alone" / "b_ctx.onnx"), mlp(batch=2), 2)
        compile_(c, output=self.out(c), session_options=STOP)
        check(self.out(a), mlp())

    def test_a_failing_session_gives_the_group_up_and_removes_its_files(
        self, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b, c = sources.values()
        compile_(a, output=self.out(a), session_options=SHARE)
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise CompileError("boom", remedy="none")

            patch.setattr(ReferenceWorkspace, "compile", fail)
            with pytest.raises(CompileError, match="boom"):
                compile_(b, output=self.out(b), session_options=SHARE)
        assert names(self.out(a).parent) == []
        compile_(c, output=self.out(c), session_options=STOP)
        assert names(self.out(a).parent) == ["c_ctx.onnx", "c_reference.bin"]

    @pytest.mark.parametrize(
        "change",
        [
            {"providers": [(REFERENCE, {"source": "other"})]},
            {"session_options": STOP | {"ep.context_node_name_prefix": "p_"}},
            {"output": "elsewhere/b_ctx.onnx"},
        ],
        ids=str,
    )
    def test_a_session_that_does_not_agree_is_refused_and_the_group_goes_on(
        self, sources: dict[str, Path], change: dict[str, Any], tmp_path: Path
    ) -> None:
        a, b, _ = sources.values()
        compile_(a, output=self.out(a), session_options=SHARE)
        if "output" in change:
            change = {"output": tmp_path / change["output"]}
        with pytest.raises(UsageError, match="than the first"):
            compile_(b, **{"output": self.out(b), "session_options": STOP} | change)
        compile_(b, output=self.out(b), session_options=STOP)
        check(self.out(a), mlp())

    def test_two_models_of_one_name_are_refused(self, sources: dict[str, Path]) -> None:
        a = sources["a"]
        compile_(a, output=self.out(a), session_options=SHARE)
        with pytest.raises((UsageError, CompileError)):
            compile_(a, output=self.out(a), session_options=STOP)
        assert names(self.out(a).parent) == []

    def test_one_external_initializers_file_for_two_models_is_refused(
        self, sources: dict[str, Path]
    ) -> None:
        a, b, _ = sources.values()
        data = {"ep.context_model_external_initializers_file_name": "w.data"}
        providers = [(REFERENCE, {"exclude_ops": ("MatMul",)})]
        compile_(a, output=self.out(a), session_options=SHARE | data, providers=providers)
        with pytest.raises(UsageError, match="names of their own"):
            compile_(b, output=self.out(b), session_options=STOP | data, providers=providers)


class TestGeneratingSessions:
    """`ep.context_enable` with a session, as in the spec's code examples."""

    def test_a_session_dumps_the_model_and_runs_it(self, source: Path) -> None:
        native = ort.SessionOptions()
        native.add_session_config_entry("ep.context_enable", "1")
        for options in (native, {"ep.context_enable": "1"}):
            session = InferenceSession(source, session_options=options, providers=[REFERENCE])
            assert names(source.parent) == ["m.onnx", "m_ctx.onnx", "m_reference.bin"]
            x = normal((1, 64))
            assert_close(session.run(None, {"x": x}), cpu(mlp()).run(None, {"x": x}))
            assert session.get_providers()[0] == REFERENCE

    def test_parts_of_the_default_ep_are_not_dumped_again(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(source.parent)
        for options in (ort.SessionOptions(), None):
            if options is not None:
                options.add_session_config_entry("ep.context_enable", "1")
            InferenceSession(
                source,
                session_options=options or {"ep.context_enable": "1"},
                providers=[(REFERENCE, {"exclude_ops": ("Relu",)})],
            )
            assert names(source.parent) == ["m.onnx", "m_ctx.onnx", "m_reference.bin"]

    def test_from_bytes_and_embedded(self, source: Path, tmp_path: Path) -> None:
        options = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "1",
            "ep.context_file_path": str(tmp_path / "out" / "m_ctx.onnx"),
        }
        data = source.read_bytes()
        session = InferenceSession(data, session_options=options, providers=[REFERENCE])
        assert names(tmp_path / "out") == ["m_ctx.onnx"] and session.get_inputs()

    def test_a_group_as_in_the_specs_example(self, source: Path, tmp_path: Path) -> None:
        onnx.save(mlp(batch=2), source.with_name("n.onnx"))
        options = {"ep.context_enable": "1", **SHARE}
        first = InferenceSession(source, session_options=options, providers=[REFERENCE])
        assert names(source.parent) == ["m.onnx", "m_ctx.onnx", "n.onnx"]
        with pytest.raises(InvalidGraph, match=r"m_reference\.bin"):
            first.run(None, {"x": normal((1, 64))})  # the group's last session is still to come
        last = options | STOP
        second = InferenceSession(
            source.with_name("n.onnx"), session_options=last, providers=[REFERENCE]
        )
        for session, batch in ((first, 1), (second, 2)):
            x = normal((batch, 64))
            assert_close(session.run(None, {"x": x}), cpu(mlp(batch=batch)).run(None, {"x": x}))

    def test_without_the_option_nothing_is_dumped(self, source: Path) -> None:
        with pytest.raises(UsageError, match="runs compiled models only"):
            InferenceSession(source, providers=[REFERENCE])
        session = InferenceSession(source, providers=["CPUExecutionProvider"])
        assert names(source.parent) == ["m.onnx"]
        assert session.get_providers() == ["CPUExecutionProvider"]


def test_nothing_is_left_in_the_temporary_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(scratch))
    compile_(source)
    with pytest.raises(CompileError):
        compile_(source, providers=[(REFERENCE, {"ops": ("Conv",)})])
    assert names(scratch) == []
    assert names(source.parent) == ["m.onnx", "m_ctx.onnx", "m_reference.bin"]


def test_what_an_ep_leaves_inside_its_partition_goes_to_the_next(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock as first EP: those that leave nodes inside are real ones, in a process of their own
    (tests/integration/test_two_eps.py).
    """
    first = Composite("MatMul", "Add", label="one")
    create = registry.create

    def created(spec: ProviderSpec) -> ExecutionProvider:
        return first if spec.options else create(spec)

    monkeypatch.setattr(registry, "create", created)
    embedded = {"ep.context_embed_mode": "1"}
    providers = [(REFERENCE, {"source": "one"}), REFERENCE]
    path = compile_(source, providers=providers, session_options=embedded)
    assert {node.source for node in nodes(path)} == {"one", "reference"}
    assert {node.op_type for node in onnx.load(path).graph.node} == {"EPContext"}


def test_an_ep_that_takes_nothing_in_the_end_is_an_error(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same mock: it wants every node, and gives all of them back."""
    monkeypatch.setattr(registry, "create", lambda spec: Composite("Celu", label="one"))
    with pytest.raises(CompileError, match="nothing compiled"):
        compile_(source, session_options={"ep.context_embed_mode": "1"})
    assert names(source.parent) == ["m.onnx"]
