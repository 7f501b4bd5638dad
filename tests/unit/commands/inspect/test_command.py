from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epctx.commands.inspect import command
from epctx.commands.inspect.inspection import Edge, ModelFile
from epctx.errors import InvalidGraph, ModelError, UsageError
from epctx.providers import registry
from epctx.providers.base import BinaryGraph, BinaryInfo
from epctx.providers.reference.layout import MAGIC
from tests.kit import folders
from tests.kit.folders import context_node, model


class Reader:
    """An EP that reads binaries which begin with `context`, or as the reference EP's do."""

    name = "FakeExecutionProvider"
    sources = frozenset({"reference"})

    def recognizes(self, head: bytes) -> bool:
        return head.startswith((b"context", MAGIC))

    def inspect_binary(self, path: Path) -> BinaryInfo:
        if b"broken" in path.read_bytes():
            raise InvalidGraph("bad checksum", why="section TENS", remedy="build it again")
        return BinaryInfo(
            kind="fake binary",
            graphs=(BinaryGraph(name="a", weights=70), BinaryGraph(name="b", weights=50)),
            tensors=3,
            stored=80,
        )


@pytest.fixture(autouse=True)
def only_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda: ("FakeExecutionProvider",))
    monkeypatch.setattr(registry, "bind", lambda name, options: Reader())


def read(path: Path) -> ModelFile:
    found = command.inspect(path).model
    assert found is not None
    return found


def test_an_epcontext_model_in_words(tmp_path: Path) -> None:
    made = model(
        context_node(hardware_architecture="v73", notes="n", max_size=9, is_odd=1),
        initializers=[numpy_helper.from_array(np.zeros((100, 100), np.float32), "w")],
    )
    made.producer_name, made.producer_version = "maker", "1.2"
    onnx.helper.set_model_props(made, {"ep_compatibility_info.Fake": "v1", "author": "somebody"})
    found = read(folders.write(tmp_path, made, sums=False) / "m_ctx.onnx")
    assert (found.name, found.producer, found.ir_version) == ("m_ctx.onnx", "maker 1.2", 10)
    assert found.opsets == {"ai.onnx": 20, "com.microsoft": 1}
    assert found.inputs == (Edge(name="x", type="float32[1, 4]"),)
    assert found.outputs == (Edge(name="z", type="float32[1, 4]"),)
    assert found.operators == {"Relu": 1}
    assert (found.weights.tensors, found.weights.inside) == (1, 40_000)
    assert found.compatibility == {"Fake": "v1"} and found.metadata == {"author": "somebody"}
    (node,) = found.nodes
    assert (node.name, node.source, node.main_context, node.embed_mode) == (
        "main_0",
        "reference",
        1,
        0,
    )
    assert (node.context, node.embedded) == ("m_reference.bin", None)
    assert node.attributes == {
        "partition_name": "main_0",
        "ep_sdk_version": "1.0.0",
        "hardware_architecture": "v73",
        "notes": "n",
        "max_size": "9",
    }
    assert node.unknown == ("is_odd",)
    assert node.inputs == (Edge(name="x", type="float32[1, 4]"),)
    assert node.outputs == (Edge(name="y", type="float32[1, 4]"),)


def test_a_context_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"context")
    made = model(context_node(ep_cache_context="../secret.bin"))
    found = read(folders.write(tmp_path / "g", made) / "m_ctx.onnx")
    assert found.binaries == ()
    assert found.files[1].problem == "it has `..`"


def test_a_context_binary_by_itself(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    found = command.inspect(folder / "m_reference.bin")
    assert found.model is None and found.binary is not None
    assert found.binary.info is not None and found.binary.info.tensors == 3
    assert [each.name for each in found.files] == ["m_reference.bin"]
    (folder / "m_reference.bin").write_bytes(b"context broken")
    broken = command.inspect(folder / "m_reference.bin").binary
    assert broken is not None and broken.info is None
    assert broken.problem == "bad checksum: section TENS"
    (folder / "m_reference.bin").write_bytes(b"alien")
    (alien,) = read(folder / "m_ctx.onnx").binaries
    assert alien.problem == "no installed EP knows its format"


def test_a_node_that_breaks_the_schema_is_told(tmp_path: Path) -> None:
    found = read(folders.write(tmp_path, model(context_node(embed_mode=3))) / "m_ctx.onnx")
    assert found.nodes[0].problem is not None and "3 is neither 0 nor 1" in found.nodes[0].problem


def test_what_is_neither(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x01\x02\x03")
    with pytest.raises(ModelError) as caught:
        command.inspect(tmp_path / "x")
    assert "is neither an ONNX model nor a context binary" in str(caught.value)
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "gone", "does not exist")):
        with pytest.raises(UsageError, match=words):
            command.inspect(path)
