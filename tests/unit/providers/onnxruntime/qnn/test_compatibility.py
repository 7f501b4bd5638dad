from __future__ import annotations

import pytest

from epctx.manifest import OptionValue
from epctx.providers.onnxruntime.qnn import compatibility
from epctx.providers.onnxruntime.qnn.compatibility import Compatibility
from epctx.providers.onnxruntime.qnn.options import QnnOptions


def test_the_compatibility_string() -> None:
    found = Compatibility.parse("v2:6:2.51.0:5.51.0:73:60:8:0")
    assert found == Compatibility(qairt="2.51.0", archs=(73,), chips=(60,), vtcms=(8,))
    several = Compatibility.parse("v2:6:2.51.0:5.51.0:0,0:60,57:8,8:0")
    assert several == Compatibility(qairt="2.51.0", archs=(0, 0), chips=(60, 57), vtcms=(8, 8))
    broken = ("v2:6:2.51.0:5.51.0:0:x:0:0", "v2:60", "v2:6:2:5:0:60,:0:0")
    for other in ("", "v1:6:2:5:0:60:0:0", *broken):
        assert Compatibility.parse(other) is None


@pytest.mark.parametrize(
    ("options", "info", "outcome", "words"),
    [
        ({"soc_model": "60"}, "v2:6:2.51.0:5.51.0:0:60:0:0", "pass", "60 (sc8380xp, v73)"),
        ({}, "v2:6:2.51.0:5.51.0:0:57:0:0", "pass", "57 (sm8650, v75)"),
        ({}, "v2:6:2.51.0:5.51.0:0:0:0:0", "pass", "0 (any chip)"),
        ({"soc_model": "60"}, "v2:6:2.51.0:5.51.0:0:57:0:0", "fail", "soc_model is 57, not 60"),
        ({"htp_arch": "73"}, "v2:6:2.51.0:5.51.0:75:0:0:0", "fail", "htp_arch is 75, not 73"),
        ({"vtcm_mb": 4}, "v2:6:2.51.0:5.51.0:0:0:8:0", "fail", "vtcm_mb is 8, not 4"),
        (
            {"soc_model": ("sm8650", "60")},
            "v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0",
            "pass",
            "60 (sc8380xp, v73), 57 (sm8650, v75)",
        ),
        (
            {"soc_model": ("60", "57", "69")},
            "v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0",
            "fail",
            "soc_model is 57 and 60, not 57 and 60 and 69",
        ),
        (
            {"soc_model": "60"},
            "v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0",
            "fail",
            "soc_model is 57 and 60, not 60",
        ),
        ({"vtcm_mb": 8}, "v2:6:2.51.0:5.51.0:0,0:60,57:8,8:0", "pass", "57"),
        ({"soc_model": "60"}, None, "fail", "it has no key"),
        ({"soc_model": "60"}, "v9:1", "not checkable", "unknown form"),
    ],
)
def test_what_the_options_ask_for_is_held_against_it(
    options: dict[str, OptionValue], info: str | None, outcome: str, words: str
) -> None:
    verdict = compatibility.verdict(info, QnnOptions.parse(options), key="key")
    assert (verdict.outcome, words in verdict.message) == (outcome, True), verdict
