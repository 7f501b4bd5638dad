"""What `validate` calls an error is one to a build, in the same words with the same exit code."""

from pathlib import Path

import pytest

from epctx import api
from epctx.errors import EpctxError
from tests.kit.validating import manifest, validated

EXCLUDE = "model_groups.g.partition.exclude"
INPUTS = "model_groups.g.verify.inputs"
FAILING: list[dict[str, object]] = [
    {"models.a.path": "b.onnx"},
    {"models.a.external_data_dir": "no"},
    {"models.a.reference.path": "b.onnx"},
    {"models.a.dimensions": {"bach": 2}},
    {"models.a.shapes": {"y": [1]}},
    {"models.a.shapes": {"x": [2, 5]}},
    {f"{EXCLUDE}.op_types": ["Rellu"]},
    {f"{EXCLUDE}.nodes": ["/hed/*"]},
    {f"{INPUTS}.ranges": {"xx": [0, 1]}},
    {f"{INPUTS}.dimensions": {"batch": 1}},
    {f"{INPUTS}.files": ["b.npz"]},
]
TAKEN: list[dict[str, object]] = [
    {},
    {"models.unused": {"path": "b.onnx"}},
    {f"{EXCLUDE}.op_types": ["TopK"]},
    {f"{INPUTS}.ranges": {"xx": [0, 1]}, "model_groups.g.verify.numbers": "off"},
]


@pytest.mark.parametrize("changes", FAILING, ids=str)
def test_a_build_fails_for_it(tmp_path: Path, changes: dict[str, object]) -> None:
    found = validated(tmp_path, changes)
    (violation,) = found.violations
    with pytest.raises(EpctxError) as caught:
        api.build(manifest(tmp_path, changes), out=tmp_path / "dist")
    assert caught.value.exit_code == found.exit_code
    assert violation.what.endswith(caught.value.reason)
    assert violation.remedy == caught.value.remedy


@pytest.mark.parametrize("changes", TAKEN, ids=str)
def test_a_build_takes_it(tmp_path: Path, changes: dict[str, object]) -> None:
    found = validated(tmp_path, changes)
    assert (found.violations, found.exit_code) == ((), 0)
    assert bool(found.warnings) == bool(changes)
    api.build(manifest(tmp_path, changes), out=tmp_path / "dist")
