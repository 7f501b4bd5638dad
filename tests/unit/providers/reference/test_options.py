"""The reference EP's options and versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from jsonschema import Draft202012Validator

from epctx.errors import InvalidGraph, ManifestError
from epctx.providers.reference import options
from epctx.providers.reference.options import ReferenceOptions, Toolchain
from tests.kit.building import mlp, reference

SCHEMA = Path(__file__).parents[4] / "schemas/providers/ReferenceExecutionProvider.options.json"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sorce": "x"}, 'did you mean "source"'),
        ({"source": "a/b"}, "is not a name"),
        ({"source": ""}, "is not a name"),
        ({"source": "a."}, "is not a name"),
        ({"source": "x" * 65}, "is not a name"),
        ({"source": 3}, "is not text"),
        ({"sdk_version": "1.x"}, "not a version"),
        ({"driver_version": "1.2.3.4.5"}, "not a version"),
        ({"driver_version": ""}, "not a version"),
        ({"hardware_architecture": "a b"}, "is not a name"),
        ({"ops": 3}, "not a list of ops"),
        ({"ops": ["MatMul", 3]}, "not a list of ops"),
        ({"exclude_ops": [""]}, "not a list of ops"),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError) as raised:
        ReferenceOptions.parse(options)  # type: ignore[arg-type]
    assert message in str(raised.value) and next(iter(options)) in str(raised.value)


SCHEMA_CASES = [
    {},
    {"ops": ["MatMul"], "source": "npu0", "sdk_version": "1.2", "driver_version": "3"},
    {"source": "a/b"},
    {"source": "a."},
    {"sdk_version": "1.x"},
    {"driver_version": "1.2.3.4.5"},
    {"hardware_architecture": "a b"},
    {"hardware_architecture": "v75"},
    {"ops": 3},
    {"exclude_ops": [""]},
    {"unknown": "x"},
]


@pytest.mark.parametrize("options", SCHEMA_CASES, ids=str)
def test_the_schema_and_the_parser_agree(options: dict[str, object]) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    allowed = Draft202012Validator(schema).is_valid(options)
    try:
        ReferenceOptions.parse(options)  # type: ignore[arg-type]
    except ManifestError:
        assert not allowed
    else:
        assert allowed


def test_the_schema_tells_the_defaults() -> None:
    properties = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    defaults = ReferenceOptions()
    told = {name: what["default"] for name, what in properties.items() if "default" in what}
    assert told == {
        name: getattr(defaults, name)
        for name in ("source", "hardware_architecture", "sdk_version", "driver_version", "notes")
    }


HOST = Toolchain(sdk_version="2.3.1", driver_version="30.1", hardware_architecture="v75")


def needs(**changes: str) -> Toolchain:
    from msgspec.structs import replace

    return replace(HOST, **changes)


@pytest.mark.parametrize(
    "needed",
    [
        HOST,
        needs(sdk_version="2.3.0.9"),
        needs(sdk_version="2"),
        needs(driver_version="30.0.9"),
        needs(driver_version="1"),
        needs(driver_version="30.1.0.0"),
    ],
)
def test_a_host_loads_what_it_can(needed: Toolchain) -> None:
    options.check_versions(needed, HOST, where="a.bin")


@pytest.mark.parametrize(
    ("needed", "words"),
    [
        (needs(sdk_version="3.0"), ["3.0", "2.3.1", "another major version"]),
        (needs(sdk_version="1.9"), ["1.9", "2.3.1", "another major version"]),
        (needs(sdk_version="2.3.2"), ["2.3.2", "2.3.1", "newer", "update"]),
        (needs(driver_version="30.1.1"), ["30.1.1", "30.1", "driver", "update the driver"]),
        (needs(driver_version="31"), ["31", "30.1", "driver"]),
        (needs(hardware_architecture="v73"), ["'v73'", "'v75'", "hardware_architecture: v75"]),
        (needs(sdk_version="?"), ["broken version", "'?'"]),
    ],
)
def test_a_mismatch_is_an_invalid_graph_that_names_both_and_the_remedy(
    needed: Toolchain, words: list[str]
) -> None:
    with pytest.raises(InvalidGraph) as raised:
        options.check_versions(needed, HOST, where="a.bin")
    for word in words:
        assert word in str(raised.value)
    assert str(raised.value).startswith("INVALID_GRAPH: a.bin: ")


def taken(**options: Any) -> list[str]:
    model = ir.serde.deserialize_model(mlp(layers=1))
    return [node.op_type for node in reference(**options).get_capability(model).nodes]


def test_ops_and_exclude_ops_choose_among_what_the_cpu_ep_runs() -> None:
    assert taken() == ["MatMul", "Add", "Relu", "Tanh"]
    assert taken(ops=("MatMul", "ai.onnx::Tanh")) == ["MatMul", "Tanh"]
    assert taken(exclude_ops=("MatMul",)) == ["Add", "Relu", "Tanh"]
    assert taken(ops=("MatMul", "Add"), exclude_ops=("Add",)) == ["MatMul"]


def test_a_declined_node_has_its_reason() -> None:
    model = ir.serde.deserialize_model(mlp(layers=1))
    declined = reference(ops=("MatMul",), exclude_ops=("Relu",)).get_capability(model).declined
    reasons = {node.op_type: reason for node, reason in declined.items()}
    assert reasons["Relu"] == "option exclude_ops leaves it out"
    assert reasons["Tanh"] == "option ops does not name it"


@pytest.mark.parametrize("option", ["ops", "exclude_ops"])
def test_an_op_that_there_is_not_is_refused(option: str) -> None:
    with pytest.raises(ManifestError, match='did you mean "MatMul"'):
        taken(**{option: ("Matmull",)})
    with pytest.raises(ManifestError, match="acme"):
        taken(**{option: ("acme::Conv",)})


def test_a_plan_that_asks_for_a_fingerprint_imports_nothing_heavy() -> None:
    code = (
        "import sys; from epctx.providers.reference import ReferenceExecutionProvider as R;"
        "R({}).fingerprint();"
        "print(*[m for m in ('numpy', 'onnx', 'onnx_ir', 'onnxruntime') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.split() == [], printed.stderr
    assert printed.returncode == 0
