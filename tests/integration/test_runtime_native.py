"""Nodes of onnxruntime's own EPs in the runtime and in compile_model: handed to onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import epctx
from epctx.errors import InvalidGraph, UsageError
from epctx.graph.epcontext import read_all
from epctx.manifest import PartitionSettings
from epctx.providers import registry
from epctx.runtime import InferenceSession
from tests.kit import surface
from tests.kit.building import cpu, mlp, native, normal

REFERENCE, OPENVINO = "ReferenceExecutionProvider", "OpenVINOExecutionProvider"
QNN = "QNNExecutionProvider"
on_openvino = pytest.mark.needs_device(OPENVINO)
X = normal((1, 64))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Relu on the reference EP, Tanh on the default EP, the rest on OpenVINO."""
    folder = tmp_path_factory.mktemp("mixed")
    onnx.save(mlp(), folder / "m.onnx")
    return epctx.compile_model(
        folder / "m.onnx",
        output=folder / "out" / "m_ctx.onnx",
        providers=[(REFERENCE, {"ops": ("Relu",)}), OPENVINO],
        partition=PartitionSettings(exclude_op_types=("Tanh",)),
    )


def check(session: InferenceSession) -> None:
    (found,) = session.run(None, {"x": X})
    (wanted,) = cpu(mlp()).run(None, {"x": X})
    # OpenVINO computes in bfloat16 where the CPU has units for it.
    assert abs(found - wanted).max() <= 2e-2 * abs(wanted).max()


@on_openvino
def test_a_model_of_both_has_both_binaries(mixed: Path) -> None:
    assert sorted(path.name for path in mixed.parent.iterdir()) == [
        "m_OpenVINOExecutionProvider.bin",
        "m_ctx.onnx",
        "m_reference.bin",
    ]
    assert {node.source for node in read_all(onnx.load(mixed))} == {"reference", OPENVINO}


@on_openvino
def test_it_runs_from_a_path_and_from_bytes_with_any_options(mixed: Path) -> None:
    own = ort.SessionOptions()
    session = InferenceSession(mixed)
    assert session.get_providers()[:-1].count(OPENVINO) == 1
    check(session)
    from_bytes = {"ep.context_file_path": str(mixed)}
    check(InferenceSession(mixed.read_bytes(), session_options=from_bytes))
    for _ in range(2):  # the second time, nothing of the first is left in them
        check(InferenceSession(mixed, session_options=own))
        assert not own.has_providers()


@on_openvino
def test_an_ep_that_the_session_does_not_have_is_an_invalid_graph(mixed: Path) -> None:
    with pytest.raises(InvalidGraph, match="OpenVINOExecutionProvider"):
        InferenceSession(mixed, providers=[REFERENCE])


@on_openvino
def test_what_onnxruntime_cannot_load_is_an_invalid_graph(mixed: Path, tmp_path: Path) -> None:
    for path in mixed.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    binary = tmp_path / "m_OpenVINOExecutionProvider.bin"
    binary.write_bytes(binary.read_bytes()[:1000])
    with pytest.raises(InvalidGraph, match="ONNX Runtime refuses it"):
        InferenceSession(tmp_path / "m_ctx.onnx")


@pytest.fixture(scope="module")
def on_qnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that QNN takes whole."""
    folder = tmp_path_factory.mktemp("whole")
    onnx.save(mlp(), folder / "m.onnx")
    output = folder / "out" / "m_ctx.onnx"
    return epctx.compile_model(
        folder / "m.onnx", output=output, providers=[(QNN, {"soc_model": "60"})]
    )


def refused(model: Path | bytes) -> InvalidGraph:
    with pytest.raises(InvalidGraph, match="ONNX Runtime refuses it") as raised:
        InferenceSession(model)
    assert "build the model again" not in raised.value.remedy, "that would not help"
    return raised.value


@pytest.mark.needs_device(QNN)
def test_a_model_from_bytes_needs_the_place_of_its_binary(on_qnn: Path) -> None:
    error = refused(on_qnn.read_bytes())
    assert "'m_qnn.bin' cannot be found: the model was loaded from bytes" in str(error.why)
    assert error.remedy.startswith("set the session option ep.context_file_path")
    own = {"ep.context_file_path": str(on_qnn)}
    InferenceSession(on_qnn.read_bytes(), session_options=own)


@pytest.mark.needs_device(QNN)
@pytest.mark.parametrize(
    ("kept", "why", "remedy"),
    [
        (0.99, "is not a QNN context binary, or is broken", "copy it again from where"),
        (0.0, "is not a QNN context binary, or is broken: cannot mmap", "copy it again from where"),
        (None, "it is not in ", "ship the context binary with the model"),
    ],
)
def test_a_damaged_binary_is_to_be_copied_again(
    on_qnn: Path, tmp_path: Path, kept: float | None, why: str, remedy: str
) -> None:
    binary = on_qnn.with_name("m_qnn.bin").read_bytes()
    (tmp_path / on_qnn.name).write_bytes(on_qnn.read_bytes())
    if kept is not None:
        (tmp_path / "m_qnn.bin").write_bytes(binary[: int(kept * len(binary))])
    error = refused(tmp_path / on_qnn.name)
    assert why in str(error.why) and error.remedy.startswith(remedy)


@pytest.mark.needs_device(QNN)
def test_a_model_whose_constants_are_folded_as_it_loads_is_told_how_to_load(
    on_qnn: Path, tmp_path: Path
) -> None:
    """As stock files of several contexts are, with a Shape between two of them (QNN 2.7.0)."""
    model = onnx.load(on_qnn)
    (context,) = (node for node in model.graph.node if node.op_type == "EPContext")
    (value,) = context.input
    given = onnx.numpy_helper.from_array(np.zeros((1, 64), np.float32), "zeros")
    model.graph.initializer.append(given)
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["zeros"], ["constant"]))
    context.input[0] = "constant"
    onnx.save(model, tmp_path / on_qnn.name)
    (tmp_path / "m_qnn.bin").write_bytes(on_qnn.with_name("m_qnn.bin").read_bytes())
    error = refused(tmp_path / on_qnn.name)
    assert "loads it only without its optimizations" in str(error.why) and "Failed to setup" in str(
        error.why
    )
    own = ort.SessionOptions()
    own.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (out,) = InferenceSession(tmp_path / on_qnn.name, session_options=own).run(None, {value: X})
    assert out.shape


@pytest.mark.needs_device(QNN)
def test_each_method_has_onnxruntimes_result(on_qnn: Path) -> None:
    record = "session.record_ep_graph_assignment_info"
    own = InferenceSession(on_qnn, {record: "1"})
    theirs = native(on_qnn, QNN, {record: "1"})
    compared = surface.compare(own, theirs, {"x": X})
    rest = {*surface.methods(ort.InferenceSession)} - compared
    assert rest == {"enable_fallback", "set_providers"}
    assert "ep_compatibility_info." + QNN in own.get_modelmeta().custom_metadata_map
    assert own.get_providers() == [QNN, "CPUExecutionProvider"]


@pytest.mark.needs_device(QNN)
def test_the_eps_of_a_session_are_replaced(on_qnn: Path) -> None:
    session = InferenceSession(on_qnn)
    (before,) = session.run(None, {"x": X})
    binding = session.io_binding()
    session.set_providers([(QNN, {"htp_performance_mode": "burst"})])
    assert session.get_provider_options()[QNN]["htp_performance_mode"] == "burst"
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], before)
    with pytest.raises(ValueError, match="must be used with the session that created it"):
        session.run_with_iobinding(binding)
    with pytest.raises(InvalidGraph, match="the EPs of this session accept"):
        session.set_providers([REFERENCE])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], before)


@pytest.mark.needs_device(QNN)
def test_eps_of_the_session_options_are_named_and_cannot_be_replaced() -> None:
    """They ran the model while `get_providers` named the CPU, and `set_providers` had no effect."""
    options = ort.SessionOptions()
    registry.bind(QNN, {}).add_to(options)
    session = InferenceSession(mlp().SerializeToString(), options)
    assert session.get_providers() == [QNN, "CPUExecutionProvider"]
    with pytest.raises(UsageError, match="its session options name them"):
        session.set_providers(["CPUExecutionProvider"])


@pytest.mark.needs_device(QNN)
def test_an_ep_that_needs_a_process_compiles_a_group_when_its_last_session_comes(
    tmp_path: Path,
) -> None:
    for batch, name in enumerate("ab", 1):
        onnx.save(mlp(batch=batch), tmp_path / f"{name}.onnx")
    share = {"ep.share_ep_contexts": "1"}
    stop = share | {"ep.stop_share_ep_contexts": "1"}
    out = tmp_path / "out"
    for name, options in (("a", share), ("b", stop)):
        assert not out.exists()
        path = epctx.compile_model(
            tmp_path / f"{name}.onnx",
            output=out / f"{name}_ctx.onnx",
            providers=[(QNN, {"soc_model": "60"})],
            session_options=options,
        )
    assert sorted(path.name for path in out.iterdir()) == ["a_ctx.onnx", "a_qnn.bin", "b_ctx.onnx"]
    for path in (out / "a_ctx.onnx", out / "b_ctx.onnx"):
        (node,) = read_all(onnx.load(path))
        assert node.context_path == "a_qnn.bin"
