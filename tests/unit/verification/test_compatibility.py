from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from epctx.errors import CompileError, ProviderUnavailable
from epctx.providers.base import ExecutionProvider, Outcome, Verdict
from epctx.providers.guard import guard
from epctx.verification.compatibility import Compatibility
from epctx.verification.findings import Finding
from epctx.verification.folder import Providers, open_folder
from tests.kit import folders
from tests.kit.fake_providers import Fake
from tests.kit.folders import model

INFO = "v2:6:2.51.0:5.51.0:0:60:0:0"


class Plain(Fake):
    """An EP without any hook."""

    sources = frozenset({"reference"})


class Knowing(Plain):
    def check_compatibility(self, info: str | None, nodes: Sequence[object]) -> list[Verdict]:
        if info == "broken":
            raise CompileError("cannot be parsed", remedy="build it again")
        outcome: Outcome = "pass" if info == INFO else "fail"
        return [Verdict(outcome=outcome, message=f"{info} for {len(nodes)} nodes", remedy="r")]


class WithDevices(Knowing):
    native = True

    def __init__(self, devices: object) -> None:
        self._devices = devices

    def ep_devices(self) -> Sequence[object]:
        if isinstance(self._devices, Exception):
            raise self._devices
        return self._devices  # type: ignore[return-value]


class OnPhones(WithDevices):
    judging_devices = frozenset({"NPU"})


class Elsewhere(WithDevices):
    def cannot_load(self, nodes: object, folder: Path, *, sharing: bool) -> str | None:
        return "it is for an NPU"


def check(
    tmp_path: Path, provider: ExecutionProvider, info: str | None = INFO, *, asked: bool = True
) -> list[Finding]:
    made = model()
    if info is not None:
        onnx.helper.set_model_props(made, {"ep_compatibility_info.FakeExecutionProvider": info})
    providers = Providers(asked=(provider,) if asked else None)
    if not asked:
        providers._found = dict.fromkeys(provider.sources, provider)
    folder = open_folder(folders.write(tmp_path, made, sums=False), providers=providers)
    return list(Compatibility().check(folder, ()))


def test_the_provider_is_asked_what_its_info_means(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, Knowing())
    assert (finding.outcome, finding.message) == ("pass", f"{INFO} for 1 nodes")
    (finding,) = check(tmp_path, Knowing(), "v2:6:2.51.0:5.51.0:0:57:0:0")
    assert finding.outcome == "fail" and finding.remedy == "r"
    (finding,) = check(tmp_path, Knowing(), None)
    assert finding.outcome == "fail" and finding.message == "None for 1 nodes"
    (finding,) = check(tmp_path, Knowing(), "broken")
    assert (finding.outcome, finding.message) == ("fail", "cannot be parsed")


def test_without_a_manifest_nothing_was_asked(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, Knowing(), "v2:6:2.51.0:5.51.0:0:57:0:0", asked=False)
    assert finding.outcome == "not checkable"
    (finding,) = check(tmp_path, Knowing(), asked=False)
    assert finding.outcome == "pass"


def test_a_model_for_another_host_is_not_judged_by_this_one(tmp_path: Path) -> None:
    (_, finding) = check(tmp_path, Elsewhere(["device"]))
    assert (finding.check, finding.outcome) == ("devices", "not checkable")
    assert finding.message == "it is for an NPU"


def test_an_ep_that_fails_is_no_host_without_a_device(tmp_path: Path) -> None:
    failed = guard(WithDevices(KeyError("oops")), "Fake", lambda: "fake 1.0")
    with pytest.raises(CompileError, match="Fake failed in `ep_devices`: KeyError: 'oops'"):
        check(tmp_path, failed)


def test_a_provider_that_cannot_say_is_not_a_pass(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, Plain())
    assert finding.outcome == "not checkable" and f"cannot interpret '{INFO}'" in finding.message
    (finding,) = check(tmp_path, Plain(), None)
    assert finding.message == "has no ep_compatibility_info.FakeExecutionProvider"


def test_an_ep_that_is_not_here(tmp_path: Path) -> None:
    other = Plain()
    other.sources = frozenset({"somebody"})
    (finding,) = check(tmp_path, other)
    assert finding.outcome == "not checkable"
    assert "the source 'reference'" in finding.message and "somebody" in finding.remedy


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        ("EP_SUPPORTED_OPTIMAL", "pass", "supported optimal"),
        ("EP_SUPPORTED_PREFER_RECOMPILATION", "pass", "supported prefer recompilation"),
        ("EP_UNSUPPORTED", "fail", "unsupported"),
        ("EP_NOT_APPLICABLE", "not checkable", "not applicable"),
        (
            RuntimeError("only supports NPU\nmore"),
            "not checkable",
            "cannot check it on this host: only",
        ),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), "not checkable", "cannot check it"),
    ],
)
def test_what_onnxruntime_says_of_this_host(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str | Exception,
    outcome: str,
    words: str,
) -> None:
    from onnxruntime.capi import _pybind_state

    def ask(devices: Sequence[object], info: str) -> object:
        assert (devices, info) == (["device"], INFO)
        if isinstance(answer, Exception):
            raise answer
        assert answer in _pybind_state.OrtCompiledModelCompatibility.__members__
        return SimpleNamespace(name=answer)

    monkeypatch.setattr(_pybind_state, "get_model_compatibility_for_ep_devices", ask)
    findings = check(tmp_path, WithDevices(["device"]))
    (finding,) = [f for f in findings if f.check == "devices"]
    assert finding.outcome == outcome and words in finding.message
    assert finding.outcome == "pass" or finding.remedy


def test_an_ep_that_can_tell_on_some_devices_only(tmp_path: Path) -> None:
    device = SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name="CPU")))
    (_, finding) = check(tmp_path, OnPhones([device]))
    assert finding.outcome == "not checkable"
    assert finding.message == (
        "FakeExecutionProvider can check it only on a host with its NPU; this host has none"
    )


def test_a_host_without_a_device_or_the_library(tmp_path: Path) -> None:
    (_, finding) = check(tmp_path, WithDevices([]))
    assert finding.message == "this host has no device of FakeExecutionProvider"
    missing = ProviderUnavailable("is not installed", remedy="pip install it")
    (_, finding) = check(tmp_path, WithDevices(missing))
    assert (finding.outcome, finding.remedy) == ("not checkable", "pip install it")
    assert len(check(tmp_path, WithDevices([]), None)) == 1
