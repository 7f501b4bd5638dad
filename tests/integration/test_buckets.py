"""Buckets of a BERT: one context on QNN, weights on the CPU once, one entry in reports."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from epctx import api
from epctx.engine.report import BuildReport, GroupReport
from epctx.files.outputs import context_file
from tests.kit import examples, kits
from tests.kit.command_line import epctx

SIZES = {"bert_s32": 32, "bert_s64": 64, "bert_s128": 128}
MANIFEST = """schema_version: 1
name: search
models:
  bert: {path: bert.onnx, dimensions: {batch: 1, sequence: [32, 64, 128]}}
execution_providers:
  htp: {provider: QNNExecutionProvider, options: {soc_model: "60"}}
  ref: {provider: ReferenceExecutionProvider}
model_groups:
  text:
    models: [bert]
    execution_providers: [ref]
    partition: {exclude: {op_types: [Gather]}}
    verify: {inputs: {ranges: {input_ids: [0, 1023], attention_mask: [0, 1]}}}
targets:
  ref: {}
  cpu: {model_groups: {text: {execution_providers: [], partition: {exclude: {op_types: []}}}}}
"""
QNN = MANIFEST.replace("  cpu:", "  qnn:").replace("providers: []", "providers: [htp]")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildReport]:
    folder = tmp_path_factory.mktemp("buckets")
    examples.bert(folder / "bert.onnx")
    (folder / "epctx.yaml").write_text(MANIFEST, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        return folder, api.build(folder / "epctx.yaml", out=folder / "dist", golden=True)


def of(report: BuildReport, target: str) -> GroupReport:
    return next(group for group in report.groups if group.target == target)


def test_weights_on_the_cpu_are_stored_once(built: tuple[Path, BuildReport]) -> None:
    """The embedding that the EP leaves; where there is no EP, every weight that is large."""
    _, report = built
    for target, binaries in (("ref", ["bert_s32_reference.bin"]), ("cpu", [])):
        files = {file.name: file.size for file in of(report, target).files}
        models = [context_file(name) for name in SIZES]
        assert sorted(files) == sorted([*models, *binaries, "bert_s32_shared.data"])
        assert sum(files[name] for name in models) < files["bert_s32_shared.data"]
    stored = of(report, "ref").files
    assert next(f.size for f in stored if f.name.endswith(".data")) == 1024 * 64 * 4


def test_onnxruntime_loads_each_model_alone_and_the_numbers_are_equal(
    built: tuple[Path, BuildReport],
) -> None:
    folder, report = built
    source = ort.InferenceSession(folder / "bert.onnx")
    place = folder / "dist" / (of(report, "cpu").folder or "")
    rng = np.random.default_rng(0)
    for name, size in SIZES.items():
        ids = rng.integers(0, 1024, (1, size))
        feeds = {"input_ids": ids, "attention_mask": rng.integers(0, 2, ids.shape)}
        (found,) = ort.InferenceSession(place / context_file(name)).run(None, feeds)
        (right,) = source.run(None, feeds)
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_a_build_gives_the_same_bytes_again(
    built: tuple[Path, BuildReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    again = api.build(built[0] / "epctx.yaml", out=tmp_path / "dist", locked=True)
    assert [group.files for group in again.groups] == [group.files for group in built[1].groups]


def test_the_report_has_one_entry(built: tuple[Path, BuildReport]) -> None:
    folder, report = built
    for group in report.groups:
        assert group.buckets == {"bert": {n: {"sequence": size} for n, size in SIZES.items()}}
        assert group.counted == "1 (3 buckets)"
    page = api.report(folder / "epctx.yaml", out=folder / "page.html", dist=folder / "dist")
    text = page.read_text(encoding="utf-8")
    assert text.count("Each bucket of bert") == len(report.groups)
    assert "<td>sequence 128</td>" in text
    again = epctx("build", folder / "epctx.yaml", "--out", folder / "dist", "-v", cwd=folder)
    assert "1 (3 buckets)" in again.stdout


def test_a_package_has_a_component_for_each_bucket(
    built: tuple[Path, BuildReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = built
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
    package = api.package(folder / "epctx.yaml", out=folder / "dist")
    place = folder / "dist" / package.path
    components = json.loads((place / "manifest.json").read_bytes())["components"]
    assert list(components) == list(SIZES)
    assert (place / "cpu" / "text" / "bert_s32_shared.data").is_file()
    found = api.verify([place], lock=folder / "epctx.lock.yaml")
    assert found.passed


def test_a_device_runs_what_shares_weights_and_not_if_they_are_damaged(
    built: tuple[Path, BuildReport], tmp_path: Path
) -> None:
    folder, report = built
    group = folder / "dist" / (of(report, "cpu").folder or "")
    kit = api.kit(group, out=tmp_path / "kit").path
    assert kits.check(kit).returncode == 0
    judged = api.verify(group, device_results=tmp_path / "device.json")
    assert judged.passed and judged.folders[0].models
    weights = kit / "cpu" / "text" / "bert_s32_shared.data"
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.write_bytes(content)
    assert kits.check(kit).stderr.count("bert_s32_shared.data is damaged") == len(SIZES)


@pytest.mark.needs_device("QNNExecutionProvider")
def test_three_buckets_share_one_context_on_qnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    examples.bert(tmp_path / "bert.onnx")
    (tmp_path / "epctx.yaml").write_text(QNN, encoding="utf-8")
    report = api.build(tmp_path / "epctx.yaml", out=tmp_path / "dist", only=["text@qnn"])
    (group,) = report.groups
    names = [context_file(name) for name in SIZES]
    assert sorted(file.name for file in group.files) == sorted([*names, "bert_s32_qnn.bin"])
    for model in group.models:
        assert model.coverage == 1 and len(model.partitions) == 1
    assert group.verify is not None
    assert not [each for each in group.verify.findings if each.outcome == "fail"]
    run = {each.model for each in group.verify.numbers if each.sessions == "generating"}
    assert run == set(names)
    first = onnx.load(tmp_path / "dist" / (group.folder or "") / names[0])
    assert first.graph.input[0].type.tensor_type.shape.dim[1].dim_value == SIZES["bert_s32"]
