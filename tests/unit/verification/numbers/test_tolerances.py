from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from epctx.manifest import ProviderSpec, Tolerance
from epctx.providers import registry
from epctx.providers.base import Precision
from epctx.verification.numbers.tolerances import GAIN, limits
from tests.kit.fake_providers import Taker, op_types


class Coarse(Taker):
    """An EP that says how exact it is."""

    def __init__(self) -> None:
        super().__init__(lambda node: True)

    def tolerance(self, of: str, dtype: str) -> Tolerance:
        if dtype == "uint8":
            return Tolerance(max_abs=1)
        return Tolerance(cosine_min=0.99, max_abs=None, max_rel=0.1)


FINE = op_types()
"""An EP that says nothing of it."""


def test_integers_are_exact_unless_an_ep_or_the_manifest_says_else() -> None:
    assert limits([FINE], "quantized", "uint8", Tolerance()) == Tolerance()
    assert limits([FINE, Coarse()], "quantized", "uint8", Tolerance()) == Tolerance(max_abs=1)
    assert limits([FINE], "float32", "int64", Tolerance(max_abs=2)) == Tolerance(max_abs=2)


def test_of_several_eps_the_loosest_counts_limit_by_limit() -> None:
    assert limits([FINE, Coarse()], "float32", "float32", Tolerance()) == Tolerance(
        cosine_min=0.99, max_rel=0.1, gain_max=GAIN
    )


def test_the_manifest_replaces_limit_by_limit() -> None:
    asked = Tolerance(max_abs=0.5, cosine_min=0.9)
    assert limits([Coarse()], "float32", "float32", asked) == Tolerance(
        cosine_min=0.9, max_abs=0.5, max_rel=0.1, gain_max=GAIN
    )


PAGE = Path(__file__).parents[4] / "docs" / "numbers.md"
HEAD = "| EP | float64 | float32 | float16 | bfloat16 | quantized |\n|---|---|---|---|---|---|\n"
HINT = '{"CPU": {"INFERENCE_PRECISION_HINT": "%s"}}'
ROWS: dict[str, tuple[str, dict[str, str | bool]] | None] = {
    "reference EP": ("ReferenceExecutionProvider", {}),
    "QNN": ("QNNExecutionProvider", {"soc_model": "60"}),
    "QNN with `htp_bf16_enable`": (
        "QNNExecutionProvider",
        {"soc_model": "88", "htp_bf16_enable": True},
    ),
    "OpenVINO in float32": ("OpenVINOExecutionProvider", {"load_config": HINT % "f32"}),
    "OpenVINO in less (GPU, NPU, CPUs with bfloat16)": (
        "OpenVINOExecutionProvider",
        {"load_config": HINT % "bf16"},
    ),
    "other EPs of ONNX Runtime": ("VitisAIExecutionProvider", {}),
    "EPs that do not say, no EP": None,
}


@pytest.mark.needs("module onnxruntime_qnn")
def test_the_page_has_the_limits_of_every_ep() -> None:
    table = HEAD
    order: list[Precision] = ["float64", "float32", "float16", "bfloat16", "quantized"]
    assert set(order) == set(get_args(Precision))
    for name, ep in ROWS.items():
        made = (
            []
            if ep is None
            else [registry.create(ProviderSpec(alias="e", provider=ep[0], options=ep[1]))]
        )
        found = [limits(made, each, "float32", Tolerance()) for each in order]
        cells = (f"{each.cosine_min:g}, {each.max_rel:g}" for each in found)
        table += f"| {name} | {' | '.join(cells)} |\n"
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        after = rest.partition("\n\n")[2] if rest.startswith("|") else rest.removeprefix("\n")
        PAGE.write_text(f"{before}{table}\n{after}", encoding="utf-8")
    assert f"{table}\n" in PAGE.read_text(encoding="utf-8"), "EPCTX_UPDATE_GOLDEN=1 writes it"
