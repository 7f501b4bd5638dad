"""After dump: EPContext models joined into one, with every file that it needs (design section 6).

Source: spec/ep-context-design.md, "The EP should support multiple EP contexts within a single
model, enabling users to merge and interconnect EPContext nodes generated from different models".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.files import outputs
from epctx.files.digest import Buffer, Digest, of_chunks
from epctx.files.outputs import SUMS, OutputFile, context_file
from epctx.graph import epcontext, join, wiring
from epctx.graph.epcontext import OVERRIDES, EPContextNode, Payload
from epctx.graph.join import Part
from epctx.graph.partition.contexts import bind_ends
from epctx.graph.serde import canonical, reader
from epctx.graph.weights.data_file import DataFile
from epctx.graph.wiring import Wiring
from epctx.providers.base import ExecutionProvider
from epctx.verification.folder import Providers
from epctx.verification.numbers.composed import interfaces, outputs_of, where
from epctx.verification.request import BuiltPart, Composed


class _File(Struct, kw_only=True):
    """A file of the whole.

    Attributes:
        part: the part that it is named after.
        sources: files of parts that it comes from, with their digests; several are merged.
    """

    part: str
    sources: dict[Path, Digest]
    merge: ExecutionProvider | None = None

    def chunks(self) -> Iterator[Buffer]:
        """Return the content, in pieces."""
        if self.merge is not None:
            return self.merge.merge_binaries(list(self.sources))
        return DataFile.open(next(iter(self.sources))).chunks()

    def check(self) -> None:
        """Raise StorageError if a source has changed since it was built."""
        for path, digest in self.sources.items():
            if of_chunks(DataFile.open(path).chunks()) != digest:
                raise outputs.changed(path)


class JoinedFiles:
    """Files beside the model: each content once, each name once.

    Args:
        contents: digests of each group's files.
        taken: the model's own name.
    """

    def __init__(
        self, contents: Mapping[str, Mapping[str, Digest]], *, taken: str, where: str
    ) -> None:
        self.taken = taken
        self._contents = contents
        self._where = where
        self._files: dict[str, _File] = {}
        self._by_content: dict[Digest, str] = {}

    def add(self, built: BuiltPart, name: str) -> str:
        """Add a file of a part; return its name in the whole."""
        digest = self._contents[built.part.group][name]
        if digest in self._by_content:
            return self._by_content[digest]
        in_use = {each.casefold() for each in (*self._files, self.taken, SUMS)}
        wanted = name if name.casefold() not in in_use else built.part.prefix + name
        if wanted.casefold() in in_use:
            prefix = f"{built.part.name}_"
            while (prefix + name).casefold() in in_use:
                prefix += "_"
            other = self._files.get(wanted)
            owner = f"the part {other.part}" if other is not None else "the composition"
            raise ManifestError(
                f'{owner} and the part {built.part.name} both have a file "{wanted}"',
                where=self._where,
                remedy=f"give {built.part.name} a prefix: `prefix: {prefix}`",
                code=Code.OUTPUT_CLASH,
            )
        self._files[wanted] = _File(part=built.part.name, sources={built.folder / name: digest})
        self._by_content[digest] = wanted
        return wanted

    def merge(self, names: Sequence[str], provider: ExecutionProvider) -> None:
        """Merge several files into the first of them."""
        first, *others = (self._files[name] for name in names)
        for file in others:
            first.sources |= file.sources
        first.merge = provider
        for name in names[1:]:
            del self._files[name]

    def take(self, name: str) -> bytes:
        """Remove a file and return its content.

        Raises:
            StorageError: the file has changed since it was built.
        """
        file = self._files.pop(name)
        file.check()
        return b"".join(bytes(chunk) for chunk in file.chunks())

    def write(self, folder: Path) -> Iterator[OutputFile]:
        """Copy the files.

        Raises:
            StorageError: a file cannot be written, or a file has changed since it was built.
        """
        for name, file in self._files.items():
            if file.merge is not None:
                file.check()
            written = outputs.write(folder / name, file.chunks())
            path, digest = next(iter(file.sources.items()))
            if file.merge is None and written.blake3 != digest:
                raise outputs.changed(path)
            yield written


class ComposedOutput(Struct, frozen=True, kw_only=True):
    """Files and wiring of a composition.

    Attributes:
        files: the model and the files that it needs, without SHA256SUMS.
        wiring: connections of its parts.
    """

    files: tuple[OutputFile, ...]
    wiring: Wiring


def run(
    composed: Composed, contents: Mapping[str, Mapping[str, Digest]], folder: Path
) -> ComposedOutput:
    """Join the parts into `folder / <composition>_ctx.onnx`, with every file that it needs.

    Args:
        composed: the composition and its built parts.
        contents: BLAKE3 digests of each group's files.
        folder: an empty folder.

    Raises:
        ManifestError: names clash (the remedy is a prefix), or parts cannot be in one model.
        ModelError: types, shapes or opsets of connected parts differ.
        StorageError: a file cannot be written, or a file of a part has changed since it was built.
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
        tensors = reader.external_tensors(reader.read(built.path))
        data = {reader.location(tensor) for tensor in tensors}
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
    """Contexts of the whole: files beside it, or embedded.

    Args:
        files: the files of the whole.
        providers: the EPs of the parts.
        embed: true to put every context binary into the first node that refers to it.
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

        Returns names of EPContext nodes and of values that must stay: an EP looks for them.
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
        """Refuse a second embedded context of an EP: embedded contexts cannot be merged."""
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
        """Merge the binaries of each EP whose sessions read only one."""
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
        """Refuse a compiled graph that is in the composition twice."""
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
        """Put the binaries into the nodes, if the composition embeds them."""
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
                        why="a node without its own context does not say which one it shares",
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
