"""Why a node is not on the NPU, asked of QNN before it compiles, and what changes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
import pytest
import yaml

from epctx import api
from epctx.commands import plan as partition
from epctx.engine import plan
from epctx.graph.model import Decline, Refusal
from scripts import genai_folder
from tests.kit import onnx_text
from tests.kit.exported import MASKED, ONES_AND_ZEROS, QNN, failed

pytestmark = pytest.mark.needs_device("QNNExecutionProvider")
ODD = """
<ir_version: 10, opset_import: ["": 21]>
odd (float[2,8] x) => (float[2,8] y, float[2,8] t)
{
    a = Neg(x)
    d = Cast <to = 2> (a)
    [bytes] e = Mul(d, d)
    b = Cast <to = 1> (e)
    y = Abs(b)
    [lower] t = Trilu(y)
}
"""


def manifest(folder: Path, passes: Any, **model: object) -> Path:
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {"m": {"path": "m.onnx", **model}},
        "execution_providers": {"ep": QNN},
        "model_groups": {
            "g": {
                "models": ["m"],
                "execution_providers": ["ep"],
                "optimize": {"level": passes},
                "verify": {"inputs": ONES_AND_ZEROS},
            }
        },
    }
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def declined(path: Path) -> dict[str, Decline]:
    (group,) = partition.partitions(plan.read(path, allow_outside=True))
    return {each.node: each for each in group.models[0].declined}


def refusal(found: Decline) -> Refusal:
    ((label, said),) = found.refusals
    assert label == "qnn"
    return said


def test_a_mask_is_taken_by_the_pass_alone_and_computes_the_same(tmp_path: Path) -> None:
    """Without it QNN is asked to gather booleans; the sizes let constants be folded."""
    proto = onnx.parser.parse_model(MASKED)
    proto.graph.node[-6].name = "seen"
    onnx.save(proto, tmp_path / "m.onnx")
    sizes = {"batch": 2, "sequence": 8}
    bare = ["lift-constants", "infer-shapes", "fold-constants", "infer-shapes", "remove-dead-code"]
    left = declined(manifest(tmp_path, bare, dimensions=sizes))
    assert list(left) == ["seen"] and left["seen"].location == "node 15"
    said = refusal(left["seen"])
    assert (said.why, said.op) == ("Failed to create GatherND node", "GatherNd")
    assert said.operands == "BOOL_8[2,8], INT_32[2,1,8,8,2] -> BOOL_8[2,1,8,8]"
    assert "slice-gathers" in said.remedy

    path = manifest(tmp_path, [*bare, "slice-gathers"], dimensions=sizes)
    (group,) = api.build(path, out=tmp_path / "dist", jobs=1).groups
    assert group.models[0].declined == () and len(group.models[0].partitions) == 1
    assert failed(group) == []


def test_another_type_is_asked_about_before_it_is_proposed(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(ODD), tmp_path / "m.onnx")
    left = declined(manifest(tmp_path, "none"))
    said = refusal(left["bytes"])
    assert said.op == "ElementWiseMultiply" and said.operands.startswith("UINT_8[2,8], ")
    assert said.remedy.endswith("takes this node with int32 in place of uint8")
    unknown = refusal(left["lower"])
    assert unknown.op == "" and unknown.remedy.startswith("a product with a constant mask")
    assert unknown.why == "Operators of type `Trilu` are not supported by QNN EP"


ALIKE = {
    "celu": "a = Neg(x) y = Celu<alpha = 2.0>(a)",
    "mish": "a = Neg(x) y = Mish(a)",
    "hardmax": "a = Neg(x) y = Hardmax(a)",
    "mod": "a = Abs(z) y = Mod<fmod = 1>(x, a)",
    "trilu": "a = Neg(x) y = Trilu<upper = 0>(a)",
    "shrink": "a = Neg(x) y = Shrink(a)",
}
EXPORTED = {
    "hardmax": "a = Neg(x) i = ArgMax<axis = -1, keepdims = 0>(a) u = Unsqueeze(i, last) "
    "e = Equal(u, places) c = Cast<to = 7>(e) y = Cast<to = 1>(c)",
    "mod": "a = Abs(z) s = Sign(x) b = Abs(x) d = Abs(a) q = Div(b, d) f = Floor(q) p = Mul(f, d) "
    "r = Sub(b, p) y = Mul(s, r)",
    "trilu": "a = Neg(x) y = Mul(a, mask)",
}
"""The calls that are proposed, as torch 2.13.0 exports them."""
CONSTANTS = {
    "hardmax": "int64[1] last = {-1}, int64[8] places = {0, 1, 2, 3, 4, 5, 6, 7}",
    "trilu": f"float[2,8] mask = {{1{', 0' * 7}, 1, 1{', 0' * 6}}}",
}


def parsed(name: str, nodes: str, constants: str = "") -> onnx.ModelProto:
    inputs = "float[2,8] x, float[2,8] z" if name == "mod" else "float[2,8] x"
    head = f'<ir_version: 10, opset_import: ["": 21]> {name} ({inputs}) => (float[2,8] y)'
    return onnx.parser.parse_model(f"{head} <{constants}> {{ {nodes} }}")


def test_calls_that_write_an_unknown_op_otherwise_are_taken_and_compute_the_same(
    tmp_path: Path,
) -> None:
    """A call of onnx is made as it is printed."""
    path = manifest(tmp_path, "none")
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    remedies = dict.fromkeys(ALIKE, "")
    normal = np.random.default_rng(0).standard_normal((2, 2, 8), np.float32)
    feeds = dict(zip("xz", normal, strict=True))

    def write() -> None:
        document["models"] = {name: {"path": f"{name}.onnx"} for name in remedies}
        document["model_groups"]["g"] = {"models": list(remedies), "execution_providers": ["ep"]}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")

    for name, nodes in ALIKE.items():
        onnx.save(parsed(name, nodes), tmp_path / f"{name}.onnx")
    write()
    (group,) = partition.partitions(plan.read(path, allow_outside=True))
    remedies = {model.name: refusal(model.declined[0]).remedy for model in group.models}
    assert set(remedies) == set(ALIKE)
    assert remedies.pop("shrink") == "", "onnx's inliner leaves out what an attribute's default is"
    for name, remedy in remedies.items():
        if name in EXPORTED:
            assert "torch." in remedy
            model = parsed(name, EXPORTED[name], CONSTANTS.get(name, ""))
        else:
            (call,) = re.findall("`(onnx.*)`", remedy)
            model = eval(call, {"onnx": onnx, "model": parsed(name, ALIKE[name])})
        wanted, found = (
            onnx_text.session(each).run(None, {i.name: feeds[i.name] for i in each.graph.input})
            for each in (parsed(name, ALIKE[name]), model)
        )
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6, err_msg=name)
        onnx.save(model, tmp_path / f"{name}.onnx")
    write()
    (built,) = api.build(path, out=tmp_path / "dist", jobs=1).groups
    assert [model.declined for model in built.models] == [()] * len(remedies)
    assert failed(built) == []


def test_the_int4_llama_of_genais_builder(tmp_path: Path) -> None:
    """Of each layer its attention, and the two sums that are norms."""
    folder = genai_folder.write(tmp_path / "llama")
    (tmp_path / "m.onnx").symlink_to(folder / "model.onnx")
    sizes = {"batch_size": 1, "sequence_length": 4, "past_sequence_length": 16}
    sizes |= {"total_sequence_length": 16, "kv_cache_dim": 16}
    path = manifest(tmp_path, "basic", dimensions=sizes, external_data_dir="llama")
    left = declined(path)
    kinds = {each.kind: refusal(each).remedy for each in left.values() if each.refusals}
    assert set(kinds) == {
        "com.microsoft::GroupQueryAttention",
        "com.microsoft::SkipSimplifiedLayerNormalization",
    }
    assert "op_affinity" in kinds["com.microsoft::GroupQueryAttention"]
    assert "split-norms" in kinds["com.microsoft::SkipSimplifiedLayerNormalization"]
    assert all(each.location.startswith("node ") for each in left.values())
