"""Compositions: after the groups are built, before anything is published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from epctx import codec
from epctx.cache import Action
from epctx.engine.events import Event, State
from epctx.engine.group import Telling
from epctx.engine.last_keys import History
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.output.published import difference
from epctx.engine.plan import PlannedComposition, PlannedGroup
from epctx.engine.results import refuse
from epctx.engine.state import Compiled, Ended
from epctx.errors import EpctxError, Interrupted
from epctx.files import outputs
from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile
from epctx.keys import ComposeRecord, key, make
from epctx.keys.records import ComposedModel
from epctx.stages.report import CompositionReport
from epctx.verification.findings import POLICIES, FolderReport
from epctx.verification.request import BuiltPart, Composed, VerifyRequest
from epctx.worker.jobs import ComposeJob, ComposeResult, Job, StageStarted
from epctx.worker.pool import Pool
from epctx.worker.process import Worker

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class StoredCompose:
    """Of *compose*. The files are not kept: they are copies of others, but the model."""

    files: tuple[OutputFile, ...]
    report: CompositionReport
    verify: FolderReport


@dataclass(frozen=True, kw_only=True)
class ReadyGroup:
    """A group of a composition's parts, built.

    Attributes:
        folder: where its files are: staged, or published.
        sessions: what is known of its session groups.
    """

    planned: PlannedGroup
    folder: Path
    sessions: tuple[Compiled, ...]

    def session(self, model: str) -> Compiled:
        """The session group that has a model."""
        return next(
            each for each in self.sessions if any(m.name == model for m in each.session.models)
        )


@dataclass(frozen=True, kw_only=True)
class ComposedGroup:
    """What became of a composition.

    Attributes:
        groups: those of its parts, by name.
        name: the key of its action; None: it was not tried.
        result: None where it failed.
        ran: it was carried out; else its result was in the cache.
        published: why what is published is not what it should be; None: it is.
    """

    planned: PlannedComposition
    groups: Mapping[str, ReadyGroup]
    name: Digest | None = None
    record: ComposeRecord | None = None
    result: StoredCompose | None = None
    ran: bool = False
    published: str | None = None
    failure: EpctxError | None = None
    peak_memory: int = 0

    @property
    def up_to_date(self) -> bool:
        """Nothing is to be done."""
        return self.result is not None and not self.ran and self.published is None

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS, where it is known."""
        return self.result.files if self.result is not None else ()


class Composing:
    """The compositions of a build, one after the other; nothing is published.

    Args:
        lookup: of the build.
        history: of its manifest; None: without a cache.
        variables: of the workers' environment, beside what they always get.
    """

    def __init__(
        self,
        lookup: Lookup,
        history: History | None,
        place: Place,
        telling: Telling,
        *,
        variables: Mapping[str, str],
    ) -> None:
        self._variables = variables
        self._lookup = lookup
        self._history = history
        self._place = place
        self._telling = telling

    def look(self, planned: PlannedComposition, groups: Mapping[str, ReadyGroup]) -> ComposedGroup:
        """What is known of a composition whose groups are built.

        Raises:
            ModelError: a file with inputs cannot be read.
        """
        record = self._record(planned, groups)
        name = key(record)
        known = ComposedGroup(planned=planned, groups=groups, name=name, record=record)
        cache = self._lookup.cache
        action = None if cache is None else cache.find(name, StoredCompose)
        if action is None:
            return known
        place = self._place.group(planned.target, planned.composition.name)
        changed = difference(place, action.result.files, self._lookup.digests)
        return replace(known, result=action.result, published=changed)

    def run(self, looked: Sequence[ComposedGroup]) -> list[ComposedGroup]:
        """Carry out what is not up to date, into staged folders.

        Raises:
            Interrupted: the user asked to stop; no worker is left.
        """
        if all(known.up_to_date or known.failure is not None for known in looked):
            return list(looked)
        work = self._place.work / "compose"
        pool = Pool(work=work, logs=self._place.logs, variables=self._variables)
        try:
            return [
                known if known.up_to_date or known.failure is not None else self._run(pool, known)
                for known in looked
            ]
        except KeyboardInterrupt:
            pool.end(Ended("interrupted", remedy="run the command again"))
            raise Interrupted(
                "interrupted, nothing was published", remedy="run the command again"
            ) from None
        finally:
            pool.end()

    def _run(self, pool: Pool, known: ComposedGroup) -> ComposedGroup:
        try:
            done = _Composition(self._lookup, self._place, pool, self._telling, known).compose()
            self._store(done)
        except EpctxError as error:
            _tell(self._telling, known.planned, "failed", detail=str(error))
            return replace(known, result=None, failure=error)
        _tell(self._telling, known.planned, "verified")
        return done

    def _store(self, done: ComposedGroup) -> None:
        assert done.name is not None and done.record is not None
        if self._lookup.cache is not None:
            record = msgspec.Raw(codec.encode(done.record))
            action = Action(kind="compose", record=record, result=done.result)
            self._lookup.cache.put(done.name, action, self._place.work)
        if self._history is not None:
            label, name = done.planned.label, done.planned.composition.name
            self._history.note(label, "compose", name, done.name)

    def _record(
        self, planned: PlannedComposition, groups: Mapping[str, ReadyGroup]
    ) -> ComposeRecord:
        lookup, composition = self._lookup, planned.composition
        parts: list[ComposedModel] = []
        for part in composition.parts:
            ready = groups[part.group]
            compiled = ready.session(part.model)
            model = next(m for m in compiled.models if m.source.name == part.model)
            assert model.found is not None
            source = (model.source, model.found)
            group = ready.planned.group
            made = make.part(part, group, compiled.outputs, source, lookup.toolchain)
            parts.append(made)
        settings = composition.verify
        specs = [s for each in groups.values() for s in each.planned.group.execution_providers]
        return make.compose(
            composition,
            parts,
            inputs=make.inputs(settings.inputs, lookup.digests)
            if settings.numbers != "off" and lookup.runs_models
            else None,
            devices=lookup.toolchain.devices(specs),
            toolchain=lookup.toolchain,
        )


class _Composition:
    """One composition that is carried out."""

    def __init__(
        self, lookup: Lookup, place: Place, pool: Pool, telling: Telling, known: ComposedGroup
    ) -> None:
        self._lookup = lookup
        self._pool = pool
        self._telling = telling
        self._known = known
        self._planned = known.planned
        self._composed = composed(
            known.planned, {name: ready.folder for name, ready in known.groups.items()}
        )
        self._folder = place.staged(known.planned.target, known.planned.composition.name)

    def compose(self) -> ComposedGroup:
        """Join, check, run and compare.

        Raises:
            VerificationError: a check failed.
            EpctxError: what the jobs raised.
        """
        self._folder.mkdir(parents=True)
        contents = {
            name: {file: content for s in ready.sessions for file, content in s.outputs.items()}
            for name, ready in self._known.groups.items()
        }
        job = ComposeJob(composed=self._composed, contents=contents, folder=self._folder)
        with self._pool.shared() as worker:
            made = self._job(worker, job, ComposeResult)
        outputs.write_sums(self._folder, made.files)
        found = self._verify()
        refuse(self._planned.label, found)
        result = StoredCompose(files=made.files, report=made.report, verify=found)
        peak = made.peak_memory
        return replace(self._known, result=result, ran=True, published=None, peak_memory=peak)

    def _verify(self) -> FolderReport:
        runs = self._lookup.runs_models or self._planned.composition.verify.numbers == "off"
        request = VerifyRequest(
            folder=self._folder,
            label=self._planned.label,
            composed=self._composed,
            policies=tuple(p for p in POLICIES if p != "numbers" or runs),
        )
        with self._worker() as worker:
            return self._job(worker, request, FolderReport)

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        """A worker to run it in: a fresh one where an EP of it needs that."""
        eps = map(self._lookup.toolchain.ep, self._composed.providers)
        if any(ep.isolated for ep in eps):
            with self._pool.isolated(f"{self._planned.label}-verify") as worker:
                yield worker
        else:
            with self._pool.shared() as worker:
                yield worker

    def _job(self, worker: Worker, job: Job, result: type[R]) -> R:
        name = self._planned.composition.name
        shown: str | None = None

        def show(subject: str | None) -> None:
            nonlocal shown
            if shown is not None and shown != subject:
                _tell(self._telling, self._planned, "done", subject=shown)
            shown = subject

        def started(stage: StageStarted) -> None:
            if shown != (stage.model or name):
                show(stage.model or name)
                _tell(self._telling, self._planned, "running", subject=shown, stage=stage.stage)

        try:
            return worker.run(job, result, started=started)
        finally:
            show(None)


def composed(planned: PlannedComposition, folders: Mapping[str, Path]) -> Composed:
    """A composition with its parts, as they were built: by group, the folder that it is in."""
    groups = {each.group.name: each.group for each in planned.groups}
    parts = []
    for part in planned.composition.parts:
        group = groups[part.group]
        source = next(model for model in group.models if model.name == part.model)
        parts.append(
            BuiltPart(
                part=part,
                source=source,
                folder=folders[part.group],
                providers=group.execution_providers,
            )
        )
    return Composed(composition=planned.composition, parts=tuple(parts))


def _tell(
    telling: Telling,
    planned: PlannedComposition,
    state: State,
    *,
    subject: str | None = None,
    stage: str | None = None,
    detail: str | None = None,
) -> None:
    telling.tell(
        Event(group=planned.label, state=state, subject=subject, stage=stage, detail=detail)
    )
