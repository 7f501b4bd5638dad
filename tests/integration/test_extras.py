"""Where an extra is not installed, the error says how to install it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.kit.building import mlp
from tests.kit.command_line import epctx

EXTRAS = {
    "qnn": ("QNNExecutionProvider", "onnxruntime_qnn", '{soc_model: "60"}'),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime_ep_openvino", "{}"),
}
HIDE = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name == {module!r} else find(name, package)
)
"""


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_5_with_the_line_that_installs_it(tmp_path: Path, extra: str) -> None:
    """The package is hidden from Python, since it is installed where the tests are."""
    provider, module, options = EXTRAS[extra]
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE.format(module=module), encoding="utf-8")
    onnx.save(mlp(), tmp_path / "m.onnx")
    (tmp_path / "m.yaml").write_text(
        "schema_version: 1\nname: m\nmodels: {m: {path: m.onnx}}\n"
        f"execution_providers: {{ep: {{provider: {provider}, options: {options}}}}}\n"
        "model_groups: {g: {models: [m], execution_providers: [ep]}}\n",
        encoding="utf-8",
    )
    ran = epctx("build", "m.yaml", cwd=tmp_path, PYTHONPATH=str(hidden))
    assert ran.returncode == 5, ran.stderr
    assert f'run `pip install "epctx[{extra}]"`' in ran.stderr
    assert not (tmp_path / "dist" / "m").exists()
