"""`partition.exclude`."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import ManifestError
from epctx.manifest import PartitionSettings
from epctx.providers.default import registered
from epctx.stages.exclusion import Exclusion, Unmatched, refuse_unmatched


def node(op_type: str, name: str = "", domain: str = "") -> ir.Node:
    return ir.Node(domain, op_type, [], name=name)


def exclusion(*, op_types: tuple[str, ...] = (), nodes: tuple[str, ...] = ()) -> Exclusion:
    return Exclusion(PartitionSettings(exclude_op_types=op_types, exclude_nodes=nodes))


@pytest.mark.parametrize(
    ("entry", "domain", "excluded"),
    [
        ("TopK", "", True),
        ("ai.onnx::TopK", "", True),
        ("::TopK", "", True),
        ("TopK", "com.microsoft", False),
        ("com.microsoft::TopK", "com.microsoft", True),
        ("com.microsoft::TopK", "", False),
        ("Topk", "", False),
    ],
)
def test_op_types(entry: str, domain: str, excluded: bool) -> None:
    reason = exclusion(op_types=(entry,)).reason(node("TopK", domain=domain))
    assert reason == (f"excluded by manifest: op type {entry}" if excluded else None)


@pytest.mark.parametrize(
    ("pattern", "name", "excluded"),
    [
        ("/head/*", "/head/proj/MatMul", True),
        ("/head/*", "/body/head/MatMul", False),
        ("*/head/*", "/body/head/MatMul", True),
        ("mm?", "mm1", True),
        ("mm?", "mm10", False),
        ("mm[12]", "mm2", True),
        ("MM1", "mm1", False),
        ("mm1", "mm1\n", False),
    ],
)
def test_node_names(pattern: str, name: str, excluded: bool) -> None:
    reason = exclusion(nodes=(pattern,)).reason(node("MatMul", name))
    assert reason == (f'excluded by manifest: node name "{pattern}"' if excluded else None)


NODES = [node("TopK", "/head/TopK"), node("MatMul", "/body/MatMul"), node("Gelu", "g", "foo")]


def test_what_matches_nothing_is_reported_with_the_nearest_name() -> None:
    found = exclusion(
        op_types=("TopK", "Topk", "foo::Gellu", "Conv"), nodes=("/head/*", "/haed/*")
    ).unmatched(NODES, registered)
    assert found == (
        Unmatched(key="op_types", entry="Topk", near="TopK"),
        Unmatched(key="op_types", entry="foo::Gellu", near="foo::Gelu"),
        Unmatched(key="nodes", entry="/haed/*", near=None),
    )


def test_an_entry_that_one_model_of_the_group_matches_is_right() -> None:
    settings = exclusion(nodes=("/head/*",))
    refuse_unmatched(
        [settings.unmatched(NODES, registered), settings.unmatched([], registered)], where="group g"
    )
    refuse_unmatched([], where="group g")


def test_an_entry_of_one_model_is_not_blamed_with_those_that_no_model_matches() -> None:
    settings = exclusion(op_types=("Topk",), nodes=("/body/MatMul",))
    one = settings.unmatched([node("TopK", "/body/Matmul")], registered)
    two = settings.unmatched([node("MatMul", "/body/MatMul")], registered)
    assert Unmatched(key="nodes", entry="/body/MatMul", near="/body/Matmul") in one
    with pytest.raises(ManifestError) as caught:
        refuse_unmatched([one, two], where="group g")
    assert 'matches partition.exclude.op_types "Topk" (did you mean "TopK"?)' in str(caught.value)
    assert "MatMul" not in str(caught.value), "the second model has such a node"


def test_the_nearest_name_is_told_wherever_the_model_that_has_it_stands() -> None:
    settings = exclusion(nodes=("/body/Matmul",))
    found = settings.unmatched(NODES, registered), settings.unmatched([], registered)
    assert found[1] == (Unmatched(key="nodes", entry="/body/Matmul", near=None),)
    for models in (found, found[::-1]):
        with pytest.raises(ManifestError, match='did you mean "/body/MatMul"'):
            refuse_unmatched(models, where="group g")


def test_an_entry_that_no_model_matches_is_an_error_that_names_the_nearest() -> None:
    settings = exclusion(op_types=("Topk",), nodes=("/tail/*", "/body/Matmul"))
    found = settings.unmatched(NODES, registered)
    other = settings.unmatched([node("Relu", "r")], registered)
    with pytest.raises(ManifestError) as caught:
        refuse_unmatched([other, found], where="group g")
    text = str(caught.value)
    assert 'exclude.op_types "Topk" (did you mean "TopK"?)' in text
    assert 'exclude.nodes "/body/Matmul" (did you mean "/body/MatMul"?)' in text
    assert 'exclude.nodes "/tail/*"' in text
    assert text.startswith("group g: ")
    assert caught.value.exit_code == 3
