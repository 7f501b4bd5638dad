"""What `torch.onnx.export` (2.13.0) writes with `dynamo=True` of an attention mask, of a norm, of a
gate.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
import yaml

from epctx import api
from epctx.engine.report import GroupReport
from epctx.errors import CompileError
from tests.kit.exported import MASKED, ONES_AND_ZEROS, QNN, failed

NORM = """
<ir_version: 10, opset_import: ["": 18]>
norm (float[1,batch,4] x) => (float[1,batch,4] y)
<float two = {2.0}, int64[1] last = {-1}, float least = {0.001}, float[4] w = {0.5, 1.5, 1.25, 2.0}>
{
    squared = Pow (x, two)
    mean = ReduceMean (squared, last)
    more = Add (mean, least)
    root = Sqrt (more)
    inverse = Reciprocal (root)
    scaled = Mul (x, inverse)
    y = Mul (w, scaled)
}
"""

GATE = """
<ir_version: 10, opset_import: ["": 18]>
gate (float[1,batch,4] x) => (float[1,batch,4] y) { y = HardSigmoid (x) }
"""


def built(folder: Path, text: str, provider: dict[str, object], **verify: object) -> GroupReport:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    sizes = {"batch": 2, "sequence": 8} if "sequence" in text else {"batch": 2}
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {"m": {"path": "m.onnx", "dimensions": sizes}},
        "execution_providers": {"ep": provider},
        "model_groups": {"g": {"models": ["m"], "execution_providers": ["ep"], "verify": verify}},
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (group,) = api.build(folder / "m.yaml", out=folder / "dist", jobs=1).groups
    return group


@pytest.mark.needs_device("QNNExecutionProvider")
def test_the_mask_does_not_cut_a_model_in_two(tmp_path: Path) -> None:
    """QNN 2.7.0 fails to create a GatherND of booleans: it stayed on the CPU, in between."""
    group = built(tmp_path, MASKED, QNN, inputs=ONES_AND_ZEROS)
    (model,) = group.models
    assert not model.declined and len(model.partitions) == 1
    assert failed(group) == []


@pytest.mark.needs_device("QNNExecutionProvider")
def test_a_norm_whose_weights_come_first_compiles(tmp_path: Path) -> None:
    """QNN 2.7.0 has no memory for it as it is written: QNN_COMMON_ERROR_MEM_ALLOC."""
    group = built(tmp_path, NORM, QNN)
    assert failed(group) == [] and len(group.models[0].partitions) == 1


@pytest.mark.needs_device("QNNExecutionProvider")
def test_what_no_chip_was_named_for_says_so(tmp_path: Path) -> None:
    """QNN 2.7.0 has no memory for a HardSigmoid of float32 that any chip is to run."""
    with pytest.raises(CompileError) as caught:
        built(tmp_path, GATE, {**QNN, "options": {}})
    assert caught.value.remedy.startswith("set `soc_model`")
    assert failed(built(tmp_path, GATE, QNN)) == []


def test_the_reference_ep_computes_the_same(tmp_path: Path) -> None:
    group = built(
        tmp_path, MASKED, {"provider": "ReferenceExecutionProvider"}, inputs=ONES_AND_ZEROS
    )
    assert failed(group) == []
    assert group.verify is not None
    assert {each.comparison.max_abs for each in group.verify.numbers} == {0}
