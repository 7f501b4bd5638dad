"""Cut, compiled piece by piece, and assembled: what is told of the whole, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.compile import join_ops
from epctx.actions.optimize import Optimize
from epctx.actions.pieces import Assemble, Cut, CutResult
from epctx.errors import CompileError
from epctx.manifest import ModelGroup, ModelSource, PartitionSettings, Pieces, ProviderSpec
from tests.kit.building import mlp
from tests.kit.inline import Inline

REFERENCE = ProviderSpec(alias="ref", provider="ReferenceExecutionProvider")
Build = Callable[..., tuple[CutResult, Any, Path]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Build models `a` and `b` of one source in pieces, in this process."""
    worker = Inline(tmp_path / "w", tmp_path / "log")
    onnx.save(mlp(), tmp_path / "m.onnx")

    def run(action: Any) -> Any:
        (result,) = worker.run([action], started=lambda stage: None)
        return result

    def build(eps: ProviderSpec = REFERENCE, count: int = 3, **partition: Any) -> Any:
        group = ModelGroup(
            name="g",
            models=tuple(ModelSource(name=n, path=tmp_path / "m.onnx") for n in "ab"),
            execution_providers=(eps,),
            partition=PartitionSettings(**partition),
            pieces=Pieces(count=count),
        )
        folders, digests = {}, {}
        for source in group.models:
            folders[source.name] = tmp_path / f"o-{source.name}"
            optimize = Optimize.of(source, group.optimize, folders[source.name])
            digests[source.name] = run(optimize).digest
        asked = replace(Cut.of(group, digests, None), folders=folders, folder=tmp_path / "cut")
        cut = run(asked)
        outs, compiled = [], []
        for number, each in enumerate(cut.compiles(group, digests), start=1):
            outs.append(tmp_path / f"p{number}")
            scratch = tmp_path / f"s{number}"
            for folder in (outs[-1], scratch):
                folder.mkdir()
            graphs = {name: tmp_path / "cut" / name for name in each.names}
            compiled.append(run(replace(each, optimized=graphs, folder=outs[-1], scratch=scratch)))
        (tmp_path / "out").mkdir()
        job = Assemble.of(group, digests, cut, compiled)
        result = run(replace(job, optimized=folders, folders=tuple(outs), folder=tmp_path / "out"))
        return cut, result, tmp_path / "out"

    return build


def test_a_piece_of_which_no_ep_takes_anything_has_no_binary(build: Build) -> None:
    nodes = [node.name for node in mlp().graph.node]
    cut, result, folder = build(exclude_nodes=tuple(nodes[:1]), count=len(nodes))
    assert cut.models[0].reports[0].nodes == 1
    assert not (folder / "a_1_reference.bin").exists() and (folder / "a_2_reference.bin").exists()
    assert [each.node for each in result.models[0].declined] == nodes[:1]
    assert result.models[0].coverage == 1 - 1 / len(nodes)


def test_a_model_of_which_no_ep_takes_anything_is_refused(build: Build) -> None:
    with pytest.raises(CompileError, match="nothing compiled"):
        build(exclude_nodes=("*",))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_partitions": 2}, "compiled into 3 partitions where max_partitions allows 2"),
        ({"require_coverage": 1.0, "exclude_op_types": ("Relu",)}, "where require_coverage asks"),
    ],
)
def test_limits_are_those_of_the_whole(build: Build, limit: dict[str, Any], words: str) -> None:
    with pytest.raises(CompileError, match=words):
        build(**limit)


def test_nodes_of_one_name_in_several_pieces_keep_their_ops() -> None:
    parts = ({"a": ("Conv2d",), "t": ("Transpose",)}, {"t": ("Transpose", "Cast")})
    assert join_ops(parts) == {"a": ("Conv2d",), "t": ("Transpose", "Transpose", "Cast")}
