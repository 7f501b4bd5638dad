"""OpenVINO's properties; that a device applies them is tested where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import ManifestError
from epctx.providers.onnxruntime.openvino.provider import config_of, properties_of

BF16 = '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'


def test_properties_come_from_the_text_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(BF16, encoding="utf-8")
    expected = {"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}
    assert config_of(BF16, None) == config_of(None, str(file)) == expected
    assert config_of(None, None) == {}


@pytest.mark.parametrize(
    ("inline", "file", "what"),
    [
        (BF16, "config.json", "both given"),
        (None, "no/such.json", "cannot be read"),
        ("{bad", None, "is not an OpenVINO configuration"),
        ("[" * 100_000, None, "is not an OpenVINO configuration"),
        ('{"CPU": 1}', None, "is not an OpenVINO configuration"),
        ("[]", None, "is not an OpenVINO configuration"),
    ],
)
def test_what_is_no_configuration_is_refused(
    inline: str | None, file: str | None, what: str
) -> None:
    with pytest.raises(ManifestError, match=what):
        config_of(inline, file)


def test_a_devices_own_properties_come_after_those_of_its_kind() -> None:
    config = {"GPU": {"A": "1", "B": "1"}, "GPU.1": {"B": "2"}}
    assert properties_of(config, "GPU.1") == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"NPU": {"PERF_COUNT": "YES"}}, "properties of NPU, but device_type is CPU"),
        ({"CPU": {"CACHE_DIR": "x"}}, "sets CACHE_DIR"),
    ],
)
def test_what_openvino_would_ignore_or_epctx_decides_is_refused(
    config: dict[str, dict[str, object]], what: str
) -> None:
    with pytest.raises(ManifestError, match=what):
        properties_of(config, "CPU")
