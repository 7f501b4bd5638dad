"""What is known of a build's models, groups and compositions, and what came of them so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from epctx.actions.compile import CompileResult
from epctx.actions.compose import Compose
from epctx.cache import Action
from epctx.engine.plan import PlannedComposition, PlannedGroup, SessionGroup
from epctx.engine.progress import GroupProgress, Progress
from epctx.engine.results import (
    StoredCompose,
    StoredOptimize,
    StoredQuantize,
    StoredRecording,
    joined,
)
from epctx.errors import EpctxError
from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile
from epctx.keys import (
    FolderRecord,
    RecordingRecord,
    VerifyRecord,
)
from epctx.keys.source_digests import SourceDigests
from epctx.manifest import ModelSource
from epctx.verification.findings import FolderReport


class Quantized(Struct, frozen=True, kw_only=True):
    """A model's quantize action, as far as it is known.

    Attributes:
        plain: the float model.
        samples: digests of the files that it is calibrated with, in the manifest's order.
        calibration: the name of its ranges; None: only weights are quantized, or `plain` is not
            known yet.
        record, key: None: it is to be calibrated first.
        action: None: to be carried out.
    """

    plain: Optimized
    samples: tuple[Digest, ...] = ()
    calibration: Digest | None = None
    record: Mapping[str, Any] | None = None
    key: Digest | None = None
    action: Action[StoredQuantize] | None = None


class Optimized(Struct, frozen=True, kw_only=True):
    """A model's optimize action, as far as it is known.

    Attributes:
        found: the content of the source; None: no model with these bytes was loaded before.
        record, key: None with `found`.
        action: None: to be carried out.
        quantized: how the source was made in this build; None: it is the manifest's.
    """

    source: ModelSource
    found: SourceDigests | None = None
    record: Mapping[str, Any] | None = None
    key: Digest | None = None
    action: Action[StoredOptimize] | None = None
    quantized: Quantized | None = None

    @property
    def origin(self) -> Optimized:
        """What the manifest names: the float model, where it was quantized in this build."""
        return self if self.quantized is None else self.quantized.plain


class Compiled(Struct, frozen=True, kw_only=True):
    """A session group's compile action, as far as it is known.

    Attributes:
        models: in its order.
        record, key: None: a model of it is to be optimized first.
        action: None: to be carried out.
        recording_record, recording_key: of what its generating sessions compute; None: nothing is
            to be.
        recording: None: to be carried out, with the compile.
    """

    session: SessionGroup
    models: tuple[Optimized, ...]
    record: Mapping[str, Any] | None = None
    key: Digest | None = None
    action: Action[CompileResult] | None = None
    recording_record: RecordingRecord | None = None
    recording_key: Digest | None = None
    recording: Action[StoredRecording] | None = None

    @property
    def complete(self) -> bool:
        """Nothing is to be carried out."""
        return self.action is not None and (
            self.recording_record is None or self.recording is not None
        )

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Its files; none where it is to be carried out."""
        return () if self.action is None else tuple(self.action.result.output.files)

    @property
    def outputs(self) -> dict[str, Digest]:
        """The digests of its files, by name."""
        return {file.name: file.blake3 for file in self.files}


class Verified(Struct, frozen=True, kw_only=True):
    """A verify action, of a session group or of a folder beside them.

    Attributes:
        record: None: it need not be carried out.
        action: None: to be carried out.
    """

    key: Digest
    action: Action[FolderReport] | None
    record: VerifyRecord | FolderRecord | None = None


class Staged(Struct, frozen=True, kw_only=True):
    """A session group whose files are in the group's staged folder.

    Attributes:
        compiled: all of it is known.
        verified: what is to be verified of it.
        recorded: what its generating sessions computed is in the group's recordings.
        restored: the files came from the cache, and may not be on the disk yet.
        checked: what verification found in the worker that compiled it, SHA256SUMS in place; None:
            it is still to come.
    """

    compiled: Compiled
    verified: Verified
    recorded: bool
    restored: bool
    checked: FolderReport | None = None


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
    sessions: tuple[Compiled, ...] = ()
    verified: tuple[Verified, ...] = ()
    whole: Verified | None = None
    published: str | None = "it is not compiled"
    progress: GroupProgress | None = None
    failure: EpctxError | None = None

    @property
    def up_to_date(self) -> bool:
        """Nothing is to be done."""
        return self.published is None and self.checked

    @property
    def checked(self) -> bool:
        """Everything that is compiled was verified."""
        parts = (self.whole, *self.verified)
        return all(part is not None and part.action is not None for part in parts)

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS, where all of it is compiled."""
        return tuple(file for session in self.sessions for file in session.files)

    @property
    def report(self) -> FolderReport:
        """What was verified."""
        parts = (part.action for part in (self.whole, *self.verified) if part is not None)
        return joined(self.planned.label, (a.result for a in parts if a is not None)).with_skipped()

    def session(self, model: str) -> Compiled:
        """The session group that has a model."""
        return next(
            each for each in self.sessions if any(m.name == model for m in each.session.models)
        )


class CompositionState(Struct, frozen=True, kw_only=True):
    """A composition for one target: what is known of it, and what came of it in this build.

    Attributes:
        groups: those of its parts that are built, by name.
        asked, key: its action, without a place; None: a group of its parts failed.
        result: None: to be carried out, or it failed.
        published: why what is published is not what it should be; None: it is.
        progress: of its action; None: it was not carried out.
        failure: why there is no result; None: there is, or it was not tried.
    """

    planned: PlannedComposition
    groups: Mapping[str, GroupState]
    asked: Compose | None = None
    key: Digest | None = None
    result: StoredCompose | None = None
    published: str | None = None
    progress: Progress | None = None
    failure: EpctxError | None = None

    @property
    def up_to_date(self) -> bool:
        """Nothing is to be done."""
        return self.result is not None and self.progress is None and self.published is None

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS, where it is known."""
        return self.result.files if self.result is not None else ()
