"""A small manifest with one model, to be validated or built with a change of either."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import yaml
from onnx import TensorProto, helper

from epctx.commands.validate import command
from epctx.commands.validate.command import Validation

_DOCUMENT = """\
schema_version: 1
name: m
models: {a: {path: a.onnx, dimensions: {batch: 2}}}
execution_providers: {ref: {provider: ReferenceExecutionProvider}}
model_groups: {g: {models: [a], execution_providers: [ref]}}
"""


def model(path: Path, *, function: bool = False) -> None:
    """Write `/head/MatMul` and `/act/Relu`, perhaps a function's, of an input x[batch, 4]."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 4])]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.5] * 16)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="/head/MatMul"),
        helper.make_node("Relu", ["y"], ["z"], name="/act/Relu"),
    ]
    body = [helper.make_node("Relu", ["i"], ["o"])]
    act = helper.make_function("own", "Act", ["i"], ["o"], body, opsets[:1])
    if function:
        nodes[1] = helper.make_node("Act", ["y"], ["z"], name="/act", domain="own")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight])
    made = helper.make_model(
        graph, opset_imports=opsets, functions=[act] if function else [], ir_version=8
    )
    onnx.save(made, path)


def manifest(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Write `m.yaml` with these values at their places, `model_groups.g.timeout`; with its model
    where there is none.
    """
    document: dict[str, Any] = yaml.safe_load(_DOCUMENT)
    for place, value in changes.items():
        *steps, last = place.split(".")
        at = document
        for step in steps:
            at = at.setdefault(step, {})
        at[last] = value
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    if not (folder / "a.onnx").exists():
        model(folder / "a.onnx")
    return path


def validated(folder: Path, changes: Mapping[str, Any], **options: bool) -> Validation:
    """What is found in `manifest(folder, changes)`."""
    return command.validate(manifest(folder, changes), **options)


def told(found: Validation) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Places and words, of violations and of warnings."""
    violations, warnings = (
        [(each.path, each.what) for each in some] for some in (found.violations, found.warnings)
    )
    return violations, warnings
