"""`doctor`: what is wrong with a host is told, and a vendor's crash is not ours.

The EPs that are installed here are asked in tests/integration/test_doctor.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from epctx.cli.app import app
from epctx.commands.doctor import command, probe
from epctx.errors import ProviderUnavailable
from epctx.manifest import ENTRY_POINTS
from epctx.providers import registry
from epctx.providers.onnxruntime import plugins

VENDOR = {
    "Crashes": "import os\nprint('SDK: assertion', flush=True)\nos.abort()\n",
    "CrashesLater": (
        "import atexit, os\natexit.register(os.abort)\n"
        "from epctx.providers.reference import ReferenceExecutionProvider as make\n"
    ),
    "Chatty": (
        "import os\nos.write(1, b'LIBNATIVE: hello')\n"
        "from epctx.providers.reference import ReferenceExecutionProvider as make\n"
    ),
    "Hangs": "import time\ntime.sleep(60)\n",
    "Broken": "raise RuntimeError('boom')\n",
    "NoSdk": "import acme_sdk\n",
    "WantsOptions": (
        "from epctx.errors import ManifestError\n"
        "def make(options):\n    raise ManifestError('option chip is missing', remedy='set it')\n"
    ),
}
"""EPs of a package `acme`: the text of the module that each is in."""


def distribution(
    folder: Path, name: str, *, files: str = "", more: str = "", entries: str = ""
) -> None:
    info = folder / f"{name.replace('-', '_')}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n{more}")
    (info / "RECORD").write_text(f"{files},,\n" if files else "")
    (info / "entry_points.txt").write_text(entries)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in VENDOR.items():
        (tmp_path / f"acme_{name.lower()}.py").write_text(text)
    lines = [f"{name} = acme_{name.lower()}:make" for name in VENDOR]
    more = 'Requires-Dist: acme-sdk; extra == "sdk"\n'
    entries = "\n".join([f"[{ENTRY_POINTS}]", *lines])
    distribution(tmp_path, "acme", more=more, entries=entries)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(registry, "names", lambda: names)
    monkeypatch.delenv(plugins.HIDE, raising=False)  # may name one that is not among them


def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any EP: no process is started to ask one."""
    monkeypatch.setattr(command, "ask", lambda name: [])


def doctor(*options: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *options])


def test_a_crash_is_told_and_harms_no_other(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "Crashes", "CrashesLater", "Chatty", "Broken")
    result = doctor("--format", "json")
    assert result.exit_code == 5
    found = {each["name"]: each for each in json.loads(result.stdout)["providers"]}
    states = {name: found[name]["state"] for name in VENDOR if name in found}
    assert states == {
        "Crashes": "broken",
        "CrashesLater": "broken",
        "Chatty": "ready",
        "Broken": "broken",
    }
    failure = found["Crashes"]["failure"]
    assert "crashed the process that probed it" in failure["what"]
    if os.name != "nt":
        assert "SIGABRT" in failure["what"]
    assert "SDK: assertion" in failure["why"]
    assert "error[E0500]: Crashes: crashed the process that probed it" in result.stderr
    assert "RuntimeError: boom" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_hang_is_told(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "Hangs")
    monkeypatch.setenv("EPCTX_LIMIT_PROBE_SECONDS", "2")
    monkeypatch.setattr(probe, "BUILT_IN", "Hangs")
    found = command.diagnose()
    assert {p.what for p in found.problems} == {"did not answer within 2 s"}


def test_what_is_not_installed_is_no_problem(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "NoSdk", "WantsOptions")
    result = doctor()
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "NoSdk not installed" in lines
    assert 'remedy pip install "acme[sdk]"' in lines
    assert "WantsOptions ready" in lines
    assert any("option chip is missing" in line for line in lines)


def test_two_distributions_that_own_onnxruntime_are_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "onnxruntime-gpu", files="onnxruntime/__init__.py")
    distribution(tmp_path, "acme-plugins", files="onnx/acme/__init__.py")
    distribution(tmp_path, "stranger", files="pip/__init__.py")
    monkeypatch.syspath_prepend(tmp_path)
    (error,) = command.conflicts()
    assert isinstance(error, ProviderUnavailable)
    assert error.what.startswith("onnxruntime and onnxruntime-gpu both own the import onnxruntime")
    assert error.remedy.startswith("run `pip uninstall onnxruntime onnxruntime-gpu`")
    nobody(monkeypatch)
    result = doctor()
    assert result.exit_code == 5
    assert "error[E0503]: onnxruntime and onnxruntime-gpu both own" in result.stderr


def test_the_caches_folder_is_not_made_and_tried_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody(monkeypatch)
    folder = tmp_path / "a" / "cache"
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder))
    assert f"{folder.as_posix()} (writable)" in doctor().stdout
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "file" / "cache"))
    result = doctor()
    assert result.exit_code == 9
    assert "the cache cannot be written" in result.stderr
    monkeypatch.setenv("EPCTX_CACHE_READONLY", "1")
    assert doctor().exit_code == 0
    monkeypatch.setenv("EPCTX_CACHE_READONLY", "perhaps")
    assert doctor().exit_code == 2
