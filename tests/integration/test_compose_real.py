"""Compositions on real EPs: OpenVINO in one session of onnxruntime, QNN with OpenVINO loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from epctx.engine.report import BuildReport
from epctx.graph.epcontext import read_all
from epctx.providers.onnxruntime.openvino import binary
from tests.kit.building import native
from tests.kit.compositions import WIDTH, save
from tests.kit.projects import Project

VINO, QNN = "OpenVINOExecutionProvider", "QNNExecutionProvider"
pytestmark = pytest.mark.needs_device(VINO, QNN)
MODELS = ("encoder", "body", "head")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("real")
    save(folder, "encoder", "image", "hidden")
    save(folder, "body", "hidden", "features")
    save(folder, "head", "features", "logits")
    return Project(
        folder=folder,
        document={
            "schema_version": 1,
            "name": "m",
            "models": {n: {"path": f"{n}.onnx"} for n in MODELS},
            "execution_providers": {
                "vino": {"provider": VINO},
                "htp": {"provider": QNN, "options": {"soc_model": "60"}},
            },
            "model_groups": {
                "ends": {"models": ["encoder", "head"], "execution_providers": ["vino"]},
                "middle": {"models": ["body"], "execution_providers": ["vino"]},
                "npu": {"models": ["body"], "execution_providers": ["htp"]},
            },
            "compose": {
                "whole": {"parts": {"encoder": {}, "body": {"group": "middle"}, "head": {}}},
                "renamed": {
                    "parts": {
                        "encoder": {"prefix": "e_"},
                        "head": {
                            "prefix": "h_",
                            "inputs": {"features": {"part": "encoder", "output": "hidden"}},
                        },
                    },
                    "embed_mode": 1,
                },
                "mixed": {"parts": {"encoder": {}, "body": {"group": "npu"}, "head": {}}},
            },
        },
    )


@pytest.fixture(scope="module")
def report(project: Project) -> BuildReport:
    return project.build()


def chain(folder: Path, *models: tuple[str, str], image: np.ndarray) -> np.ndarray:
    value = image
    for group, name in models:
        part = native(folder / group / f"{name}_ctx.onnx", VINO)
        (value,) = part.run(None, {part.get_inputs()[0].name: value})
    return value


def test_three_openvino_parts_run_in_one_session_and_equal_the_parts(
    project: Project, report: BuildReport
) -> None:
    folder = project.published
    path = folder / "whole" / "whole_ctx.onnx"
    assert [node.source for node in read_all(onnx.load(path))] == [VINO] * 3
    binaries = [p for p in path.parent.iterdir() if p.suffix == ".bin"]
    assert len(binaries) == 1  # a session reads one: they were merged
    assert len(binary.read(binaries[0]).blobs) == 3
    image = np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32)
    (found,) = native(path, VINO).run(None, {"image": image})
    wanted = chain(folder, ("ends", "encoder"), ("middle", "body"), ("ends", "head"), image=image)
    np.testing.assert_array_equal(found, wanted)


def test_prefixes_leave_the_names_that_openvino_looks_for(
    project: Project, report: BuildReport
) -> None:
    folder = project.published
    path = folder / "renamed" / "renamed_ctx.onnx"
    assert sorted(p.name for p in path.parent.iterdir()) == ["SHA256SUMS", path.name]
    image = np.random.default_rng(2).standard_normal((1, WIDTH)).astype(np.float32)
    (found,) = native(path, VINO).run(["h_logits"], {"e_image": image})
    wanted = chain(folder, ("ends", "encoder"), ("ends", "head"), image=image)
    np.testing.assert_array_equal(found, wanted)


def test_qnn_with_openvino_says_that_one_session_only_loads_it(report: BuildReport) -> None:
    group = next(group for group in report.groups if group.group == "mixed")
    assert group.state == "built" and group.verify is not None
    told = [f.message for f in group.verify.findings if f.check == "loads"]
    assert told == [
        "loads in one session of onnxruntime, and was not run in it: QNN's x86 simulator does not "
        "run in one session with OpenVINO"
    ]
    assert all(numbers.passed for numbers in group.verify.numbers)  # each EP in a session
