"""What is asked for is counted as it would be made, before it is made."""

from __future__ import annotations

import pytest

from epctx.parsing import precedence
from epctx.parsing.document import build
from epctx.parsing.document.tree import Node
from epctx.parsing.rules import check

TEXT = """
defaults: {embed_mode: 1}
model_groups: {a: {models: [x]}, b: {models: [y, z], timeout: 5m}}
compose: {c: {parts: {x: {group: a}}}}
"""
COMPOSED = 5
TARGETS = ("{}", "{include: [a, none]}", "{exclude: [a, none]}", "{include: [a, b], exclude: [b]}")


def root(targets: str = "") -> Node:
    return build.build(TEXT + targets, file="m.yaml").root


def counted(node: Node) -> int:
    """The values of the groups that `precedence` makes, one by one."""
    return sum(check.values(group.node) for t in precedence.targets(node) for group in t.groups)


@pytest.mark.parametrize("what", TARGETS)
def test_groups_are_counted_for_each_target_that_builds_them(what: str) -> None:
    alone = root(f"targets: {{t: {what}}}")
    target = alone.get("targets", "t")
    assert target is not None
    groups = len(precedence.built(alone, target))  # their mapping and that of the defaults are two
    expected = counted(alone) + groups + COMPOSED + check.values(target)
    assert check.resolved_values(alone) == expected


def test_more_than_the_limit_is_refused_at_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    many = root("targets: {" + ", ".join(f"t{n}: {{}}" for n in range(10)) + "}")
    assert check.check_size(many) == []
    monkeypatch.setenv("EPCTX_LIMIT_MANIFEST_VALUES", "100")
    (problem,) = check.check_size(many)
    assert problem.path == ("targets",) and "more than 100" in problem.what
    assert "raise EPCTX_LIMIT_MANIFEST_VALUES" in problem.remedy
