"""OpenVINO for real: the plugin onnxruntime-ep-openvino on this host's CPU.

Each build runs in a fresh process (`real_ep`). What is guarded against was measured: real-eps.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from epctx.errors import ManifestError, ProviderUnavailable
from epctx.providers import registry
from epctx.providers.onnxruntime import host
from tests.kit import real_models as models
from tests.kit.real_ep import Answer, Options, Request, build

pytestmark = pytest.mark.needs("module onnxruntime_ep_openvino")
VINO = "OpenVINOExecutionProvider"
on_device = pytest.mark.needs_device(VINO)
EXACT: Options = {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'}
"""By itself OpenVINO computes in bfloat16 where the CPU has units for it (AMX)."""
BINARY = f"{VINO}.bin"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sources")
    made = {
        "decode": models.mlp(batch=1, width=256),
        "prefill": models.mlp(batch=8, width=256),
        "small": models.mlp(layers=2, width=32),
        "tanh": models.mlp(layers=3, width=32, middle="Tanh"),
        "quantized": models.quantized(),
        "conditional": models.branching(weights="outside"),
        "unknown": models.unknown_shape(),
    }
    return {name: models.save(folder / f"{name}.onnx", model) for name, model in made.items()}


def vino(tmp_path: Path, *names: str, sources: dict[str, str], **more: Any) -> Answer:
    chosen = {name: sources[name] for name in names}
    variables = more.pop("variables", None)
    request = Request(
        **({"providers": [(VINO, EXACT)], "models": chosen, "out": str(tmp_path / "out")} | more)
    )
    return build(request, scratch=tmp_path / "scratch", variables=variables)


def reload(tmp_path: Path, *names: str, sources: dict[str, str]) -> Answer:
    chosen = {name: sources[name] for name in names}
    request = Request(
        providers=[(VINO, EXACT)], models=chosen, out=str(tmp_path / "out"), load=True
    )
    return build(request, scratch=tmp_path / "reload")


def succeeded(answer: Answer) -> Answer:
    assert answer.error is None, answer.error
    assert answer.exit_code == 0, answer.log
    return answer


@on_device
@pytest.mark.parametrize("embed_mode", [0, 1])
@pytest.mark.parametrize("name", ["small", "quantized"])
def test_a_model_reloads_and_is_equal(
    tmp_path: Path, sources: dict[str, str], name: str, embed_mode: int
) -> None:
    answer = succeeded(vino(tmp_path, name, sources=sources, embed_mode=embed_mode, run=True))
    files = [f"{name}_ctx.onnx"] if embed_mode else [f"{name}_{BINARY}", f"{name}_ctx.onnx"]
    assert list(answer.files) == files
    model = answer.models[name]
    assert model.left == []
    assert f"ep_compatibility_info.{VINO}" in model.metadata
    assert model.max_rel < 1e-5
    assert succeeded(reload(tmp_path, name, sources=sources)).models[name].max_rel < 1e-5


@on_device
def test_excluded_nodes_run_on_the_cpu(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = succeeded(vino(tmp_path, "tanh", sources=sources, exclude_op_types=["Tanh"], run=True))
    model = answer.models["tanh"]
    assert model.left == ["act1:Tanh"]
    assert list(answer.files) == [f"tanh_{BINARY}", "tanh_ctx.onnx"]
    names = [c["partition_name"] for c in model.contexts]
    assert len(set(names)) == 2, "one binary, two blobs"
    assert succeeded(reload(tmp_path, "tanh", sources=sources)).models["tanh"].max_rel < 1e-5


@on_device
def test_models_that_share_are_one_binary_that_needs_no_source(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    """With weights outside the model, it would refer to the source's file (and not compile)."""
    answer = succeeded(vino(tmp_path, "decode", "prefill", sources=sources, run=True))
    assert sorted(answer.files) == ["decode_" + BINARY, "decode_ctx.onnx", "prefill_ctx.onnx"]
    for path in (tmp_path / "scratch").rglob("*.onnx"):
        path.unlink()
    for name in ("prefill", "decode"):
        loaded = succeeded(reload(tmp_path / ".", name, sources=sources))
        assert loaded.models[name].max_rel < 1e-5
        (tmp_path / "reload").rename(tmp_path / f"reloaded {name}")


@on_device
def test_an_if_with_weights(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = succeeded(vino(tmp_path, "conditional", sources=sources, run=True))
    assert answer.models["conditional"].left == []
    assert answer.models["conditional"].max_rel < 1e-5


@on_device
def test_the_prefix_is_in_both_names(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = succeeded(vino(tmp_path, "small", sources=sources, prefix="eye_"))
    assert list(answer.files) == [f"small_{BINARY}", "small_ctx.onnx"]
    (context,) = answer.models["small"].contexts
    assert context["name"].startswith("eye_OpenVINO")
    assert context["partition_name"].startswith("eye_small")
    assert succeeded(reload(tmp_path, "small", sources=sources)).models["small"].max_rel < 1e-5


@on_device
@pytest.mark.soak
@pytest.mark.needs("two cores", "one core only, or a system that does not let go of cores")
def test_the_same_bytes_on_one_core_and_on_many(tmp_path: Path, sources: dict[str, str]) -> None:
    """OpenVINO compiles another graph for another number of cores; here it gets one (section 1)."""
    succeeded(vino(tmp_path / "many", "decode", sources=sources))
    for place in ("0", "1"):
        own = {host.PLACE: place}
        succeeded(vino(tmp_path / place, "decode", sources=sources, variables=own))
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        succeeded(vino(tmp_path / "one", "decode", sources=sources))
    finally:
        os.sched_setaffinity(0, before)
    for name in (f"decode_{BINARY}", "decode_ctx.onnx"):
        one, *others = (tmp_path / each / "out" / name for each in ("one", "many", "0", "1"))
        for other in others:
            assert one.read_bytes() == other.read_bytes(), other


@on_device
def test_a_property_reaches_openvino(tmp_path: Path, sources: dict[str, str]) -> None:
    own = {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'}
    plain = succeeded(vino(tmp_path / "a", "small", sources=sources, run=True))
    changed = succeeded(
        vino(tmp_path / "b", "small", sources=sources, providers=[(VINO, own)], run=True)
    )
    assert plain.models["small"].max_rel < 1e-5 < changed.models["small"].max_rel < 0.1


@on_device
def test_a_property_that_openvino_does_not_know_is_quoted(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    own = {"load_config": '{"CPU": {"INFERENCE_PRECISION": "bf16"}}'}
    answer = vino(tmp_path, "small", sources=sources, providers=[(VINO, own)])
    assert answer.error is not None
    assert answer.error[0] == "CompileError"
    assert "INFERENCE_PRECISION" in answer.error[1]
    assert not any((tmp_path / "out").iterdir())


REFUSED = {
    "another device's properties": (
        {"load_config": '{"NPU": {"PERF_COUNT": "YES"}}'},
        ManifestError,
        "load_config has properties of NPU, but device_type is CPU",
    ),
    "no JSON": ({"load_config": "{bad"}, ManifestError, "is not an OpenVINO configuration"),
    "no object of objects": ({"load_config": '{"CPU": 1}'}, ManifestError, "object of objects"),
    "its own cache": (
        {"load_config": '{"CPU": {"CACHE_DIR": "x"}}'},
        ManifestError,
        "load_config sets CACHE_DIR",
    ),
    "a platform without an NPU": (
        {"npu_platform": "4000"},
        ManifestError,
        "npu_platform is given, but device_type is CPU",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_the_plugin_ignores_are_refused(case: str) -> None:
    options, error, words = REFUSED[case]
    with pytest.raises(error, match=re.escape(words)):
        registry.bind(VINO, options)


def test_a_device_that_this_host_lacks(tmp_path: Path, sources: dict[str, str]) -> None:
    answer = vino(tmp_path, "small", sources=sources, providers=[(VINO, {"device_type": "GPU.3"})])
    assert answer.error is not None
    assert answer.error[0] == "ProviderUnavailable"
    assert "no device GPU.3 on this host" in answer.error[1]


@pytest.mark.needs("Linux", "the wheel for Linux lacks the NPU compiler")
def test_an_npu_elsewhere_needs_its_compiler() -> None:
    bound = registry.bind(VINO, {"device_type": "NPU", "npu_platform": "4000"})
    with pytest.raises(ProviderUnavailable, match="no NPU compiler"):
        bound.ep_devices()


@on_device
def test_what_follows_an_unknown_shape_is_right(tmp_path: Path, sources: dict[str, str]) -> None:
    """The plugin took it for a scalar once, and compiled nothing; with onnxruntime 1.32 it leaves
    the operator to the CPU.
    """
    answer = succeeded(vino(tmp_path, "unknown", sources=sources, run=True))
    assert answer.models["unknown"].left == ["contrib:CDist"]
    assert answer.models["unknown"].max_rel < 1e-5
