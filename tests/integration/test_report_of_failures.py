"""What a build's report tells of groups that failed: as much as was known when they did."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.kit import onnx_text
from tests.kit.command_line import FAULTY, epctx
from tests.kit.projects import Project, document, make

QNN = "QNNExecutionProvider"
pytestmark = [
    pytest.mark.needs("module onnxruntime_qnn"),
    pytest.mark.needs("POSIX", "a process of the faulty EP ends by a signal"),
]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The groups of a report: a crash, missed coverage and wrong numbers between sound ones."""
    project = make(
        tmp_path_factory.mktemp("failures"),
        {
            "sound": ["a"],
            "crash": ["b"],
            "coverage": ["c"],
            "numbers": ["d"],
            "broken": ["e", "f"],
        },
        verify={"inputs": {"count": 1}},
    )
    for name in ("coverage", "numbers"):
        project.section("model_groups", name)["execution_providers"] = ["htp"]
    project.section("execution_providers")["htp"] = {
        "provider": QNN,
        "options": {"soc_model": "60"},
    }
    project.section("execution_providers")["faulty"] = {
        "provider": "FaultyExecutionProvider",
        "options": {"fault": "abort"},
    }
    project.section("model_groups", "crash")["execution_providers"] = ["faulty"]
    project.section("model_groups", "coverage")["partition"] = {
        "exclude": {"nodes": ["relu1"]},
        "require_coverage": 1.0,
    }
    tight = project.section("model_groups", "numbers", "verify")
    tight.update(tolerance={"max_abs": 1e-12}, inputs={"count": 2})
    project.section("model_groups", "broken").pop("sharing_groups", None)
    project.write()
    (project.folder / "f.onnx").write_bytes(b"no model")
    command = ("build", "m.yaml", "--keep-going", "--format", "json")
    ran = epctx(*command, cwd=project.folder, PYTHONPATH=str(FAULTY))
    assert ran.returncode in (4, 6, 7), ran.stderr
    path = project.folder / "dist" / "m.build.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    found = {group["group"]: group for group in report["groups"]}
    states = {name: group["state"] for name, group in found.items()}
    assert states == {name: "built" if name == "sound" else "failed" for name in found}
    found["folder"] = {"path": str(path.parent)}
    return found


def test_a_crash_keeps_the_log_and_who_takes_what(groups: dict[str, dict[str, Any]]) -> None:
    group = groups["crash"]
    (model,) = group["models"]
    assert model["name"] == "b" and model["coverage"] == 1.0 and model["outline"]["names"]
    assert model["placement"] is None
    log = group["log"]
    assert log["lines"] == [
        "SDK: native noise on stdout",
        "SDK: assertion failed in graph prepare",
    ]
    kept = Path(groups["folder"]["path"], log["file"]).read_text(encoding="utf-8")
    assert "SDK: assertion failed in graph prepare" in kept
    assert [action["action"] for action in group["actions"]] == ["optimize"]


def test_missed_coverage_keeps_what_was_left_and_why(groups: dict[str, dict[str, Any]]) -> None:
    group = groups["coverage"]
    (model,) = group["models"]
    assert model["coverage"] < 1.0 and len(model["partitions"]) == 2
    assert [each["node"] for each in model["declined"]] == ["relu1"]
    assert -1 in model["outline"]["owners"]
    (ep,) = group["execution_providers"]
    assert (ep["alias"], ep["provider"], ep["options"]) == ("htp", QNN, {"soc_model": "60"})
    assert ep["toolchain"]["onnxruntime-qnn"]
    assert group["verify"] is None


def test_wrong_numbers_are_kept_with_the_right_ones(groups: dict[str, dict[str, Any]]) -> None:
    group = groups["numbers"]
    (model,) = group["models"]
    assert model["placement"]["context_nodes"] == 1
    numbers = group["verify"]["numbers"]
    failing = [each for each in numbers if not each["passed"]]
    assert failing
    for each in failing:
        comparison = each["comparison"]
        assert comparison["max_abs"] > 1e-12
        assert sum(comparison["histogram"]) == math.prod(comparison["shape"])
        assert sum(comparison["histogram"][1:]) > 0
    assert any(f["outcome"] == "fail" for f in group["verify"]["findings"])
    assert any(f["outcome"] == "pass" for f in group["verify"]["findings"])


def test_a_model_that_is_none_does_not_take_the_others_along(
    groups: dict[str, dict[str, Any]],
) -> None:
    group = groups["broken"]
    assert group["failure"]["exit_code"] == 4
    assert [model["name"] for model in group["models"]] == ["e"]


def test_each_group_says_what_the_manifest_says_of_it(groups: dict[str, dict[str, Any]]) -> None:
    assert groups["coverage"]["manifest"] == {
        "models": {"c": {"path": "c.onnx"}},
        "execution_providers": {"htp": {"provider": QNN, "options": {"soc_model": "60"}}},
        "model_groups": {
            "coverage": {
                "models": ["c"],
                "execution_providers": ["htp"],
                "verify": {"inputs": {"count": 1}},
                "partition": {"exclude": {"nodes": ["relu1"]}, "require_coverage": 1.0},
            }
        },
    }
    assert groups["sound"]["log"] is None


def test_what_an_ep_leaves_is_counted_whether_nodes_have_names_or_not(tmp_path: Path) -> None:
    """QNN has no Det: it was taken for compiled where no node has a name."""
    weights = ", ".join(map(str, range(1, 17)))
    body = f"""g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w = {{{weights}}}>
        {{ a = MatMul(x, w) d = Det(a) y = Mul(a, d) }}"""
    onnx.save(onnx_text.proto(body), tmp_path / "a.onnx")
    project = Project(folder=tmp_path, document=document({"g": ["a"]}))
    project.section("execution_providers")["ref"] = {
        "provider": QNN,
        "options": {"soc_model": "60"},
    }
    project.section("model_groups", "g")["partition"] = {"require_coverage": 1.0}
    project.write()
    ran = epctx("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 6
    assert "take 2 of 3 nodes, 66.7% where require_coverage asks for 100.0%: 1 Det" in ran.stderr
    planned = epctx("plan", "m.yaml", "--partition", cwd=tmp_path)
    assert "default EP: 1 node" in planned.stdout and "`Det`" in planned.stdout
