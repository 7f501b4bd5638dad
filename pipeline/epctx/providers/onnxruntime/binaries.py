"""The context binaries that generating sessions wrote: named, present, and the right ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx_ir as ir

from epctx.errors import CompileError
from epctx.files.digest import CHUNK, Buffer
from epctx.files.outputs import OwnFile
from epctx.graph.epcontext import EPContextNode, Payload
from epctx.providers.base import BinaryGraph, ContextBinary
from epctx.providers.onnxruntime import fragment
from epctx.providers.onnxruntime.ep import OrtEp


class Binaries:
    """The binaries of one session group and EP.

    Args:
        provider: the EP, which may know the format.
        folder: where its sessions write.
        first: the first model of the group, which names them.

    Attributes:
        graphs: what each has for each device that it is for, once it was checked.
    """

    def __init__(self, provider: OrtEp, folder: Path, first: str) -> None:
        self._provider = provider
        self._folder = folder
        self._first = first
        self.graphs: list[Mapping[str, Sequence[BinaryGraph]]] = []
        self._written: dict[str, str] = {}  # a final name to the one that the EP gave

    def name(self, made: ir.Model) -> None:
        """Give the binaries that a fragment refers to their final names, in it.

        The first is `[first model]_[ep].bin`, with or without the prefix that the EP put before
        it; others have a number. The files follow when they are written out: the EPs find a
        renamed binary (real-eps.md section 14).
        """
        known = {written: final for final, written in self._written.items()}
        for written in fragment.binaries(made):
            if written not in known:
                ending = f"_{len(known)}" if known else ""
                known[written] = f"{self._first}{ending}_{self._provider.label}.bin"
                self._written[known[written]] = written
        fragment.rename_binaries(made, known)

    def collect(self, fragments: Sequence[ir.Model], *, shared: bool) -> list[ContextBinary]:
        """All of them, each held against the nodes that refer to it.

        Args:
            fragments: everything that the EP compiled.
            shared: their sessions share one context.

        Raises:
            CompileError: one is missing, or is not of these nodes; there is one too many.
        """
        nodes: dict[str, list[ir.Node]] = {}
        for made in fragments:
            for name in fragment.binaries(made):
                nodes.setdefault(name, []).extend(fragment.contexts(made))
        self._require_files(list(nodes), shared=shared)
        for name in nodes:
            self._provider.canonicalize(self._path(name))
        own = {name: OwnFile(self._path(name)) for name in nodes}
        for name, users in nodes.items():
            self._check(own[name].path, users)
        return [
            ContextBinary(name=name, chunks=partial(_chunks, file.path), file=file)
            for name, file in own.items()
        ]

    def check_embedded(self, fragments: Sequence[ir.Model]) -> None:
        """Hold embedded contexts against their nodes; they say no longer when they were made.

        Raises:
            CompileError: one is not of its nodes.
        """
        for number, made in enumerate(fragments):
            for node in fragment.contexts(made):
                context = EPContextNode.from_ir(node)
                if context.main_context and context.ep_cache_context:
                    path = self._folder / f"{number}.embedded"
                    path.write_bytes(context.ep_cache_context)
                    if self._provider.canonicalize(path):
                        payload = Payload(path.read_bytes())
                        node.attributes["ep_cache_context"] = ir.Attr(
                            "ep_cache_context", ir.AttributeType.STRING, payload
                        )
                    self._check(path, fragment.contexts_of(made, node))

    def _check(self, path: Path, nodes: Sequence[ir.Node]) -> None:
        self._provider.check_binary(path, nodes)
        self.graphs.append(self._provider.graphs(path))

    def _require_files(self, names: Sequence[str], *, shared: bool) -> None:
        for name in names:
            path = self._path(name)
            if not path.is_file() or not path.stat().st_size:
                raise self._wrong(f"a model refers to {path.name}, which is missing or empty")
        if shared and len(names) != 1:
            raise self._wrong(f"the sessions that share refer to {', '.join(names) or 'none'}")
        stray = {path.name for path in self._folder.glob("*.bin")} - set(self._written.values())
        if stray:
            raise self._wrong(f"no model refers to {', '.join(sorted(stray))}")

    def _path(self, name: str) -> Path:
        return self._folder / self._written[name]

    def _wrong(self, why: str) -> CompileError:
        return CompileError(
            f"{self._provider.name} did not write the context binaries that it owes",
            where=f"session group of model {self._first}",
            why=why,
            remedy="report it with the models and the versions of onnxruntime and of the EP",
        )


def _chunks(path: Path) -> Iterator[Buffer]:
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            yield chunk
