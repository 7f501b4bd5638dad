"""After dump: EPContext models joined into one, with every file that it needs (design section 6).

Source: spec/ep-context-design.md, "The EP should support multiple EP contexts within a single
model, enabling users to merge and interconnect EPContext nodes generated from different models".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.files import outputs
from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile, context_file
from epctx.graph import epcontext
from epctx.graph.epcontext import OVERRIDES, EPContextNode, Payload
from epctx.graph.join import join, wiring
from epctx.graph.join.parts import Part
from epctx.graph.join.wiring import Wiring
from epctx.graph.partition.contexts import bind_ends
from epctx.graph.serde import canonical, skeleton
from epctx.graph.weights.data_file import DataFile
from epctx.providers.base import ExecutionProvider
from epctx.stages.joined_files import JoinedFiles
from epctx.verification.eps import Providers
from epctx.verification.numbers.composed import interfaces, outputs_of, where
from epctx.verification.request import BuiltPart, Composed


class ComposedOutput(Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        files: the model, and what it needs beside it; without SHA256SUMS.
        wiring: who feeds whom in it.
    """

    files: tuple[OutputFile, ...]
    wiring: Wiring


def run(
    composed: Composed, contents: Mapping[str, Mapping[str, Digest]], folder: Path
) -> ComposedOutput:
    """Join the parts into `folder / <composition>_ctx.onnx`, with every file that it needs.

    Args:
        composed: the composition and its parts, which are built.
        contents: of each group the BLAKE3 digests of its files.
        folder: an empty folder.

    Raises:
        ManifestError: names clash; says which prefix would help. Parts that cannot be in one model.
        ModelError: types or shapes of two ends that meet differ, or opsets do.
        StorageError: the disk refuses, or a file of a part is not what was built.
    """
    composition = composed.composition
    place = where(composition)
    wired = wiring.resolve(interfaces(composed), outputs_of(composition), where=place)
    files = JoinedFiles(contents, taken=context_file(composition.name), where=place)
    providers = Providers.of_group(composed.providers)
    contexts = _Contexts(files, providers, embed=composition.embed_mode == 1, where=place)
    parts = []
    for built in composed.parts:
        model = canonical.read(DataFile.open(built.path))
        nodes, values = contexts.adopt(model, built)
        tensors = skeleton.external_tensors(skeleton.read(built.path))
        data = {skeleton.location(tensor) for tensor in tensors}
        parts.append(
            Part(
                name=built.part.name,
                model=model,
                prefix=built.part.prefix,
                fixed=nodes,
                kept=values,
                data={location: files.add(built, location) for location in sorted(data)},
                group=built.part.group,
            )
        )
    contexts.merge()
    contexts.embed()
    whole = join.join(composition.name, parts, wired, where=place)
    bind_ends(whole.graph)
    written = [*files.write(folder)]
    written.append(outputs.write(folder / files.taken, canonical.chunks(whole)))
    return ComposedOutput(files=tuple(written), wiring=wired)


class _Contexts:
    """The contexts of the whole: files beside it, or embedded.

    Args:
        files: the files of the whole.
        providers: the EPs of the parts.
        embed: put every context binary into the first node that refers to it.
    """

    def __init__(
        self, files: JoinedFiles, providers: Providers, *, embed: bool, where: str
    ) -> None:
        self._files = files
        self._providers = providers
        self._embed = embed
        self._where = where
        self._uses: dict[str, list[tuple[ir.Node, ExecutionProvider | None]]] = {}
        self._graphs: dict[tuple[object, ...], str] = {}
        self._embedded: dict[int, str] = {}
        self._without: list[ir.Node] = []

    def adopt(self, model: ir.Model, built: BuiltPart) -> tuple[set[str], set[str]]:
        """Let a part's nodes refer to the files of the whole.

        Returns the names of EPContext nodes and of values that stay: an EP finds something by them.
        """
        names, values = set[str](), set[str]()
        for node in model.graph:
            if not epcontext.is_epcontext(node):
                continue
            read = EPContextNode.from_ir(node)
            provider = self._providers.find(read.source or "")
            if provider is None or provider.finds_graphs_by == "name":
                names.add(read.name)
            if provider is None or provider.binds_by_name:
                values.update(epcontext.ends(node))
            elif OVERRIDES in provider.extra_attributes:
                node.meta[epcontext.ENDS] = epcontext.ends(node)
            path = read.context_path
            content: object = read.ep_cache_context
            if path is not None:
                content = new = self._files.add(built, path)
                _set(node, ep_cache_context=Payload(new.encode()))
                self._uses.setdefault(new, []).append((node, provider))
            elif not read.main_context:
                self._without.append(node)
            elif provider is not None and provider.reads_one_binary:
                self._require_one(provider, built)
            self._require_new(read, content, built)
        return names, values

    def _require_one(self, provider: ExecutionProvider, built: BuiltPart) -> None:
        """What is embedded already cannot be merged."""
        first = self._embedded.setdefault(id(provider), built.part.name)
        if first != built.part.name:
            raise ManifestError(
                f"the parts {first} and {built.part.name} embed their contexts, and one session "
                f"reads one context of {provider.name}",
                where=self._where,
                remedy="write embed_mode: 0 in the groups of the parts; the composition may embed",
                code=Code.COMPOSITION,
            )

    def merge(self) -> None:
        """Make one binary of several, for EPs of which a session reads one."""
        of_provider: dict[int, list[str]] = {}
        for name, uses in self._uses.items():
            of_provider.setdefault(id(uses[0][1]), []).append(name)
        for names in of_provider.values():
            provider = self._uses[names[0]][0][1]
            if len(names) < 2 or provider is None or not provider.reads_one_binary:
                continue
            first, *others = names
            self._files.merge(names, provider)
            for name in others:
                uses = self._uses.pop(name)
                self._uses[first] += uses
                for node, _ in uses:
                    _set(node, ep_cache_context=Payload(first.encode()))

    def _require_new(self, node: EPContextNode, content: object, built: BuiltPart) -> None:
        """One compiled graph is once in a session."""
        if not node.main_context or content is None or node.partition_name is None:
            return
        graph = (node.source, content, node.partition_name)
        first = self._graphs.setdefault(graph, built.part.name)
        if first != built.part.name:
            raise ManifestError(
                f"the parts {first} and {built.part.name} are one compiled model",
                where=self._where,
                why="an execution provider loads a graph of a context once",
                remedy="give it a second key in `models`, with the same path, and build both",
                code=Code.COMPOSITION,
            )

    def embed(self) -> None:
        """Put the binaries into the nodes, if that is asked for."""
        if not self._embed:
            return
        for node in self._without:
            _set(node, embed_mode=1)
        natives: dict[int, str] = {}
        for name, uses in self._uses.items():
            (head, provider), *others = uses
            if provider is None or provider.native:
                first = natives.setdefault(id(provider), name)
                several = first != name and any(len(self._uses[each]) > 1 for each in (first, name))
                if several:
                    raise ManifestError(
                        f"{first} and {name} cannot both be embedded",
                        where=f"{self._where}.embed_mode",
                        why="a node without a context of its own does not say whose it shares",
                        remedy="write embed_mode: 0",
                        code=Code.COMPOSITION,
                    )
            payload = Payload(self._files.take(name))
            _set(head, ep_cache_context=payload, embed_mode=1)
            for node, _ in others:
                node.attributes.pop("ep_cache_context")
                _set(node, embed_mode=1, main_context=0)


def _set(node: ir.Node, **values: int | Payload) -> None:
    for name, value in values.items():
        if isinstance(value, Payload):
            node.attributes[name] = ir.Attr(name, ir.AttributeType.STRING, value)
        else:
            node.attributes[name] = ir.AttrInt64(name, value)
