"""What the cache has for a plan: keys, and results that are there. Nothing is carried out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from epctx.actions.compile import Compile, CompileResult
from epctx.actions.optimize import Optimize
from epctx.actions.quantize import Quantize
from epctx.cache import Action, Cache
from epctx.cache.digests import FileDigests
from epctx.engine.elsewhere import Elsewhere
from epctx.engine.plan import SessionGroup
from epctx.engine.ranges import Ranges
from epctx.engine.results import (
    StoredOptimize,
    StoredQuantize,
    StoredRanges,
    StoredRecording,
    objection,
)
from epctx.engine.state import Compiled, Optimized, Quantized, Verified
from epctx.errors import EpctxError
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.keys import (
    FolderRecord,
    RecordingRecord,
    Toolchain,
    VerifyRecord,
    key,
    make,
)
from epctx.keys.records import InputsRecord
from epctx.keys.source_digests import SourceDigests, Sources, locations_in
from epctx.keys.toolchain import Eps
from epctx.manifest import (
    ModelGroup,
    ModelSource,
    OptimizeSettings,
    QuantizeSettings,
    Reference,
)
from epctx.verification.findings import FolderReport

T = TypeVar("T")


QUANTIZED: Final = "model.onnx"
"""The file of a quantized model, whatever its name: names reach no key of a source."""


def quantized_source(source: ModelSource, settings: QuantizeSettings, folder: Path) -> ModelSource:
    """What a group is built from whose model was quantized into `folder`."""
    given = source.reference or Reference(
        path=source.path,
        external_data_dir=source.external_data_dir,
        tolerance=settings.tolerance,
    )
    return ModelSource(
        name=source.name,
        path=folder / QUANTIZED,
        reference=replace(
            given, dimensions=source.dimensions, shapes=source.shapes, of_source=True
        ),
    )


class Lookup:
    """Makes the keys of a build's actions and looks for their results.

    Args:
        cache: None: without a cache, nothing is there.
        digests: how sources, toolchain and options are digested.
        numbers: models are run and compared, where the manifest does not say `off`.
        ranges: what is known of models that are to be quantized.
        eps: of other machines; None: of this one.
        elsewhere: what hosts said that built before; then their EPs count.
        gathers: nothing is compiled, so what is known of models must do.
    """

    def __init__(
        self,
        cache: Cache | None,
        digests: FileDigests,
        *,
        numbers: bool,
        ranges: Ranges | None = None,
        eps: Eps | None = None,
        elsewhere: Elsewhere | None = None,
        gathers: bool = False,
    ) -> None:
        self.cache = cache
        self.ranges = ranges or Ranges(None)
        self.digests = digests
        self.toolchain = Toolchain(digests, elsewhere or eps)
        self._elsewhere = elsewhere
        self.sources = Sources(
            digests=digests,
            # Nobody signs what it knows of models.
            records=None if cache is None or cache.signed else cache.records,
            reads=gathers or (cache is not None and (cache.signed or cache.remote is not None)),
        )
        self._numbers = numbers
        self._gathers = gathers

    def model(self, source: ModelSource, settings: OptimizeSettings) -> Optimized:
        """A model.

        Raises:
            ModelError: its file, or a data file of it, is missing or cannot be read.
            ManifestError: a pass that does not exist.
        """
        found = self.sources.find(source)
        if found is None:
            return Optimized(source=source)
        return self.optimized(source, settings, found)

    def optimized(
        self, source: ModelSource, settings: OptimizeSettings, found: SourceDigests
    ) -> Optimized:
        """A model whose content is known."""
        asked = Optimize.of(source, settings).known(found, self.toolchain)
        record = asked.record(self.toolchain)
        name = key(record)
        return Optimized(
            source=source,
            found=found,
            record=record,
            key=name,
            action=self._find(name, StoredOptimize),
        )

    def built(self, source: ModelSource, group: ModelGroup) -> Optimized:
        """A model as a group is compiled of it: quantized, if the group is.

        Raises:
            ModelError: its file, or a data file of it, is missing or cannot be read.
            ManifestError: a pass that does not exist.
        """
        plain = self.model(source, group.optimize)
        if group.quantize is None:
            return plain
        quantized = self.quantized(plain, group)
        if quantized.action is None:
            return Optimized(source=source, quantized=quantized)
        stored = quantized.action.result
        found = SourceDigests(model=stored.model, locations=stored.locations, data=stored.data)
        made = quantized_source(source, group.quantize, Path(QUANTIZED))
        return replace(self.optimized(made, group.optimize, found), quantized=quantized)

    def quantized(self, plain: Optimized, group: ModelGroup) -> Quantized:
        """The quantize action of a model, as far as it is known; its ranges are in use then.

        Raises:
            ModelError: a file with samples cannot be read.
        """
        settings = group.quantize
        assert settings is not None
        samples = tuple(make.sample(path, self.digests) for path in settings.calibration.files)
        if plain.action is None:
            return Quantized(plain=plain, samples=samples)
        asked = make.calibration(plain.action.result.digest, settings, group.preset, samples)
        ranges = calibration = None
        if settings.calibrated:
            calibration = key(asked)
            ranges = self._ranges_of(calibration)
            if ranges is None:
                return Quantized(plain=plain, samples=samples, calibration=calibration)
            self.ranges.use(calibration, plain.source.name, ranges)
        wanted = Quantize.of(group, plain.action.result.digest, samples, ranges)
        record = wanted.record(self.toolchain)
        name = key(record)
        return Quantized(
            plain=plain,
            samples=samples,
            calibration=calibration,
            record=record,
            key=name,
            action=self._find(name, StoredQuantize),
        )

    def ranges_of(self, known: Quantized) -> str | None:
        """The ranges that a model is quantized with; None: they are to be found."""
        return None if known.calibration is None else self._ranges_of(known.calibration)

    def _ranges_of(self, calibration: Digest) -> str | None:
        kept = self.ranges.find(calibration)
        if kept is not None or self.ranges.anew:
            return kept
        found = self._find(key(make.calibrate(calibration, self.toolchain)), StoredRanges)
        return None if found is None else found.result.ranges

    @contextmanager
    def preparing(self, groups: Iterable[ModelGroup]) -> Iterator[None]:
        """Look at what keys ask for beside models, in a thread, while workers have first jobs.

        What it raises is raised again when a key asks for it.
        """

        def look() -> None:
            specs = [spec for group in groups for spec in group.execution_providers]
            asked: list[Callable[[], object]] = [partial(self.toolchain.of, "optimize")]
            asked += [partial(self.toolchain.provider, spec) for spec in specs]
            asked += [partial(self.toolchain.of, "compile"), partial(self.toolchain.of, "verify")]
            for ask in asked:
                with contextlib.suppress(EpctxError):
                    ask()

        thread = threading.Thread(target=look, name="epctx-toolchain")
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def unloaded(self, source: ModelSource, settings: OptimizeSettings) -> Digest:
        """A name for the optimize action of a model of which only the file is known.

        Raises:
            ModelError: it is missing or cannot be read.
        """
        known = SourceDigests(model=self.sources.model(source), locations=(), data=())
        asked = Optimize.of(source, settings).known(known, self.toolchain)
        return digest.of_json(["unloaded", str(key(asked.record(self.toolchain)))])

    def session(
        self, group: ModelGroup, session: SessionGroup, models: Sequence[Optimized]
    ) -> Compiled:
        """A session group whose models were looked at.

        Raises:
            ProviderUnavailable: an EP is not installed, or its package is broken.
            ManifestError: an EP refuses its options.
            ModelError: a file with inputs cannot be read.
        """
        digests = {m.source.name: m.action.result.digest for m in models if m.action is not None}
        if len(digests) < len(models):
            return Compiled(session=session, models=tuple(models))
        record = Compile.of(group, digests).record(self.toolchain)
        name = key(record)
        recording, stored = self._recording(group, name)
        return Compiled(
            session=session,
            models=tuple(models),
            record=record,
            key=name,
            action=self._compiled(name, group, session),
            recording_record=recording,
            recording_key=None if recording is None else key(recording),
            recording=stored,
        )

    def verification(self, group: ModelGroup, compiled: Compiled) -> Verified:
        """What is to be verified of a session group that is compiled.

        Raises:
            ModelError: a file with inputs, or a reference, cannot be read.
        """
        assert compiled.key is not None
        record = make.verify(
            group,
            compiled=compiled.key,
            outputs=compiled.outputs,
            models=[(m.source, m.found) for m in compiled.models if m.found is not None],
            references={
                m.source.name: self._reference(reference)
                for m in compiled.models
                if (reference := m.source.as_reference) is not None
            },
            inputs=self.inputs(group),
            devices=self.devices(group, str(compiled.key)),
            toolchain=self.toolchain,
        )
        verified = self._verified(record)
        known = verified.action and verified.action.result
        if known and known != known.with_required(group.verify.require):  # they are tried again
            return replace(verified, action=None)
        return verified

    def _reference(self, source: ModelSource) -> SourceDigests:
        """What a reference is made of: nothing loads it before it is verified with."""
        return self.sources.find(source) or self.sources.of(source, locations_in(source.path))

    def devices(self, group: ModelGroup, compiled: str) -> Mapping[str, str]:
        """What runs a session group's models: where it was compiled, if that is said; else here.

        Args:
            compiled: the key of its compile action.
        """
        there = None if self._elsewhere is None else self._elsewhere.devices.get(compiled)
        return self.toolchain.devices(group.execution_providers) if there is None else there

    def folder(self, sessions: Sequence[Verified], outputs: Mapping[str, Digest]) -> Verified:
        """What is to be verified of a folder beside its session groups.

        Args:
            sessions: of its session groups.
            outputs: all its files.
        """
        return self._verified(make.folder([s.key for s in sessions], outputs, self.toolchain))

    def inputs(self, group: ModelGroup) -> InputsRecord | None:
        """What a group's models are run with; None: they are not.

        Raises:
            ModelError: a file with inputs cannot be read.
        """
        if not self.runs(group):
            return None
        return make.inputs(group.verify.inputs, self.digests)

    def records(self, group: ModelGroup) -> bool:
        """Whether what the sessions compute that compile is kept, to be compared.

        Raises:
            ModelError: a file with inputs cannot be read.
        """
        return self.inputs(group) is not None and self._compiles_with_sessions(group)

    @property
    def runs_models(self) -> bool:
        """Models are run and compared, where the manifest does not say `off`."""
        return self._numbers

    def runs(self, group: ModelGroup) -> bool:
        """Whether a group's models are run."""
        return self._numbers and group.verify.numbers != "off"

    def skips(self, group: ModelGroup) -> bool:
        """Whether the manifest asks for numbers and the build does not."""
        return not self._numbers and group.verify.numbers != "off"

    def _compiles_with_sessions(self, group: ModelGroup) -> bool:
        """Whether what compiles can be run: only with onnxruntime's EPs."""
        return any(self.toolchain.traits(spec).native for spec in group.execution_providers)

    def _recording(
        self, group: ModelGroup, compiled: Digest
    ) -> tuple[RecordingRecord | None, Action[StoredRecording] | None]:
        inputs = self.inputs(group)
        if inputs is None or not self._compiles_with_sessions(group):
            return None, None
        devices = self.devices(group, str(compiled))
        records = [
            make.recording(group, compiled, given, devices, self.toolchain)
            for given in (None, inputs)
        ]
        for here in (True, False):  # one of them is never there: that is not to be asked each time
            for record in records:
                stored = self._find(key(record), StoredRecording, here=here)
                if stored is not None:
                    return record, stored
        if self._gathers:  # nothing is compiled, so none is to come
            return None, None
        return records[-1], None

    def _compiled(
        self, name: Digest, group: ModelGroup, session: SessionGroup
    ) -> Action[CompileResult] | None:
        action = self._find(name, CompileResult)
        if action is None or self.cache is None:
            return None
        why = objection(action, group, [model.name for model in session.models])
        if why is not None:
            self.cache.refuse(name, why)
            return None
        return action

    def _verified(self, record: VerifyRecord | FolderRecord) -> Verified:
        name = key(record)
        return Verified(record=record, key=name, action=self._find(name, FolderReport))

    def _find(self, name: Digest, form: type[T], *, here: bool = False) -> Action[T] | None:
        return None if self.cache is None else self.cache.find(name, form, here=here)
