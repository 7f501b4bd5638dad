"""The EPs that a caller names: bound to their options, and a model without contexts on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import onnx
import onnxruntime as ort
import pytest

from epctx.errors import CompileError, ManifestError, ModelError, ProviderUnavailable, UsageError
from epctx.inference import selection
from epctx.inference.selection import bind, pairs
from epctx.inference.session import Session
from epctx.providers.onnxruntime.session import Mark
from epctx.runtime import InferenceSession
from tests.kit.building import build, mlp, normal, reference
from tests.kit.fake_providers import Fake

REFERENCE = "ReferenceExecutionProvider"


def test_no_list_is_not_an_empty_list() -> None:
    assert bind(None, None) is None
    assert bind([], None) == []


def test_the_default_ep_is_left_out() -> None:
    bound = bind([(REFERENCE, {"source": "one"}), "CPUExecutionProvider"], None)
    assert bound is not None
    assert [each.sources for each in bound] == [{"one"}]


def test_an_ep_that_is_not_installed() -> None:
    with pytest.raises(ProviderUnavailable, match="AcmeExecutionProvider"):
        bind(["AcmeExecutionProvider"], None)


def test_an_option_that_the_schema_does_not_have() -> None:
    with pytest.raises(ManifestError, match="sauce"):
        bind([REFERENCE], [{"sauce": "one"}])


def test_options_are_given_once() -> None:
    assert pairs([REFERENCE], [{"source": "one"}]) == [(REFERENCE, {"source": "one"})]
    with pytest.raises(UsageError, match="without `providers`"):
        pairs(None, [{}])
    with pytest.raises(UsageError, match=r"`provider_options` \(2 entries\) does not match"):
        pairs([REFERENCE], [{}, {}])
    with pytest.raises(UsageError, match="or both give options"):
        pairs([(REFERENCE, {"source": "one"})], [{"source": "two"}])


QNN = "QNNExecutionProvider"


class Native(Fake):
    """An EP of onnxruntime that takes nothing, or cannot be made."""

    native = True

    def __init__(self, name: str = "IdleExecutionProvider", fails: str = "") -> None:
        self.name = name
        self._fails = fails

    def add_to(self, options: ort.SessionOptions) -> None:
        if self._fails:
            options.intra_op_num_threads = 3
            options.add_session_config_entry("session.intra_op_thread_affinities", self._fails)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path)
    return path


def test_an_ep_that_runs_contexts_only_is_refused(plain: Path) -> None:
    with pytest.raises(UsageError, match=f"{REFERENCE} runs compiled models only") as raised:
        InferenceSession(plain, providers=[REFERENCE])
    assert "epctx build" in raised.value.remedy


def test_an_ep_that_takes_nothing_is_refused(plain: Path) -> None:
    for options in (None, {"session.intra_op.allow_spinning": "0"}, ort.SessionOptions()):
        with pytest.raises(CompileError, match="IdleExecutionProvider takes no node of it"):
            Session(plain, options, [Native()])


def test_without_a_named_ep_the_cpu_runs_it_and_is_counted(plain: Path) -> None:
    options = {"session.record_ep_graph_assignment_info": "1"}
    for providers in (None, [], ["CPUExecutionProvider"]):
        session = InferenceSession(plain, options, cast(Any, providers))
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert set(session.get_node_counts()) == {"CPUExecutionProvider"}
        assert session.get_node_counts()["CPUExecutionProvider"] > 0


def test_of_a_compiled_model_the_nodes_of_kernels_are_counted(tmp_path: Path) -> None:
    ep = reference(exclude_ops=("Relu",))
    path = build(tmp_path, {"m": mlp()}, providers=[ep]) / "m_ctx.onnx"
    contexts = sum(node.op_type == "EPContext" for node in onnx.load(path).graph.node)
    assert InferenceSession(path).get_node_counts() == {REFERENCE: contexts}
    options = {"session.record_ep_graph_assignment_info": "1"}
    counts = InferenceSession(path, options).get_node_counts()
    assert counts[REFERENCE] == contexts and counts["CPUExecutionProvider"] > 0


def test_who_refuses_a_model_is_blamed(plain: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    model = mlp()
    model.graph.node[0].op_type = "NoSuchOp"
    onnx.save(model, broken)
    with pytest.raises(ModelError):
        Session(broken, None, [Native()])
    unmade = Native(name="AzureExecutionProvider", fails="no;cores")
    with pytest.raises(CompileError, match="AzureExecutionProvider cannot run it"):
        Session(plain, None, [unmade])


def test_each_is_required_where_that_is_asked() -> None:
    eps = [Native(name="A"), Native(name="B")]
    selection.require_each(eps, {"A": 1, "B": 2}, "m.onnx")
    selection.require_some(eps, {"B": 2}, "m.onnx", Mark(path=None))
    with pytest.raises(UsageError, match="A takes no node of it: all of it runs on B"):
        selection.require_each(eps, {"B": 2}, "m.onnx")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (REFERENCE, {"sorce": "x"}, 'did you mean "source"?'),
        (QNN, {"soc_modl": "60"}, 'did you mean "soc_model"?'),
        (QNN, {"soc_model": "abc"}, "write, for example, 60"),
        (QNN, {"enable_htp_prepare_only": "1"}, "remove it"),
        (QNN, {"ep.context_enable": "1"}, "remove it"),
        ("TensorrtExecutionProvider", {"trt_fp17_enable": "1"}, 'did you mean "trt_fp16_enable"?'),
        ("OpenVINOExecutionProvider", {"device_typ": "CPU"}, 'did you mean "device_type"?'),
    ],
)
def test_an_option_that_the_schema_does_not_know_is_refused(
    plain: Path, tmp_path: Path, name: str, options: dict[str, str], words: str
) -> None:
    """Of a compiled model, too: real EPs swallow it."""
    compiled = build(tmp_path, {"c": mlp()}, providers=[reference()]) / "c_ctx.onnx"
    for path in (plain, compiled):
        with pytest.raises(ManifestError) as raised:
            InferenceSession(path, providers=[(name, options)])
        assert words in raised.value.remedy and name in (raised.value.where or "")


def test_what_the_schema_knows_comes_as_the_ep_takes_it(tmp_path: Path) -> None:
    path = build(tmp_path, {"m": mlp()}, providers=[reference()]) / "m_ctx.onnx"
    given: dict[str, Any] = {"source": "reference", "ops": ["MatMul"], "driver_version": "1"}
    session = InferenceSession(path, providers=[(REFERENCE, given)])
    assert session.run(None, {"x": normal((1, 64))})


def test_an_ep_that_is_not_here_is_no_reason_to_run_elsewhere(plain: Path) -> None:
    for name in ("TensorrtExecutionProvider", "QNNExecutionProvder"):
        with pytest.raises(ProviderUnavailable):
            InferenceSession(plain, providers=[name])
