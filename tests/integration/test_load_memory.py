"""Weights are not held in memory: 256 MB of them are loaded, digested and written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from epctx.errors import CompileError
from epctx.graph.serde import canonical, wire
from epctx.graph.weights.tensors import MappedTensor
from epctx.manifest import ModelSource
from epctx.stages import load

COUNT, SIZE = 4, 1 << 26
MOST = 64
"""Megabytes of anonymous memory beyond what the imports take; the weights have 256."""

SCRIPT = """
import sys, threading, time
from pathlib import Path
from epctx.files import outputs
from epctx.graph.serde import canonical, data_files
from epctx.manifest import ModelSource
from epctx.stages import load

def anonymous():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) // 1024

before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.is_set():
        peak = max(peak, anonymous())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
model = load.run(ModelSource(name="m", path=Path(sys.argv[1]))).model
canonical.digest(model)
with open(sys.argv[1] + ".inline", "wb") as stream:
    for chunk in canonical.chunks(model):
        stream.write(chunk)
data = data_files.place(model, "out.data")
outputs.write(Path(sys.argv[1]).with_name("out.data"), data.chunks())
outputs.write(Path(sys.argv[1] + ".out.onnx"), canonical.chunks(model))
done.set()
watcher.join()
print(peak - before)
"""


def _model(tensors: list[onnx.TensorProto]) -> onnx.ModelProto:
    names = [tensor.name for tensor in tensors]
    nodes = [helper.make_node("Identity", [name], [f"{name}/out"]) for name in names]
    value = helper.make_tensor_value_info
    outputs = [value(f"{name}/out", TensorProto.FLOAT, [SIZE // 4]) for name in names]
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _external(folder: Path) -> Path:
    with (folder / "w.bin").open("wb") as stream:
        stream.truncate(COUNT * SIZE)
    tensors = []
    for i in range(COUNT):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[SIZE // 4])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
        tensor.external_data.add(key="offset", value=str(i * SIZE))
        tensors.append(tensor)
    onnx.save(_model(tensors), folder / "m.onnx")
    return folder / "m.onnx"


def _inline(folder: Path) -> Path:
    """The same with the data inside, written piece by piece."""
    model = _model([])
    del model.graph.node[:], model.graph.output[:]
    graph = wire.Message()
    for i in range(COUNT):
        tensor = wire.Message()
        proto = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[SIZE // 4])
        one = _model([proto]).graph
        tensor.encoded(proto.SerializeToString())
        tensor.field(9, wire.Payload(SIZE, lambda: [bytes(1 << 20)] * (SIZE >> 20)))
        del one.initializer[:]
        one.ClearField("name")
        graph.encoded(one.SerializeToString())
        graph.field(5, tensor)
    graph.encoded(model.graph.SerializeToString())
    model.ClearField("graph")
    message = wire.Message()
    message.encoded(model.SerializeToString())
    message.field(7, graph)
    with (folder / "m.onnx").open("wb") as stream:
        for chunk in message.chunks():
            stream.write(chunk)
    return folder / "m.onnx"


def test_a_file_beyond_two_gigabytes_is_read_by_path(tmp_path: Path) -> None:
    """No parser of protobuf takes it; the walker on the wire does. Its zeros take no room."""
    size = 2**31 + 4096
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[size]).SerializeToString()
    header = wire.Message()
    header.encoded(tensor)
    header.field(9, wire.Payload(size, lambda: ()))
    graph = wire.Message()
    output = helper.make_tensor_value_info("y", TensorProto.UINT8, [size])
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    graph.encoded(helper.make_graph(nodes, "g", [], [output]).SerializeToString())
    graph.field(5, header)
    message = wire.Message()
    opsets = [helper.make_opsetid("", 17)]
    empty = helper.make_model(onnx.GraphProto(), opset_imports=opsets, ir_version=8)
    empty.ClearField("graph")
    message.encoded(empty.SerializeToString())
    message.field(7, graph)
    with (tmp_path / "m.onnx").open("wb") as stream:
        for chunk in message.chunks():
            stream.write(chunk)
        stream.truncate(message.size)
    try:
        loaded = load.run(ModelSource(name="m", path=tmp_path / "m.onnx"))
        (weight,) = loaded.model.graph.initializers.values()
        assert isinstance(weight.const_value, MappedTensor)
        assert weight.const_value.nbytes == size
        assert loaded.sources[0].size > 2**31
        with pytest.raises(CompileError, match="2 GB"):
            canonical.chunks(loaded.model)
    finally:
        (tmp_path / "m.onnx").unlink()


@pytest.mark.needs("Linux", "only Linux tells anonymous memory apart")
@pytest.mark.parametrize("write", [_external, _inline])
def test_weights_stay_on_disk(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) >= COUNT * SIZE
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) < MOST
    assert (tmp_path / "out.data").stat().st_size == COUNT * SIZE
    for file in tmp_path.iterdir():
        file.unlink()  # pytest would keep them
