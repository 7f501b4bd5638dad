"""`epctx inspect`: describe an EPContext model or a context binary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI, facts_table, filled
from epctx.commands.inspect.inspection import BinaryFile, ContextNode, Edge, Inspection, ModelFile
from epctx.errors import VerificationError
from epctx.text import size_words

RIGHT = ("size", "weights")


@declared.by(api.inspect)
def inspect(
    ui: UI,
    call: Callable[..., Inspection],
    file: Path,
    *,
    files: Annotated[
        bool, typer.Option("--files", help="List every file to ship with it, one a line.")
    ] = False,
) -> None:
    inspection = call()
    if files:
        _files(ui, inspection, file.parent)
        return
    ui.emit(inspection)
    if inspection.binary is not None:
        ui.print(*_binary(inspection.binary))
    if inspection.model is not None:
        ui.print(*_model(inspection.model))
    if inspection.damage is not None:
        what, why = inspection.damage
        raise VerificationError(
            "is damaged" if what == file.name else f"{what} is damaged",
            file=file.as_posix(),
            why=why,
            remedy="copy it again from where it was built, or build it again",
        )


def _files(ui: UI, inspection: Inspection, folder: Path) -> None:
    ui.emit(inspection.files)
    for each in inspection.files:
        ui.print(Text((folder / each.name).as_posix(), no_wrap=True, overflow="ignore"))
    missing = [each for each in inspection.files if each.problem is not None]
    if missing:
        raise VerificationError(
            f"needs the {missing[0].kind} '{missing[0].name}', which cannot be shipped",
            where=inspection.files[0].name,
            why=missing[0].problem,
            remedy="copy the file to where the model refers to it, or build the model again",
        )


def _model(model: ModelFile) -> Iterator[RenderableType]:
    kind = "EPContext model" if model.nodes else "ONNX model without EPContext nodes"
    yield _title(model.name, kind, model.size)
    opsets = ", ".join(f"{domain} {version}" for domain, version in sorted(model.opsets.items()))
    yield facts_table(
        {
            "producer": model.producer or "unknown",
            "format": f"IR version {model.ir_version}; opsets {opsets}",
            "inputs": _edges(model.inputs),
            "outputs": _edges(model.outputs),
            "default EP": _operators(model.operators),
            "initializers": _weights(model),
            **{f"fits {ep}": info for ep, info in model.compatibility.items()},
            **{f"metadata {key}": value for key, value in model.metadata.items()},
        }
    )
    for node in model.nodes:
        yield Text.assemble("\n", (node.name or "(no name)", "bold"), "  EPContext node")
        yield facts_table(_node(node))
    for binary in model.binaries:
        yield Text("")
        yield from _binary(binary)
    yield Text("\nto ship", style="bold")
    rows = [(each.name, each.kind, _size(each.size) or each.problem or "") for each in model.files]
    yield filled(("file", "kind", "size"), rows, right=RIGHT)


def _node(node: ContextNode) -> dict[str, str]:
    if node.problem is not None:
        return {"broken": node.problem}
    facts = {"source": node.source or "none", "context": _context(node), **node.attributes}
    if node.unknown:
        facts["not in the op schema"] = ", ".join(node.unknown)
    return {**facts, "inputs": _edges(node.inputs), "outputs": _edges(node.outputs)}


def _context(node: ContextNode) -> str:
    if not node.main_context:
        return "that of another node (main_context 0)"
    if node.embedded is not None:
        return f"embedded, {_size(node.embedded)}"
    return node.context or "none"


def _binary(binary: BinaryFile) -> Iterator[RenderableType]:
    info = binary.info
    yield _title(binary.name, info.kind if info else "context binary", binary.size)
    if binary.problem is not None:
        yield Text(f"  {binary.problem}", style="yellow")
    if info is None:
        return
    facts = dict(info.properties)
    if info.tensors is not None:
        facts["tensors"] = f"{info.tensors} stored"
    if info.stored is not None:
        facts["weights"] = _size(info.stored)
    if info.saved is not None and len(info.graphs) > 1:
        facts["sharing saves"] = _size(info.saved)
    yield facts_table(facts)
    rows = [
        (
            graph.name,
            "" if graph.weights is None else size_words(graph.weights),
            "\n".join(map(str, graph.inputs)),
            "\n".join(map(str, graph.outputs)),
            "\n".join(f"{key} {value}" for key, value in graph.properties.items()),
        )
        for graph in info.graphs
    ]
    if rows:
        yield Text("")
        yield filled(("graph", "weights", "inputs", "outputs", "properties"), rows, right=RIGHT)


def _title(name: str, kind: str, size: int) -> Text:
    return Text.assemble((name, "bold"), f"  {kind}, {_size(size)}")


def _operators(operators: Mapping[str, int]) -> str:
    if not operators:
        return "no node"
    count = sum(operators.values())
    each = ", ".join(f"{op} {n}" if n > 1 else op for op, n in operators.items())
    return f"{count} node{'s' * (count != 1)}: {each}"


def _weights(model: ModelFile) -> str:
    weights = model.weights
    if not weights.tensors:
        return "none"
    words = [f"{weights.tensors} tensor{'s' * (weights.tensors != 1)}"]
    words += [f"{_size(weights.inside)} inside"] if weights.inside else []
    words += [f"{_size(size)} in {name}" for name, size in weights.external.items()]
    return ", ".join(words)


def _edges(edges: tuple[Edge, ...]) -> str:
    return "\n".join(f"{edge.name} {edge.type}" for edge in edges) or "none"


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size_words(size)}" + (f" ({size:,} bytes)" if size >= 1000 else "")
