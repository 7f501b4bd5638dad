"""Models that leave dimensions open: built, compared at two sizes, released, joined, run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from epctx import api
from epctx.engine.report import BuildReport, GroupReport
from epctx.verification.findings import FolderReport
from tests.kit import command_line

pytestmark = pytest.mark.usefixtures("jobs_inline")

FLOAT = TensorProto.FLOAT
value = helper.make_tensor_value_info


def attention(path: Path) -> None:
    """`y` of a past and a sequence: the mask is as long as both."""
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["q"], name="q"),
            helper.make_node("Concat", ["past", "x"], ["k"], name="k", axis=1),
            helper.make_node("Transpose", ["k"], ["t"], name="t", perm=[0, 2, 1]),
            helper.make_node("MatMul", ["q", "t"], ["s"], name="s"),
            helper.make_node("Add", ["s", "mask"], ["m"], name="m"),
            helper.make_node("Softmax", ["m"], ["p"], name="p"),
            helper.make_node("MatMul", ["p", "k"], ["y"], name="y"),
        ],
        "g",
        [
            value("x", FLOAT, ["batch", "sequence", 8]),
            value("past", FLOAT, ["batch", "past", 8]),
            value("mask", FLOAT, ["batch", 1, "length"]),
        ],
        [value("y", FLOAT, ["batch", "sequence", 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    save(graph, path)


def head(path: Path, rows: int = -1) -> None:
    """`z` of a `y`, whose open sizes are written as -1."""
    weight = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["y", "w"], ["a"], name="a"),
            helper.make_node("Tanh", ["a"], ["z"], name="z"),
        ],
        "g",
        [value("y", FLOAT, [rows, rows, 8])],
        [value("z", FLOAT, [rows, rows, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    save(graph, path)


def save(graph: onnx.GraphProto, path: Path) -> None:
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


SIZES = {"batch": [2, 1], "sequence": [5, 1], "past": [3, 6], "length": [8, 7]}
MANIFEST = {
    "schema_version": 1,
    "name": "open",
    "models": {name: {"path": f"{name}.onnx"} for name in ("attention", "head")},
    "execution_providers": {"ref": {"provider": "ReferenceExecutionProvider"}},
    "defaults": {"execution_providers": ["ref"]},
    "model_groups": {
        "one": {"models": ["attention"], "verify": {"inputs": {"dimensions": SIZES}}},
        "two": {"models": ["head"]},
    },
    "compose": {
        "whole": {
            "parts": {"attention": {}, "head": {}},
            "verify": {"inputs": {"dimensions": SIZES}},
        }
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open")
    attention(folder / "attention.onnx")
    head(folder / "head.onnx")
    (folder / "m.yaml").write_text(yaml.safe_dump(MANIFEST, sort_keys=False), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def built(folder: Path) -> BuildReport:
    return api.build(folder / "m.yaml", out=folder / "dist", golden=True)


def group(report: BuildReport, name: str) -> GroupReport:
    return next(each for each in report.groups if each.group == name)


def told(report: FolderReport | None, check: str) -> list[str]:
    assert report is not None
    return [f"{f.outcome}: {f.message}" for f in report.findings if f.check == check]


def test_a_build_compares_at_two_sizes_that_fit(built: BuildReport) -> None:
    one, two = (group(built, name).verify for name in ("one", "two"))
    (sizes,) = told(one, "sizes")
    assert sizes.startswith(
        "pass: its open dimensions are checked at batch=2, sequence=5, past=3, length=8 and "
    )
    assert told(two, "sizes") == [
        "pass: its open dimensions are checked at y[0]=1, y[1]=1 and y[0]=2, y[1]=2"
    ]
    for report in (one, two):
        assert report is not None and len(report.numbers) == 2
        assert all(numbers.passed and numbers.comparison.equal for numbers in report.numbers)
        assert told(report, "outputs")[0].startswith("pass: 1 output on 2 input sets")


def test_verify_finds_the_same_with_the_manifest(folder: Path, built: BuildReport) -> None:
    report = api.verify([folder / "dist" / "open" / "default"], manifest=folder / "m.yaml")
    assert report.passed
    for each in report.folders:
        assert told(each, "outputs") == [
            "pass: 1 output on 2 input sets of the files agree with "
            + (
                "its parts, run one after the other"
                if "whole" in each.folder
                else "the source model"
            )
            + ", on generated inputs, all values equal"
        ]


def test_golden_files_hold_both_sizes(folder: Path, built: BuildReport) -> None:
    golden = folder / "dist" / "open" / "default" / "one" / "golden"
    record = json.loads((golden / "golden.json").read_text(encoding="utf-8"))
    labels = [each["label"] for each in record["models"]["attention"]["sets"]]
    assert len(labels) == 2 and all("batch=" in label for label in labels)
    report = api.verify([folder / "dist" / "open" / "default"], golden=True)
    assert report.passed
    agreed = [f.message for each in report.folders for f in each.findings if f.check == "outputs"]
    assert len(agreed) == 3 and all("on 2 input sets" in message for message in agreed)


def test_sizes_can_be_said(folder: Path, tmp_path: Path) -> None:
    sizes = {"batch": 1, "sequence": [4, 1], "past": [3, 6], "length": 7}
    document = {
        **{
            key: MANIFEST[key]
            for key in ("schema_version", "name", "models", "execution_providers")
        },
        "model_groups": {
            "one": {
                "models": ["attention"],
                "execution_providers": ["ref"],
                "verify": {"inputs": {"dimensions": sizes}},
            }
        },
    }
    manifest = folder / "said.yaml"
    manifest.write_text(yaml.safe_dump(document), encoding="utf-8")
    report = api.build(manifest, out=tmp_path)
    assert told(group(report, "one").verify, "sizes") == [
        "pass: its open dimensions are checked at batch=1, sequence=4, past=3, length=7 and "
        "batch=1, sequence=1, past=6, length=7"
    ]


def test_run_asks_for_sizes_that_are_written_as_minus_one_and_takes_them(folder: Path) -> None:
    ran = command_line.epctx("run", "head.onnx", cwd=folder)
    assert ran.returncode == 2 and "a dimension without a name of unknown size" in ran.stderr
    (told,) = re.findall(r"like (.*), or its values", ran.stderr)
    ran = command_line.epctx("run", "head.onnx", *shlex.split(told), cwd=folder)
    assert ran.returncode == 0 and "float32[1, 1, 4]" in ran.stdout
