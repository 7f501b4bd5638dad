"""Where nodes are in a source model, and which line of code they were exported from.

Exporters write the latter into a node's metadata: torch (2.13) the trace of the module's code, and
the scopes of its modules, by which a layer is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import onnx

from epctx.graph.serde import opening

_TRACE: Final = "pkg.torch.onnx.stack_trace"
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_LINE: Final = re.compile(r'File "(?P<path>[^"\n]{1,300})", line (?P<line>\d+)')
_SCOPE: Final = re.compile(r"'([^']{0,200})'")
_PACKAGES: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


def locations(path: Path, names: Collection[str]) -> Mapping[str, str]:
    """Where nodes of these names are in the model at `path`; those that are not there have none.

    A node that a pass made of another has the other's name, and `/` with its own operator after it.
    A node without a name is called after its outputs.

    Raises:
        ModelError: there is no model at `path`.
    """
    file = opening.open_model(path)
    model, _ = opening.parse(file, threshold=0, location="-", where=path.name)
    known = {_name(node): place for place, node in enumerate(model.graph.node)}
    found = {
        name: next((known[each] for each in _made_of(name) if each in known), None)
        for name in names
    }
    return {
        name: _words(place, model.graph.node[place])
        for name, place in found.items()
        if place is not None
    }


def _name(node: onnx.NodeProto) -> str:
    return node.name or f"-> {', '.join(filter(None, node.output))}"


def _made_of(name: str) -> Iterator[str]:
    """The name, then what is before its last slash, and so on."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _words(place: int, node: onnx.NodeProto) -> str:
    told = {entry.key: entry.value for entry in node.metadata_props}
    lines = list(_LINE.finditer(told.get(_TRACE, "")))
    scopes = _SCOPE.findall(told.get(_SCOPES, ""))
    words = f"node {place}"
    if any(scopes):
        words += f", {'/'.join(filter(None, scopes[-2:]))}"
    if lines:
        words += f", {_PACKAGES.sub('', lines[-1]['path'])}:{lines[-1]['line']}"
    return words
