"""Local rewrite rules: a pattern of nodes, and its replacement.

    Rule(
        name="not-not",
        pattern=Op("Not", Op("Not", Var("x"))),
        replace=lambda match: match["x"],
    )

A pattern is matched backwards from its last node. Inner nodes may have other uses: they stay, and
dead code elimination removes unused ones. `replace` gets the match and returns the value that
replaces the last node's first output, or None if the rule does not apply; `match.op` makes new
nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from msgspec import Struct, field

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass
from epctx.graph.passes.shapes import NodeInference


class Var(Struct, frozen=True):
    """Matches any value, under a name; the same name matches the same value."""

    name: str


@dataclass(frozen=True)
class Op:
    """Matches the first output of a node of the default domain.

    Attributes:
        op_type: one op type, or several alternatives.
        inputs: patterns of the first inputs; further inputs are ignored.
        name: name of the node in the match.
    """

    op_type: str | tuple[str, ...]
    inputs: tuple[Op | Var, ...] = ()
    name: str = ""

    def __init__(self, op_type: str | tuple[str, ...], *inputs: Op | Var, name: str = "") -> None:
        object.__setattr__(self, "op_type", op_type)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "name", name)

    @property
    def op_types(self) -> tuple[str, ...]:
        """Op types that match."""
        return (self.op_type,) if isinstance(self.op_type, str) else self.op_type


class Match(Struct):
    """A match of a pattern.

    Attributes:
        root: the last node of the pattern.
        version: the opset version of the default domain.
        new_nodes: nodes made by `op`, in order; they are inserted before the root.
    """

    root: ir.Node
    version: int
    editor: edit.Editor
    values: dict[str, ir.Value] = field(default_factory=dict)
    nodes: dict[str, ir.Node] = field(default_factory=dict)
    new_nodes: list[ir.Node] = field(default_factory=list)

    def __getitem__(self, name: str) -> ir.Value:
        return self.values[name]

    @property
    def output(self) -> ir.Value:
        """Value that is replaced."""
        return self.root.outputs[0]

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr] = (),
    ) -> ir.Value:
        """Make a node, named after the root; return its output."""
        output = ir.Value(name=self.editor.free_name(f"{self.output.name}/{op_type}"))
        name = self.editor.free_name(f"{self.root.name or self.output.name}/{op_type}")
        self.new_nodes.append(
            ir.Node("", op_type, inputs, attributes=attributes, outputs=[output], name=name)
        )
        return output

    def constant(self, tensor: ir.TensorProtocol) -> ir.Value:
        """Make an initializer of the root's graph."""
        tensor.name = f"{self.output.name}/constant"
        return self.editor.initializer(edit.graph_of(self.output), tensor)


class Rule(Struct, frozen=True, kw_only=True):
    """A rewrite of `pattern` by the value that `replace` returns.

    Attributes:
        name: name in the record's counts.
        since: first opset version of the default domain for which the rule is right.
    """

    name: str
    pattern: Op
    replace: Callable[[Match], ir.Value | None]
    since: int = 1


class RewritePass(CountingPass):
    """Apply rules to every graph of a model until none applies."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules: defaultdict[str, list[Rule]] = defaultdict(list)
        for rule in rules:
            for op_type in rule.pattern.op_types:
                self._rules[op_type].append(rule)

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return counts of applications by rule."""
        rewriting = _Rewriting(self._rules, model)
        for graph in model.graphs():
            for node in graph:
                rewriting.node(node)
        while rewriting.again:
            rewriting.node(rewriting.again.pop())
        return rewriting.changed


class _Rewriting:
    def __init__(self, rules: Mapping[str, Sequence[Rule]], model: ir.Model) -> None:
        self._rules = rules
        self._version = edit.opset(model)
        self._editor = edit.Editor(model)
        self._inference = NodeInference(model)
        self.changed: Counter[str] = Counter()
        self.again: list[ir.Node] = []

    def node(self, node: ir.Node) -> None:
        """Apply the first rule that fits a node; nodes that follow may match again."""
        if node.graph is None or node.domain:
            return
        for rule in self._rules.get(node.op_type, ()):
            if self._version >= rule.since and self._try(rule, node):
                self.changed[rule.name] += 1
                return

    def _try(self, rule: Rule, node: ir.Node) -> bool:
        match = Match(root=node, version=self._version, editor=self._editor)
        if not _matches(rule.pattern, node, match):
            return False
        if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
            return False
        new = rule.replace(match)
        if new is None:
            return False
        graph = edit.graph_of(match.output)
        graph.insert_before(node, match.new_nodes)
        typed, moved = (new.type, new.shape), match.output.consumers()
        if not self._editor.substitute(match.output, new):
            return False
        edit.remove(node)
        for new_node in match.new_nodes:
            self._inference.infer(new_node)
        self.again += match.new_nodes
        # Nothing has changed for readers that `new` had before, unless more is known of it.
        self.again += moved if (new.type, new.shape) == typed else new.consumers()
        return True


def _matches(pattern: Op | Var, at: ir.Node | ir.Value | None, match: Match) -> bool:
    if isinstance(pattern, Var):
        return isinstance(at, ir.Value) and match.values.setdefault(pattern.name, at) is at
    if isinstance(at, ir.Value):
        at = at.producer() if at.index() == 0 else None
    if not isinstance(at, ir.Node) or not edit.is_op(at, *pattern.op_types):
        return False
    if len(at.inputs) < len(pattern.inputs):
        return False
    if pattern.name:
        match.nodes[pattern.name] = at
    return all(
        _matches(inner, value, match)
        for inner, value in zip(pattern.inputs, at.inputs, strict=False)
    )
