"""State of a build's models, groups and compositions: their results from the cache and from this
build.

An action is complete if its result exists; otherwise a build runs it.
"""

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
    """State of one action.

    Attributes:
        record: the value that `key` is the digest of; empty if there is nothing to do.
        stored: the result and its files; None if the action must run.
    """

    key: Digest
    record: Mapping[str, Any]
    stored: StoredAction[R] | None = None

    @property
    def result(self) -> R | None:
        """Result of the action; None if it must run."""
        return None if self.stored is None else self.stored.result

    @property
    def complete(self) -> bool:
        """Tell whether the result exists."""
        return self.stored is not None


class ActionState(Struct, Generic[R], frozen=True, kw_only=True):
    """State with one main action, which `action` returns."""

    @property
    def action(self) -> Known[R] | None:
        """The main action; None if an action before it must run first."""
        raise NotImplementedError  # a Struct cannot be abstract; each subclass has it

    @property
    def key(self) -> Digest | None:
        """Key of the main action; None if it is not known yet."""
        return None if self.action is None else self.action.key

    @property
    def result(self) -> R | None:
        """Result of the main action; None if it must run."""
        return None if self.action is None else self.action.result

    @property
    def complete(self) -> bool:
        """Tell whether nothing must run."""
        return self.result is not None


class QuantizeState(ActionState[QuantizeResult], frozen=True, kw_only=True):
    """State of the quantization of a model.

    Attributes:
        plain: the float model.
        samples: digests of the calibration files, in the manifest's order.
        calibration: name of the model's ranges; None if only weights are quantized, or if `plain`
            is not optimized yet.
        quantize: its action; None if the model must be calibrated first.
    """

    plain: ModelState
    samples: tuple[Digest, ...] = ()
    calibration: Digest | None = None
    quantize: Known[QuantizeResult] | None = None

    @property
    def action(self) -> Known[QuantizeResult] | None:
        """The quantize action."""
        return self.quantize

    @property
    def key(self) -> Digest | None:
        """Key of the action; without one, the name of the ranges stands in for it."""
        return self.calibration if self.quantize is None else self.quantize.key


class ModelState(ActionState[OptimizeResult], frozen=True, kw_only=True):
    """State of a model of a session group.

    Attributes:
        source: the model's source.
        found: digests of the source; None, like `optimize`, if the source must be quantized first.
        optimize: its action.
        quantized: state of the quantization that makes the source; None if the manifest names the
            source.
    """

    source: ModelSource
    found: SourceDigests | None = None
    optimize: Known[OptimizeResult] | None = None
    quantized: QuantizeState | None = None

    @property
    def action(self) -> Known[OptimizeResult] | None:
        """The optimize action."""
        return self.optimize

    @property
    def origin(self) -> ModelState:
        """The model that the manifest names: the float model if this build quantizes it."""
        return self if self.quantized is None else self.quantized.plain


class PieceState(ActionState[CompileResult], frozen=True, kw_only=True):
    """State of a piece of a session group's models; attributes as in `SessionState`."""

    compile: Known[CompileResult]
    recording: Known[RecordResult] | None = None

    @property
    def action(self) -> Known[CompileResult]:
        """The compile action."""
        return self.compile

    @property
    def complete(self) -> bool:
        """Tell whether nothing must run."""
        return self.compile.complete and (self.recording is None or self.recording.complete)


class SessionState(ActionState[CompileResult], frozen=True, kw_only=True):
    """State of a session group.

    Attributes:
        models: in the session group's order.
        cut: how its models are cut into pieces; None if they are compiled whole, or if they must be
            optimized first.
        pieces: state of each piece.
        compile: its action; for pieces, the action that assembles them. None if an action before it
            must run first.
        recording: recording of its generating sessions, which runs with the compile; None if they
            are not recorded.
        checked: findings of the policies that run no model, if the process that compiled the group
            checked its folder and wrote SHA256SUMS; otherwise None.
    """

    session: SessionGroup
    models: tuple[ModelState, ...]
    cut: Known[CutResult] | None = None
    pieces: tuple[PieceState, ...] = ()
    compile: Known[CompileResult] | None = None
    recording: Known[RecordResult] | None = None
    checked: FolderReport | None = None

    @property
    def action(self) -> Known[CompileResult] | None:
        """The compile or assemble action."""
        return self.compile

    @property
    def complete(self) -> bool:
        """Tell whether nothing must run."""
        return self.result is not None and all(each.complete for each in self.recordings)

    @property
    def digests(self) -> dict[str, Digest]:
        """Digests of its models that are optimized, by name."""
        return {m.source.name: m.result.digest for m in self.models if m.result is not None}

    @property
    def recordings(self) -> tuple[Known[RecordResult], ...]:
        """Its recording, or those of its pieces."""
        recordings = (self.recording, *(piece.recording for piece in self.pieces))
        return tuple(each for each in recordings if each is not None)

    @property
    def recorded(self) -> bool:
        """Tell whether outputs of its generating sessions are recorded."""
        results = (each.result for each in self.recordings)
        return any(each is not None and each.recorded for each in results)

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Its files; empty if its action must run."""
        return () if self.result is None else tuple(self.result.output.files)

    @property
    def outputs(self) -> dict[str, Digest]:
        """Digests of its files, by name."""
        return {file.name: file.blake3 for file in self.files}


class GroupState(ActionState[FolderReport], frozen=True, kw_only=True):
    """State of a model group for one target.

    Attributes:
        sessions: state of its session groups, in the plan's order.
        verified: verification of each session group; empty until all of them are compiled.
        whole: verification of the folder as a whole; None until all session groups are compiled.
        published: why the published folder must be replaced; None if it is as expected.
        progress: progress of its build; None if nothing had to be done.
        failure: why it was not built; None if it was, or if nothing had to be done.
    """

    planned: PlannedGroup
    sessions: tuple[SessionState, ...] = ()
    verified: tuple[Known[FolderReport], ...] = ()
    whole: Known[FolderReport] | None = None
    published: str | None = "it is not compiled"
    progress: GroupProgress | None = None
    failure: EpctxError | None = None

    @property
    def action(self) -> Known[FolderReport] | None:
        """The verification of its folder."""
        return self.whole

    @property
    def up_to_date(self) -> bool:
        """Tell whether nothing has to be done."""
        return self.published is None and self.complete

    @property
    def complete(self) -> bool:
        """Tell whether everything is compiled and verified."""
        return all(part is not None and part.complete for part in (self.whole, *self.verified))

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS of the session groups that are compiled."""
        return tuple(file for session in self.sessions for file in session.files)

    @property
    def report(self) -> FolderReport:
        """Findings of all verifications."""
        parts = (part.result for part in (self.whole, *self.verified) if part is not None)
        return joined(self.planned.label, filter(None, parts)).with_skipped()

    def session(self, model: str) -> SessionState:
        """Return the session group that has a model."""
        return next(
            each for each in self.sessions if any(m.name == model for m in each.session.models)
        )


class CompositionState(ActionState[ComposeResult], frozen=True, kw_only=True):
    """State of a composition for one target.

    Attributes:
        groups: the built groups of its parts, by name.
        request: its action, without folders; None, like `compose`, if a group of its parts failed.
        compose: state of that action.
        published: why the published folder must be replaced; None if it is as expected.
        progress: progress of its action; None if the action did not run.
        failure: why there is no result; None if there is one, or if the action did not run.
    """

    planned: PlannedComposition
    groups: Mapping[str, GroupState]
    request: Compose | None = None
    compose: Known[ComposeResult] | None = None
    published: str | None = None
    progress: Progress | None = None
    failure: EpctxError | None = None

    @property
    def action(self) -> Known[ComposeResult] | None:
        """The compose action."""
        return self.compose

    @property
    def up_to_date(self) -> bool:
        """Tell whether nothing has to be done."""
        return self.complete and self.progress is None and self.published is None

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS; empty if the action must run."""
        return self.result.files if self.result is not None else ()
