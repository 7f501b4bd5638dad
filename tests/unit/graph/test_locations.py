"""Where a node is in its source: torch's metadata, and names of which passes made others."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from epctx.errors import ModelError
from epctx.graph import locations
from tests.kit import onnx_text

TRACE = (
    'File "/home/me/venv/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py", '
    "line 1093, in forward\n    outputs = self.bert(\n"
    'File "C:\\env\\Lib\\site-packages\\transformers\\masking.py", line 661, in forward\n    mask ='
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model whose second node has torch's metadata, and whose third has no name."""
    proto = onnx_text.proto(
        "g (float[2] x) => (float[2] y) { a = Neg(x) [index] b = Abs(a) y = Relu(b) }"
    )
    proto.graph.node[0].name = "/a/Neg"
    scopes = "['', 'model.encoder', 'index']"
    for key, value in {"stack_trace": TRACE, "name_scopes": scopes}.items():
        proto.graph.node[1].metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_node_has_its_place_and_what_the_exporter_says(source: Path) -> None:
    found = locations.locations(source, {"/a/Neg", "index", "-> y", "gone"})
    assert found["/a/Neg"] == "node 0" and found["-> y"] == "node 2"
    assert found["index"].startswith("node 1, model.encoder/index, ")
    assert found["index"].endswith("masking.py:661") and "env" not in found["index"]
    assert "gone" not in found


def test_what_a_pass_made_of_a_node_is_where_that_was(source: Path) -> None:
    found = locations.locations(source, {"index/Gather", "/a/Neg/Reshape", "/b/Neg"})
    assert set(found) == {"index/Gather", "/a/Neg/Reshape"}
    assert found["/a/Neg/Reshape"] == "node 0"


def test_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        locations.locations(tmp_path / "m.onnx", {"x"})
