"""Precedence: defaults < group < target."""

from epctx.parsing import precedence
from epctx.parsing.document import build
from epctx.parsing.document.tree import Node

TEXT = """
defaults: {embed_mode: 1, partition: {min_nodes: 2, exclude: {op_types: [A]}}, models: [z]}
execution_providers: {e: {provider: P, options: {a: 1, b: 2}}}
model_groups:
  one: {models: [x], partition: {min_nodes: 3}}
  two: {models: [y], timeout: 5m}
targets:
  plain:
  changed:
    execution_providers: {e: {options: {b: 3, a: null}}, f: {provider: Q}}
    model_groups: {one: {partition: {exclude: {op_types: [B]}}, embed_mode: 0}}
  some: {include: [two, one], exclude: [one]}
"""


def root(text: str = TEXT) -> Node:
    return build.build(text, file="m.yaml").root


def tree(name: str) -> precedence.TargetTree:
    return next(target for target in precedence.targets(root()) if target.name == name)


def test_defaults_are_below_the_group() -> None:
    one, two = tree("plain").groups
    assert one.node.plain() == {
        "embed_mode": 1,
        "partition": {"min_nodes": 3, "exclude": {"op_types": ["A"]}},
        "models": ["x"],
    }
    assert two.node.plain() == {
        "embed_mode": 1,
        "partition": {"min_nodes": 2, "exclude": {"op_types": ["A"]}},
        "models": ["y"],
        "timeout": "5m",
    }


def test_the_target_is_above_the_group() -> None:
    one, two = tree("changed").groups
    assert one.node.get("embed_mode").value == 0  # type: ignore[union-attr]
    assert one.node.get("partition").plain() == {  # type: ignore[union-attr]
        "min_nodes": 3,
        "exclude": {"op_types": ["B"]},
    }
    assert two.node.get("embed_mode").value == 1  # type: ignore[union-attr]


def test_eps_merge_by_alias_and_option() -> None:
    providers = tree("changed").providers
    assert set(providers) == {"e", "f"}
    options = providers["e"].get("options")
    assert precedence.present(options).keys() == {"b"}
    assert providers["e"].get("provider").value == "P"  # type: ignore[union-attr]
    assert tree("plain").providers["e"].get("options").plain() == {"a": 1, "b": 2}  # type: ignore[union-attr]


def test_include_and_exclude_keep_the_manifests_order() -> None:
    assert [group.name for group in tree("some").groups] == ["two"]
    text = "model_groups: {a: {}, b: {}, c: {}}\ntargets: {t: {include: [c, a]}}"
    (target,) = precedence.targets(root(text))
    assert [group.name for group in target.groups] == ["a", "c"]


def test_groups_that_no_target_builds() -> None:
    text = "model_groups: {a: {}, b: {}}\ntargets: {t: {exclude: [b]}, u: {include: [a]}}"
    rest = precedence.without_target(root(text))
    assert (rest.name, [g.name for g in rest.groups]) == (None, ["b"])
    assert precedence.without_target(root()).groups == ()
