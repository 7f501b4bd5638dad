"""What the cache has for a plan: keys, and results that are there. Nothing is carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec
from msgspec.structs import replace

from epctx.actions.action import Action
from epctx.actions.compile import Compile, CompileResult
from epctx.actions.optimize import Optimize
from epctx.actions.pieces import Assemble, Cut
from epctx.actions.quantize import Quantize
from epctx.actions.record import Record, RecordResult
from epctx.actions.verify import Check, Verify
from epctx.cache import Cache
from epctx.cache.digests import FileDigests
from epctx.engine.from_cache import RemoteBuilds
from epctx.engine.output.place import contents_of
from epctx.engine.plan import SessionGroup
from epctx.engine.ranges import Ranges
from epctx.engine.results import StoredRanges, objection
from epctx.engine.state import (
    GroupState,
    Known,
    ModelState,
    PieceState,
    QuantizeState,
    SessionState,
)
from epctx.files.digest import Digest
from epctx.keys import Toolchain, key, records
from epctx.keys.records import InputsRecord, VerifiedModel
from epctx.keys.source_digests import SourceDigests, Sources
from epctx.keys.toolchain import Eps
from epctx.manifest import (
    ModelGroup,
    ModelSource,
    OptimizeSettings,
    Pieces,
    QuantizeSettings,
    Reference,
)
from epctx.parsing.schema import providers
from epctx.verification.findings import FolderReport

R = TypeVar("R")

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

    Attributes:
        runs_models: models are run and compared, where the manifest does not say `off`.

    Args:
        cache: None: without a cache, nothing is there.
        digests: how sources, toolchain and options are digested.
        numbers: what `runs_models` is.
        ranges: what is known of models that are to be quantized.
        eps: of other machines; None: of this one.
        remote_builds: what hosts said that built before; then their EPs count.
        from_cache: nothing is compiled, so what is known of sessions must do.
    """

    def __init__(
        self,
        cache: Cache | None,
        digests: FileDigests,
        *,
        numbers: bool,
        ranges: Ranges | None = None,
        eps: Eps | None = None,
        remote_builds: RemoteBuilds | None = None,
        from_cache: bool = False,
    ) -> None:
        self.cache = cache
        self.ranges = ranges or Ranges(None)
        self.digests = digests
        self.toolchain = Toolchain(digests, remote_builds or eps)
        self.sources = Sources(digests)
        self.runs_models = numbers
        self.remote_builds = remote_builds
        self._from_cache = from_cache

    def find(self, action: Action[R], *, here: bool = False) -> Known[R]:
        """Find the result of an action, as `known`. Raises what its `facts` raise."""
        return self.known(action.record(self.toolchain), cast(type[R], action.result), here=here)

    def unknown(self, action: Action[R]) -> Known[R]:
        """Return an action without its result, which nobody has looked for."""
        record = action.record(self.toolchain)
        return Known(key=key(record), record=record)

    def known(self, record: object, form: type[R], *, here: bool = False) -> Known[R]:
        """Find the result of the action with that record; `here`: ask no shared cache."""
        plain = msgspec.to_builtins(record)
        name = key(plain)
        stored = None if self.cache is None else self.cache.find(name, form, here=here)
        return Known(key=name, record=plain, stored=stored)

    def model(self, source: ModelSource, settings: OptimizeSettings) -> ModelState:
        """A model. Raises what `Sources.find` raises; ManifestError: there is no such pass."""
        found = self.sources.find(source)
        optimize = self.find(Optimize.of(source, settings, found=found))
        return ModelState(source=source, found=found, optimize=optimize)

    def built(self, source: ModelSource, group: ModelGroup) -> ModelState:
        """A model as a group is compiled of it: quantized, if the group is. Raises as `model`."""
        plain = self.model(source, group.optimize)
        if group.quantize is None:
            return plain
        state = self.quantized(plain, group)
        made = state.result
        if made is None:
            return ModelState(source=source, quantized=state)
        found = SourceDigests(model=made.model, locations=made.locations, data=made.data)
        own = quantized_source(source, group.quantize, Path(QUANTIZED))
        optimize = self.find(Optimize.of(own, group.optimize, found=found))
        return ModelState(source=own, found=found, optimize=optimize, quantized=state)

    def quantized(self, plain: ModelState, group: ModelGroup) -> QuantizeState:
        """How a model is quantized, as far as it is known; its ranges are in use then. Raises
        ModelError if a file with samples cannot be read.
        """
        settings = group.quantize
        assert settings is not None
        samples = tuple(records.sample(path, self.digests) for path in settings.calibration.files)
        state = QuantizeState(plain=plain, samples=samples)
        if plain.result is None:
            return state
        if settings.calibrated:
            asked = records.calibration(plain.result.digest, group, samples)
            state = replace(state, calibration=key(asked))
        ranges = self.ranges_of(state)
        if state.calibration is not None:
            if ranges is None:
                return state
            self.ranges.use(state.calibration, plain.source.name, ranges)
        wanted = Quantize.of(group, plain.result.digest, samples, ranges)
        return replace(state, quantize=self.find(wanted))

    def ranges_of(self, state: QuantizeState) -> str | None:
        """The ranges that a model is quantized with; None: there are none, or are to be found."""
        if state.calibration is None:
            return None
        kept = self.ranges.find(state.calibration)
        if kept is not None or self.ranges.anew:
            return kept
        found = self.calibrated(state.calibration).result
        return None if found is None else found.ranges

    def calibrated(self, calibration: Digest) -> Known[StoredRanges]:
        """Find the ranges that a calibration gave."""
        devices, code = self.toolchain.devices(()), self.toolchain.of(*Quantize.code)
        return self.known(records.calibrate(calibration, devices, code), StoredRanges)

    def session(
        self, group: ModelGroup, session: SessionGroup, models: Sequence[ModelState]
    ) -> SessionState:
        """A session group whose models were looked at. Raises what `Toolchain.provider` raises, and
        as `inputs`.
        """
        state = SessionState(session=session, models=tuple(models))
        if len(state.digests) < len(models):
            return state
        if group.pieces is not None:
            return self._in_pieces(group, state)
        compile = self.compiled(group, Compile.of(group, state.digests))
        return replace(state, compile=compile, recording=self._recording(group, compile.key))

    def cut(self, group: ModelGroup, state: SessionState) -> Cut:
        """Return the action that cuts the optimized models of a session group: where its lock says,
        unless the manifest's settings are known to come to the same.
        """
        names = [each.provider for each in group.execution_providers]
        asked = Cut.of(group, state.digests, providers.compile_memory(names))
        at = state.session.at
        known = self.find(asked).result if at else None
        same = not at or (known is not None and known.is_of(len(state.models)) and known.at == at)
        return asked if same else replace(asked, pieces=Pieces(at=at))

    def _in_pieces(self, group: ModelGroup, state: SessionState) -> SessionState:
        cut = self.find(self.cut(group, state))
        if (
            cut.result is not None
            and self.cache is not None
            and not cut.result.is_of(len(state.models))
        ):
            self.cache.refuse(cut.key, "is of other models")
            cut = replace(cut, stored=None)
        state = replace(state, cut=cut)
        if cut.result is None:
            return state
        asked = cut.result.compiles(group, state.digests)
        pieces = tuple(self.piece(group, each) for each in asked)
        state = replace(state, pieces=pieces)
        made = [each.compile.result for each in pieces if each.compile.result is not None]
        if len(made) < len(pieces):
            return state
        joined = Assemble.of(group, state.digests, cut.result, made)
        return replace(state, compile=self.compiled(group, joined))

    def piece(self, group: ModelGroup, compile: Compile) -> PieceState:
        """Find what is known of a piece of the models of a session group."""
        compiled = self.compiled(group, compile)
        return PieceState(compile=compiled, recording=self._recording(group, compiled.key))

    def compiled(self, group: ModelGroup, action: Compile | Assemble) -> Known[CompileResult]:
        """Find what was compiled; what cannot have come of it is not believed."""
        found = self.find(action)
        why = None
        if found.stored is not None:
            why = objection(found.stored, group, [model.label for model in action.models])
        if why is None or self.cache is None:
            return found
        self.cache.refuse(found.key, why)
        return replace(found, stored=None)

    def _recording(self, group: ModelGroup, compiled: Digest) -> Known[RecordResult] | None:
        inputs = self.inputs(group)
        if not self.records(group):
            return None
        wanted = self.recording(group, compiled, inputs)
        either = (self.recording(group, compiled, None), wanted)
        for here in (True, False):  # one of them is never there: that is not to be asked each time
            for action in either:
                known = self.find(action, here=here)
                if known.stored is not None:
                    return known
        return None if self._from_cache else known  # of what is only gathered none is to come

    def recording(self, group: ModelGroup, compiled: Digest, inputs: InputsRecord | None) -> Record:
        """Return the action that runs the sessions which compiled; without inputs, that they are
        not to be run.
        """
        return Record(
            compile=str(compiled),
            inputs=inputs,
            numbers=group.verify.numbers,
            budget=None if inputs is None else group.verify.budget,
            devices=self.devices(group, str(compiled)),
        )

    def model_of(self, known: ModelState) -> VerifiedModel:
        """Return a model of a session group, as it is in keys. Raises ModelError if a reference
        cannot be read.
        """
        assert known.found is not None
        reference = known.source.as_reference
        other = None if reference is None else self.sources.find(reference)
        return records.verified(known.source, known.found, other)

    def verify(self, group: ModelGroup, session: SessionState) -> Verify:
        """Return the action that judges a session group that is compiled. Raises ModelError if a
        file with inputs, or a reference, cannot be read.
        """
        settings, inputs = group.verify, self.inputs(group)
        numbers = "skipped" if inputs is None and settings.numbers != "off" else settings.numbers
        return Verify(
            compile=str(session.key),
            outputs={name: str(content) for name, content in session.outputs.items()},
            models=tuple(self.model_of(m) for m in session.models if m.found is not None),
            inputs=inputs,
            tolerance=settings.tolerance,
            numbers=numbers,
            budget=None if inputs is None else settings.budget,
            allow_nonfinite=settings.allow_nonfinite,
            devices=self.devices(group, str(session.key)),
        )

    def verification(self, group: ModelGroup, session: SessionState) -> Known[FolderReport]:
        """Find the verdict on a session group that is compiled. Raises as `verify`."""
        known = self.find(self.verify(group, session))
        found = known.result
        if found is not None and found != found.with_required(group.verify.require):
            return replace(known, stored=None)  # they are tried again
        return known

    def verified(self, group: GroupState) -> GroupState:
        """Return a compiled group with what is known of its verification; raises as `verify`."""
        parts = tuple(self.verification(group.planned.group, each) for each in group.sessions)
        whole = Check(
            sessions=tuple(str(each.key) for each in parts),
            outputs={name: str(content) for name, content in contents_of(group.files).items()},
        )
        return replace(group, verified=parts, whole=self.find(whole))

    def devices(self, group: ModelGroup, compiled: str) -> Mapping[str, str]:
        """Return what runs models: where they were compiled, if that is known; else here."""
        there = None if self.remote_builds is None else self.remote_builds.devices.get(compiled)
        return self.toolchain.devices(group.execution_providers) if there is None else there

    def inputs(self, group: ModelGroup) -> InputsRecord | None:
        """Return what models are run with; None: they are not. Raises ModelError if a file with
        inputs cannot be read.
        """
        return records.inputs(group.verify.inputs, self.digests) if self.runs(group) else None

    def records(self, group: ModelGroup) -> bool:
        """Tell whether to keep what the sessions compute that compile: only those of
        onnxruntime's EPs can be run.
        """
        return self.runs(group) and self.toolchain.native(group.execution_providers)

    def runs(self, group: ModelGroup) -> bool:
        """Whether a group's models are run."""
        return self.runs_models and group.verify.numbers != "off"

    def skips(self, group: ModelGroup) -> bool:
        """Whether the manifest asks for numbers and the build does not."""
        return not self.runs_models and group.verify.numbers != "off"
