"""Request to verification, as plain data that is sent to a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field

from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile, context_file
from epctx.manifest import Composition, CompositionPart, ModelGroup, ModelSource, ProviderSpec
from epctx.verification.findings import POLICIES, Finding, PolicyName


class Kept(Struct, frozen=True, kw_only=True):
    """Folders of the recorded outputs of one model group (`numbers.recordings`).

    Attributes:
        source: outputs of the source models, or of a composition's parts run one after the other.
        files: outputs of the files that were built.
        generating: outputs of the sessions that compiled the files; None if none were run.
    """

    source: Path
    files: Path
    generating: Path | None = None

    @classmethod
    def below(cls, folder: Path) -> Kept:
        """Make the folders below `folder`, without that of the generating sessions."""
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
        compatibility: string that the EP has to judge; None if the EP is not asked.
        astray: the package names the folder of external data, but not that of context binaries.
    """

    variant: str
    model: str
    ep: str
    compatibility: str | None
    astray: bool = False


class BuiltPart(Struct, frozen=True, kw_only=True):
    """A part of a composition, built: `<folder>/<model>_ctx.onnx`.

    Attributes:
        source: source model of the part.
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
    """A composition and its built parts, in order."""

    composition: Composition
    parts: tuple[BuiltPart, ...]

    @classmethod
    def of(
        cls,
        composition: Composition,
        groups: Iterable[ModelGroup],
        folder: Callable[[str], Path],
    ) -> Composed:
        """Make it from built groups; `folder` returns the folder of a group by its name."""
        by_name = {group.name: group for group in groups}
        parts = (
            BuiltPart(
                part=part,
                source=next(m for m in by_name[part.group].models if m.name == part.model),
                folder=folder(part.group),
                providers=by_name[part.group].execution_providers,
            )
            for part in composition.parts
        )
        return cls(composition=composition, parts=tuple(parts))

    @property
    def providers(self) -> tuple[ProviderSpec, ...]:
        """EPs of one session that runs it, each once; those of the first part come first."""
        specs: list[ProviderSpec] = []
        for part in self.parts:
            for spec in part.providers:
                listed = ((each.provider, each.options) for each in specs)
                if (spec.provider, spec.options) not in listed:
                    specs.append(spec)
        return tuple(specs)


class VerifyRequest(Struct, frozen=True, kw_only=True):
    """One folder to verify.

    Attributes:
        folder: the group folder.
        label: name of the folder in the report.
        models: file names of the models to check; None for the whole folder.
        group: the manifest's group, with the source models; None if unknown.
        composed: parts that the folder is composed of; None if it is no composition, or unknown.
        expected: the lock's entries of the folder's files; None if there is no lock.
        golden_expected: the lock's entries of its golden files and their SHA256SUMS; None if the
            lock has none.
        kept: folders of recorded outputs; None if no model is run.
        passed: files of the folder that passed before and are unchanged. They are neither read for
            integrity nor judged.
        written: files that the build has just written into the folder, with digests. If the SHA-256
            is the one in `SHA256SUMS`, the BLAKE3 of the file is checked instead, in a tenth of the
            time.
        earlier: earlier findings about the folder; no file that failed there is loaded.
        golden: run the golden inputs of the folder, too.
        device: results of a device to judge (`verification.device`); None if there are none.
        policies: policies to apply. The order is fixed.
        data: folders of external data, by model, if it is in another folder.
        claims: claims of a package about the models.
        require: checks that must run, in addition to the manifest's.
        only_pieces: reason why models in pieces are not run as a whole; None if they are.
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
        subjects = (self.group, self.composed and self.composed.composition)
        return {*self.require, *(word for each in subjects if each for word in each.verify.require)}
