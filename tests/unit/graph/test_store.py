"""An optimized model on disk."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError, StorageError
from epctx.files import digest
from epctx.graph import store
from epctx.graph.model import OptimizedModel
from epctx.graph.serde import canonical
from epctx.graph.weights.tensors import MappedTensor
from epctx.manifest import ModelSource, OptimizeSettings
from epctx.stages import load, optimize
from tests.kit import optimizing

WIDTH = 300
FEEDS = {"x": np.arange(WIDTH, dtype=np.float32).reshape(1, -1)}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A model with a weight beside it, one inside it, one that a node makes, and a small one."""
    folder = tmp_path / "sources"
    folder.mkdir()
    generator = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "beside"], ["a"]),
            helper.make_node("MatMul", ["a", "inside"], ["b"]),
            helper.make_node("ConstantOfShape", ["shape"], ["made"]),
            helper.make_node("MatMul", ["b", "made"], ["c"]),
            helper.make_node("Add", ["c", "small"], ["y"]),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [1, WIDTH])],
        [value("y", TensorProto.FLOAT, [1, WIDTH])],
        [
            numpy_helper.from_array(generator.random((WIDTH, WIDTH), np.float32), "beside"),
            numpy_helper.from_array(generator.random((WIDTH, WIDTH), np.float32), "inside"),
            numpy_helper.from_array(np.array([WIDTH, WIDTH]), "shape"),
            numpy_helper.from_array(generator.random(WIDTH, np.float32)[:1], "small"),
        ],
    )
    graph.initializer[0].ClearField("raw_data")
    data = generator.random((WIDTH, WIDTH), np.float32).tobytes()
    (folder / "weights.data").write_bytes(data)
    tensor = graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.data")
    fill = helper.make_attribute("value", numpy_helper.from_array(np.array([0.5], np.float32)))
    graph.node[2].attribute.append(fill)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "optimized"
    made.mkdir()
    return made


def stored(sources: Path, folder: Path) -> OptimizedModel:
    loaded = load.run(ModelSource(name="m", path=sources / "model.onnx"))
    optimized = optimize.run(loaded, OptimizeSettings(), folder)
    store.write(optimized, folder)
    return optimized


def test_comes_back_as_it_was(sources: Path, folder: Path) -> None:
    optimized = stored(sources, folder)
    again = store.read(folder)
    assert (again.name, again.passes, again.digest) == ("m", optimized.passes, optimized.digest)
    assert canonical.digest(again.model) == optimized.digest
    assert canonical.serialize(again.model) == canonical.serialize(optimized.model)
    optimizing.assert_same_bits(
        optimizing.run(canonical.serialize(again.model), FEEDS),
        optimizing.run(canonical.serialize(optimized.model), FEEDS),
    )


def test_what_no_pass_touched_is_a_reference_and_what_passes_made_is_in_the_folder(
    sources: Path, folder: Path
) -> None:
    stored(sources, folder)
    tensors = {
        name: value.const_value
        for name, value in store.read(folder).model.graph.initializers.items()
    }
    places = {n: t.file.path for n, t in tensors.items() if isinstance(t, MappedTensor)}
    assert places == {
        "beside": sources / "weights.data",
        "inside": sources / "model.onnx",
        "made": folder / "folded.data",
    }
    names = {path.name for path in folder.iterdir()}
    assert names == {"graph.onnx", "record.json", "places.json", "folded.data"}
    assert (folder / "graph.onnx").stat().st_size < 2000
    assert (folder / "folded.data").stat().st_size == 4 * WIDTH * WIDTH


def test_the_folder_says_nothing_of_the_host_but_in_places(
    sources: Path, folder: Path, tmp_path: Path
) -> None:
    stored(sources, folder)
    elsewhere, other = tmp_path / "deep" / "er", tmp_path / "other"
    shutil.copytree(sources, elsewhere)
    other.mkdir()
    stored(elsewhere, other)
    for name in ("graph.onnx", "record.json", "folded.data"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    text = (folder / "record.json").read_text() + (folder / "graph.onnx").read_bytes().decode(
        errors="replace"
    )
    assert "sources" not in text


def test_the_graph_follows_the_digest_and_not_the_order_of_the_source(
    sources: Path, folder: Path, tmp_path: Path
) -> None:
    first = stored(sources, folder)
    model = onnx.load(sources / "model.onnx", load_external_data=False)
    weights = list(model.graph.initializer)[::-1]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    model.doc_string = "said"
    model.graph.node[0].doc_string = "said too"
    (sources / "model.onnx").write_bytes(model.SerializeToString())
    other = tmp_path / "other"
    other.mkdir()
    second = stored(sources, other)
    assert first.digest == second.digest
    one, two = (onnx.load(f / "graph.onnx", load_external_data=False) for f in (folder, other))
    assert one.graph.node == two.graph.node
    assert one.graph.initializer != two.graph.initializer, "offsets in model.onnx differ"


def test_a_source_that_was_only_touched_is_read_again_and_found_the_same(
    sources: Path, folder: Path
) -> None:
    optimized = stored(sources, folder)
    os.utime(sources / "weights.data", ns=(1, 1))
    assert canonical.digest(store.read(folder).model) == optimized.digest


def test_a_source_that_changed_is_an_error(sources: Path, folder: Path) -> None:
    stored(sources, folder)
    path = sources / "weights.data"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"weights\.data: is not the file that was optimized"):
        store.read(folder)


def test_a_source_that_is_gone_is_an_error(sources: Path, folder: Path, tmp_path: Path) -> None:
    stored(sources, folder)
    sources.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match="it is gone"):
        store.read(folder)


def test_a_source_that_is_written_to_during_the_optimization_is_an_error(
    sources: Path, folder: Path
) -> None:
    loaded = load.run(ModelSource(name="m", path=sources / "model.onnx"))
    optimized = optimize.run(loaded, OptimizeSettings(), folder)
    with (sources / "weights.data").open("r+b") as stream:
        stream.write(b"other")
    os.utime(sources / "weights.data", ns=(1, 1))
    with pytest.raises(ModelError, match="it was changed or moved"):
        store.write(optimized, folder)


@pytest.mark.parametrize("name", ["graph.onnx", "record.json", "places.json", "folded.data"])
def test_a_folder_that_is_incomplete_is_an_error(sources: Path, folder: Path, name: str) -> None:
    stored(sources, folder)
    (folder / name).unlink()
    with pytest.raises(StorageError, match="the optimized model is damaged"):
        store.read(folder)


@pytest.mark.parametrize("name", ["graph.onnx", "record.json", "places.json", "folded.data"])
def test_a_folder_that_is_damaged_is_an_error(sources: Path, folder: Path, name: str) -> None:
    stored(sources, folder)
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StorageError, match="delete the folder, and build again"):
        store.read(folder)


@pytest.mark.parametrize("name", ["../sources/weights.data", "/etc/hostname", "a\\b", "", "."])
def test_a_record_that_names_a_file_outside_is_an_error(
    sources: Path, folder: Path, name: str
) -> None:
    """What a cache that somebody else can write to may hold, each of its files right."""
    stored(sources, folder)
    path = folder / "record.json"
    record = json.loads(path.read_bytes())
    next(file for file in record["files"] if file["name"])["name"] = name
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(StorageError, match="is damaged: its name in the record leads out"):
        store.read(folder)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"epctx-file:0", b"epctx-file:7", "it refers to 'epctx-file:7'"),
        (b"epctx-file:0", b"epctx-file:x", "it refers to 'epctx-file:x'"),
        (b"\n\x06offset\x12\x010", b"\n\x06offset\x12\x019", "'beside' reaches beyond"),
    ],
)
def test_a_graph_of_data_that_is_not_there_is_an_error(
    sources: Path, folder: Path, old: bytes, new: bytes, why: str
) -> None:
    """Its digest is right, in a record that somebody wrote."""
    stored(sources, folder)
    graph = (folder / "graph.onnx").read_bytes()
    assert old in graph
    (folder / "graph.onnx").write_bytes(graph.replace(old, new))
    path = folder / "record.json"
    record = json.loads(path.read_bytes())
    record["graph"] = str(digest.of_file(folder / "graph.onnx"))
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(StorageError, match=why):
        store.read(folder)


def test_another_version_is_not_read(sources: Path, folder: Path) -> None:
    stored(sources, folder)
    record = folder / "record.json"
    record.write_text(record.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(StorageError, match="version 9, not 1"):
        store.read(folder)


def test_a_folder_that_cannot_be_written_is_an_error(sources: Path, folder: Path) -> None:
    loaded = load.run(ModelSource(name="m", path=sources / "model.onnx"))
    optimized = optimize.run(loaded, OptimizeSettings(), folder)
    with pytest.raises(StorageError, match="cannot be written"):
        store.write(optimized, folder / "missing")
