"""What is in the context binaries, as far as their EPs can tell without loading them.

An EP may load a damaged binary and compute wrong numbers, or end the process (real-eps.md section
5); without SHA256SUMS nothing else tells that a file is another one, like the pointer that Git LFS
leaves in its place.
"""

from __future__ import annotations

from collections.abc import Iterator

from epctx.errors import InvalidGraph, ProviderUnavailable
from epctx.policies import paths
from epctx.policies.subject import REBUILD, Fault, Subject
from epctx.providers.hooks import ReadsBinaries

HEAD_SIZE = 4096
"""Bytes by which a provider recognizes its binaries."""


def readable(subject: Subject) -> Iterator[Fault]:
    """Every context file of an EP of ONNX Runtime is one of its own, and whole.

    A provider that loads its contexts itself answers for them when it does.
    """
    seen: set[str] = set()
    for node in subject.model.nodes:
        name = node.context_path
        provider = subject.folder.providers.find(node.source or "")
        if name is None or name in seen or provider is None or not provider.native:
            continue
        if not isinstance(provider, ReadsBinaries):
            continue
        seen.add(name)
        if paths.objection(name) or paths.missing(subject.folder.path, name):
            continue  # told by the check of `ep_cache_context`
        path = subject.folder.path / name
        if path.stat().st_size == 0:
            continue  # told there, too
        with path.open("rb") as stream:
            head = stream.read(HEAD_SIZE)
        if not provider.recognizes(head):
            yield Fault(message=f"'{name}' is no context binary of {provider.name}", remedy=REBUILD)
            continue
        try:
            provider.inspect_binary(path)
        except InvalidGraph as error:
            yield Fault(message=f"'{name}' {error.what}: {error.why}", remedy=error.remedy)
        except ProviderUnavailable as error:
            yield Fault(
                message=f"'{name}': {error.what}", remedy=error.remedy, outcome="not checkable"
            )
