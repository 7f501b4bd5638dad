"""Wiring of a composition: the source of each input, and the whole's inputs and outputs.

This module knows only names and types; `graph.join` changes the graphs. Code that runs the parts
one after the other follows the same wiring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx
from msgspec import Struct, field

from epctx.error_codes import Code
from epctx.errors import ManifestError, ModelError
from epctx.graph import inputs as graph_inputs
from epctx.graph.inputs import InputSpec
from epctx.text import did_you_mean


class Port(Struct, frozen=True, kw_only=True):
    """An input or output of a part."""

    part: str
    name: str

    def __str__(self) -> str:
        return f"{self.part}.{self.name}"


class Interface(Struct, frozen=True, kw_only=True):
    """Inputs and outputs of a part, and the manifest's settings for them.

    Attributes:
        inputs: inputs without an initializer.
        prefix: prefix of the names that the part brings to the whole.
        links: input to the output of an earlier part that feeds it.
        outer: input to the input of the whole that feeds it.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[InputSpec, ...]
    prefix: str = ""
    links: Mapping[str, Port] = field(default_factory=dict)
    outer: Mapping[str, str] = field(default_factory=dict)

    def input(self, name: str) -> InputSpec:
        """Return the input of this name, which exists."""
        return next(spec for spec in self.inputs if spec.name == name)

    def output(self, name: str) -> InputSpec:
        """Return the output of this name, which exists."""
        return next(spec for spec in self.outputs if spec.name == name)


class Wiring(Struct, frozen=True, kw_only=True):
    """Connections of the parts with each other and with the whole.

    Attributes:
        links: input of a part to the output that feeds it.
        inputs: input of the whole, in order, to the inputs of parts that it feeds.
        outputs: output of the whole, in order, to the output of the part that makes it.
    """

    links: Mapping[Port, Port]
    inputs: Mapping[str, tuple[Port, ...]]
    outputs: Mapping[str, Port]


def outputs(model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """Return a model's outputs with their types."""
    return tuple(map(graph_inputs.spec, model.graph.output))


def resolve(parts: Sequence[Interface], wanted: Mapping[str, Port] | None, *, where: str) -> Wiring:
    """Connect parts, given in the order in which they run.

    Args:
        wanted: the whole's outputs; None for all outputs that no part takes.
        where: the composition, for messages.

    Raises:
        ManifestError: a name that no part has; two origins of one input; a name that would be in
            the whole twice, with the prefix that helps.
        ModelError: two ends that meet are of different types or shapes.
    """
    links: dict[Port, Port] = {}
    inputs: dict[str, list[Port]] = {}
    for place, part in enumerate(parts):
        _require_known(part, where)
        for spec in part.inputs:
            port = Port(part=part.name, name=spec.name)
            origin = _origin(part, spec.name, parts[:place], where)
            if origin is not None:
                links[port] = origin
            else:
                outer = part.outer.get(spec.name, part.prefix + spec.name)
                inputs.setdefault(outer, []).append(port)
    by_name = {part.name: part for part in parts}
    for port, origin in links.items():
        source = by_name[origin.part].output(origin.name)
        _require_alike(source, str(origin), by_name[port.part].input(port.name), str(port), where)
    for outer, ports in inputs.items():
        _require_one_input(outer, ports, by_name, where)
    return Wiring(
        links=links,
        inputs={name: tuple(ports) for name, ports in inputs.items()},
        outputs=_outputs(parts, wanted, frozenset(links.values()), inputs, where),
    )


def free_prefix(part: str, taken: Collection[str], names: Iterable[str]) -> str:
    """Return a prefix for a part with which none of its `names` is in `taken`."""
    prefix, own = f"{part}_", tuple(names)
    while any(prefix + name in taken for name in own):
        prefix += "_"
    return prefix


def _require_known(part: Interface, where: str) -> None:
    """Raise ManifestError if the manifest names an input that the part does not have."""
    names = [spec.name for spec in part.inputs]
    for name in (*part.links, *part.outer):
        if name not in names:
            raise ManifestError(
                f'the part {part.name} has no input "{name}"',
                where=f"{where}.parts.{part.name}.inputs",
                remedy=did_you_mean(name, names),
                code=Code.COMPOSITION,
            )


def _origin(part: Interface, name: str, before: Sequence[Interface], where: str) -> Port | None:
    """Return the output that feeds an input: the manifest's, else one of the same name."""
    if name in part.links:
        origin = part.links[name]
        maker = next(each for each in before if each.name == origin.part)
        _require_output(maker, origin, f"{where}.parts.{part.name}.inputs")
        return origin
    if name in part.outer:
        return None
    makers = [each.name for each in before if any(o.name == name for o in each.outputs)]
    if len(makers) > 1:
        raise ManifestError(
            f'the parts {" and ".join(makers)} make "{name}", and {part.name} takes only one',
            where=f"{where}.parts.{part.name}.inputs",
            remedy=f"say which: {name}: {{part: {makers[-1]}, output: {name}}}",
            code=Code.COMPOSITION,
        )
    return Port(part=makers[0], name=name) if makers else None


def _require_output(maker: Interface, output: Port, where: str) -> None:
    names = [spec.name for spec in maker.outputs]
    if output.name not in names:
        raise ManifestError(
            f'the part {maker.name} has no output "{output.name}"',
            where=where,
            remedy=did_you_mean(output.name, names),
            code=Code.COMPOSITION,
        )


def _require_one_input(
    outer: str, ports: Sequence[Port], parts: Mapping[str, Interface], where: str
) -> None:
    """Raise an error unless the manifest gives the input to all of these parts, with one type."""
    if len(ports) == 1:
        return
    first, *others = ports
    for port in others:
        own = parts[port.part]
        if not all(p.name in parts[p.part].outer for p in (first, port)):
            taken = {parts[p.part].prefix + s.name for p in ports for s in parts[p.part].inputs}
            prefix = free_prefix(own.name, taken, (s.name for s in own.inputs))
            raise ManifestError(
                f'the parts {first.part} and {port.part} both bring an input "{outer}"',
                where=f"{where}.parts.{port.part}",
                remedy=f"give {port.part} a prefix, `prefix: {prefix}`; or feed both from one "
                f"input, writing {{input: {outer}}} in the `inputs` of each",
                code=Code.COMPOSITION,
            )
        one = parts[first.part].input(first.name)
        _require_alike(one, str(first), own.input(port.name), str(port), where)


def _outputs(
    parts: Sequence[Interface],
    wanted: Mapping[str, Port] | None,
    linked: Collection[Port],
    inputs: Collection[str],
    where: str,
) -> Mapping[str, Port]:
    by_name = {part.name: part for part in parts}
    if wanted is not None:
        for port in wanted.values():
            _require_output(by_name[port.part], port, f"{where}.outputs")
        for name in wanted:
            if name in inputs:
                raise ManifestError(
                    f'the output "{name}" has the name of an input of the composition',
                    where=f"{where}.outputs",
                    remedy="give the output another name",
                    code=Code.COMPOSITION,
                )
        return dict(wanted)
    outputs: dict[str, Port] = {}
    for part in parts:
        for spec in part.outputs:
            port = Port(part=part.name, name=spec.name)
            if port in linked:
                continue
            name = part.prefix + spec.name
            if name in outputs or name in inputs:
                other = outputs[name].part if name in outputs else "the caller"
                taken_names = {*outputs, *inputs}
                prefix = free_prefix(part.name, taken_names, (s.name for s in part.outputs))
                raise ManifestError(
                    f'the outputs and inputs of the composition would have "{name}" twice, from '
                    f"{other} and from {part.name}",
                    where=where,
                    remedy=f"give {part.name} a prefix, `prefix: {prefix}`; or name the outputs "
                    "with `outputs`",
                    code=Code.COMPOSITION,
                )
            outputs[name] = port
    return outputs


def _require_alike(
    source: InputSpec, maker: str, target: InputSpec, taker: str, where: str
) -> None:
    for difference in _differences(source, target):
        raise ModelError(
            f"{maker} and {taker} do not fit: {difference}",
            where=where,
            why=f"{maker} is {source}, {taker} is {target}",
            remedy="connect others with `inputs`, or fix the models' `dimensions` and `shapes`",
            code=Code.SIZE_MISFIT,
        )


def _differences(source: InputSpec, target: InputSpec) -> Iterator[str]:
    if source.kind != target.kind:
        yield "they are of different types"
    elif source.shape != (None,) and target.shape != (None,):
        if len(source.shape) != len(target.shape):
            yield "they are of different rank"
        elif any(
            isinstance(one, int) and isinstance(other, int) and one != other
            for one, other in zip(source.shape, target.shape, strict=True)
        ):
            yield "their shapes differ"
