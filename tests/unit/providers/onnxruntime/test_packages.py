from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest

from epctx.errors import ManifestError, ProviderUnavailable
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
    assert "onnxruntime and onnxruntime-gpu both provide" in str(caught.value)
    assert "pip uninstall onnxruntime onnxruntime-gpu" in str(caught.value)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with an installed distribution `acme-ep`, whose package must not run."""
    (tmp_path / "acme_ep").mkdir()
    (tmp_path / "acme_ep" / "__init__.py").write_text("raise AssertionError('imported')")
    info = tmp_path / "acme_ep-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-ep\nVersion: 2.5\n")
    (info / "top_level.txt").write_text("acme_ep\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "acme_ep"


def test_a_plugins_library_is_found_by_what_it_exports(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_LIBRARY_SUFFIXES", (".so",))
    for name in ("libacme.so", "libacme.so.1"):
        (site / name).write_bytes(b"\x7fELF\0CreateEpFactories\0")
    (site / "libother.so").write_bytes(b"\x7fELF\0CreateEpFactoriesNot\0")
    (site / "libempty.so").touch()
    expected = site / "libacme.so", {"acme_ep": "2.5"}
    assert packages.plugin_library("acme_ep") == expected
    assert "acme_ep" not in sys.modules
    (site / "libother.so").write_bytes(b"\x7fELF\0CreateEpFactories\0")
    with pytest.raises(ManifestError, match="has 2 libraries of plugin EPs: libacme, libother"):
        packages.plugin_library("acme_ep")


@pytest.mark.parametrize("name", ["os", "antigravity", "acme_ep.inner", "../acme_ep", "", "here"])
def test_no_other_module_is_a_plugins_package(
    site: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(site.parent)
    (site.parent / "here").mkdir()
    (site.parent / "here" / "__init__.py").write_text("raise AssertionError('imported')")
    with pytest.raises(ProviderUnavailable, match="which no installed distribution provides"):
        packages.plugin_library(name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs(f"module {name}"))
        for name in ("onnxruntime_qnn", "onnxruntime_ep_openvino")
    ],
)
def test_it_is_that_which_the_vendors_name(name: str) -> None:
    vendor = importlib.import_module(name)
    found, _ = packages.plugin_library(name)
    assert found.read_bytes() == Path(vendor.get_library_path()).read_bytes()
