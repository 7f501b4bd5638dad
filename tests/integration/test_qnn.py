"""QNN for real: onnxruntime-qnn compiles for the HTP, and simulates one, on x86-64.

Each build runs in a fresh process (`real_ep`), as the pipeline's worker is one. What is guarded
against was measured: real-eps.md sections 1, 2, 5, 6, 9, 13, 14 and 15.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from epctx import api
from epctx.cli.app import app
from epctx.errors import InvalidGraph, ManifestError
from epctx.graph import epcontext
from epctx.providers import registry
from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
from tests.kit import onnx_text
from tests.kit import real_models as models
from tests.kit.real_ep import Answer, Options, Request, build

pytestmark = pytest.mark.needs("module onnxruntime_qnn")
QNN = "QNNExecutionProvider"
ELITE: list[tuple[str, Options]] = [(QNN, {"soc_model": "60"})]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sources")
    made = {
        "decode": models.mlp(batch=1, width=256),
        "prefill": models.mlp(batch=8, width=256),
        "batch": models.mlp(batch=32, width=256),
        "small": models.mlp(layers=2, width=32),
        "sinh": models.mlp(layers=3, width=32, middle="Sinh"),
        "tanh": models.mlp(layers=3, width=32, middle="Tanh"),
        "quantized": models.quantized(),
        "unsupported": models.unsupported(),
        "dynamic": models.mlp(batch="n", layers=2, width=32),
        "empty batch": models.mlp(batch=0, layers=2, width=32),
        "if inside": models.branching(),
        "if outside": models.branching(weights="outside"),
        "if constant": models.branching(weights="constant"),
        "if on cpu": models.branching(weights="outside", extra="Sinh"),
        "small if on cpu": models.branching(width=16, extra="Sinh"),
    }
    return {
        name: models.save(folder / f"{name.replace(' ', '_')}.onnx", model)
        for name, model in made.items()
    }


def qnn(tmp_path: Path, *names: str, sources: dict[str, str], **more: Any) -> Answer:
    chosen = {name.replace(" ", "_"): sources[name] for name in names}
    request = Request(
        **({"providers": ELITE, "models": chosen, "out": str(tmp_path / "out")} | more)
    )
    return build(request, scratch=tmp_path / "scratch")


def reload(tmp_path: Path, *names: str, sources: dict[str, str]) -> Answer:
    chosen = {name.replace(" ", "_"): sources[name] for name in names}
    request = Request(providers=ELITE, models=chosen, out=str(tmp_path / "out"), load=True)
    return build(request, scratch=tmp_path / "reload")


def bound() -> QNNExecutionProvider:
    found = registry.bind(QNN, {"soc_model": "60"})
    assert isinstance(found, QNNExecutionProvider)
    return found


def succeeded(answer: Answer) -> Answer:
    assert answer.error is None, answer.error
    assert answer.exit_code == 0, answer.log
    return answer


def test_one_model_is_one_file_and_a_binary_that_loads(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    answer = succeeded(qnn(tmp_path, "small", sources=sources, run=True))
    assert list(answer.files) == ["small_ctx.onnx", "small_qnn.bin"]
    model = answer.models["small"]
    assert model.left == []
    assert [c["path"] for c in model.contexts] == ["small_qnn.bin"]
    assert model.metadata == {f"ep_compatibility_info.{QNN}": "v2:6:2.51.0:5.51.0:0:60:0:0"}
    assert 0.9999 < model.cosine < 1.0, "float16, so close and not equal"
    loaded = succeeded(reload(tmp_path, "small", sources=sources))
    assert loaded.models["small"].cosine == pytest.approx(model.cosine, abs=1e-9)
    out = tmp_path / "out"
    nodes = epcontext.read_all(onnx.load(out / "small_ctx.onnx"))
    assert bound().cannot_load(nodes, out, sharing=False) is None
    assert_damage_is_found(out / "small_qnn.bin")


def assert_damage_is_found(binary: Path) -> None:
    """The system library refuses some, crashes on some, and overlooks the rest (section 5)."""
    whole = binary.read_bytes()
    assert bound().recognizes(whole[:4096])
    info = bound().inspect_binary(binary)
    assert info.properties["SoC"] == "60 (sc8380xp, v73)"
    (graph,) = info.graphs
    assert [(t.name, t.dtype, t.shape) for t in graph.inputs] == [("x", "float_32", (1, 32))]
    damaged = {
        "cut short": whole[:-4096],
        "lengthened": whole + b"x",
        "a table overwritten, SIGSEGV": whole[:584] + b"\xff" * 16 + whole[600:],
    }
    for words, data in damaged.items():
        binary.with_name("damaged.bin").write_bytes(data)
        with pytest.raises(InvalidGraph) as caught:
            bound().inspect_binary(binary.with_name("damaged.bin"))
        assert ("SIGSEGV" in words) <= ("SIGSEGV" in str(caught.value)), words


def test_a_sharing_group_stores_its_weights_once(tmp_path: Path, sources: dict[str, str]) -> None:
    """Two and three models: N+1 files, named by the first; numbers hold in every session."""
    solo = succeeded(qnn(tmp_path / "1", "decode", sources=sources)).files["decode_qnn.bin"]
    for names in (("decode", "prefill"), ("decode", "prefill", "batch")):
        answer = succeeded(qnn(tmp_path / str(len(names)), *names, sources=sources, run=True))
        contexts = sorted(f"{name}_ctx.onnx" for name in names)
        assert sorted(answer.files) == sorted([*contexts, "decode_qnn.bin"])
        assert answer.files["decode_qnn.bin"] < 1.1 * solo
        graphs = {c["name"] for m in answer.models.values() for c in m.contexts}
        assert len(graphs) == len(names)
        for model in answer.models.values():
            assert [c["path"] for c in model.contexts] == ["decode_qnn.bin"]
            assert model.cosine > 0.9999
    out = tmp_path / "3" / "out"
    info = bound().inspect_binary(out / "decode_qnn.bin")
    assert {graph.name for graph in info.graphs} == graphs
    assert sorted(graph.inputs[0].shape for graph in info.graphs) == [(1, 256), (8, 256), (32, 256)]
    nodes = epcontext.read_all(onnx.load(out / "prefill_ctx.onnx"))
    why = bound().cannot_load(nodes, out, sharing=False)
    assert why is not None, "two graphs of its binary are other models'"
    assert "graphs of several sessions" in why


def test_the_same_bytes_in_other_places(tmp_path: Path, sources: dict[str, str]) -> None:
    """Folder, environment and time do not reach the outputs; nor does where the source lies."""
    copy = tmp_path / "else where" / "renamed.onnx"
    copy.parent.mkdir()
    copy.write_bytes(Path(sources["decode"]).read_bytes())
    moved = sources | {"decode": str(copy)}
    succeeded(qnn(tmp_path / "a", "decode", "prefill", sources=sources))
    succeeded(qnn(tmp_path / "b b" / "c", "decode", "prefill", sources=moved))
    for name in ("decode_ctx.onnx", "prefill_ctx.onnx", "decode_qnn.bin"):
        first = (tmp_path / "a" / "out" / name).read_bytes()
        assert first == (tmp_path / "b b" / "c" / "out" / name).read_bytes(), name


def test_excluded_nodes_run_on_the_cpu_in_one_binary(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    answer = succeeded(qnn(tmp_path, "tanh", sources=sources, exclude_op_types=["Tanh"], run=True))
    model = answer.models["tanh"]
    assert model.left == ["act1:Tanh"]
    assert list(answer.files) == ["tanh_ctx.onnx", "tanh_qnn.bin"]
    assert [(c["main_context"], c["path"]) for c in model.contexts] == [(1, "tanh_qnn.bin")] * 2
    assert model.cosine > 0.9999


def test_a_binary_each_can_be_reloaded_here(tmp_path: Path, sources: dict[str, str]) -> None:
    own = [(QNN, {"soc_model": "60", "partition_binaries": "each"})]
    answer = succeeded(
        qnn(tmp_path, "tanh", sources=sources, providers=own, exclude_nodes=["act1"])
    )
    assert list(answer.files) == ["tanh_1_qnn.bin", "tanh_ctx.onnx", "tanh_qnn.bin"]
    assert succeeded(reload(tmp_path, "tanh", sources=sources)).models["tanh"].cosine > 0.9999


def test_what_qnn_leaves_is_told_with_its_reason(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = succeeded(qnn(tmp_path, "sinh", sources=sources, run=True))
    model = answer.models["sinh"]
    assert model.left == ["act1:Sinh"]
    assert model.reasons == {"act1": "Operators of type `Sinh` are not supported by QNN EP"}
    assert [c["main_context"] for c in model.contexts] == [1, 0]
    assert succeeded(reload(tmp_path, "sinh", sources=sources)).models["sinh"].cosine > 0.9999


def test_a_quantized_model_keeps_its_border_on_the_cpu(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    answer = succeeded(qnn(tmp_path, "quantized", sources=sources, run=True))
    model = answer.models["quantized"]
    assert model.left == ["x_quant:QuantizeLinear", "m1_q_dequant:DequantizeLinear"]
    for why in model.reasons.values():
        assert "offload_graph_io_quantization" in why
    assert model.cosine > 0.999
    loaded = succeeded(reload(tmp_path, "quantized", sources=sources))
    assert loaded.models["quantized"].cosine == pytest.approx(model.cosine, abs=1e-9)


def test_embedded(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = succeeded(qnn(tmp_path, "small", sources=sources, embed_mode=1, run=True))
    assert list(answer.files) == ["small_ctx.onnx"]
    (context,) = answer.models["small"].contexts
    assert context["embed_mode"] == 1
    assert context["bytes"] > 10_000
    assert succeeded(reload(tmp_path, "small", sources=sources)).models["small"].cosine > 0.9999


def test_a_prefix_where_the_binary_has_one_graph(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = succeeded(qnn(tmp_path, "small", sources=sources, prefix="eye_"))
    assert list(answer.files) == ["small_ctx.onnx", "small_qnn.bin"]
    (context,) = answer.models["small"].contexts
    assert context["name"].startswith("eye_QNN")
    assert context["partition_name"].startswith("eye_QNN")
    assert succeeded(reload(tmp_path, "small", sources=sources)).models["small"].cosine > 0.9999


@pytest.mark.parametrize("name", ["if inside", "if outside", "if constant"])
def test_an_if_that_qnn_takes_whole(tmp_path: Path, sources: dict[str, str], name: str) -> None:
    """Weights in its branches and all; those from outside are handed to it inside."""
    key = name.replace(" ", "_")
    answer = succeeded(qnn(tmp_path, name, sources=sources, run=True))
    assert answer.models[key].left == []
    assert answer.models[key].cosine > 0.999


def test_an_if_that_stays_on_the_cpu_is_cut_out(tmp_path: Path, sources: dict[str, str]) -> None:
    """Inside the model given to ONNX Runtime, its weights would make the generation fail."""
    answer = succeeded(qnn(tmp_path, "if on cpu", sources=sources, run=True))
    model = answer.models["if_on_cpu"]
    assert model.left == ["if:If"]
    assert len(model.contexts) == 2
    assert model.cosine > 0.999


def test_an_if_with_small_weights_needs_no_cut(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = succeeded(qnn(tmp_path, "small if on cpu", sources=sources, run=True))
    model = answer.models["small_if_on_cpu"]
    assert model.left == ["if:If"]
    assert [c["main_context"] for c in model.contexts] == [1, 0], "one session made both"


FAILURES: dict[str, tuple[tuple[str, ...], dict[str, Any], str, str]] = {
    # what goes wrong: (models, changes to the request, error, what it says)
    "a chip that QAIRT does not know": (
        ("small",),
        {"providers": [(QNN, {"soc_model": "122"})]},
        "ManifestError",
        "soc_model is 122, a chip that QAIRT 2.51.0 does not know",
    ),
    "a chip's name that nobody knows": (
        ("small",),
        {"providers": [(QNN, {"soc_model": "sm9999"})]},
        "ManifestError",
        "soc_model is 'sm9999'",
    ),
    "several chips": (
        ("small",),
        {"providers": [(QNN, {"soc_model": "60,73"})]},
        "ManifestError",
        "soc_model is '60,73'",
    ),
    "a chip without float units": (
        ("small",),
        {"providers": [(QNN, {"soc_model": "sm8635"})]},
        "CompileError",
        "compiles quantized models only",
    ),
    "chip and architecture": (
        ("small",),
        {"providers": [(QNN, {"soc_model": "60", "htp_arch": "68"})]},
        "ManifestError",
        "soc_model and htp_arch are both given",
    ),
    "bfloat16 for a chip without it": (
        ("small",),
        {"providers": [(QNN, {"soc_model": "60", "htp_bf16_enable": True})]},
        "ManifestError",
        "htp_bf16_enable needs a soc_model of at least 88",
    ),
    "a backend that is not there": (
        ("small",),
        {"providers": [(QNN, {"soc_model": "60", "backend_path": "/nowhere/libQnnHtp.so"})]},
        "ManifestError",
        "there is no such file",
    ),
    "dynamic shapes": (
        ("dynamic",),
        {},
        "ModelError",
        '`dimensions: {"n": 1}`',
    ),
    "nothing that it supports": (
        ("unsupported",),
        {},
        "CompileError",
        "compiled nothing: Det: Operators of type `Det` are not supported by QNN EP",
    ),
    "a middle member that fails": (
        ("small", "unsupported", "tanh"),
        {},
        "CompileError",
        "model unsupported: QNNExecutionProvider compiled nothing",
    ),
    "a last member that fails": (
        ("small", "unsupported"),
        {},
        "CompileError",
        "model unsupported: QNNExecutionProvider compiled nothing",
    ),
    "a prefix in a sharing group": (
        ("small", "tanh"),
        {"prefix": "eye_"},
        "ManifestError",
        "in a context binary with several graphs",
    ),
    "a prefix where exclusion makes several graphs": (
        ("tanh",),
        {"prefix": "eye_", "exclude_op_types": ["Tanh"]},
        "CompileError",
        "in a context binary with several graphs",
    ),
    "an unknown level of graph optimization": (
        ("small",),
        {"session_options": {"session.graph_optimization_level": "most"}},
        "ManifestError",
        "write one of disable_all, basic, extended, layout, all",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_silent_failures_are_errors(tmp_path: Path, sources: dict[str, str], failure: str) -> None:
    """No file is left, and the process ends in good order: QNN's own end is SIGABRT (section 6)."""
    names, changes, error, words = FAILURES[failure]
    if error == "ManifestError" and "providers" in changes:
        ((name, options),) = changes["providers"]
        with pytest.raises(ManifestError, match=re.escape(words)):
            registry.bind(name, options)
        return
    answer = qnn(tmp_path, *names, sources=sources, **changes)
    assert answer.error is not None, answer.log
    assert (answer.error[0], words in answer.error[1]) == (error, True), answer.error
    assert answer.exit_code == 0, answer.log
    assert not any((tmp_path / "out").iterdir())


def test_a_crash_ends_one_process(tmp_path: Path, sources: dict[str, str]) -> None:
    """A dimension of 0 divides by zero inside QNN; whoever started the process sees the signal."""
    from epctx.providers.onnxruntime import native_process

    answer = qnn(tmp_path, "empty batch", sources=sources)
    assert answer.exit_code == -8
    assert "SIGFPE" in (native_process.describe_end(answer.exit_code) or "")
    assert not any((tmp_path / "out").iterdir())


def test_a_reshape_that_would_end_the_compile_stays_on_the_cpu(tmp_path: Path) -> None:
    """ConvNeXt's and EdgeNeXt's: `as_strided` between the mean of an image and its norm."""
    weights = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["c", "axes"], ["m"]),
        helper.make_node("Reshape", ["m", "one"], ["f"], name="flat"),
        helper.make_node("Unsqueeze", ["f", "three"], ["u"]),
        helper.make_node("Transpose", ["u"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Tanh", ["t"], ["y"]),
    ]
    numbers = {"axes": [2, 3], "one": [8], "three": [0, 2, 3]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 8, 7, 7))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 1, 1, 8))],
        [
            numpy_helper.from_array(weights, "w"),
            *(numpy_helper.from_array(np.array(v, np.int64), k) for k, v in numbers.items()),
        ],
    )
    path = models.save(tmp_path / "mean.onnx", helper.make_model(graph, ir_version=10))
    answer = succeeded(qnn(tmp_path, "mean", sources={"mean": path}, run=True))
    model = answer.models["mean"]
    assert model.left == ["flat:Reshape"] and model.cosine > 0.9999


@pytest.mark.parametrize("declared", ["", ", float[2,32] r, float[8,1] s"])
def test_a_shape_that_a_caller_may_feed_is_not_compiled_in(declared: str, tmp_path: Path) -> None:
    """Even where the file declares the shapes that follow from the initializers."""
    model = onnx_text.proto(
        "g (float[8,8] x, int64[2] shape, int64[1] axes) => (float[a,b] y, float[c,d] z)"
        f" <float one = {{1}}{declared}> {{ t = Mul(x, one) r = Reshape(t, shape) y = Sigmoid(r)"
        " s = ReduceSum(t, axes) z = Sigmoid(s) }"
    )
    for name, value in {"shape": [2, 32], "axes": [1]}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    sources = {"fed": models.save(tmp_path / "fed.onnx", model)}
    answer = succeeded(qnn(tmp_path, "fed", sources=sources)).models["fed"]
    kinds = {each.partition(":")[2] for each in answer.left}
    assert len(answer.contexts) == 1 and kinds == {"Reshape", "ReduceSum", "Sigmoid"}
    for number, feeds in enumerate(({}, {"shape": [16, 4], "axes": [0]})):
        request = Request(
            providers=ELITE, models=sources, out=str(tmp_path / "out"), load=True, feeds=feeds
        )
        loaded = succeeded(build(request, scratch=tmp_path / f"reload{number}"))
        assert loaded.models["fed"].cosine > 0.9999


def test_a_binary_that_lies_there_already_is_refused(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    """QNN would bind new models to it, in silence (section 6)."""
    stale = tmp_path / "scratch" / "qnn"
    request = Request(
        providers=ELITE, models={"small": sources["small"]}, out=str(tmp_path / "out")
    )
    answer = build(request, scratch=tmp_path / "scratch", before=lambda: stale.mkdir())
    assert answer.exit_code == 0
    assert answer.error is not None
    assert "is not empty" in answer.error[1]


def test_other_levels_of_graph_optimization(tmp_path: Path, sources: dict[str, str]) -> None:
    level = {"session.graph_optimization_level": "all"}
    answer = succeeded(qnn(tmp_path, "small", sources=sources, session_options=level, run=True))
    assert answer.models["small"].cosine > 0.9999


def test_chips_by_name_are_compiled_for_by_number(tmp_path: Path, sources: dict[str, str]) -> None:
    """The EP takes this name for chip 0, without a word."""
    own = [(QNN, {"soc_model": "SA8295"})]
    answer = succeeded(qnn(tmp_path, "small", sources=sources, providers=own))
    info = answer.models["small"].metadata[f"ep_compatibility_info.{QNN}"]
    assert info.split(":")[5] == "39"


def test_as_any_plugin(tmp_path: Path, sources: dict[str, str]) -> None:
    """The code path of plugin EPs that epctx knows nothing of, with one that is here."""
    import onnxruntime_qnn

    own = {
        "plugin.package": "onnxruntime_qnn",
        "plugin.device_type": "CPU",
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": "60",
    }
    answer = succeeded(
        qnn(tmp_path, "sinh", sources=sources, providers=[(f"any:{QNN}", own)], run=True)
    )
    assert list(answer.files) == [f"sinh_{QNN}.bin", "sinh_ctx.onnx"]
    model = answer.models["sinh"]
    assert model.left == ["act1:Sinh"]
    assert model.reasons == {"act1": f"{QNN} did not take it, and does not say why"}
    assert model.cosine > 0.9999
    assert succeeded(reload(tmp_path, "sinh", sources=sources)).models["sinh"].cosine > 0.9999


def in_blocks(columns: int) -> onnx.ModelProto:
    """A product by weights of 4 bits in blocks of 32, as onnxruntime's tools write it."""
    rng = np.random.default_rng(0)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], "mm", domain="com.microsoft")
    for name, value in {"K": 256, "N": columns, "bits": 4, "block_size": 32}.items():
        node.attribute.append(helper.make_attribute(name, value))
    weights = [
        numpy_helper.from_array(rng.integers(0, 255, (columns, 8, 16), np.uint8), "w"),
        numpy_helper.from_array(rng.random(columns * 8, np.float32), "s"),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, [1, 4, w]) for n, w in (("x", 256), ("y", columns)))
    graph = helper.make_graph([node], "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.needs("Linux", "whose malloc can fill what it gives")
@pytest.mark.parametrize(("columns", "stable"), [(64, True), (48, False), (272, False)])
def test_weights_in_blocks_are_stable_at_multiples_of_32_columns(
    columns: int, stable: bool, tmp_path: Path
) -> None:
    """The fact that `why_unstable` tells: memory that QAIRT has not set is in the binary."""
    source = {"m": models.save(tmp_path / "m.onnx", in_blocks(columns))}
    made = []
    for filler in ("85", "170"):
        request = Request(providers=ELITE, models=source, out=str(tmp_path / filler))
        answer = build(
            request, scratch=tmp_path / f"s{filler}", variables={"MALLOC_PERTURB_": filler}
        )
        assert answer.exit_code == 0, answer.log
        made.append((tmp_path / filler / "m_qnn.bin").read_bytes())
    assert (made[0] == made[1]) is stable
    why = bound().why_unstable(list(ir.load(source["m"]).graph))
    assert why is None if stable else f"'mm' of {columns} columns: " in (why or "")


HEADROOM = """
schema_version: 1
name: m
models: {near: {path: near.onnx}, over: {path: over.onnx}, left: {path: over.onnx}}
execution_providers:
  htp: {provider: QNNExecutionProvider, options: {soc_model: "60"}}
  ref: {provider: ReferenceExecutionProvider}
model_groups:
  g: {models: [near, over], execution_providers: [htp]}
  cpu: {models: [left], execution_providers: [htp], partition: {exclude: {nodes: [big, bound]}}}
  exact: {models: [over], execution_providers: [ref]}
"""


def large_inside(factor: float) -> onnx.ModelProto:
    """Values inside are multiplied by a factor, and bounded before they leave."""
    body = """a = MatMul (x, w)  [big] h = Mul (a, k)  [bound] b = Tanh (h)  y = MatMul (b, w)"""
    made = onnx_text.proto(f"g (float[1, 64] x) => (float[1, 64] y) {{ {body} }}")
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    made.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "k"))
    return made


def test_values_that_float16_hardly_holds_are_told_and_fail_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No output of the models is large. What is left to the CPU is computed in float32."""
    monkeypatch.chdir(tmp_path)
    models.save(tmp_path / "near.onnx", large_inside(1e3))
    models.save(tmp_path / "over.onnx", large_inside(1e5))
    Path("m.yaml").write_text(HEADROOM, encoding="utf-8")
    ended = CliRunner().invoke(app, ["build", "m.yaml"])
    assert ended.exit_code == 0, ended.stderr
    assert "g@default: verified on generated inputs" in ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("headroom: ")]
    near, over = "'h' reaches 3.3e+03; float16 ends at 65504, 20 x more", "'h' reaches 3.3e+05"
    assert lines == [
        f"headroom: g@default/near_ctx.onnx: {near}",
        f"headroom: g@default/over_ctx.onnx: overflows float16, which ends at 65504: {over}",
    ]
    report = api.verify("dist", manifest="m.yaml")
    notes = [f for f in report.findings() if f.check == "headroom"]
    assert report.passed and [(f.subject, f.outcome) for f in notes] == [
        ("near_ctx.onnx", "pass"),
        ("over_ctx.onnx", "pass"),
    ]
    assert notes[1].remedy.endswith("or exclude their nodes with `partition.exclude`")
    said = CliRunner().invoke(app, ["verify", "dist", "--manifest", "m.yaml"]).stdout
    assert f"  note: near_ctx.onnx: {near}  [numbers/headroom]" in said
