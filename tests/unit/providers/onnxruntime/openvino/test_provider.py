"""What OpenVINO's module says of a host without its devices, whatever host this is."""

from __future__ import annotations

import onnxruntime as ort
import pytest
from msgspec.structs import replace

from epctx.errors import ProviderUnavailable
from epctx.providers.onnxruntime import host, packages, plugins
from epctx.providers.onnxruntime.openvino.provider import OpenVINOExecutionProvider

NAME = "OpenVINOExecutionProvider"
pytestmark = pytest.mark.needs("module onnxruntime_ep_openvino")


@pytest.fixture(autouse=True)
def _measured_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugins.HIDE, raising=False)
    version(monkeypatch, "1.8.1")


def version(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    found = packages.find
    monkeypatch.setattr(
        packages, "find", lambda *a, **more: replace(found(*a, **more), version=number)
    )


def vendor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    here = replace(host.cpu(), vendor=name)
    monkeypatch.setattr(host, "cpu", lambda: here)


def without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "listed", lambda provider: ())


@pytest.mark.parametrize(
    ("name", "words"), [("AuthenticAMD", "AuthenticAMD"), ("0x41", "Arm's implementer 0x41")]
)
def test_another_vendors_cpu_is_told_before_the_library_is_loaded(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(monkeypatch, name)
    error = OpenVINOExecutionProvider({}).unavailable()
    assert error is not None
    assert str(error).splitlines() == [
        f"{NAME}: its plugin 1.8.1 offers devices on Intel CPUs only, but this CPU is {words}",
        "  -> build and run groups that need it on a host with an Intel CPU; here "
        "`epctx build --only GROUP@TARGET` builds the other groups",
    ]


def test_a_version_that_nobody_measured_is_asked_for_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vendor(monkeypatch, "AuthenticAMD")
    version(monkeypatch, "1.9.0")
    provider = OpenVINOExecutionProvider({})
    assert provider.unavailable() is None
    without_devices(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=r"its plugin 1\.9\.0 offers devices on Intel"):
        provider.add_to(ort.SessionOptions())


@pytest.mark.parametrize(
    ("cpu", "options", "wanted"),
    [("GenuineIntel", {}, "CPU"), ("AuthenticAMD", {"device_type": "GPU"}, "GPU")],
)
def test_a_device_that_the_cpu_does_not_exclude_is_asked_for(
    cpu: str, options: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(monkeypatch, cpu)
    without_devices(monkeypatch)
    provider = OpenVINOExecutionProvider(options)
    assert provider.unavailable() is None
    match = f"its plugin 1.8.1 offers no device {wanted} on this host"
    with pytest.raises(ProviderUnavailable, match=match) as caught:
        provider.add_to(ort.SessionOptions())
    assert caught.value.why == "it offers none at all"


def test_what_is_hidden_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    vendor(monkeypatch, "AuthenticAMD")
    monkeypatch.setenv(plugins.HIDE, NAME)
    with pytest.raises(ProviderUnavailable, match="EPCTX_HIDE_DEVICES hides its devices"):
        OpenVINOExecutionProvider({}).add_to(ort.SessionOptions())


@pytest.mark.parametrize(
    ("device", "kinds", "metadata"),
    [("CPU", ("CPU",), {}), ("NPU", ("NPU",), {}), ("GPU.1", ("GPU",), {"ov_device": "GPU.1"})],
)
def test_a_device_is_told_which_of_its_devices_is_meant(
    device: str, kinds: tuple[str, ...], metadata: dict[str, str]
) -> None:
    found = OpenVINOExecutionProvider({"device_type": device}).on_device([], sharing=True)
    assert (found.kinds, found.metadata, found.options) == (kinds, metadata, {})
    assert found.module == "onnxruntime_ep_openvino" and not found.paths
