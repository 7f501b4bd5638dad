from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from epctx.errors import ProviderUnavailable
from epctx.providers.onnxruntime import packages


def test_a_missing_package_names_the_command_that_installs_it() -> None:
    with pytest.raises(ProviderUnavailable) as caught:
        packages.find("no-such-package", "no_such_module", install='pip install "epctx[qnn]"')
    assert str(caught.value).endswith('-> run `pip install "epctx[qnn]"`')


def test_a_remnant_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_gone").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ProviderUnavailable):
        packages.find("half-gone", "half_gone", install="pip install half-gone")


def test_the_runtime_and_its_libraries() -> None:
    found = packages.onnxruntime()
    assert found.version
    names = [path.name for path in packages.libraries(found)]
    assert any(name.startswith(("libonnxruntime.", "onnxruntime.")) for name in names), names


def test_two_owners_of_one_import(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata,
        "version",
        lambda name: "1.31.1" if name == "onnxruntime-gpu" else real(name),
    )
    with pytest.raises(ProviderUnavailable) as caught:
        packages.onnxruntime()
    assert "onnxruntime and onnxruntime-gpu both own" in str(caught.value)
    assert "pip uninstall onnxruntime onnxruntime-gpu" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("libx.so", True), ("libx.so.1.2", True), ("x.py", False), ("README", False)],
)
def test_what_a_library_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_one: bool
) -> None:
    monkeypatch.setattr(packages, "_LIBRARY_SUFFIXES", (".so",))
    (tmp_path / name).touch()
    assert packages.is_library(tmp_path / name) is is_one
