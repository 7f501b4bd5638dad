"""Look up a plan in the cache: make keys and find results. Nothing runs."""

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
"""File name of every quantized model: the name of a model is not in the key of its source."""


def quantized_source(source: ModelSource, settings: QuantizeSettings, folder: Path) -> ModelSource:
    """Return the source of a model that was quantized into `folder`."""
    reference = source.reference or Reference(
        path=source.path,
        external_data_dir=source.external_data_dir,
        tolerance=settings.tolerance,
    )
    return ModelSource(
        name=source.name,
        path=folder / QUANTIZED,
        reference=replace(
            reference, dimensions=source.dimensions, shapes=source.shapes, of_source=True
        ),
    )


class Lookup:
    """Makes the keys of a build's actions and finds their results.

    Attributes:
        runs_models: whether models are run and compared, unless the manifest says `off`.

    Args:
        cache: None to find nothing.
        digests: digests sources, toolchain and options.
        numbers: value of `runs_models`.
        ranges: ranges of the models to quantize.
        eps: EPs of other machines; None for this machine.
        remote_builds: EPs of hosts that built before; these are used if given.
        from_cache: whether nothing is compiled, so that no recording can be made.
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
        """Find the result of an action, as `known`. Raises as its `facts`."""
        return self.known(action.record(self.toolchain), cast(type[R], action.result), here=here)

    def unknown(self, action: Action[R]) -> Known[R]:
        """Return the state of an action without looking for its result."""
        record = action.record(self.toolchain)
        return Known(key=key(record), record=record)

    def known(self, record: object, form: type[R], *, here: bool = False) -> Known[R]:
        """Find the result of the action with a record; with `here`, not in the shared cache."""
        fields = msgspec.to_builtins(record)
        name = key(fields)
        stored = None if self.cache is None else self.cache.find(name, form, here=here)
        return Known(key=name, record=fields, stored=stored)

    def model(self, source: ModelSource, settings: OptimizeSettings) -> ModelState:
        """Look up a model. Raises as `Sources.find`; ManifestError: a pass does not exist."""
        digests = self.sources.find(source)
        optimize = self.find(Optimize.of(source, settings, digests=digests))
        return ModelState(source=source, found=digests, optimize=optimize)

    def built(self, source: ModelSource, group: ModelGroup) -> ModelState:
        """Look up a model as compiled: quantized, if the group is. Raises as `model`."""
        float_model = self.model(source, group.optimize)
        if group.quantize is None:
            return float_model
        state = self.quantized(float_model, group)
        result = state.result
        if result is None:
            return ModelState(source=source, quantized=state)
        digests = SourceDigests(model=result.model, locations=result.locations, data=result.data)
        quantized = quantized_source(source, group.quantize, Path(QUANTIZED))
        optimize = self.find(Optimize.of(quantized, group.optimize, digests=digests))
        return ModelState(source=quantized, found=digests, optimize=optimize, quantized=state)

    def quantized(self, plain: ModelState, group: ModelGroup) -> QuantizeState:
        """Look up the quantization of a model, and note that its ranges are used. Raises ModelError
        if a file with samples cannot be read.
        """
        settings = group.quantize
        assert settings is not None
        samples = tuple(records.sample(path, self.digests) for path in settings.calibration.files)
        state = QuantizeState(plain=plain, samples=samples)
        if plain.result is None:
            return state
        if settings.calibrated:
            calibration = records.calibration(plain.result.digest, group, samples)
            state = replace(state, calibration=key(calibration))
        ranges = self.ranges_of(state)
        if state.calibration is not None:
            if ranges is None:
                return state
            self.ranges.use(state.calibration, plain.source.name, ranges)
        action = Quantize.of(group, plain.result.digest, samples, ranges)
        return replace(state, quantize=self.find(action))

    def ranges_of(self, state: QuantizeState) -> str | None:
        """Return the ranges of a model; None if it has none, or must be calibrated first."""
        if state.calibration is None:
            return None
        ranges = self.ranges.find(state.calibration)
        if ranges is not None or self.ranges.anew:
            return ranges
        calibrated = self.calibrated(state.calibration).result
        return None if calibrated is None else calibrated.ranges

    def calibrated(self, calibration: Digest) -> Known[StoredRanges]:
        """Find the result of a calibration."""
        devices, code = self.toolchain.devices(()), self.toolchain.of(*Quantize.code)
        return self.known(records.calibrate(calibration, devices, code), StoredRanges)

    def session(
        self, group: ModelGroup, session: SessionGroup, models: Sequence[ModelState]
    ) -> SessionState:
        """Look up a session group of models. Raises as `Toolchain.provider` and `inputs`."""
        state = SessionState(session=session, models=tuple(models))
        if len(state.digests) < len(models):
            return state
        if group.pieces is not None:
            return self._in_pieces(group, state)
        compile = self.compiled(group, Compile.of(group, state.digests))
        return replace(state, compile=compile, recording=self._recording(group, compile.key))

    def cut(self, group: ModelGroup, state: SessionState) -> Cut:
        """Return the action that cuts the optimized models of a session group: at the cut points of
        the lock, unless the manifest's settings are known to give the same ones.
        """
        names = [each.provider for each in group.execution_providers]
        action = Cut.of(group, state.digests, providers.compile_memory(names))
        at = state.session.at
        result = self.find(action).result if at else None
        same = not at or (
            result is not None and result.is_of(len(state.models)) and result.at == at
        )
        return action if same else replace(action, pieces=Pieces(at=at))

    def _in_pieces(self, group: ModelGroup, state: SessionState) -> SessionState:
        cut = self.find(self.cut(group, state))
        if (
            cut.result is not None
            and self.cache is not None
            and not cut.result.is_of(len(state.models))
        ):
            self.cache.refuse(cut.key, "belongs to other models")
            cut = replace(cut, stored=None)
        state = replace(state, cut=cut)
        if cut.result is None:
            return state
        compiles = cut.result.compiles(group, state.digests)
        pieces = tuple(self.piece(group, each) for each in compiles)
        state = replace(state, pieces=pieces)
        results = [each.compile.result for each in pieces if each.compile.result is not None]
        if len(results) < len(pieces):
            return state
        joined = Assemble.of(group, state.digests, cut.result, results)
        return replace(state, compile=self.compiled(group, joined))

    def piece(self, group: ModelGroup, compile: Compile) -> PieceState:
        """Look up a piece of the models of a session group."""
        compiled = self.compiled(group, compile)
        return PieceState(compile=compiled, recording=self._recording(group, compiled.key))

    def compiled(self, group: ModelGroup, action: Compile | Assemble) -> Known[CompileResult]:
        """Find the result of a compile; refuse one that contradicts the action."""
        state = self.find(action)
        why = None
        if state.stored is not None:
            why = objection(state.stored, group, [model.label for model in action.models])
        if why is None or self.cache is None:
            return state
        self.cache.refuse(state.key, why)
        return replace(state, stored=None)

    def _recording(self, group: ModelGroup, compiled: Digest) -> Known[RecordResult] | None:
        inputs = self.inputs(group)
        if not self.records(group):
            return None
        with_inputs = self.recording(group, compiled, inputs)
        either = (self.recording(group, compiled, None), with_inputs)
        for here in (True, False):  # only one of the two can exist: ask the shared cache last
            for action in either:
                state = self.find(action, here=here)
                if state.stored is not None:
                    return state
        return None if self._from_cache else state  # no recording will be made

    def recording(self, group: ModelGroup, compiled: Digest, inputs: InputsRecord | None) -> Record:
        """Return the action that records the generating sessions. Without `inputs`, its result says
        that the sessions cannot run.
        """
        return Record(
            compile=str(compiled),
            inputs=inputs,
            numbers=group.verify.numbers,
            budget=None if inputs is None else group.verify.budget,
            devices=self.devices(group, str(compiled)),
        )

    def model_of(self, known: ModelState) -> VerifiedModel:
        """Return the record of a model. Raises ModelError if a reference cannot be read."""
        assert known.found is not None
        reference = known.source.as_reference
        other = None if reference is None else self.sources.find(reference)
        return records.verified(known.source, known.found, other)

    def verify(self, group: ModelGroup, session: SessionState) -> Verify:
        """Return the verify action of a compiled session group. Raises ModelError if a file with
        inputs, or a reference, cannot be read.
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
        """Find the verification of a compiled session group. Raises as `verify`."""
        state = self.find(self.verify(group, session))
        report = state.result
        if report is not None and report != report.with_required(group.verify.require):
            return replace(state, stored=None)  # run required numbers again
        return state

    def verified(self, group: GroupState) -> GroupState:
        """Look up the verification of a compiled group. Raises as `verify`."""
        parts = tuple(self.verification(group.planned.group, each) for each in group.sessions)
        whole = Check(
            sessions=tuple(str(each.key) for each in parts),
            outputs={name: str(content) for name, content in contents_of(group.files).items()},
        )
        return replace(group, verified=parts, whole=self.find(whole))

    def devices(self, group: ModelGroup, compiled: str) -> Mapping[str, str]:
        """Return the devices that run models: those of the host that compiled, if known, else of
        this host.
        """
        remote = None if self.remote_builds is None else self.remote_builds.devices.get(compiled)
        return self.toolchain.devices(group.execution_providers) if remote is None else remote

    def inputs(self, group: ModelGroup) -> InputsRecord | None:
        """Return the inputs of the models; None if they are not run. Raises ModelError if a file
        with inputs cannot be read.
        """
        return records.inputs(group.verify.inputs, self.digests) if self.runs(group) else None

    def records(self, group: ModelGroup) -> bool:
        """Tell whether to record the generating sessions: only sessions of onnxruntime's EPs can
        run.
        """
        return self.runs(group) and self.toolchain.native(group.execution_providers)

    def runs(self, group: ModelGroup) -> bool:
        """Tell whether to run the models of a group."""
        return self.runs_models and group.verify.numbers != "off"

    def skips(self, group: ModelGroup) -> bool:
        """Tell whether the manifest requests numbers that the build skips."""
        return not self.runs_models and group.verify.numbers != "off"
