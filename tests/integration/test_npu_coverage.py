"""Why a node is not on the NPU, asked of QNN before it compiles, and what changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
import yaml

from epctx import api
from epctx.commands.plan import partition
from epctx.engine import plan
from epctx.graph.model import Decline, Refusal
from scripts import genai_folder
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
    assert said.remedy.endswith("takes it with int32 in place of uint8")
    unknown = refusal(left["lower"])
    assert (unknown.op, unknown.remedy) == ("", "")
    assert unknown.why == "Operators of type `Trilu` are not supported by QNN EP"


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
