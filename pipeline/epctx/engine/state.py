"""What is known of a build's models and groups, and what came of them so far."""

from __future__ import annotations

from dataclasses import dataclass

from epctx.cache import Action
from epctx.engine.group import Progress
from epctx.engine.plan import PlannedGroup, SessionGroup
from epctx.engine.results import StoredCompile, StoredOptimize, StoredRecording
from epctx.errors import EpctxError
from epctx.files.digest import Digest
from epctx.keys import CompileRecord, FolderRecord, OptimizeRecord, RecordingRecord, VerifyRecord
from epctx.keys.source_digests import SourceDigests
from epctx.manifest import ModelSource
from epctx.verification.findings import FolderReport


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """A model's optimize action, as far as it is known.

    Attributes:
        found: the content of the source; None: no model with these bytes was loaded before.
        record, key: None with `found`.
        action: None: to be carried out.
    """

    source: ModelSource
    found: SourceDigests | None = None
    record: OptimizeRecord | None = None
    key: Digest | None = None
    action: Action[StoredOptimize] | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
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
    record: CompileRecord | None = None
    key: Digest | None = None
    action: Action[StoredCompile] | None = None
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
    def outputs(self) -> dict[str, Digest]:
        """Its files by name; none where it is to be carried out."""
        if self.action is None:
            return {}
        return {file.name: file.blake3 for file in self.action.result.output.files}


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A verify action, of a session group or of a folder beside them.

    Attributes:
        action: None: to be carried out.
    """

    record: VerifyRecord | FolderRecord
    key: Digest
    action: Action[FolderReport] | None


@dataclass(frozen=True, kw_only=True)
class Made:
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

    @property
    def result(self) -> StoredCompile:
        """What the compile told."""
        assert self.compiled.action is not None
        return self.compiled.action.result


class Ended(EpctxError):
    """Why a group that did not fail itself was not built: another failed, or the user stopped."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A group that was built and verified in its staged folder, or why it was not.

    Attributes:
        made: its session groups; none where it failed.
        verify: None where it failed.
    """

    planned: PlannedGroup
    progress: Progress
    made: tuple[Made, ...] = ()
    verify: FolderReport | None = None
    failure: EpctxError | None = None

    @property
    def sessions(self) -> tuple[Compiled, ...]:
        """What is known of its session groups."""
        return tuple(made.compiled for made in self.made)
