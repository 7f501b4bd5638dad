"""A job whose inference fails is carried out with less of it; what else fails fails the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.engine.actions import optimize
from epctx.errors import CompileError, EpctxError, ModelError
from epctx.files.digest import of_bytes
from epctx.graph.native import Reach
from epctx.manifest import ModelSource, OptimizeSettings

DONE = OptimizeResult(digest=of_bytes(b""), passes=())


class Runner:
    """Fails for some reaches, and leaves half a folder then."""

    def __init__(self, failing: dict[Reach, EpctxError]) -> None:
        self.failing = failing
        self.asked: list[Reach] = []

    def __call__(self, job: Optimize) -> OptimizeResult:
        self.asked.append(job.reach)
        job.folder.mkdir()
        if job.reach in self.failing:
            raise self.failing[job.reach]
        return DONE


def ended(native: str | None) -> CompileError:
    error = CompileError("it was ended", why="too long", remedy="raise the limit")
    error.native = native
    return error


def job(folder: Path) -> Optimize:
    source = ModelSource(name="a", path=folder / "a.onnx")
    return Optimize.of(source, OptimizeSettings(), folder / "made")


def test_less_is_inferred_where_inference_ended_the_process(tmp_path: Path) -> None:
    failed = ended("onnx's shape inference")
    run = Runner({"data": failed})
    assert optimize.run(job(tmp_path), run) is DONE
    assert run.asked == ["data", "types"]
    tmp_path.joinpath("made").rmdir()
    run = Runner({"data": failed, "types": failed})
    assert optimize.run(job(tmp_path), run) is DONE
    assert run.asked == ["data", "types", "nothing"]


@pytest.mark.parametrize(
    ("native", "maker"), [("ONNX Runtime", "ONNX Runtime"), ("onnx's checker", "onnx")]
)
def test_what_others_do_not_get_through_is_the_models_fault(
    native: str, maker: str, tmp_path: Path
) -> None:
    run = Runner({"data": ended(native)})
    with pytest.raises(ModelError, match=f"{native} cannot process it") as error:
        optimize.run(job(tmp_path), run)
    assert error.value.why == "too long"
    assert error.value.remedy is not None and error.value.remedy.endswith(f"report it to {maker}")
    assert run.asked == ["data"]


def test_any_other_failure_is_raised_as_it_is(tmp_path: Path) -> None:
    for failure in (ended(None), ModelError("is broken", remedy="export it again")):
        folder = tmp_path / type(failure).__name__
        folder.mkdir()
        with pytest.raises(EpctxError) as error:
            optimize.run(job(folder), Runner({"data": failure}))
        assert error.value is failure
