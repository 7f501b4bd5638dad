"""What `epctx doctor` found out about this host, as types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from epctx.errors import Failure
from epctx.text import Brief

State = Literal["ready", "no device", "not installed", "broken"]


class ProviderDiagnosis(Struct, frozen=True, kw_only=True):
    """An execution provider on this host.

    Attributes:
        name: ONNX Runtime's name of it.
        package: the distribution that brings it to epctx, with its version.
        state: `no device`: it is installed, and this host has nothing that it can use; `broken`:
            it is installed, and cannot be loaded, or its library crashed.
        versions: of what it is made of, by distribution.
        devices: of this host, in words.
        builds: it can compile here; None: nobody tried it on such a host.
        runs: what it compiled can run here; None: nobody tried.
        limits: what it cannot do here, one sentence each.
        tried: what epctx was tried on with it; None: on no host.
        failure: why it is not ready, and what to do.
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
    """The host. `memory` is in bytes; `packages`: versions of what epctx stands on."""

    system: str
    machine: str
    python: str
    cores: int
    memory: int
    packages: Mapping[str, str]


class CacheDiagnosis(Struct, frozen=True, kw_only=True):
    """The cache's folder, which need not exist yet.

    Attributes:
        folder: absolute.
        readonly: asked for by the environment.
        writable: files can be made in it, or, where it does not exist, it can be made.
    """

    folder: str
    readonly: bool
    writable: bool


class Diagnosis(Brief, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        hidden: EPs whose devices the environment hides.
        problems: what is to be repaired; an EP that is not installed is none.
    """

    epctx: str
    host: HostDiagnosis
    providers: tuple[ProviderDiagnosis, ...]
    cache: CacheDiagnosis | None
    problems: tuple[Failure, ...]
    hidden: tuple[str, ...] = ()
