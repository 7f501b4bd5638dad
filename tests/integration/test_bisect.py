"""`epctx bisect` of models of 300 nodes: what was made wrong on purpose is found, and repaired."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit import command_line, wrong
from tests.kit.command_line import FAULTY
from tests.kit.wrong import QNN, Net

REFERENCE: dict[str, Any] = {"provider": "ReferenceExecutionProvider", "options": {}}
DAMAGING: dict[str, Any] = {
    "provider": "FaultyExecutionProvider",
    "options": {"fault": "weight", "weight": "w60"},
}
IMAGES: dict[str, Any] = {"rows": 64, "width": 64, "last": (32, 32)}


def quantized(low: float, high: float) -> dict[str, Any]:
    """Quantized with 16 bits, one tensor in a range that somebody got wrong."""
    overrides = {"sum18": {"range": [low, high]}}
    settings = {"preset": "qnn", "calibration": {"random": True}, "overrides": overrides}
    return {**REFERENCE, "layers": 30, "quantize": settings}


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with what a user pastes into it."""
    both = {
        key: merged(one[key], other[key])
        for key in one.keys() & other.keys()
        if isinstance(other[key], dict)
    }
    return {**one, **other, **both}


@pytest.mark.parametrize(
    ("change", "arguments", "node", "kind", "why"),
    [
        pytest.param(wrong.nothing, DAMAGING, "product60", "unknown", "", id="weight"),
        pytest.param(
            wrong.nothing, quantized(-0.5, 0.5), "sum18", "quantization range", "clipped",
            id="clipped", marks=pytest.mark.soak,
        ),
        pytest.param(
            wrong.nothing, quantized(-5e4, 5e4), "sum18", "quantization range", "few steps",
            id="wide", marks=pytest.mark.soak,
        ),
        pytest.param(
            wrong.overflow, {}, "huger", "fp16 overflow", "beyond 65504", id="overflow",
            marks=pytest.mark.needs_device(QNN),
        ),
        pytest.param(
            wrong.underflow, {}, "back", "fp16 underflow", "'tinier'", id="underflow",
            marks=[pytest.mark.needs_device(QNN), pytest.mark.soak],
        ),
        pytest.param(
            wrong.pool, IMAGES, "pooled", "known EP fault", "AveragePool", id="pool",
            marks=[pytest.mark.needs_device(QNN), pytest.mark.soak],
        ),
    ],
)  # fmt: skip
def test_the_first_wrong_node_its_cause_and_what_repairs_it(
    tmp_path: Path,
    change: Callable[[Net], None],
    arguments: dict[str, Any],
    node: str,
    kind: str,
    why: str,
) -> None:
    manifest = wrong.write(tmp_path, change, **arguments)

    def run(*words: str) -> tuple[int, str]:
        ran = command_line.epctx(*words, cwd=tmp_path, PYTHONPATH=str(FAULTY))
        assert "Traceback" not in ran.stderr
        return ran.returncode, ran.stdout

    code, said = run(
        "bisect", "epctx.yaml", "g", "net", "--cuts", "16", "--format", "json", "--quiet"
    )
    found = json.loads(said)
    assert code == 7 and found["ended"] == "found"
    assert found["nodes"] >= 3 * arguments.get("layers", 100)
    assert [each["node"] for each in found["first"]] == [node]
    assert found["cause"]["kind"] == kind and why in found["cause"]["why"]
    assert found["builds"] <= 6
    (page,) = (tmp_path / "dist").glob("*.html")
    assert json.loads(page.with_suffix(".json").read_text(encoding="utf-8")) == found
    (repair,) = (each["manifest"] for each in found["tried"] if each["failure"] is None)
    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    manifest.write_text(yaml.safe_dump(merged(document, repair)), encoding="utf-8")
    code, _ = run("build", "epctx.yaml", "--no-cache", "--quiet")
    assert code == 0, "what it proposes repairs the build"


@pytest.mark.needs_device(QNN)
def test_what_does_not_compile_is_found_by_halves_and_kept_off(tmp_path: Path) -> None:
    """Without `soc_model` QNN fails on HardSigmoid, which no known fault of it tells."""
    manifest = wrong.write(tmp_path, wrong.hard, options={}, layers=20)
    ran = command_line.epctx("build", "epctx.yaml", cwd=tmp_path)
    assert ran.returncode == 6 and "; its log: " in ran.stderr
    assert (tmp_path / ran.stderr.rpartition("; its log: ")[2].strip()).is_file()
    bisected = command_line.epctx("bisect", "epctx.yaml", "g", "net", cwd=tmp_path)
    assert bisected.returncode == 7 and "Traceback" not in bisected.stderr
    assert "30 of 61 nodes kept off" in bisected.stderr
    assert "the build passes without 'hard' (HardSigmoid)" in bisected.stdout
    assert "tried: partition.exclude of 'hard': its numbers pass" in bisected.stdout
    repair = yaml.safe_load(
        bisected.stdout[bisected.stdout.index("model_groups:") :].split("page:")[0]
    )
    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    manifest.write_text(yaml.safe_dump(merged(document, repair)), encoding="utf-8")
    assert command_line.epctx("build", "epctx.yaml", cwd=tmp_path).returncode == 0


@pytest.mark.soak
@pytest.mark.needs_device(QNN)
def test_eight_bits_that_are_too_few_are_made_sixteen(tmp_path: Path) -> None:
    settings = {"preset": "qnn", "calibration": {"random": True}, "activations": "uint8"}
    wrong.write(tmp_path, wrong.uneven, layers=6, quantize=settings)
    ran = command_line.epctx(
        *("bisect", "epctx.yaml", "g", "net", "--cuts", "20", "--format", "json", "--quiet"),
        cwd=tmp_path,
    )
    found = json.loads(ran.stdout)
    assert (found["sessions"], found["first"][0]["node"]) == ("quantized", "unscaled")
    assert [each["failure"] is None for each in found["tried"]] == [False, False, True]
    assert found["tried"][2]["manifest"] == {
        "model_groups": {"g": {"quantize": {"activations": "uint16"}}}
    }


def test_of_a_model_that_is_right_nothing_is_wrong(tmp_path: Path) -> None:
    wrong.write(tmp_path, wrong.nothing, layers=10, **REFERENCE)
    ran = command_line.inside("bisect", "epctx.yaml", "g", "net", cwd=tmp_path)
    assert ran.returncode == 0 and ran.stdout.startswith("nothing is wrong")
    assert list((tmp_path / "dist").iterdir()), "that is kept, too"
