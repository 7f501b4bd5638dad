"""Write the lock of a build, from the states of its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from epctx import lockfile
from epctx._version import __version__
from epctx.actions.action import Action
from epctx.actions.compile import Compile
from epctx.actions.compose import Compose
from epctx.actions.optimize import Optimize
from epctx.actions.pieces import Assemble, Cut
from epctx.actions.quantize import Quantize, settings_of
from epctx.engine.lock import packaged
from epctx.engine.plan import Plan, PlannedComposition, PlannedGroup
from epctx.engine.staleness import Memo
from epctx.engine.state import ModelState, SessionState
from epctx.files import atomic, digest
from epctx.files.outputs import OutputFile
from epctx.keys import Toolchain
from epctx.keys.toolchain import ProviderRecord
from epctx.lockfile import hosts
from epctx.lockfile.differences import between_locks
from epctx.lockfile.types import (
    Lock,
    LockedComposition,
    LockedFile,
    LockedGroup,
    LockedModel,
    LockedPart,
    LockedPieces,
    LockedProvider,
    LockedSession,
    LockedSource,
    LockedToolchain,
)
from epctx.manifest import Manifest, ModelGroup
from epctx.providers.onnxruntime.host import Cpu


def make(
    manifest: Manifest,
    groups: Sequence[tuple[PlannedGroup, Sequence[SessionState]]],
    toolchain: Toolchain,
    compositions: Sequence[tuple[PlannedComposition, Sequence[OutputFile]]] = (),
    *,
    whole: bool = True,
    ranges: LockedFile | None = None,
) -> Lock:
    """Return the lock of groups and compositions, as far as their results exist.

    Args:
        whole: whether they are the whole manifest; then the lock has the package, too.
        ranges: entry of the file with the ranges of quantized models.
    """
    lock = _Lock(manifest, toolchain)
    locked_groups = {
        f"{p.target}/{p.group.name}": lock.group(p, sessions) for p, sessions in groups
    }
    return Lock(
        compositions={
            f"{planned.target}/{planned.composition.name}": _composition(planned, files)
            for planned, files in compositions
        },
        cpus=lock.cpus,
        execution_providers=lock.toolchains,
        groups=locked_groups,
        name=manifest.name,
        package=packaged.locked(manifest, toolchain) if whole else None,
        sources=lock.sources,
        ranges=ranges,
        toolchain=_libraries(
            toolchain,
            (
                *([Quantize] if any(p.group.quantize for p, _ in groups) else ()),
                *(Optimize, Compile),
                *([Cut, Assemble] if any(p.group.pieces for p, _ in groups) else ()),
                *([Compose] if compositions else ()),
            ),
        ),
    )


def with_golden(new: Lock, old: Lock) -> Lock:
    """Add the golden files of an older lock, for folders that did not change."""
    same = (name for name, files in new.folders.items() if old.folders.get(name) == files)
    return replace(new, golden={name: old.golden[name] for name in same if name in old.golden})


def _composition(planned: PlannedComposition, files: Sequence[OutputFile]) -> LockedComposition:
    composition = planned.composition
    outputs = composition.outputs
    return LockedComposition(
        asked=None if outputs is None else {n: f"{o.part}.{o.output}" for n, o in outputs.items()},
        embed_mode=composition.embed_mode,
        order=tuple(part.name for part in composition.parts),
        outputs={file.name: LockedFile(sha256=file.sha256.hex, size=file.size) for file in files},
        parts={
            part.name: LockedPart(
                group=part.group,
                inputs=part.inputs,
                links={name: f"{o.part}.{o.output}" for name, o in part.links.items()},
                model=part.model,
                prefix=part.prefix,
            )
            for part in composition.parts
        },
    )


def _libraries(toolchain: Toolchain, actions: Sequence[type[Action[Any]]]) -> dict[str, str]:
    versions = {"epctx": __version__}
    for action in actions:
        for name, version in toolchain.of(*action.code).items():
            versions[f"epctx/{action.kind}" if name == "epctx" else name] = version
    return versions


class _Lock:
    """Entries that the groups of a lock share: sources, toolchains, CPUs."""

    def __init__(self, manifest: Manifest, toolchain: Toolchain) -> None:
        self.sources: dict[str, LockedSource] = {}
        self.toolchains: dict[str, LockedToolchain] = {}
        self.cpus: dict[str, Cpu] = {}
        self._folder = manifest.path.parent
        self._toolchain = toolchain

    def group(self, planned: PlannedGroup, sessions: Sequence[SessionState]) -> LockedGroup:
        group = planned.group
        models = {m.source.name: m for session in sessions for m in session.models}
        records = [self._toolchain.provider(spec) for spec in group.execution_providers]
        return LockedGroup(
            embed_mode=group.embed_mode,
            execution_providers=tuple(map(self._provider, records)),
            external_initializers=group.external_initializers,
            models={name: self._model(model) for name, model in models.items()},
            node_name_prefix=group.node_name_prefix,
            optimize=group.optimize.level,
            partition=group.partition,
            passes=group.optimize.passes,
            passes_of_others=self._toolchain.passes(group.optimize.passes),
            session_groups={s.session.models[0].name: self._session(s) for s in sessions},
            session_options=group.session_options,
            quantize=self._quantize(group, models.values()),
            asked_pieces=group.pieces,
            pieces={
                each.session.models[0].name: LockedPieces(
                    at=each.cut.result.at,
                    cut=str(each.cut.key),
                    keys=tuple(str(piece.key) for piece in each.pieces),
                )
                for each in sessions
                if each.cut is not None and each.cut.result is not None
            },
        )

    def _quantize(
        self, group: ModelGroup, models: Iterable[ModelState]
    ) -> Mapping[str, Any] | None:
        """Return the settings of `quantize` that change bytes, with the sample files."""
        settings = group.quantize
        if settings is None:
            return None
        digests = next((m.quantized.samples for m in models if m.quantized is not None), ())
        files = zip(settings.calibration.files, digests, strict=bool(digests))
        calibration = settings.calibration
        return settings_of(settings) | {
            "preset": group.preset,
            "count": calibration.count,
            "random": calibration.random,
            "samples": [self._source(path, content) for path, content in files],
        }

    def _provider(self, record: ProviderRecord) -> LockedProvider:
        toolchain = LockedToolchain(code=record.code, host=record.host, toolchain=record.toolchain)
        number, name = 1, record.provider
        while self.toolchains.setdefault(name, toolchain) != toolchain:
            number += 1
            name = f"{record.provider}#{number}"
        return LockedProvider(options=record.options, provider=name)

    def _model(self, model: ModelState) -> LockedModel:
        quantized, model = model.quantized, model.origin
        source = model.source
        assert model.found is not None
        places = {
            path: self._source(path, content) for path, content in model.found.files(source).items()
        }
        model_path, *data = places.values()
        return LockedModel(
            data=dict(zip(model.found.locations, data, strict=True)),
            dimensions=source.dimensions,
            key=str(model.key),
            optimized="" if model.result is None else str(model.result.digest),
            shapes=source.shapes,
            source=model_path,
            calibration=None
            if quantized is None or quantized.calibration is None
            else str(quantized.calibration),
            quantized=None
            if quantized is None or quantized.result is None
            else str(quantized.result.model),
        )

    def _source(self, path: Path, content: digest.Digest) -> str:
        name = lockfile.relative(path, self._folder)
        if name not in self.sources:
            self.sources[name] = LockedSource(digest=str(content), size=path.stat().st_size)
        return name

    def _session(self, state: SessionState) -> LockedSession:
        cpu = None if state.result is None else state.result.cpu
        return LockedSession(
            cpu=None if cpu is None else self._cpu(cpu),
            key=str(state.key),
            models=tuple(model.name for model in state.session.models),
            outputs={
                file.name: LockedFile(sha256=file.sha256.hex, size=file.size)
                for file in state.files
            },
            sharing=state.session.sharing,
        )

    def _cpu(self, cpu: Cpu) -> str:
        facts = [cpu.vendor, cpu.family, cpu.model, *cpu.flags]
        name = f"cpu-{digest.of_json(facts).hex[:12]}"
        self.cpus[name] = cpu
        return name


def require_readable(plan: Plan, memo: Memo) -> None:
    """Raise LockError, before anything is built, if `keep` could not read the lock of a plan."""
    file = lockfile.place(plan.manifest.path)
    if plan.whole and not memo.knows_lock(file):
        lockfile.find(file)


def keep(new: Lock, file: Path, memo: Memo, notice: Callable[[str], None]) -> None:
    """Write the lock if it differs from the file. Entries of other kinds of host stay.

    Args:
        file: path of the lock.
        memo: remembers the content of the file.
        notice: receives text for people.

    Raises:
        LockError: the file cannot be read.
        StorageError: the disk refuses.
    """
    if memo.has_lock(new, file):
        return
    old, both = lockfile.find(file), new
    if old is not None:
        before = hosts.on(old, hosts.kind(new))
        # A lock of an older epctx has no package part, which counts as a gap, not as a difference.
        lacks = (old.package is None) is not (new.package is None)
        if not (between_locks(before, new) or lacks):
            memo.note_lock(new, file)
            return
        both = hosts.added(old, with_golden(new, before))
        _tell_hosts(old, both, notice)
    atomic.replace(file, lockfile.text(both).encode())


def _tell_hosts(old: Lock, new: Lock, notice: Callable[[str], None]) -> None:
    """Emit a notice if the lock gains or loses entries of other kinds of host."""
    before, after = hosts.kinds(old), hosts.kinds(new)
    if len(after) > len(before):
        notice(f"the lock has an entry for this kind of host now, in addition to {len(before)}")
    if removed := [each for each in before if each and each not in after]:
        notice(
            f"removed the lock's outputs for {len(removed)} other kinds of host, which were made "
            "from other inputs: build there again"
        )
