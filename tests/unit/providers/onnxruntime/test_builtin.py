from __future__ import annotations

import re
from pathlib import Path

import pytest

from epctx.errors import EpctxError, ManifestError, ProviderUnavailable
from epctx.manifest import OptionValue
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.providers.onnxruntime import builtin
from epctx.providers.onnxruntime.builtin import BuiltInProvider, PluginProvider


def test_a_built_in_ep_that_this_onnxruntime_lacks() -> None:
    import onnxruntime as ort

    bound = builtin.create("TensorrtExecutionProvider", {"trt_fp16_enable": True})
    assert isinstance(bound, BuiltInProvider)
    with pytest.raises(ProviderUnavailable) as caught:
        bound.add_to(ort.SessionOptions())
    assert "has no TensorrtExecutionProvider" in str(caught.value)
    assert "install onnxruntime-gpu" in str(caught.value)


def test_the_package_of_tensorrt_rtx_is_a_plugins() -> None:
    import onnxruntime as ort

    bound = builtin.create("NvTensorRTRTXExecutionProvider", {"nv_target_sm": "sm120"})
    assert isinstance(bound, BuiltInProvider)
    with pytest.raises(ProviderUnavailable) as caught:
        bound.add_to(ort.SessionOptions())
    assert "install onnxruntime-ep-nv-tensorrt-rtx beside" in caught.value.remedy
    assert "plugin.package: onnxruntime_ep_nv_tensorrt_rtx" in caught.value.remedy


def test_its_fingerprint_is_onnxruntimes() -> None:
    found = builtin.create("VitisAIExecutionProvider", {}).fingerprint()
    assert any(re.search(r"\.(dll|pyd|so)", name) for name in found.files)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"plugin.libary": "/x"}, ManifestError, "unknown option plugin.libary"),
        (
            {"plugin.device_type": "CPU"},
            ManifestError,
            "needs either plugin.library or plugin.package",
        ),
        ({"plugin.library": "x.so"}, ManifestError, "the path is relative"),
        ({"plugin.library": "/nowhere/x.so"}, ManifestError, "there is no such file"),
        ({"plugin.package": "no_such_package"}, ProviderUnavailable, "no installed distribution"),
        ({"plugin.package": "antigravity"}, ProviderUnavailable, "no installed distribution"),
        ({"plugin.package": "numpy"}, ManifestError, "has no libraries of plugin EPs"),
    ],
)
def test_a_plugin_that_is_not_there(
    options: dict[str, OptionValue], error: type[EpctxError], words: str
) -> None:
    with pytest.raises(error, match=words):
        builtin.create("AcmeExecutionProvider", options)


def plugin(tmp_path: Path, **more: OptionValue) -> ExecutionProvider:
    library = tmp_path / "libacme.so"
    library.write_bytes(b"\x7fELF")
    return builtin.create("AcmeExecutionProvider", {"plugin.library": str(library), **more})


@pytest.mark.parametrize(
    ("key", "value"), [("plugin.device_type", "TPU"), ("plugin.device_index", "-1")]
)
def test_a_device_that_cannot_be(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ManifestError, match=key):
        plugin(tmp_path, **{key: value})


def test_a_plugin_is_fingerprinted_by_its_library(tmp_path: Path) -> None:
    bound = plugin(tmp_path, speed=11)
    assert isinstance(bound, PluginProvider)
    (tmp_path / "libneeded.so").touch()
    (tmp_path / "notes.txt").touch()
    own = [name for name in bound.fingerprint().files if name.startswith("AcmeExecutionProvider/")]
    assert own == ["AcmeExecutionProvider/libacme.so", "AcmeExecutionProvider/libneeded.so"]


def test_a_library_that_onnxruntime_does_not_take(tmp_path: Path) -> None:
    import onnxruntime as ort

    with pytest.raises(ProviderUnavailable, match="refuses the library of Acme"):
        plugin(tmp_path).add_to(ort.SessionOptions())


def test_the_registry_knows_what_no_entry_point_has(tmp_path: Path) -> None:
    library = tmp_path / "libacme.so"
    library.write_bytes(b"\x7fELF")
    plugin_ = registry.bind("AcmeExecutionProvider", {"plugin.library": str(library)})
    assert isinstance(plugin_, PluginProvider)
    assert isinstance(registry.bind("TensorrtExecutionProvider", {}), BuiltInProvider)
    with pytest.raises(ProviderUnavailable, match="QNNExecutionProvider"):
        registry.bind("QNNExecutionProvidr", {})


def test_a_device_is_asked_where_the_library_of_a_plugin_is(tmp_path: Path) -> None:
    bound = plugin(tmp_path, speed=11, **{"plugin.device_type": "NPU"})
    assert isinstance(bound, PluginProvider)
    found = bound.on_device([], sharing=False)
    assert (found.registration, found.module) == ("AcmeExecutionProvider", None)
    assert (found.kinds, found.options) == (("NPU",), {"speed": "11"})


def test_a_built_in_ep_needs_no_library_on_a_device() -> None:
    found = BuiltInProvider("X", {}).on_device([], sharing=False)
    assert (found.ep, found.registration) == ("X", None)
