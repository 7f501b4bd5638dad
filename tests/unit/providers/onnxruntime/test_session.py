"""Generating sessions: options, errors in words, and the log that is quoted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime as ort
import pytest

from epctx.errors import CompileError, ManifestError, ProviderUnavailable
from epctx.parsing.schema import apply
from epctx.providers.onnxruntime import session
from epctx.providers.onnxruntime.session import Mark
from tests.kit.building import mlp


def test_nothing_is_optimized_unless_it_is_said() -> None:
    level = ort.GraphOptimizationLevel
    assert session.session_options({}).graph_optimization_level == level.ORT_DISABLE_ALL
    options = session.session_options({session.LEVEL: "extended"})
    assert options.graph_optimization_level == level.ORT_ENABLE_EXTENDED


def test_threads_keep_no_core_busy_unless_it_is_said() -> None:
    spinning = "session.intra_op.allow_spinning"
    assert session.session_options({}).get_session_config_entry(spinning) == "0"
    assert session.session_options({spinning: "1"}).get_session_config_entry(spinning) == "1"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ManifestError, match="write one of disable_all, basic"):
        session.session_options({session.LEVEL: "ORT_ENABLE_ALL"})


def test_an_entry_that_the_installed_onnxruntime_would_ignore_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = {"session.kernel_dispatch_policy": "safe"}
    monkeypatch.setattr(ort, "__version__", "1.31.1")
    with pytest.raises(ProviderUnavailable, match=r"1\.31\.1 ignores .*_policy[^1]*1\.32 or later"):
        session.session_options(entries)
    monkeypatch.setattr(ort, "__version__", "1.32.0")
    options = session.session_options(entries)
    assert options.get_session_config_entry("session.kernel_dispatch_policy") == "safe"


OF_NO_BUILD = """
memory.enable_memory_arena_shrinkage mlas.disable_kleidiai mlas.kleidiai.conv_igemm_max_work
mlas.nchwc_depthwise_sliding mlas.nchwc_pointwise_conv_max_input_channel_batch mlas.qnbit.force_fp32
mlas.use_lut_gemm optimization.minimal_build_optimizations session.enable_cpu_mem_arena
session.enable_mem_pattern session.enable_saved_runtime_optimizations session.execution_mode
session.function_expansion_byte_limit session.function_expansion_node_limit session.gqa_value_layout
session.inter_op.spin_backoff_max session.inter_op.spin_duration_us session.inter_op_num_threads
session.intra_op.spin_backoff_max session.intra_op.spin_duration_us session.intra_op_num_threads
session.log_id session.log_severity_level session.log_verbosity_level session.max_shape_override
session.prepack.enable_parallel session.strict_workspace_verification
session.use_external_initializer_file_buffers_directly session.use_ort_model_bytes_directly
session.use_ort_model_bytes_for_initializers session.use_per_session_threads
"""
"""Entries of onnxruntime 1.31.1 and 1.32.0 that the schema neither allows nor explains."""


def test_every_session_entry_of_the_installed_onnxruntime_is_classified() -> None:
    """New entries of a new version are looked at: they may read files or change numbers."""
    (library,) = Path(ort.__file__).parent.glob("capi/onnxruntime_pybind11_state*")
    names = re.findall(
        rb"(?<=\0)(?:session|ep|memory|mlas|optimization)\.[a-z0-9_.]+[a-z0-9](?=\0)",
        library.read_bytes(),
    )
    entries = {name.decode() for name in names}
    assert len(entries) > 60
    schema = json.loads(apply.text("manifest"))["$defs"]["session_options"]
    refused = tuple(name.rstrip("*") for name in schema["x-epctx"]["owned"])
    others = {
        name for name in entries - schema["properties"].keys() if not name.startswith(refused)
    }
    assert others <= set(OF_NO_BUILD.split())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "[ONNXRuntimeError] : 11 : EP_FAIL : Failed to compose Qnn graph.",
            "EP_FAIL: Failed to compose Qnn graph.",
        ),
        (
            "/onnxruntime_src/onnxruntime/core/session/x.cc:71 virtual std::unique_ptr<A> "
            "onnxruntime::F::CreateProvider(const OrtSessionOptions&, const OrtLogger&) Error "
            "creating execution provider: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : bad",
            "Error creating execution provider: INVALID_ARGUMENT: bad",
        ),
        (
            "Exception from src/inference/src/cpp/core.cpp:117:\n"
            "Exception from src/plugins/intel_cpu/src/config.cpp:505:\n"
            "NotFound: Unsupported property X by CPU plugin.\n\n",
            "NotFound: Unsupported property X by CPU plugin.",
        ),
        ("", "RuntimeError"),
    ],
)
def test_what_onnxruntime_says_without_its_places(said: str, words: str) -> None:
    assert session._message(RuntimeError(said)) == words


def test_an_ep_that_cannot_be_made_is_not_replaced_by_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `enable_fallback=0` onnxruntime prints "EP Error" and succeeds (section 9)."""
    onnx.save(mlp(), tmp_path / "m.onnx")
    real, given = ort.InferenceSession, {}

    def watched(*args: Any, **kwargs: Any) -> ort.InferenceSession:
        given.update(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", watched)
    options = ort.SessionOptions()
    session.create(str(tmp_path / "m.onnx"), options, provider="EP", log=Mark.here())
    assert given["enable_fallback"] == 0


def test_a_model_that_onnxruntime_refuses(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(CompileError) as caught:
        session.create(str(path), ort.SessionOptions(), provider="EP", log=Mark.here())
    assert "EP cannot compile it" in str(caught.value)
    assert "INVALID_PROTOBUF" in str(caught.value)


def test_an_ep_that_takes_nothing_needs_no_compilation(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    path = str(tmp_path / "m.onnx")
    provider: Any = SimpleNamespace(name="EP", add_to=lambda options: None)
    assert not session.needs_compilation(path, provider)


SCRIPT = """
import sys
from epctx.providers.onnxruntime.session import Mark
print("[E:onnxruntime:, before.cc:1 F] before", file=sys.stderr, flush=True)
mark = Mark.here()
for line in (
    "\\x1b[1;31m2026-11-20 10:58:23 [E:onnxruntime:, qnn.cc:2290 GetCapabilityImpl] bad SoC\\x1b[m",
    "2026-11-20 10:58:23 [W:onnxruntime:, qnn.cc:1 F] a warning",
    "[E:onnxruntime:Default, ov.cc:1 F] JSON parsing error",
    "[E:onnxruntime:, qnn.cc:2290 GetCapabilityImpl] bad SoC",
):
    print(line, file=sys.stderr, flush=True)
print(mark.errors())
"""


def test_errors_since_the_mark_are_read_back(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=log, check=True
        )
    assert done.stdout.decode().strip() == "['bad SoC', 'JSON parsing error']"


def test_a_pipe_cannot_be_read_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"
