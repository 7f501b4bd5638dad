"""A session group compiled by a worker: what is left where, also when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.actions.action import Action
from epctx.actions.compile import MODELS, Compile
from epctx.actions.optimize import Optimize
from epctx.actions.verify import Check
from epctx.errors import CompileError
from epctx.manifest import ModelGroup, ModelSource, PartitionSettings, ProviderSpec
from epctx.stages.report import ModelReport
from epctx.verification.request import VerifyRequest
from tests.kit.building import mlp
from tests.kit.inline import Inline

REFERENCE = ProviderSpec(alias="ref", provider="ReferenceExecutionProvider")


@pytest.fixture
def worker(tmp_path: Path) -> Inline:
    return Inline(tmp_path / "w", tmp_path / "log")


GROUP = ModelGroup(name="g", models=(), execution_providers=(REFERENCE,))


@pytest.fixture
def compiling(tmp_path: Path, worker: Inline) -> Compile:
    """The compile of one model, which is optimized already."""
    source = ModelSource(name="m", path=tmp_path / "m.onnx")
    onnx.save(mlp(), source.path)
    optimize = Optimize.of(source, GROUP.optimize, tmp_path / "o")
    (optimized,) = worker.run([optimize], started=lambda stage: None)
    for name in ("out", "scratch"):
        (tmp_path / name).mkdir()
    return replace(
        Compile.of(GROUP, {"m": optimized.digest}),
        optimized={"m": optimize.folder},
        folder=tmp_path / "out",
        scratch=tmp_path / "scratch",
    )


def test_the_job_verifies_what_it_has_compiled(compiling: Compile, worker: Inline) -> None:
    group = replace(GROUP, models=(ModelSource(name="m", path=compiling.folder.parent / "m.onnx"),))
    request = VerifyRequest(group=group, folder=compiling.folder, label="g@t")
    job: list[Action[Any]] = [compiling, Check(request=request, compiled=True)]
    compiled, checked = worker.run(job, started=lambda stage: None)
    assert [model.name for model in compiled.models] == ["m"]
    assert [part.provider for part in compiled.models[0].partitions] == ["0"]
    assert {f.outcome for f in checked.findings} == {"pass"}
    names = {file.name for file in compiled.output.files}
    assert {path.name for path in compiling.folder.iterdir()} == {*names, "SHA256SUMS"}
    assert not compiling.scratch.exists()


def test_a_compile_that_fails_leaves_what_it_knew(compiling: Compile, worker: Inline) -> None:
    strict = PartitionSettings(min_nodes=99, require_coverage=1)
    with pytest.raises(CompileError, match="take 0 of 10 nodes"):
        worker.run([replace(compiling, partition=strict)], started=lambda stage: None)
    (model,) = codec.decode((compiling.scratch / MODELS).read_bytes(), tuple[ModelReport, ...])
    assert (model.name, model.coverage, model.placement) == ("m", 0.0, None)
    assert not list(compiling.folder.iterdir())
