"""What is known of a build's models, groups and compositions, and what came of them so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from epctx.actions.compile import CompileResult
from epctx.actions.compose import Compose, ComposeResult
from epctx.actions.optimize import OptimizeResult
from epctx.actions.pieces import CutResult
from epctx.actions.quantize import QuantizeResult
from epctx.actions.record import RecordResult
from epctx.cache import StoredAction
from epctx.engine.plan import PlannedComposition, PlannedGroup, SessionGroup
from epctx.engine.progress import GroupProgress, Progress
from epctx.errors import EpctxError
from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile
from epctx.keys.source_digests import SourceDigests
from epctx.manifest import ModelSource
from epctx.verification.findings import FolderReport, joined

R = TypeVar("R")


class Known(Struct, Generic[R], frozen=True, kw_only=True):
    """An action of this build, as far as it is known.

    Attributes:
        record: what `key` is the digest of; empty where nothing is to be done.
        stored: what it made; None: it is to be carried out.
    """

    key: Digest
    record: Mapping[str, Any]
    stored: StoredAction[R] | None = None

    @property
    def result(self) -> R | None:
        """What came of it; None: it is to be carried out."""
        return None if self.stored is None else self.stored.result

    @property
    def complete(self) -> bool:
        """Nothing is to be carried out."""
        return self.stored is not None


class QuantizeState(Struct, frozen=True, kw_only=True):
    """What is known of how a model is quantized.

    Attributes:
        plain: the float model.
        samples: digests of the files that it is calibrated with, in the manifest's order.
        calibration: the name of its ranges; None: only weights are quantized, or `plain` is not
            optimized yet.
        quantize: its action; None: it is to be calibrated first.
    """

    plain: ModelState
    samples: tuple[Digest, ...] = ()
    calibration: Digest | None = None
    quantize: Known[QuantizeResult] | None = None

    @property
    def key(self) -> Digest | None:
        """Of the action, or what stands in for it."""
        return self.calibration if self.quantize is None else self.quantize.key

    @property
    def result(self) -> QuantizeResult | None:
        """What came of it; None: it is to be carried out."""
        return None if self.quantize is None else self.quantize.result

    @property
    def complete(self) -> bool:
        """Nothing is to be carried out."""
        return self.result is not None


class ModelState(Struct, frozen=True, kw_only=True):
    """What is known of a model of a session group.

    Attributes:
        source: what it is read from.
        found: the content of that; None, as `optimize` then: it is to be quantized first.
        optimize: its action.
        quantized: how the source was made in this build; None: it is the manifest's.
    """

    source: ModelSource
    found: SourceDigests | None = None
    optimize: Known[OptimizeResult] | None = None
    quantized: QuantizeState | None = None

    @property
    def key(self) -> Digest | None:
        """Of the action."""
        return None if self.optimize is None else self.optimize.key

    @property
    def result(self) -> OptimizeResult | None:
        """What optimizing made of it; None: it is to be carried out."""
        return None if self.optimize is None else self.optimize.result

    @property
    def complete(self) -> bool:
        """Nothing is to be carried out."""
        return self.result is not None

    @property
    def origin(self) -> ModelState:
        """What the manifest names: the float model, where it was quantized in this build."""
        return self if self.quantized is None else self.quantized.plain


class PieceState(Struct, frozen=True, kw_only=True):
    """State of a piece of a session group's models; attributes as in `SessionState`."""

    compile: Known[CompileResult]
    recording: Known[RecordResult] | None = None

    @property
    def key(self) -> Digest:
        """Key of the compile."""
        return self.compile.key

    @property
    def complete(self) -> bool:
        """Nothing is to be carried out."""
        recorded = self.recording is None or self.recording.complete
        return self.compile.complete and recorded


class SessionState(Struct, frozen=True, kw_only=True):
    """What is known of a session group.

    Attributes:
        models: in its order.
        cut: how its models become pieces; None: each is compiled whole, or to be optimized first.
        pieces: what is known of each piece.
        compile: its action, of pieces their assembly; None: what comes before is to be done first.
        recording: of what its generating sessions compute; None: nothing is to be. Else it is
            carried out with the compile.
        checked: what the policies that run no model found in the process that compiled it,
            SHA256SUMS in place; None: that is still to come, or was known before.
    """

    session: SessionGroup
    models: tuple[ModelState, ...]
    cut: Known[CutResult] | None = None
    pieces: tuple[PieceState, ...] = ()
    compile: Known[CompileResult] | None = None
    recording: Known[RecordResult] | None = None
    checked: FolderReport | None = None

    @property
    def key(self) -> Digest | None:
        """Of the compile."""
        return None if self.compile is None else self.compile.key

    @property
    def result(self) -> CompileResult | None:
        """What the compile made; None: it is to be carried out."""
        return None if self.compile is None else self.compile.result

    @property
    def complete(self) -> bool:
        """Nothing is to be carried out."""
        return self.result is not None and all(each.complete for each in self.recordings)

    @property
    def digests(self) -> dict[str, Digest]:
        """The digests of its optimized models, by name; of those that are not known none."""
        return {m.source.name: m.result.digest for m in self.models if m.result is not None}

    @property
    def recordings(self) -> tuple[Known[RecordResult], ...]:
        """Its recording, or those of its pieces."""
        known = (self.recording, *(piece.recording for piece in self.pieces))
        return tuple(each for each in known if each is not None)

    @property
    def recorded(self) -> bool:
        """What its generating sessions computed is known: they can run on this host."""
        found = (each.result for each in self.recordings)
        return any(each is not None and each.recorded for each in found)

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Its files; none where it is to be carried out."""
        return () if self.result is None else tuple(self.result.output.files)

    @property
    def outputs(self) -> dict[str, Digest]:
        """The digests of its files, by name."""
        return {file.name: file.blake3 for file in self.files}


class GroupState(Struct, frozen=True, kw_only=True):
    """A model group for one target: what is known of it, and what came of it in this build.

    Attributes:
        sessions: what is known of its session groups, in the plan's order.
        verified: of each, where all of them are compiled.
        whole: of the folder beside them, likewise.
        published: why what is published is not what it should be; None: it is.
        progress: of its build; None: nothing was to be done.
        failure: why it was not built; None: it was, or nothing was to be done.
    """

    planned: PlannedGroup
    sessions: tuple[SessionState, ...] = ()
    verified: tuple[Known[FolderReport], ...] = ()
    whole: Known[FolderReport] | None = None
    published: str | None = "it is not compiled"
    progress: GroupProgress | None = None
    failure: EpctxError | None = None

    @property
    def up_to_date(self) -> bool:
        """Nothing is to be done."""
        return self.published is None and self.complete

    @property
    def key(self) -> Digest | None:
        """Of the verification of its folder."""
        return None if self.whole is None else self.whole.key

    @property
    def complete(self) -> bool:
        """Everything is compiled, and was verified."""
        parts = (self.whole, *self.verified)
        return all(part is not None and part.stored is not None for part in parts)

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS, where all of it is compiled."""
        return tuple(file for session in self.sessions for file in session.files)

    @property
    def report(self) -> FolderReport:
        """What was verified."""
        parts = (part.result for part in (self.whole, *self.verified) if part is not None)
        return joined(self.planned.label, filter(None, parts)).with_skipped()

    def session(self, model: str) -> SessionState:
        """The session group that has a model."""
        return next(
            each for each in self.sessions if any(m.name == model for m in each.session.models)
        )


class CompositionState(Struct, frozen=True, kw_only=True):
    """A composition for one target: what is known of it, and what came of it in this build.

    Attributes:
        groups: those of its parts that are built, by name.
        asked: its action, without a place; None, as `compose` then: a group of its parts failed.
        compose: what is known of that.
        published: why what is published is not what it should be; None: it is.
        progress: of its action; None: it was not carried out.
        failure: why there is no result; None: there is, or it was not tried.
    """

    planned: PlannedComposition
    groups: Mapping[str, GroupState]
    asked: Compose | None = None
    compose: Known[ComposeResult] | None = None
    published: str | None = None
    progress: Progress | None = None
    failure: EpctxError | None = None

    @property
    def key(self) -> Digest | None:
        """Of the action."""
        return None if self.compose is None else self.compose.key

    @property
    def result(self) -> ComposeResult | None:
        """What came of it; None: it is to be carried out, or it failed."""
        return None if self.compose is None else self.compose.result

    @property
    def up_to_date(self) -> bool:
        """Nothing is to be done."""
        return self.result is not None and self.progress is None and self.published is None

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS, where it is known."""
        return self.result.files if self.result is not None else ()
