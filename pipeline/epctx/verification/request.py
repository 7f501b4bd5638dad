"""Request to verification, as plain data: a job that crosses to a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field

from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile, context_file
from epctx.manifest import Composition, CompositionPart, ModelGroup, ModelSource, ProviderSpec
from epctx.verification.findings import POLICIES, Finding, PolicyName


class Kept(Struct, frozen=True, kw_only=True):
    """Folders of what was computed for one model group (`numbers.recordings`).

    Attributes:
        source: by the source models; by the parts of a composition, run one after the other.
        files: by the files that were built.
        generating: by the sessions that compiled them; None if none were run.
    """

    source: Path
    files: Path
    generating: Path | None = None

    @classmethod
    def below(cls, folder: Path) -> Kept:
        """Return folders below one, which are made, without that of generating sessions."""
        kept = cls(source=folder / "source", files=folder / "files")
        for each in (kept.source, kept.files):
            each.mkdir(parents=True, exist_ok=True)
        return kept


class ExpectedFile(Struct, frozen=True, kw_only=True):
    """Entry of a record (`SHA256SUMS`, the lock) about a file. `name` is bare, `size` in bytes."""

    name: str
    digest: Digest
    size: int | None = None


class Claim(Struct, frozen=True, kw_only=True):
    """Claim of a model package about a model, by which ONNX Runtime selects it.

    Attributes:
        variant: `component/variant`.
        model: its file.
        ep: ONNX Runtime's name of the EP that it is for.
        compatibility: the string that the EP is asked about; None: it is not asked.
        astray: a session is told where external data is, and not where context binaries are.
    """

    variant: str
    model: str
    ep: str
    compatibility: str | None
    astray: bool = False


class BuiltPart(Struct, frozen=True, kw_only=True):
    """A part of a composition, built: `<folder>/<model>_ctx.onnx`.

    Attributes:
        source: what it was built from.
        folder: its group's folder.
        providers: its group's EPs, in priority order.
    """

    part: CompositionPart
    source: ModelSource
    folder: Path
    providers: tuple[ProviderSpec, ...]

    @property
    def path(self) -> Path:
        """The EPContext model."""
        return self.folder / context_file(self.part.model)


class Composed(Struct, frozen=True, kw_only=True):
    """A composition and what it is made of, in the order of its parts."""

    composition: Composition
    parts: tuple[BuiltPart, ...]

    @classmethod
    def of(
        cls,
        composition: Composition,
        groups: Iterable[ModelGroup],
        folder: Callable[[str], Path],
    ) -> Composed:
        """A composition of groups that were built; `folder`: where a group is, by its name."""
        known = {group.name: group for group in groups}
        parts = (
            BuiltPart(
                part=part,
                source=next(m for m in known[part.group].models if m.name == part.model),
                folder=folder(part.group),
                providers=known[part.group].execution_providers,
            )
            for part in composition.parts
        )
        return cls(composition=composition, parts=tuple(parts))

    @property
    def providers(self) -> tuple[ProviderSpec, ...]:
        """The EPs of one session that runs it, each once: those of the first part come first."""
        found: list[ProviderSpec] = []
        for part in self.parts:
            for spec in part.providers:
                known = ((each.provider, each.options) for each in found)
                if (spec.provider, spec.options) not in known:
                    found.append(spec)
        return tuple(found)


class VerifyRequest(Struct, frozen=True, kw_only=True):
    """One folder to verify.

    Attributes:
        folder: the group folder.
        label: how the report calls it.
        models: file names of the models to look at; None: the folder as a whole.
        group: what the manifest asks for, with the source models; None: unknown.
        composed: what the folder is a composition of; None: of nothing, or that is unknown.
        expected: what the lock says of the folder's files; None: no lock.
        golden_expected: what the lock says of its golden files, SHA256SUMS too; None: nothing.
        kept: where what was computed is kept; None: no model is run.
        passed: files of the folder that passed before as they are: they are neither read for
            integrity nor judged.
        written: what the build has just written into the folder, with the digests from then: such
            a file, if that is the SHA-256 that `SHA256SUMS` has, is held to its BLAKE3, which takes
            a tenth of the time.
        earlier: what was found of the folder before: nothing that failed there is loaded.
        golden: run the golden inputs that are in the folder, too.
        device: results of a device (`verification.device`), which are judged; None: there are none.
        policies: which policies to apply. The order is fixed.
        data: models whose external data is in another folder, as a session is told it.
        claims: what a package says of the models.
        require: checks that must run, beside those that the manifest requires.
        only_pieces: why models in pieces are run piece by piece only; None if they are run as a
            whole, too.
    """

    folder: Path
    label: str
    models: tuple[str, ...] | None = None
    group: ModelGroup | None = None
    composed: Composed | None = None
    expected: tuple[ExpectedFile, ...] | None = None
    golden_expected: tuple[ExpectedFile, ...] | None = None
    kept: Kept | None = None
    passed: tuple[str, ...] = ()
    written: tuple[OutputFile, ...] = ()
    earlier: tuple[Finding, ...] = ()
    golden: bool = False
    device: Path | None = None
    policies: tuple[PolicyName, ...] = POLICIES
    data: Mapping[str, Path] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    require: tuple[str, ...] = ()
    only_pieces: str | None = None

    @property
    def checks(self) -> tuple[PolicyName, ...]:
        """The policies that run no model."""
        return tuple(name for name in self.policies if name != "numbers")

    @property
    def required(self) -> set[str]:
        """Checks that must run."""
        asked = (self.group, self.composed and self.composed.composition)
        return {*self.require, *(word for each in asked if each for word in each.verify.require)}
