"""Where an extra is not installed, the error says how to install it."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from tests.kit import projects
from tests.kit.building import mlp
from tests.kit.command_line import epctx, inside

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


ALONE = {
    "report": ("jinja2", ["report", "dist/m.build.json"]),
    "attest": ("in_toto_attestation", ["build", "m.yaml", "--attest"]),
    "sign": ("cryptography", ["build", "m.yaml", "--sign", "k.pem"]),
}
"""What one command alone needs: the module, and the command."""


@pytest.mark.parametrize("extra", ALONE)
def test_what_one_command_needs_is_2_without_it_and_others_do_without(
    tmp_path: Path, extra: str, monkeypatch: pytest.MonkeyPatch, jobs_inline: None
) -> None:
    module, command = ALONE[extra]
    project = projects.make(tmp_path, {"g": ["a"]})
    project.write()
    (tmp_path / "k.pem").touch()
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    built = inside("build", "m.yaml", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    ran = inside(*command, cwd=tmp_path)
    assert ran.returncode == 2, ran.stderr
    assert f'pip install "epctx[{extra}]"' in ran.stderr and module in ran.stderr


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
