"""Probe of one EP on this host, in a process of its own; types of a diagnosis.

python -P -m epctx.commands.doctor.probe NAME > diagnosis.json
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.errors import EpctxError, Failure, ManifestError, ProviderUnavailable
from epctx.manifest import DEFAULT_EP
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.providers.onnxruntime import builtin, packages, supervisor
from epctx.providers.onnxruntime.plugins import describe
from epctx.providers.onnxruntime.provider import OrtProvider
from epctx.text import Brief

State = Literal["ready", "no device", "not installed", "broken"]


class ProviderDiagnosis(Struct, frozen=True, kw_only=True):
    """An execution provider on this host.

    Attributes:
        name: ONNX Runtime's name of the EP.
        package: distribution that adds the EP to epctx, with its version.
        state: `no device`: installed, but this host has no device for it. `broken`: installed, but
            it cannot be loaded, or its library crashed.
        versions: versions of its toolchain, by distribution.
        devices: its devices on this host, in words.
        builds: True if it can compile here; None if it was never tried on such a host.
        runs: True if its contexts can run here; None if that was never tried.
        limits: its limits on this host, one sentence each.
        tried: hosts on which epctx was tested with it; None if it was never tested.
        failure: reason why it is not ready, with a remedy; None if it is ready.
    """

    name: str
    package: str
    state: State
    versions: Mapping[str, str]
    devices: tuple[str, ...] = ()
    builds: bool | None = None
    runs: bool | None = None
    limits: tuple[str, ...] = ()
    tried: str | None = None
    failure: Failure | None = None


class HostDiagnosis(Struct, frozen=True, kw_only=True):
    """The host. `memory` is in bytes; `packages` has the versions of epctx's dependencies."""

    system: str
    machine: str
    python: str
    cores: int
    memory: int
    packages: Mapping[str, str]


class CacheDiagnosis(Struct, frozen=True, kw_only=True):
    """Cache folder, which need not exist yet.

    Attributes:
        folder: absolute path.
        readonly: True if the environment makes the cache read-only.
        writable: True if files can be created in the folder, or the missing folder can be created.
    """

    folder: str
    readonly: bool
    writable: bool


class Diagnosis(Brief, frozen=True, kw_only=True):
    """Diagnosis of the host, the cache and all EPs.

    Attributes:
        hidden: EPs whose devices the environment hides.
        problems: faults to repair; an EP that is not installed is no fault.
    """

    epctx: str
    host: HostDiagnosis
    providers: tuple[ProviderDiagnosis, ...]
    cache: CacheDiagnosis | None
    problems: tuple[Failure, ...]
    hidden: tuple[str, ...] = ()


BUILT_IN: Final = "onnxruntime"
"""Name that stands for all EPs built into ONNX Runtime."""


def diagnose(name: str) -> ProviderDiagnosis:
    """Diagnose an EP that a package adds. Loads its library into this process."""
    try:
        package = registry.package_of(registry.entry_of(name))
    except ProviderUnavailable as error:
        return _not_ready(name, "", "broken", error)
    ready = partial(ProviderDiagnosis, name=name, package=package, state="ready")
    try:
        provider = registry.bind(name, {})
        if isinstance(provider, OrtProvider):
            return _native(provider, package)
        return ready(versions=_versions(provider), builds=True, runs=True)
    except ProviderUnavailable as error:
        absent = error.__cause__ is None or isinstance(error.__cause__, ImportError)
        return _not_ready(name, package, "not installed" if absent else "broken", error)
    except ManifestError as error:
        limit = f"not probed further, since it has no default options: {error.what}"
        return ready(versions={}, limits=(limit,))
    except EpctxError as error:
        return _not_ready(name, package, "broken", error)


def built_in() -> list[ProviderDiagnosis]:
    """Diagnose the EPs of the installed onnxruntime, and list EPs of its other distributions."""
    import onnxruntime as ort

    try:
        runtime = packages.onnxruntime()
        versions = {runtime.distribution: runtime.version}
    except ProviderUnavailable:
        versions = {"onnxruntime": ort.__version__}
    package = " ".join(next(iter(versions.items())))
    diagnoses = []
    for name in sorted({*builtin.known(), *ort.get_available_providers()}):
        if name == DEFAULT_EP or name in registry.names():
            continue
        provider = builtin.BuiltInProvider(name, {})
        try:
            provider.add_to(ort.SessionOptions())
        except ProviderUnavailable as error:
            if name in ort.get_available_providers():
                diagnoses.append(_not_ready(name, package, "no device", error))
            else:
                diagnoses.append(_not_ready(name, "", "not installed", error))
            continue
        diagnoses.append(
            ProviderDiagnosis(
                name=name,
                package=package,
                state="ready",
                versions=versions,
                devices=tuple(describe(device) for device in provider.ep_devices()),
                tried=provider.tried,
            )
        )
    return diagnoses


def _native(provider: OrtProvider, package: str) -> ProviderDiagnosis:
    import onnxruntime as ort

    try:
        devices = tuple(describe(device) for device in provider.ep_devices())
    except ProviderUnavailable as error:
        return _not_ready(provider.name, package, "broken", error)
    try:
        provider.add_to(ort.SessionOptions())
    except ProviderUnavailable as error:
        none = _not_ready(provider.name, package, "no device", error)
        return replace(none, versions=_versions(provider), devices=devices, tried=provider.tried)
    run = provider.cannot_run()
    shared = provider.cannot_load((), Path(), sharing=True) if provider.can_share else None
    limits = [f"its contexts cannot run here: {run}"] if run else []
    limits += [f"models that share a context cannot be loaded here: {shared}"] if shared else []
    return ProviderDiagnosis(
        name=provider.name,
        package=package,
        state="ready",
        versions=_versions(provider),
        devices=devices,
        builds=True if provider.tried else None,
        runs=run is None if provider.tried else None,
        limits=tuple(limits),
        tried=provider.tried,
    )


def _versions(provider: ExecutionProvider) -> dict[str, str]:
    try:
        return dict(provider.fingerprint().toolchain)
    except ProviderUnavailable as error:
        if error.__cause__ is not None:
            raise
        return {}  # two distributions contain one module; `conflicts` reports that


def _not_ready(name: str, package: str, state: State, error: EpctxError) -> ProviderDiagnosis:
    return ProviderDiagnosis(
        name=name, package=package, state=state, versions={}, failure=error.failure
    )


def main() -> None:
    """Write the diagnosis to the original stdout; vendor libraries print to file descriptor 1."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    (name,) = sys.argv[1:]
    diagnoses = built_in() if name == BUILT_IN else [diagnose(name)]
    answers.write(codec.encode(diagnoses))
    answers.close()


if __name__ == "__main__":
    supervisor.supervise()
    main()
