"""Generating sessions in the place of files that this host cannot load: shared contexts of QNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx
from epctx.actions.record import RecordResult
from epctx.cache import Cache, StoredAction, locate
from epctx.parsing import load
from epctx.verification.findings import FolderReport
from epctx.verification.request import Kept
from tests.kit import folders

pytestmark = pytest.mark.needs_device("QNNExecutionProvider")
MANIFEST = """
schema_version: 1
name: m
models: {m: {path: m.onnx}, n: {path: n.onnx}}
execution_providers: {htp: {provider: QNNExecutionProvider, options: {soc_model: "60"}}}
model_groups:
  g: {models: [m, n], execution_providers: [htp], sharing_groups: {s: [m, n]}}
"""


def subtracting(path: Path, rows: int) -> None:
    """(a - b) @ w: which input is which matters, and their shapes do not tell."""
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("MatMul", ["d", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 8]) for name in "ab"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 8])],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def kept(folder: Path) -> Path:
    """What the generating sessions of the build before have left in the cache."""
    cache = Cache(locate(), lambda text: None)
    for name in cache.records.names("actions"):
        action = cache.records.read("actions", name, StoredAction[RecordResult])
        if action is not None and action.kind == "recording" and action.files:
            assert cache.fetch(action, folder)
    return folder


@pytest.fixture
def built(tmp_path: Path) -> FolderReport:
    """A group of two models that share a context, built."""
    subtracting(tmp_path / "m.onnx", 4)
    subtracting(tmp_path / "n.onnx", 1)
    (tmp_path / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    (group,) = epctx.build(tmp_path / "m.yaml", out=tmp_path / "dist").groups
    assert group.state == "built" and group.verify is not None
    return group.verify


def test_they_are_run_and_held_to_the_files_that_they_stand_for(
    built: FolderReport, tmp_path: Path
) -> None:
    assert {(n.model, n.sessions, n.passed) for n in built.numbers} == {
        ("m_ctx.onnx", "generating", True),
        ("n_ctx.onnx", "generating", True),
    }
    told = [f.outcome for f in built.findings if f.check == "boundaries"]
    assert told == ["pass", "pass"]

    folder = tmp_path / "dist/m/default/g"
    model = onnx.load(folder / "m_ctx.onnx")
    (node,) = (each for each in model.graph.node if each.op_type == "EPContext")
    node.input[:] = reversed(list(node.input))
    onnx.save(model, folder / "m_ctx.onnx")
    (group,) = load.load(tmp_path / "m.yaml").targets[0].groups
    found = folders.report(
        folder,
        policies=("numbers",),
        group=group,
        kept=Kept(
            source=tmp_path / "source",
            files=tmp_path / "files",
            generating=kept(tmp_path / "generating"),
        ),
    )
    (failed,) = (f for f in found.findings if f.outcome == "fail")
    assert (failed.check, failed.subject) == ("boundaries", "m_ctx.onnx")
    assert "inputs are b, a, not a, b" in failed.message
    assert all(n.passed for n in found.numbers), "numbers alone do not tell"
