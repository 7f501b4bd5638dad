"""Results that other hosts built, for `epctx build --from-cache`.

Keys depend on EP libraries and on facts of the compiling host. The build reports of these hosts and
the lock name both, so this host needs neither the EPs nor the devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from epctx import codec, limits
from epctx._version import __version__
from epctx.actions.compile import Compile
from epctx.cache.digests import FileDigests
from epctx.engine.state import GroupState
from epctx.error_codes import Code
from epctx.errors import CompileError, ProviderUnavailable, UsageError
from epctx.files import listing
from epctx.files.entries import open_entry
from epctx.keys.toolchain import Described, ProviderRecord, Toolchain, Traits, options
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedRuntime
from epctx.manifest import OptionValue, ProviderSpec
from epctx.providers import registry
from epctx.providers.onnxruntime import host

_REPORT = "*.build.json"
_TOLD = 20
"""Number of missing groups that the error names."""


class RemoteBuilds(Struct, frozen=True, kw_only=True):
    """EPs and devices of other hosts; implements `keys.toolchain.Eps`.

    Attributes:
        eps: EPs by name and options, as `_name` encodes them.
        devices: devices of the host that ran a session group, by the key of its compile action.
        code: digests of epctx's own code there.
        file: the lock, or the folder of the reports.
        digests: digests path-valued options.
    """

    eps: Mapping[bytes, Described]
    devices: Mapping[str, Mapping[str, str]]
    code: frozenset[str]
    file: Path
    digests: FileDigests

    def described(self, spec: ProviderSpec) -> Described:
        """Return the EP as the other hosts described it.

        Raises:
            ProviderUnavailable: no host used it with these options.
            ManifestError: a path-valued option leads nowhere.
        """
        described = self.eps.get(_name(spec.provider, options(spec, self.digests)))
        if described is None:
            raise ProviderUnavailable(
                f"no build report or lock has {spec.provider} with the options of {spec.alias}",
                where=str(self.file),
                remedy="add the report of a job that built with it: "
                "`epctx plan --format matrix` lists the jobs",
            )
        return described

    def cpu(self, specs: Sequence[ProviderSpec]) -> host.Cpu:
        """Return the CPU of this host, which runs the remaining jobs."""
        return host.cpu()


class _Ep(Struct, frozen=True, kw_only=True):
    provider: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    traits: Traits | None = None


class _Group(Struct, frozen=True, kw_only=True):
    target: str
    group: str
    execution_providers: tuple[_Ep, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)


class _Report(Struct, frozen=True, kw_only=True):
    """The part of a build report that is needed here."""

    name: str
    groups: tuple[_Group, ...]
    lock: Lock | None = None


def of_reports(folder: Path, name: str, digests: FileDigests) -> RemoteBuilds:
    """Read the EPs of other hosts from the build reports below a folder.

    Args:
        name: name of the manifest; reports of other manifests are ignored.

    Raises:
        UsageError: there is no report of the manifest; a report is invalid, or of a failed build;
            two reports differ about one EP.
    """
    eps: dict[bytes, tuple[Path, Described]] = {}
    devices: dict[str, Mapping[str, str]] = {}
    code: set[str] = set()
    for path, report in _reports(folder, name):
        assert report.lock is not None
        code.add(_code(report.lock))
        traits_of = {_name(ep.provider, ep.options): ep.traits for ep in _eps(report)}
        for ep_name, record in _providers(report.lock):
            traits = traits_of.get(ep_name) or _traits(record.provider)
            described = Described(record=record, traits=traits, drivers={})
            first, before = eps.setdefault(ep_name, (path, described))
            if before != described:
                raise _differing(folder, (first, before.record), (path, record))
        for group in report.groups:
            locked = report.lock.groups.get(f"{group.target}/{group.group}")
            for session in locked.session_groups.values() if locked is not None else ():
                devices[session.key] = group.devices
    known_eps = {name: ep for name, (_, ep) in eps.items()}
    return RemoteBuilds(
        eps=known_eps, devices=devices, code=frozenset(code), file=folder, digests=digests
    )


def of_lock(lock: Lock, file: Path, digests: FileDigests) -> RemoteBuilds:
    """Read the EPs of other hosts from a lock.

    Raises:
        UsageError: the lock has outputs of several kinds of host.
    """
    if lock.hosts:
        raise UsageError(
            f"has outputs of {len(lock.hosts)} kinds of host",
            file=str(file),
            remedy="pass the build reports of the hosts to take results from with --reports",
        )
    runtimes: dict[bytes, LockedRuntime] = {}
    for variant in lock.package.variants if lock.package is not None else ():
        assert lock.package is not None
        locked = lock.groups[variant.group].execution_providers
        for ep, runtime in zip(locked, variant.execution_providers, strict=True):
            name = _name(ep.provider.partition("#")[0], ep.options)
            runtimes[name] = lock.package.execution_providers[runtime]
    eps = {
        name: Described(
            record=record, traits=_traits(record.provider, runtimes.get(name)), drivers={}
        )
        for name, record in _providers(lock)
    }
    code = frozenset({_code(lock)})
    return RemoteBuilds(eps=eps, devices={}, code=code, file=file, digests=digests)


def _code(lock: Lock) -> str:
    return lock.toolchain.get("epctx/compile", "")


def refuse_missing(
    groups: Sequence[GroupState], there: RemoteBuilds | None, toolchain: Toolchain
) -> None:
    """Refuse to publish if results are missing in the cache.

    Args:
        there: the hosts that built the groups; None if neither reports nor a lock name them.
        toolchain: the toolchain of this host.

    Raises:
        CompileError: results are missing; the error lists them.
    """
    missing = {group.planned.label: _missing(group) for group in groups}
    lines = [f"{label}: {', '.join(results)}" for label, results in missing.items() if results]
    if lines:
        more = [f"and {len(lines) - _TOLD} more"] if len(lines) > _TOLD else []
        remedy = "build them on hosts with their EPs, with the same sources, settings and cache: "
        if there is not None and there.code - {toolchain.of(*Compile.code)["epctx"]}:
            more.append(
                f"the keys in {there.file.name} are of other code of epctx than this "
                f"{__version__}, which finds no results by them"
            )
            remedy = (
                "build them on hosts with their EPs, with the same epctx, sources and settings: "
            )
        raise CompileError(
            f"{len(lines)} of {len(groups)} groups are not in the cache, "
            "and --from-cache builds nothing",
            why="".join(f"\n  {each}" for each in [*lines[:_TOLD], *more]),
            remedy=f"{remedy}`epctx plan --format matrix` lists the jobs; name the folder of their "
            "build reports with --reports",
            code=Code.NOT_IN_CACHE,
        )


def _missing(group: GroupState) -> list[str]:
    if not group.sessions:
        return ["its sources or EPs cannot be read here"]
    models = [model.source.name for session in group.sessions for model in session.models]
    optimized = [m.source.name for s in group.sessions for m in s.models if m.complete]
    lacking = [f"optimize of {name}" for name in models if name not in optimized]
    for session in group.sessions:
        label = session.session.label
        if session.cut is not None and session.cut.result is None:
            lacking.append(f"cut of {label}")
        pieces = enumerate(session.pieces, start=1)
        lacking += [f"compile of {label}.{n}" for n, piece in pieces if not piece.compile.complete]
        if session.result is None and session.compile is not None:
            lacking.append(f"compile of {label}")
    return lacking


def _reports(folder: Path, name: str) -> Iterator[tuple[Path, _Report]]:
    paths = sorted(path for path in listing.below(folder) if path.match(_REPORT))
    reports = [(path, report) for path in paths if (report := _read(path)).name == name]
    if not reports:
        raise UsageError(
            f"has no build report of {name!r}",
            file=str(folder),
            why=f"reports there: {', '.join(path.name for path in paths) or 'none'}",
            remedy=f"copy the {name}.build.json of each build job into this folder",
        )
    for path, report in reports:
        if report.lock is None:
            raise UsageError(
                "is the report of a failed build",
                file=str(path),
                remedy="fix its error, and build again",
            )
        yield path, report


def _read(path: Path) -> _Report:
    try:
        with open_entry(path) as stream:
            return codec.decode(stream.read(limits.REPORT_BYTES.value), _Report)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            "is not a build report", file=str(path), why=str(error), remedy="build again"
        ) from error


def _name(provider: str, options: Mapping[str, OptionValue]) -> bytes:
    return codec.encode((provider, options))


def _traits(provider: str, runtime: LockedRuntime | None = None) -> Traits:
    """Return the traits of an EP that may not be installed, from its class and the lock."""
    return Traits(
        name=provider,
        sources=() if runtime is None else runtime.sources,
        isolated=registry.class_says(provider, "isolated"),
        native=registry.class_says(provider, "native") if runtime is None else runtime.native,
        device=None if runtime is None else runtime.device,
        inference_options={} if runtime is None else runtime.options,
    )


def _eps(report: _Report) -> Iterator[_Ep]:
    return (ep for group in report.groups for ep in group.execution_providers)


def _providers(lock: Lock) -> Iterator[tuple[bytes, ProviderRecord]]:
    """Yield the EPs of a lock of one kind of host, with a name for each EP and its options."""
    here = hosts.kind(lock)
    for group in lock.groups.values():
        for each in group.execution_providers:
            entry = lock.execution_providers[each.provider]
            provider = each.provider.partition("#")[0]
            yield (
                _name(provider, each.options),
                ProviderRecord(
                    provider=provider,
                    options=each.options,
                    code=entry.code,
                    toolchain=entry.toolchain,
                    host=here.get(each.provider, entry.host),
                ),
            )


def _differing(
    folder: Path, one: tuple[Path, ProviderRecord], two: tuple[Path, ProviderRecord]
) -> UsageError:
    (first, before), (second, after) = one, two
    facts = {"code": (before.code, after.code)}
    for part in ("toolchain", "host"):
        old, new = getattr(before, part), getattr(after, part)
        facts |= {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})}
    lines = [f"{name}: {old}, and {new}" for name, (old, new) in facts.items() if old != new]
    return UsageError(
        f"two jobs differ in {before.provider}: "
        f"{first.relative_to(folder).as_posix()} and {second.relative_to(folder).as_posix()}",
        file=str(folder),
        why="".join(f"\n  {each}" for each in lines),
        remedy="build on hosts of one kind with the same packages, since they share one lock",
    )
