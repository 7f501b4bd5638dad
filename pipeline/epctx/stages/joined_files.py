"""The files beside a composition's model: each content once, each name once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.files import outputs
from epctx.files.digest import Buffer, Digest, of_chunks
from epctx.files.outputs import SUMS, OutputFile
from epctx.graph.weights.data_file import DataFile
from epctx.providers.base import ExecutionProvider
from epctx.verification.request import BuiltPart


class _File(Struct, kw_only=True):
    """A file of the whole.

    Attributes:
        part: the part that it is named for.
        sources: the files of parts that it comes from, with their digests; several are merged.
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
        """Raise StorageError unless each source is what was built."""
        for path, digest in self.sources.items():
            if of_chunks(DataFile.open(path).chunks()) != digest:
                raise outputs.changed(path)


class JoinedFiles:
    """The files beside the model: each content once, each name once.

    Args:
        contents: of each group the digests of its files.
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
        """The name in the whole of a file of a part."""
        digest = self._contents[built.part.group][name]
        known = self._by_content.get(digest)
        if known is not None:
            return known
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
        """Let the first of several files be all of them, merged."""
        first, *others = (self._files[name] for name in names)
        for file in others:
            first.sources |= file.sources
        first.merge = provider
        for name in names[1:]:
            del self._files[name]

    def take(self, name: str) -> bytes:
        """The content of a file that is not needed as one any more.

        Raises:
            StorageError: it is not what was built.
        """
        file = self._files.pop(name)
        file.check()
        return b"".join(bytes(chunk) for chunk in file.chunks())

    def write(self, folder: Path) -> Iterator[OutputFile]:
        """Copy the files.

        Raises:
            StorageError: the disk refuses, or a file is not what was built.
        """
        for name, file in self._files.items():
            if file.merge is not None:
                file.check()
            written = outputs.write(folder / name, file.chunks())
            path, digest = next(iter(file.sources.items()))
            if file.merge is None and written.blake3 != digest:
                raise outputs.changed(path)
            yield written
