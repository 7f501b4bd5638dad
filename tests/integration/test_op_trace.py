"""QNN's op trace (`enable_framework_op_trace`): kept beside the build, shown in its report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import numpy_helper

from epctx import api
from epctx.engine.report import BuildReport
from epctx.errors import CompileError, InvalidManifest, StorageError
from epctx.providers.onnxruntime.qnn import faults
from tests.kit import onnx_text

pytestmark = pytest.mark.needs("module onnxruntime_qnn")
MIXED = """
mixed (float[1,3,8,8] x) => (float[1,4,8,8] y)
{
    [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
    [relu] r = Relu(c)
    [isinf] i = IsInf(r)
    [cast] f = Cast <to = 1> (i)
    [add] a = Add(f, r)
    y = Gelu(a)
}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32) * 0.1
    model = onnx_text.proto(MIXED)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, folder / "m.onnx")
    return folder


def build(folder: Path, out: Path, *, trace: bool = True, **group: Any) -> BuildReport:
    options = {"soc_model": "60"} | ({"enable_framework_op_trace": True} if trace else {})
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {"m": {"path": "m.onnx"}},
        "execution_providers": {"htp": {"provider": "QNNExecutionProvider", "options": options}},
        "model_groups": {"g": {"models": ["m"], "execution_providers": ["htp"], **group}},
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return api.build(folder / "m.yaml", out=out)


def traces(out: Path) -> Any:
    return json.loads((out / "m.traces.json").read_bytes())


def test_a_trace_is_kept_beside_the_same_bytes(models: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(models, tmp_path / "sources")
    group = build(folder, tmp_path / "on").groups[0]
    plain = build(folder, tmp_path / "off", trace=False).groups[0]
    assert group.files == plain.files, "tracing changes no byte"
    assert not (tmp_path / "off" / "m.traces.json").exists()
    assert plain.models[0].ops == {}
    kept = traces(tmp_path / "on")["g@default"]["m"]
    assert [each["node_name"] for each in kept["unsupported_nodes"]] == ["isinf"]
    ops = group.models[0].ops
    assert {name: ops[name] for name in ("conv", "relu", "cast", "add")} == {
        "conv": ("Conv2d",),
        "relu": ("Relu",),
        "cast": ("Cast",),
        "add": ("ElementWiseAdd",),
    }
    outline = group.models[0].outline
    assert outline is not None
    inserted = {made for name, made in ops.items() if name not in outline.names}
    assert {"Transpose"} <= {op for made in inserted for op in made}
    assert "isinf" not in ops


def test_a_cached_compile_has_its_trace_and_a_page_shows_it(models: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(models, tmp_path / "sources")
    build(folder, tmp_path / "first")
    again = build(folder, tmp_path / "second")
    (compiled,) = (each for each in again.groups[0].actions if each.action == "compile")
    assert not compiled.ran
    assert traces(tmp_path / "second") == traces(tmp_path / "first")
    api.report(tmp_path / "second" / "m.build.json", out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    rows = [re.findall(r">([^<>]+)<", row) for row in re.findall(r"<tr>.*?</tr>", page)]
    assert ["conv", "Conv", "htp", "Conv2d"] in rows
    assert ["isinf", "IsInf", "default EP"] in rows
    assert ["Transpose", "inserted by ONNX Runtime", "Transpose"] in rows


def test_no_release_has_it_and_it_goes_with_the_option(models: Path, tmp_path: Path) -> None:
    folder, out = shutil.copytree(models, tmp_path / "sources"), tmp_path / "dist"
    build(folder, out)
    sums = (out / "m" / "default" / "g" / "SHA256SUMS").read_text(encoding="utf-8")
    lock = (folder / "m.lock.yaml").read_text(encoding="utf-8")
    assert "traces" not in sums and "traces" not in lock
    assert api.verify(out, lock=folder / "m.lock.yaml").passed, "a byproduct does not fail it"
    build(folder, out, trace=False)
    assert not (out / "m.traces.json").exists()


def test_pieces_have_a_trace_each(models: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(models, tmp_path / "sources")
    partition = {"pieces": {"at": ["r"]}}
    group = build(folder, tmp_path / "dist", partition=partition).groups[0]
    assert sorted(traces(tmp_path / "dist")["g@default"]) == ["m.1", "m.2"]
    assert group.models[0].ops["conv"] == ("Conv2d",)
    assert group.models[0].ops["add"] == ("ElementWiseAdd",)


TWO = """
two (float[1,3,8,8] x) => (float[1,3,8,8] y)
{
    [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
    [relu] r = Relu(c)
    [again] y = Conv <pads = [1, 1, 1, 1]> (r, w)
}
"""


def test_pieces_keep_the_ops_of_inserted_nodes_of_one_name(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((3, 3, 3, 3)).astype(np.float32) * 0.1
    model = onnx_text.proto(TWO)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    group = build(tmp_path, tmp_path / "dist", partition={"pieces": {"at": ["r"]}}).groups[0]
    kept = traces(tmp_path / "dist")["g@default"].values()
    ops = [op for trace in kept for each in trace["subgraph_traces"] for op in each["op_mappings"]]
    sources = [source for op in ops for source in op["sources"] if source["type"] == "OP"]
    assert len({each["name"] for each in sources}) < len(sources)
    assert sum(map(len, group.models[0].ops.values())) == len(sources)


def test_a_failed_build_keeps_the_traces_and_a_lost_file_is_written_again(
    models: Path, tmp_path: Path
) -> None:
    folder, out = shutil.copytree(models, tmp_path / "sources"), tmp_path / "dist"
    build(folder, out)
    before = (out / "m.traces.json").read_bytes()
    (out / "m.traces.json").unlink()
    assert build(folder, out).groups[0].state == "up to date"
    assert (out / "m.traces.json").read_bytes() == before
    with pytest.raises(CompileError):
        build(folder, out, partition={"require_coverage": 1.0})
    assert (out / "m.traces.json").read_bytes() == before
    (out / "m.traces.json").unlink()
    (out / "m.traces.json").mkdir()
    with pytest.raises(StorageError, match="cannot be written") as caught:
        build(folder, out, trace=False)
    assert "m.traces.json" in str(caught.value)


def test_epctx_chooses_the_folder(models: Path, tmp_path: Path) -> None:
    text = (
        "schema_version: 1\nname: m\nmodels: {m: {path: m.onnx}}\nexecution_providers:\n"
        "  htp: {provider: QNNExecutionProvider, options: {framework_op_trace_dir: here}}\n"
        "model_groups: {g: {models: [m], execution_providers: [htp]}}\n"
    )
    (tmp_path / "m.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidManifest, match=r"dist/<name>\.traces\.json"):
        api.build(tmp_path / "m.yaml")


def test_a_node_keeps_its_name_and_another_form_is_an_error() -> None:
    def of(*names: str) -> bytes:
        ops = [
            {"dst_qnn_op_type": name.upper(), "sources": [{"name": name, "type": "OP"}]}
            for name in names
        ]
        return json.dumps({"subgraph_traces": [{"op_mappings": ops}]}).encode()

    content = of("a_token_1", "b_token_2", "Transpose_token_3")
    assert faults.trace(content, {"a_token_1", "a", "b"}).ops == {
        "a_token_1": ("A_TOKEN_1",),
        "b": ("B_TOKEN_2",),
        "Transpose_token_3": ("TRANSPOSE_TOKEN_3",),
    }
    for broken in (b"{", b"[]", b'{"graphs": []}'):
        with pytest.raises(CompileError, match=r"qnn_op_trace\.json of another form"):
            faults.trace(broken, ())
