"""Check of context binaries, as far as their EPs can read them without loading them.

An EP may load a damaged binary and compute wrong numbers, or end the process (real-eps.md section
5); without SHA256SUMS nothing else tells that a file is another one, like the pointer that Git LFS
leaves in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from epctx.errors import InvalidGraph, ProviderUnavailable
from epctx.files import paths
from epctx.files.outputs import SUMS
from epctx.graph.epcontext import EPContextNode, is_epcontext
from epctx.graph.serde import types
from epctx.providers.base import HEAD_SIZE
from epctx.verification.conformance.subject import Fault, Subject


def readable(subject: Subject) -> Iterator[Fault]:
    """Every context file is one of its EP, and whole, as far as it can tell.

    What an EP checks by itself when it loads (the reference EP) is not read a second time where
    SHA256SUMS, which integrity held it against, answers for its bytes.
    """
    seen: set[str] = set()
    for node in subject.model.nodes:
        name = node.context_path
        provider = subject.folder.providers.find(node.source or "")
        if name is None or name in seen or provider is None:
            continue
        if not provider.native and SUMS in subject.folder.entries:
            continue
        seen.add(name)
        if paths.missing(subject.folder.path, name):
            continue  # told by the check of `ep_cache_context`
        path = subject.folder.path / name
        if path.stat().st_size == 0:
            continue  # told there, too
        with path.open("rb") as stream:
            head = stream.read(HEAD_SIZE)
        try:
            recognized = provider.recognizes(head)
            if recognized is False:
                yield Fault(message=f"'{name}' is no context binary of {provider.name}")
            elif recognized:
                for misfit in provider.misfits(path, _users(subject, name, provider.sources)):
                    yield Fault(message=f"'{name}': {misfit}")
        except InvalidGraph as error:
            yield Fault(message=f"'{name}' {error.what}: {error.why}", remedy=error.remedy)
        except ProviderUnavailable as error:
            yield Fault(
                message=f"'{name}': {error.what}", remedy=error.remedy, outcome="not checkable"
            )


def _users(subject: Subject, path: str, sources: Collection[str]) -> list[ir.Node]:
    """The nodes of the model whose graphs are in a context binary: each that names it, and those
    of `main_context` 0 after it, until the next that names one.
    """
    found: list[ir.Node] = []
    current: str | None = None
    try:
        graph = types.from_proto(subject.proto).graph
    except Exception:  # whatever others' bytes make onnx_ir raise: whoever loads it will tell
        return []
    for node in filter(is_epcontext, graph):
        try:
            context = EPContextNode.from_ir(node)
        except InvalidGraph:
            continue  # told by the check of its attributes
        if context.source not in sources:
            continue
        current = context.context_path if context.main_context else current
        if current == path:
            found.append(node)
    return found
