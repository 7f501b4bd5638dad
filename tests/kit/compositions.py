"""Models that fit one after the other, and projects that compose them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.kit.projects import Project

REFERENCE = "ReferenceExecutionProvider"
WIDTH = 64


def save(
    folder: Path,
    name: str,
    take: str,
    make: str,
    *,
    mask: bool = False,
    width: int = WIDTH,
    scale: float = 1,
) -> None:
    """MatMul, Relu, Tanh, or with a mask Add at the end: from `take` to `make`."""
    rng = np.random.default_rng(sum(name.encode()))
    weight = (rng.standard_normal((width, width)) * scale / width**0.5).astype(np.float32)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", [take, "w"], ["m"], name="mm"),
        helper.make_node("Relu", ["m"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "mask"], [make], name="tail")
        if mask
        else helper.make_node("Tanh", ["r"], [make], name="tail"),
    ]
    ends = [value(take, TensorProto.FLOAT, [1, width])]
    if mask:
        ends.append(value("mask", TensorProto.FLOAT, [1, width]))
    graph = helper.make_graph(
        nodes,
        name,
        ends,
        [value(make, TensorProto.FLOAT, [1, width])],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), folder / f"{name}.onnx")


def project(folder: Path, compose: Mapping[str, object], **group: object) -> Project:
    """Three sources in two groups, on two reference EPs, one of which leaves a node to the CPU."""
    folder.mkdir(parents=True, exist_ok=True)
    save(folder, "encoder", "image", "hidden")
    save(folder, "body", "hidden", "features", mask=True)
    save(folder, "head", "features", "logits")
    made = Project(
        folder=folder,
        document={
            "schema_version": 1,
            "name": "m",
            "models": {n: {"path": f"{n}.onnx"} for n in ("encoder", "body", "head")},
            "execution_providers": {
                "one": {"provider": REFERENCE, "options": {"source": "one"}},
                "two": {
                    "provider": REFERENCE,
                    "options": {"source": "two", "exclude_ops": ["Relu"]},
                },
            },
            "model_groups": {
                "ends": {
                    "models": ["encoder", "head"],
                    "execution_providers": ["one"],
                    "sharing_groups": {"all": ["encoder", "head"]},
                },
                "middle": {"models": ["body"], "execution_providers": ["two"], **group},
            },
            "compose": copy.deepcopy(dict(compose)),  # tests change it
        },
    )
    made.write()
    return made


PARTS: Mapping[str, object] = {"encoder": {}, "body": {}, "head": {}}
