"""Who would take which node, as a worker tells it."""

from __future__ import annotations

from pathlib import Path

import onnx

from epctx.actions.optimize import Optimize
from epctx.actions.partition import Partition
from epctx.manifest import ModelGroup, ModelSource, PartitionSettings, ProviderSpec
from tests.kit.building import mlp
from tests.kit.inline import Inline


def test_what_is_left_to_the_default_ep_is_found_in_the_source(tmp_path: Path) -> None:
    source = ModelSource(name="m", path=tmp_path / "m.onnx")
    onnx.save(mlp(), source.path)
    group = ModelGroup(
        name="g",
        models=(source,),
        execution_providers=(ProviderSpec(alias="ref", provider="ReferenceExecutionProvider"),),
        partition=PartitionSettings(exclude_op_types=("Relu",), exclude_nodes=("none*",)),
    )
    optimize = Optimize.of(source, group.optimize, tmp_path / "o")
    preview = Partition(group=group, optimized={"m": optimize.folder})
    worker = Inline(tmp_path / "w", tmp_path / "log")
    _, found = worker.run([optimize, preview], started=lambda stage: None)
    (model,) = found.models
    assert model.coverage == 0.7 and {each.op_type for each in model.declined} == {"Relu"}
    assert [each.location for each in model.declined] == ["node 2", "node 5", "node 8"]
    assert [each.entry for each in found.unmatched[0]] == ["none*"] and found.silent == ()
