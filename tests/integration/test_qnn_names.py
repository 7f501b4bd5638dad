"""Names of the inputs and outputs of compiled graphs: QNN binds by them (`qnn.match`).

Joining models renames them, and so does putting the parts of one model together again. ONNX Runtime
renames what an EPContext node reads where it shares a DequantizeLinear with others.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from epctx.errors import EpctxError
from epctx.manifest import ProviderSpec
from epctx.providers import registry
from epctx.providers.base import NativeSessions
from tests.kit import command_line, onnx_text
from tests.kit.projects import Project, states

QNN = "QNNExecutionProvider"
pytestmark = pytest.mark.needs_device(QNN)
Arrays = Mapping[str, np.ndarray]

ENCODER = """encoder (float[1,8,16] mel) => (float[1,8,32] states) {
    e = MatMul (mel, w16x32)
    q = MatMul (e, wq)
    k = MatMul (e, wk)
    t = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul (q, t)
    p = Softmax <axis = -1> (s)
    c = MatMul (p, e)
    r = Add (c, e)
    states = Tanh (r)
}"""
DECODER = """decoder (float[1,8,32] tokens, float[1,8,32] memory, float[1,8,8] mask)
=> (float[1,8,40] logits, float[1,8,32] hidden) {
    q = MatMul (tokens, wq)
    k = MatMul (memory, wk)
    t = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul (q, t)
    m = Add (s, mask)
    p = Softmax <axis = -1> (m)
    c = MatMul (p, memory)
    r = Add (c, tokens)
    hidden = Tanh (r)
    logits = MatMul (hidden, w32x40)
}"""
WEIGHTS = {"w16x32": (16, 32), "wq": (32, 32), "wk": (32, 32), "w32x40": (32, 40)}
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
PLAIN_CNN = CNN.replace("e = Add (d, c)", "e = Relu (d)")
FILTERS = {f"w{i}": (4, 4, 3, 3) for i in range(3)}


def save(path: Path, text: str, weights: Mapping[str, tuple[int, ...]], opset: int = 21) -> None:
    model = onnx_text.proto(text, opsets=f'"" : {opset}', ir_version=8)
    rng = np.random.default_rng(len(text))
    model.graph.name = path.stem
    used = {name for node in model.graph.node for name in node.input}
    for name, shape in weights.items():
        if name in used:
            values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
            model.graph.initializer.append(numpy_helper.from_array(values.astype("f4"), name))
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    onnx.save(model, path)


def random(session: ort.InferenceSession, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}


def on_qnn(path: Path) -> ort.InferenceSession:
    """A session of onnxruntime alone, as an application makes it."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    provider = registry.create(ProviderSpec(alias="q", provider=QNN))
    assert isinstance(provider, NativeSessions)
    provider.add_to(options)
    return ort.InferenceSession(str(path), options, enable_fallback=0)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    cosine = np.vdot(found, wanted) / (np.linalg.norm(found) * np.linalg.norm(wanted))
    assert cosine > 0.99, cosine  # QNN alone, of int8 weights by channel: 0.9937


LINK = {"memory": {"part": "encoder", "output": "states"}}
OUTER = {**LINK, "tokens": {"input": "embeddings"}, "mask": {"input": "tokens_mask"}}
COMPOSITIONS: dict[str, dict[str, Any]] = {
    "prefixed": {
        "parts": {
            "encoder": {"prefix": "enc_"},
            "decoder": {"prefix": "dec_", "inputs": LINK},
        },
    },
    "fed": {  # the outputs in an order that is not the compiled graph's: by position it is wrong
        "parts": {"encoder": {}, "decoder": {"inputs": OUTER}},
        "outputs": {
            "inner": {"part": "decoder", "output": "hidden"},
            "scores": {"part": "decoder", "output": "logits"},
            "memory": {"part": "encoder", "output": "states"},
        },
    },
    "embedded": {
        "parts": {"encoder": {}, "decoder": {"prefix": "dec_", "inputs": LINK}},
        "embed_mode": 1,
    },
    "integers": {
        "parts": {
            "encoder": {"prefix": "enc_", "group": "encoder8"},
            "decoder": {"prefix": "dec_", "group": "decoder8", "inputs": LINK},
        },
    },
}
NAMES = {
    "prefixed": ("enc_mel", "dec_tokens", "dec_mask", "dec_logits", "dec_hidden"),
    "fed": ("mel", "embeddings", "tokens_mask", "scores", "inner"),
    "embedded": ("mel", "dec_tokens", "dec_mask", "dec_logits", "dec_hidden"),
    "integers": ("enc_mel", "dec_tokens", "dec_mask", "dec_logits", "dec_hidden"),
}
"""Of a composition: what the encoder's input, the decoder's others and its outputs are called."""


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An encoder and a decoder, compiled apart and joined in several ways."""
    folder = tmp_path_factory.mktemp("whisper")
    (folder / "calib").mkdir()
    for name, text in (("encoder", ENCODER), ("decoder", DECODER)):
        save(folder / f"{name}.onnx", text, WEIGHTS)
        session = ort.InferenceSession(folder / f"{name}.onnx")
        for seed in range(2):
            np.savez(folder / "calib" / f"{name}{seed}.npz", **random(session, seed))
    groups = {
        f"{name}{kind}": {
            "models": [name],
            "execution_providers": ["htp"],
            **({"quantize": {"calibration": {"files": [f"calib/{name}*.npz"]}}} if kind else {}),
        }
        for name in ("encoder", "decoder")
        for kind in ("", "8")
    }
    compose = {name: dict(each) for name, each in COMPOSITIONS.items()}
    for name, each in compose.items():
        if name != "integers":
            each["parts"] = {p: {"group": p, **given} for p, given in each["parts"].items()}
    project = Project(
        folder=folder,
        document={
            "schema_version": 1,
            "name": "m",
            "models": {name: {"path": f"{name}.onnx"} for name in ("encoder", "decoder")},
            "execution_providers": {"htp": {"provider": QNN, "options": {"soc_model": "60"}}},
            "model_groups": groups,
            "compose": compose,
        },
    )
    assert set(states(project.build()).values()) == {"built"}
    return project


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_joined_models_compute_what_the_sources_do(whisper: Project, name: str) -> None:
    encoder, decoder = (
        ort.InferenceSession(whisper.folder / f"{n}.onnx") for n in ("encoder", "decoder")
    )
    given = random(encoder, 7) | random(decoder, 8)
    (memory,) = encoder.run(None, {"mel": given["mel"]})
    feeds = {"tokens": given["tokens"], "memory": memory, "mask": given["mask"]}
    wanted = decoder.run(["logits", "hidden"], feeds)
    mel, tokens, mask, *outputs = NAMES[name]
    session = on_qnn(whisper.published / name / f"{name}_ctx.onnx")
    found = session.run(outputs, {mel: given["mel"], tokens: given["tokens"], mask: given["mask"]})
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_composition_is_verified_without_the_manifest(
    whisper: Project, name: str, tmp_path: Path
) -> None:
    shutil.copytree(whisper.published / name, tmp_path / name)
    answer = command_line.inside("verify", name, cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def exchange(model: onnx.ModelProto, *ends: str) -> None:
    """Let QNN take one input of its graph for another."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "io_name_overrides":
                pairs = [each.split("=") for each in attribute.s.decode().strip(";").split(";")]
                other = dict(zip(ends, reversed(ends), strict=True))
                text = "".join(f"{name}={other.get(end, end)};" for name, end in pairs)
                attribute.s = text.encode()


def test_two_inputs_of_one_size_that_are_exchanged_are_caught_by_numbers(
    whisper: Project, tmp_path: Path
) -> None:
    """No name, size or digest tells: the folder was sealed again."""
    project = Project(folder=tmp_path / "project", document=whisper.document)
    shutil.copytree(whisper.folder, project.folder)
    folder = project.published / "prefixed"
    path = folder / "prefixed_ctx.onnx"
    model = onnx.load(path)
    exchange(model, "tokens", "memory")
    onnx.save(model, path)
    files = sorted(each for each in folder.iterdir() if each.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8", newline="\n")
    answer = command_line.inside("verify", "dist/m", "--manifest", "m.yaml", cwd=project.folder)
    said = answer.stdout + answer.stderr
    assert answer.returncode == 7 and "failed[E0704]: prefixed_ctx.onnx" in said, said


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        # The encoder's states have the name of the decoder's other input.
        ({**LINK, "tokens": {"input": "mask"}, "mask": {"input": "m"}}, 'find "tokens"'),
        ({"tokens": {"input": "x"}, "memory": {"input": "x"}}, 'find "tokens"'),
    ],
)
def test_names_by_which_qnn_would_take_an_input_for_another_are_refused(
    whisper: Project, tmp_path: Path, inputs: dict[str, Any], words: str
) -> None:
    project = Project(folder=tmp_path / "project", document=dict(whisper.document))
    shutil.copytree(whisper.folder, project.folder)
    parts = {"encoder": {"group": "encoder"}, "decoder": {"group": "decoder", "inputs": inputs}}
    project.document["compose"] = {"whole": {"parts": parts}}
    with pytest.raises(EpctxError) as caught:
        project.build()
    assert caught.value.code == "E0318" and words in str(caught.value)


class Samples:
    """What the range of each tensor is computed from."""

    def __init__(self, model: Path) -> None:
        session = ort.InferenceSession(model)
        self._given: Iterator[Arrays] = iter([random(session, seed) for seed in range(2)])

    def get_next(self) -> Arrays | None:
        """The next sample."""
        return next(self._given, None)


U8, I8, U16 = QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16
QUANTIZERS: dict[str, dict[str, Any]] = {
    "uint8": {"activation_type": U8, "weight_type": U8},
    "int8 by channel": {"activation_type": U8, "weight_type": I8, "per_channel": True},
    "uint16": {"activation_type": U16, "weight_type": U8},
    "of ONNX Runtime's domain": {
        "activation_type": U16,
        "weight_type": U8,
        "extra_options": {"UseQDQContribOps": True},
    },
}
EXCLUDED: dict[str, dict[str, list[str]]] = {
    "first": {"nodes": ["conv0"]},
    "middle": {"nodes": ["conv1"]},
    "last": {"nodes": ["conv2"]},
    "all": {"op_types": ["Conv"]},
    "quantizers": {"op_types": ["Add", "DequantizeLinear", "com.microsoft::DequantizeLinear"]},
}


def quantized(folder: Path, text: str, exclude: object, binaries: str, **how: Any) -> Project:
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "float.onnx", text, FILTERS, opset=17 if "extra_options" in how else 21)
    quantize_static(
        folder / "float.onnx",
        folder / "cnn.onnx",
        Samples(folder / "float.onnx"),
        quant_format=QuantFormat.QDQ,
        **how,
    )
    options = {"soc_model": "60", "partition_binaries": binaries}
    return Project(
        folder=folder,
        document={
            "schema_version": 1,
            "name": "m",
            "models": {"cnn": {"path": "cnn.onnx"}},
            "execution_providers": {"htp": {"provider": QNN, "options": options}},
            "model_groups": {
                "g": {
                    "models": ["cnn"],
                    "execution_providers": ["htp"],
                    "partition": {"exclude": exclude},
                }
            },
        },
    )


@pytest.mark.wide(3)
@pytest.mark.parametrize("excluded", EXCLUDED)
@pytest.mark.parametrize("how", QUANTIZERS)
def test_nodes_of_a_quantized_model_are_kept_off_the_ep(
    how: str, excluded: str, tmp_path: Path
) -> None:
    """A session loads the file, whose parts have a binary each, and computes the same."""
    project = quantized(tmp_path, CNN, EXCLUDED[excluded], "each", **QUANTIZERS[how])
    (group,) = project.build().groups
    assert group.state == "built" and group.verify is not None
    assert [each.sessions for each in group.verify.numbers] == ["files"]
    source = ort.InferenceSession(project.folder / "cnn.onnx")
    given = random(source, 3)
    (found,) = on_qnn(project.published / "g" / "cnn_ctx.onnx").run(None, given)
    close(found, source.run(None, given)[0])


@pytest.mark.parametrize("how", QUANTIZERS)
def test_such_a_model_runs_in_the_sessions_that_compiled_it(how: str, tmp_path: Path) -> None:
    project = quantized(tmp_path, CNN, EXCLUDED["middle"], "one", **QUANTIZERS[how])
    (group,) = project.build().groups
    assert group.state == "built" and group.verify is not None
    assert [each.sessions for each in group.verify.numbers] == ["generating"]
    assert group.models[0].coverage > 0.8


def test_parts_that_name_their_outputs_alike_find_them(tmp_path: Path) -> None:
    """ONNX Runtime numbers what it inserts for the layout, in each part from the beginning."""
    project = quantized(tmp_path, PLAIN_CNN, EXCLUDED["all"], "each", **QUANTIZERS["uint16"])
    (group,) = project.build().groups
    assert group.state == "built" and group.verify is not None
    model = onnx.load(project.published / "g" / "cnn_ctx.onnx")
    outputs = [n.output[0] for n in model.graph.node if n.op_type == "EPContext"]
    assert [name for name in outputs if name.endswith("_out0_1")], outputs
    assert [each.sessions for each in group.verify.numbers] == ["files"]
