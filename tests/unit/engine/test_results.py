"""What actions leave in the cache, and what of it is believed when it is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from epctx.actions.compile import CompileResult
from epctx.cache import StoredAction, StoredFile
from epctx.engine import results
from epctx.errors import VerificationError
from epctx.files.digest import of_bytes
from epctx.files.outputs import GroupOutput, OutputFile
from epctx.manifest import ModelGroup, ModelSource, ProviderSpec, Tolerance
from epctx.stages.report import ModelReport, PartitionReport
from epctx.verification.findings import (
    REBUILD,
    Comparison,
    Finding,
    FolderReport,
    OutputNumbers,
)


def group(*aliases: str) -> ModelGroup:
    eps = tuple(ProviderSpec(alias=a, provider="ReferenceExecutionProvider") for a in aliases)
    models = (ModelSource(name="a", path=Path("/a.onnx")),)
    return ModelGroup(name="g", models=models, execution_providers=eps)


def written(name: str) -> OutputFile:
    content = name.encode()
    return OutputFile(
        name=name, size=len(content), sha256=of_bytes(content, "sha256"), blake3=of_bytes(content)
    )


FILES = (written("a_ctx.onnx"), written("a_ref.bin"))


def compiled(*providers: str) -> CompileResult:
    partitions = tuple(
        PartitionReport(provider=each, nodes=2, inputs=("x",), outputs=("y",)) for each in providers
    )
    model = ModelReport(
        name="a", passes=(), nodes=4, coverage=1.0, partitions=partitions, declined=()
    )
    return CompileResult(
        output=GroupOutput(models={"a": "a_ctx.onnx"}, files=FILES),
        models=(model,),
        unmatched=((),),
    )


def action(stored: CompileResult) -> StoredAction[CompileResult]:
    files = tuple(StoredFile(name=f.name, size=f.size, digest=f.blake3) for f in FILES)
    return StoredAction(kind="compile", record=msgspec.Raw(b"{}"), result=stored, files=files)


def output(**changes: Any) -> dict[str, Any]:
    return {"output": replace(compiled("0").output, **changes)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (output(files=()), "lists other files than it has"),
        (output(files=FILES[:1]), "lists other files than it has"),
        (output(files=FILES[::-1]), "lists other files than it has"),
        (output(files=(replace(FILES[0], size=1), FILES[1])), "lists other files than it has"),
        (output(files=(FILES[0], replace(FILES[1], name="../x"))), "lists other files"),
        (output(models={"b": "a_ctx.onnx"}), "belongs to other models"),
        (output(models={"a": "b_ctx.onnx"}), "lacks files of its models"),
        ({"models": ()}, "belongs to other models"),
        ({"models": compiled("htp").models}, "belongs to other execution providers"),
        ({"models": compiled("1").models}, "belongs to other execution providers"),
        ({"models": compiled("-1").models}, "belongs to other execution providers"),
    ],
)
def test_what_a_compile_cannot_have_stored_is_not_believed(
    changes: dict[str, Any], why: str
) -> None:
    stored = replace(compiled("0"), **changes)
    found = results.objection(action(stored), group("htp"), ["a"])
    assert found is not None and found.startswith(why)


def finding(subject: str, **more: Any) -> Finding:
    given = {"policy": "integrity", "check": "sums", "outcome": "pass", "message": "right"}
    return Finding(subject=subject, **(given | more))


def numbers(model: str) -> OutputNumbers:
    return OutputNumbers(
        model=model,
        output="y",
        input_set="seed 0, set 0",
        sessions="files",
        comparison=Comparison(dtype="float32", shape=(1,), equal=True),
        tolerance=Tolerance(),
        passed=True,
    )


WHOLE = FolderReport(
    folder="g@default",
    models=("a_ctx.onnx", "b_ctx.onnx"),
    findings=(
        finding("a_ctx.onnx"),
        finding("b_ctx.onnx"),
        finding("."),
        finding("a_ctx.onnx", policy="conformance"),
    ),
    numbers=(numbers("a_ctx.onnx"), numbers("b_ctx.onnx")),
)


def test_the_first_that_failed_is_told_and_how_many_more() -> None:
    failed = [
        finding(name, outcome="fail", message="was changed", remedy="build it again")
        for name in ("a.bin", "b.bin", "c.bin")
    ]
    with pytest.raises(VerificationError) as caught:
        results.refuse(FolderReport(folder="", findings=(*WHOLE.findings, *failed)))
    assert caught.value.what == "integrity: was changed (and 2 more)"
    assert caught.value.file == "a.bin"
    assert caught.value.remedy == "build it again"
    with pytest.raises(VerificationError) as caught:
        results.refuse(FolderReport(folder="", findings=(failed[0],)))
    assert caught.value.what == "integrity: was changed"
    whole = finding(".", outcome="fail")
    with pytest.raises(VerificationError) as caught:
        results.refuse(FolderReport(folder="", findings=(whole,)))
    assert caught.value.file is None, "it is of the folder"


def test_building_again_is_no_remedy_for_what_was_built_just_now() -> None:
    failed = finding("a_ctx.onnx", outcome="fail", remedy=REBUILD)
    with pytest.raises(VerificationError) as caught:
        results.refuse(FolderReport(folder="", findings=(failed,)))
    assert "would give the same" in caught.value.remedy
