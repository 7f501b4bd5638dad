from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

import epctx
from epctx.errors import ProviderUnavailable
from epctx.providers.onnxruntime import plugins
from epctx.providers.onnxruntime.plugins import Plugin, Wanted


def device(kind: str, name: str = "", vendor: str = "Acme") -> Any:
    return SimpleNamespace(
        device=SimpleNamespace(type=SimpleNamespace(name=kind), vendor=vendor),
        ep_metadata={"FULL_DEVICE_NAME": name} if name else {},
    )


DEVICES = [device("CPU"), device("GPU", "Acme 1000"), device("NPU", "Neuron"), device("GPU", "X2")]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Wanted(), 0),
        (Wanted(index=2), 2),
        (Wanted(kind="GPU"), 1),
        (Wanted(kind="GPU", index=1), 3),
        (Wanted(name="neuron"), 2),
        (Wanted(name="ACME 1000"), 1),
    ],
)
def test_a_device_by_kind_name_and_index(wanted: Wanted, index: int) -> None:
    assert wanted.choose(DEVICES, provider="AcmeEP") is DEVICES[index]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(kind="NPU", index=1), "no device NPU number 1 on this host"),
        (Wanted(name="Z9"), "no device named 'Z9' on this host: it has CPU, Acme; GPU Acme 1000"),
    ],
)
def test_a_device_that_is_not_there(wanted: Wanted, words: str) -> None:
    with pytest.raises(ProviderUnavailable) as caught:
        wanted.choose(DEVICES, provider="AcmeEP")
    assert words in str(caught.value)


@pytest.mark.needs("Linux", "its loader says which library is missing")
@pytest.mark.needs("a C compiler", "it makes a library that needs another one")
def test_a_library_that_needs_what_the_host_lacks(tmp_path: Path) -> None:
    """As a GPU's EP without the GPU's driver."""
    (tmp_path / "x.c").touch()
    driver, library = tmp_path / "libdriver.so.1", tmp_path / "libacme.so"
    shared = ["cc", "-shared", "-fPIC", "x.c", "-Wl,--no-as-needed"]
    subprocess.run([*shared, "-Wl,-soname,libdriver.so.1", "-o", driver], cwd=tmp_path, check=True)
    subprocess.run([*shared, driver, "-o", library], cwd=tmp_path, check=True)
    driver.unlink()
    with pytest.raises(ProviderUnavailable, match=r"needs libdriver\.so\.1, which this host lacks"):
        Plugin(registration="Acme", library=library, provider="Acme").devices()


def test_a_missing_library(tmp_path: Path) -> None:
    plugin = Plugin(registration="x", library=tmp_path / "libx.so", provider="XEP")
    with pytest.raises(ProviderUnavailable, match="the library of XEP is missing"):
        plugin.devices()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What onnxruntime lists, whatever this host has."""
    devices = [SimpleNamespace(ep_name=name) for name in ("AcmeEP", "OtherEP", "AcmeEP")]
    monkeypatch.setattr(ort, "get_ep_devices", lambda: devices)
    return devices


def test_hidden_devices_are_not_listed(
    offered: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(plugins.HIDE, raising=False)
    assert plugins.listed("AcmeEP") == (offered[0], offered[2])
    assert plugins.hidden_error("AcmeEP") is None
    monkeypatch.setenv(plugins.HIDE, "ThirdEP, AcmeEP,")
    assert plugins.hidden() == ("AcmeEP", "ThirdEP")
    assert plugins.listed("AcmeEP") == ()
    assert plugins.listed("OtherEP") == (offered[1],)
    assert "AcmeEP: EPCTX_HIDE_DEVICES hides its devices" in str(plugins.hidden_error("AcmeEP"))


def test_devices_are_listed_in_one_place() -> None:
    """Else what is hidden there would be seen elsewhere; a kit's script runs where no epctx is."""
    root = Path(epctx.__file__).parent
    script = root / "commands" / "kit" / "check_device.py"
    found = [p for p in root.rglob("*.py") if "get_ep_devices(" in p.read_text(encoding="utf-8")]
    assert sorted(found) == [script, Path(plugins.__file__)]
