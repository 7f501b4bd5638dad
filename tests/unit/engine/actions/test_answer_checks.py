"""What a worker says is held to what it was asked: an SDK may have written to its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx.actions.compile import CompileResult
from epctx.engine import results
from epctx.errors import CompileError
from epctx.files import outputs
from epctx.files.outputs import GroupOutput, OutputFile
from epctx.manifest import ModelGroup, ModelSource, ProviderSpec
from epctx.stages.report import ModelReport, PartitionReport

MODELS = tuple(ModelSource(name=name, path=Path(f"/{name}.onnx")) for name in "ab")
GROUP = ModelGroup(
    name="g",
    models=MODELS,
    execution_providers=(ProviderSpec(alias="htp", provider="QNNExecutionProvider"),),
)


@pytest.fixture
def answer(tmp_path: Path) -> CompileResult:
    """A true one: models `a` and `b` share a context, all of it is in the folder."""
    names = ("a_ctx.onnx", "b_ctx.onnx", "a_htp.bin")
    files = tuple(outputs.write(tmp_path / name, [name.encode()]) for name in names)
    part = PartitionReport(provider="0", nodes=1, inputs=("x",), outputs=("y",))
    models = tuple(
        ModelReport(name=n, passes=(), nodes=1, coverage=1.0, partitions=(part,), declined=())
        for n in "ab"
    )
    return CompileResult(
        output=GroupOutput(models={n: f"{n}_ctx.onnx" for n in "ab"}, files=files),
        models=models,
        unmatched=((), ()),
    )


def check(answer: CompileResult, folder: Path) -> None:
    results.check_compiled(answer, GROUP, ["a", "b"], folder)


def files(change: Callable[[tuple[OutputFile, ...]], tuple[OutputFile, ...]]) -> Any:
    return lambda a: replace(a, output=replace(a.output, files=change(a.output.files)))


def first(**changes: Any) -> Any:
    return files(lambda made: (replace(made[0], **changes), *made[1:]))


def models(**changes: Any) -> Any:
    return lambda a: replace(a, models=(replace(a.models[0], **changes), *a.models[1:]))


OTHER = PartitionReport(provider="gpu", nodes=1, inputs=(), outputs=())
LIES: dict[str, tuple[Callable[[CompileResult], CompileResult], str]] = {
    "no file": (files(lambda made: ()), "it lists no file, or one file twice"),
    "a file twice": (files(lambda made: (*made, made[0])), "it lists no file, or one file twice"),
    "a file that is not there": (first(name="c_ctx.onnx"), "listed files do not exist"),
    "another size": (first(size=1), "listed files do not exist"),
    "a path": (first(name="sub/a_ctx.onnx"), "listed files do not exist"),
    "a path outside": (first(name="../a_ctx.onnx"), "listed files do not exist"),
    "NUL": (first(name="a\0"), "listed files do not exist"),
    "a model's file less": (files(lambda made: made[1:]), "models without a file"),
    "another model": (models(name="c"), "other models than requested"),
    "models in another order": (
        lambda a: replace(a, models=a.models[::-1]),
        "other models than requested",
    ),
    "a model less": (lambda a: replace(a, models=a.models[:1]), "other models"),
    "exclusions of one model": (lambda a: replace(a, unmatched=((),)), "other models"),
    "another EP": (models(partitions=(OTHER,)), "execution providers that the group does not have"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_true_is_refused(lie: str, answer: CompileResult, tmp_path: Path) -> None:
    change, told = LIES[lie]
    with pytest.raises(CompileError) as caught:
        check(change(answer), tmp_path)
    assert caught.value.what.startswith(f"the worker returned an invalid result: {told}")
    assert caught.value.where == "model a and b"
    assert caught.value.remedy


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_lies_there_must_be_a_file(kind: str, answer: CompileResult, tmp_path: Path) -> None:
    path = tmp_path / "a_htp.bin"
    if kind == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to("elsewhere")
    else:
        path.unlink()
        path.mkdir()
    with pytest.raises(CompileError, match="listed files do not exist"):
        check(answer, tmp_path)
