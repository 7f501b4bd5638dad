from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from epctx.graph.epcontext import EPContextNode
from epctx.manifest import OptionValue, Tolerance
from epctx.providers.onnxruntime.qnn.options import qairt
from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
from tests.bench.projects import BARE_QNN
from tests.kit import building

_MAPPED = """
lines = [line.split() for line in open("/proc/self/maps") if ".so" in line]
found = {Path(line[-1]).name for line in lines if "/onnxruntime" in line[-1]}
Path("mapped.txt").write_text("\\n".join(found), encoding="utf-8")
"""
FLEXIBLE = "is_multi_soc_ep_context"
installed = pytest.mark.needs("module onnxruntime_qnn")


@installed
class TestBound:
    """QNN bound to options, without anything compiled."""

    def bind(self, **options: OptionValue) -> QNNExecutionProvider:
        from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider

        return QNNExecutionProvider(options)

    def test_it_names_its_chips(self) -> None:
        assert self.bind().chips() == f"0 (any chip), QAIRT {qairt()}"
        both = self.bind(soc_model=("sc8380xp", "57")).chips()
        assert both == f"60 (sc8380xp, v73), 57 (sm8650, v75), QAIRT {qairt()}"

    def test_a_device_is_told_what_a_session_needs(self) -> None:
        bound = self.bind(soc_model="60", htp_performance_mode="burst")
        alone = bound.on_device([], sharing=False)
        assert alone.kinds == ("NPU", "CPU") and alone.package == "onnxruntime-qnn"
        assert alone.options == {"htp_performance_mode": "burst"}, "the chip is the device's"
        assert alone.paths == {"backend_path": "get_qnn_htp_path"}
        several = EPContextNode(name="n", inputs=(), outputs=(), unknown={FLEXIBLE: 1})
        for kinds in (bound.on_device([], sharing=True), bound.on_device([several], sharing=False)):
            assert kinds.kinds == ("NPU",), "the simulator does not load it"

    def test_the_fingerprint_has_versions_and_libraries(self) -> None:
        found = self.bind().fingerprint()
        assert found.toolchain["onnxruntime-qnn"]
        assert found.toolchain["onnxruntime"]
        assert any("QnnHtp." in name for name in found.files)
        assert not found.host, "QNN's bytes depend on nothing of the host (real-eps.md section 1)"
        assert not any("Genie" in name or "Gpu" in name for name in found.files)

    @pytest.mark.needs("Linux", "which tells in /proc what is mapped")
    def test_the_fingerprint_has_what_a_compile_loads_and_no_more(self, tmp_path: Path) -> None:
        onnx.save(building.mlp(), tmp_path / "mlp.onnx")
        command = [sys.executable, "-c", BARE_QNN + _MAPPED, "mlp.onnx", "out/mlp_ctx.onnx"]
        (tmp_path / "out").mkdir()
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
        # QNN writes to stdout too, when the process ends.
        mapped = set((tmp_path / "mapped.txt").read_text(encoding="utf-8").split())
        files = {path.name for path in self.bind().fingerprint().files.values()}
        assert mapped <= files
        assert all(name.startswith("libonnxruntime.so") for name in files - mapped), (
            "which is for C"
        )

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
        quantized = Tolerance(cosine_min=0.98, max_rel=0.5, saturates_at=65504)
        assert bound.tolerance("quantized", "float32") == quantized
        assert bound.tolerance("float32", "float32").cosine_min == 0.99
        wide = self.bind(soc_model="88", htp_bf16_enable=True).tolerance("float32", "float32")
        assert wide.cosine_min == 0.98

    def test_a_split_graph_does_not_run_on_x86(self) -> None:
        assert self.bind().cannot_run() is None
        why = self.bind(enable_htp_graph_splitting=True).cannot_run()
        assert why is None or "enable_htp_graph_splitting" in why


class Told:
    """Session options that remember what a provider was given."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self.entries = entries
        self.given: dict[str, str] = {}

    def get_session_config_entry(self, name: str) -> str:
        if name not in self.entries:
            raise RuntimeError(name)
        return self.entries[name]

    def add_provider_for_devices(self, devices: list[object], options: dict[str, str]) -> None:
        self.given = options


@installed
def test_several_chips_are_for_sessions_that_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """QNN 2.7.0: "Per-SoC configurations are only supported for EP context enabled"."""
    device = SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name="NPU")))
    monkeypatch.setattr(QNNExecutionProvider, "ep_devices", lambda _: [device])
    cases: tuple[tuple[OptionValue, dict[str, str], str | None], ...] = (
        (("60", "57"), {"ep.context_enable": "1"}, "60,57"),
        (("60", "57"), {}, None),
        (("60", "57"), {"ep.context_enable": "0"}, None),
        ("60", {}, "60"),
    )
    for chips, entries, wanted in cases:
        options: Any = Told(entries)
        QNNExecutionProvider({"soc_model": chips}).add_to(options)
        assert options.given.get("soc_model") == wanted
