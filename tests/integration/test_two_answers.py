"""Sources of which ONNX Runtime gives two answers: the EP is not blamed, nor let off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from epctx import api
from epctx.engine.report import BuildReport
from epctx.graph.inputs import Array
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelSource
from epctx.verification.findings import Finding
from epctx.verification.numbers import golden_files, sessions
from tests.kit import two_answers
from tests.kit.projects import Project, document

pytestmark = pytest.mark.usefixtures("jobs_inline")
MODELS = {"style": two_answers.style, "mlp": two_answers.quantized}


def built(folder: Path, make: Callable[[], onnx.ModelProto]) -> tuple[Project, BuildReport]:
    """A release of one model `a`, with the reference EP."""
    onnx.save(make(), folder / "a.onnx")
    project = Project(folder=folder, document=document({"g": ["a"]}))
    return project, project.build(golden=True)


def findings(report: BuildReport) -> tuple[Finding, ...]:
    verified = report.groups[0].verify
    assert verified is not None
    return tuple(found for found in verified.findings if found.policy == "numbers")


def answer(model: Path, feeds: Feeds, level: ort.GraphOptimizationLevel) -> Array:
    session = sessions.open_source(ModelSource(name="a", path=model), threads=1, level=level)
    return sessions.run_source(session, feeds)["z"]


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_files_and_golden_outputs_are_held_to_the_kernels(
    tmp_path: Path, make: Callable[[], onnx.ModelProto]
) -> None:
    project, report = built(tmp_path, make)
    (told,) = (f for f in findings(report) if f.check == "source")
    assert told.outcome == "not checkable" and "two answers" in told.message
    assert "`verify.tolerance`" in told.remedy
    assert {f.outcome for f in findings(report) if f.check == "outputs"} == {"pass"}
    place = project.published / "g" / "golden"
    (case,) = golden_files.read(place, "a", golden_files.read_record(place).models["a"])
    levels = ort.GraphOptimizationLevel
    kernels = answer(tmp_path / "a.onnx", case.inputs, levels.ORT_DISABLE_ALL)
    stock = answer(tmp_path / "a.onnx", case.inputs, levels.ORT_ENABLE_ALL)
    assert np.array_equal(case.outputs["z"], kernels) and not np.array_equal(kernels, stock)
    checked = api.verify([project.published / "g"], golden=True)
    assert not list(checked.findings("fail"))
    project.section("defaults")["verify"] = {"tolerance": {"max_rel": 0.3, "cosine_min": 0.9}}
    again = findings(project.build())
    assert not [f for f in again if f.check == "source"], "the remedy is one"


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_each_piece_is_held_to_its_own_kernels(
    tmp_path: Path, make: Callable[[], onnx.ModelProto]
) -> None:
    """On the values that the source computed before it, as it is run: not on the kernels' own."""
    onnx.save(make(), tmp_path / "a.onnx")
    partition = {"partition": {"pieces": {"count": 4}}}
    project = Project(folder=tmp_path, document=document({"g": ["a"]}, **partition))
    found = findings(project.build())
    assert {f.outcome for f in found if f.check == "outputs"} == {"pass"}
    told = [f.message for f in found if f.check == "source"]
    assert len(told) > 1
    assert all("piece" in message for message in told[1:])
