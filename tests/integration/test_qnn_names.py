"""Names of the inputs and outputs of compiled graphs: QNN binds by them (`qnn.match`).

Joining models renames them, and so does putting the parts of one model together again. ONNX Runtime
renames what an EPContext node reads where it shares a DequantizeLinear with others.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from tests.kit import command_line, onnx_text
from tests.kit.building import native
from tests.kit.projects import Project, states

QNN = "QNNExecutionProvider"
pytestmark = pytest.mark.needs_device(QNN)

ENCODER = """encoder (float[1,8,16] mel) => (float[1,8,32] states) {
    e = MatMul (mel, w16x32)
    t = Transpose <perm = [0, 2, 1]> (e)
    s = MatMul (e, t)
    p = Softmax <axis = -1> (s)
    c = MatMul (p, e)
    states = Tanh (c)
}"""
DECODER = """decoder (float[1,8,32] tokens, float[1,8,32] memory, float[1,8,8] mask)
=> (float[1,8,40] logits, float[1,8,32] hidden) {
    t = Transpose <perm = [0, 2, 1]> (memory)
    s = MatMul (tokens, t)
    m = Add (s, mask)
    p = Softmax <axis = -1> (m)
    c = MatMul (p, memory)
    hidden = Add (c, tokens)
    logits = MatMul (hidden, w32x40)
}"""
CNN = """cnn (float[1,4,16,16] x) => (float[1,4,4,4] y) {
    [conv0] a = Conv <pads = [1, 1, 1, 1]> (x, w0)
    [pool0] b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
    [mid0] c = Sigmoid (b)
    [conv1] d = Conv <pads = [1, 1, 1, 1]> (c, w1)
    [add1] e = Add (d, c)
    [pool1] f = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (e)
    [mid1] g = Sigmoid (f)
    [conv2] y = Conv <pads = [1, 1, 1, 1]> (g, w2)
}"""
WEIGHTS: dict[str, tuple[int, ...]] = {"w16x32": (16, 32), "w32x40": (32, 40)}
WEIGHTS |= {f"w{i}": (4, 4, 3, 3) for i in range(3)}


def save(path: Path, text: str, opset: int = 21) -> ort.InferenceSession:
    """Write a model, and open it on the CPU."""
    model = onnx_text.proto(text, opsets=f'"" : {opset}', ir_version=8)
    rng = np.random.default_rng(len(text))
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
        for name in WEIGHTS.keys() & set(node.input):
            values = rng.standard_normal(WEIGHTS[name]) / np.sqrt(np.prod(WEIGHTS[name][1:]))
            model.graph.initializer.append(numpy_helper.from_array(values.astype("f4"), name))
    onnx.save(model, path)
    return ort.InferenceSession(path)


def random(session: ort.InferenceSession, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}


def require_close(found: np.ndarray, wanted: np.ndarray) -> None:
    cosine = np.vdot(found, wanted) / (np.linalg.norm(found) * np.linalg.norm(wanted))
    assert cosine > 0.99, cosine  # QNN alone, of int8 weights by channel: 0.9937


def project(folder: Path, groups: dict[str, Any], **more: Any) -> Project:
    options = {"soc_model": "60", **more.pop("options", {})}
    models = {
        model: {"path": f"{model}.onnx"} for group in groups.values() for model in group["models"]
    }
    return Project(
        folder=folder,
        document={
            "schema_version": 1,
            "name": "m",
            "models": models,
            "execution_providers": {"htp": {"provider": QNN, "options": options}},
            "defaults": {"execution_providers": ["htp"]},
            "model_groups": groups,
            **more,
        },
    )


LINK = {"memory": {"part": "encoder", "output": "states"}}
OUTER = {**LINK, "tokens": {"input": "embeddings"}, "mask": {"input": "tokens_mask"}}
PREFIXED: dict[str, Any] = {
    "encoder": {"prefix": "enc_"},
    "decoder": {"prefix": "dec_", "inputs": LINK},
}
# By position these would be bound to each other: they are read in another order than computed.
FED = {"inner": {"part": "decoder", "output": "hidden"}}
FED["scores"] = {"part": "decoder", "output": "logits"}
COMPOSITIONS: dict[str, dict[str, Any]] = {
    "prefixed": {"parts": {n: {"group": n, **p} for n, p in PREFIXED.items()}, "embed_mode": 1},
    "integers": {"parts": {n: {"group": f"{n}8", **p} for n, p in PREFIXED.items()}},
    "fed": {
        "parts": {
            "encoder": {"group": "encoder"},
            "decoder": {"group": "decoder", "inputs": OUTER},
        },
        "outputs": {**FED, "memory": {"part": "encoder", "output": "states"}},
    },
}


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An encoder and a decoder, compiled apart and joined in several ways."""
    folder = tmp_path_factory.mktemp("whisper")
    groups: dict[str, Any] = {}
    for name, text in (("encoder", ENCODER), ("decoder", DECODER)):
        np.savez(folder / f"{name}.npz", **random(save(folder / f"{name}.onnx", text), 0))
        calibration = {"calibration": {"files": [f"{name}.npz"]}}
        groups[name] = {"models": [name]}
        groups[f"{name}8"] = {"models": [name], "quantize": calibration}
    made = project(folder, groups, compose=COMPOSITIONS)
    assert set(states(made.build()).values()) == {"built"}
    return made


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_joined_models_compute_what_the_sources_do(
    whisper: Project, name: str, tmp_path: Path
) -> None:
    encoder, decoder = (
        ort.InferenceSession(whisper.folder / f"{n}.onnx") for n in ("encoder", "decoder")
    )
    given = random(encoder, 7) | random(decoder, 8)
    given["memory"] = encoder.run(None, {"mel": given["mel"]})[0]
    feeds = {i.name: given[i.name] for i in decoder.get_inputs()}
    wanted = dict(zip(("logits", "hidden"), decoder.run(None, feeds), strict=True))
    shutil.copytree(whisper.published / name, tmp_path / name)
    session = native(tmp_path / name / f"{name}_ctx.onnx", QNN)
    own = {"embeddings": "tokens", "tokens_mask": "mask", "inner": "hidden", "scores": "logits"}
    own |= {f"{part}_{n}": n for part in ("enc", "dec") for n in (*given, *wanted)}
    feeds = {i.name: given[own.get(i.name, i.name)] for i in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    found = {own.get(n, n): v for n, v in zip(names, session.run(None, feeds), strict=True)}
    for output, value in wanted.items():
        require_close(found[output], value)
    answer = command_line.inside("verify", name, cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_two_inputs_of_one_size_that_are_exchanged_are_caught_by_numbers(
    whisper: Project, tmp_path: Path
) -> None:
    """No name, size or digest tells: the folder was sealed again."""
    shutil.copytree(whisper.folder, tmp_path / "project")
    folder = tmp_path / "project" / whisper.published.relative_to(whisper.folder) / "integers"
    path = folder / "integers_ctx.onnx"
    content = path.read_bytes()
    assert content.count(b"=tokens;") == content.count(b"=memory;") == 1
    content = content.replace(b"=tokens;", b"=______;").replace(b"=memory;", b"=tokens;")
    path.write_bytes(content.replace(b"=______;", b"=memory;"))
    files = sorted(each for each in folder.iterdir() if each.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8", newline="\n")
    command = ("verify", "dist/m", "--manifest", "m.yaml")
    answer = command_line.inside(*command, cwd=tmp_path / "project")
    said = answer.stdout + answer.stderr
    assert answer.returncode == 7 and "failed[E0704]: integers_ctx.onnx" in said, said


class Samples:
    """What the range of each tensor is computed from."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._given: Iterator[Any] = iter([random(session, seed) for seed in range(2)])

    def get_next(self) -> Any:
        """The next sample."""
        return next(self._given, None)


U8, I8, U16 = QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16
HOW: dict[str, dict[str, Any]] = {
    "uint8": {"activation_type": U8, "weight_type": U8},
    "int8 by channel": {"activation_type": U8, "weight_type": I8, "per_channel": True},
    "uint16": {"activation_type": U16, "weight_type": U8},
}
HOW["com.microsoft"] = {**HOW["uint16"], "extra_options": {"UseQDQContribOps": True}}
QUANTIZERS = {"op_types": ["Add", "DequantizeLinear", "com.microsoft::DequantizeLinear"]}


@pytest.mark.parametrize(
    ("how", "exclude", "binaries"),
    [
        ("uint8", {"op_types": ["Conv"]}, "each"),
        ("uint8", {"nodes": ["conv1"]}, "each"),  # it shares a DequantizeLinear with the Add
        ("int8 by channel", {"nodes": ["conv0"]}, "each"),
        ("uint16", {"nodes": ["conv2"]}, "each"),
        ("uint16", QUANTIZERS, "each"),
        ("uint16", {"nodes": ["conv1"]}, "one"),
        ("com.microsoft", {"op_types": ["Conv"]}, "each"),
        ("com.microsoft", {"nodes": ["pool0", "add1"]}, "one"),  # it was exit 1
        ("com.microsoft", QUANTIZERS, "each"),
    ],
)
def test_nodes_of_a_quantized_model_are_kept_off_the_ep(
    how: str, exclude: dict[str, list[str]], binaries: str, tmp_path: Path
) -> None:
    """With a binary for each part, a session loads the file, and computes what its source does."""
    session = save(tmp_path / "float.onnx", CNN, 17 if how == "com.microsoft" else 21)
    files = (tmp_path / "float.onnx", tmp_path / "cnn.onnx", Samples(session))
    quantize_static(*files, quant_format=QuantFormat.QDQ, **HOW[how])
    settings = {"models": ["cnn"], "partition": {"exclude": exclude}}
    made = project(tmp_path, {"g": settings}, options={"partition_binaries": binaries})
    (group,) = made.build().groups
    assert group.state == "built" and group.verify is not None
    one = binaries == "one"  # of which the x86 simulator loads none
    assert [each.sessions for each in group.verify.numbers] == ["generating" if one else "files"]
    if not one:
        source = ort.InferenceSession(tmp_path / "cnn.onnx")
        given = random(source, 3)
        (found,) = native(made.published / "g" / "cnn_ctx.onnx", QNN).run(None, given)
        require_close(found, source.run(None, given)[0])
