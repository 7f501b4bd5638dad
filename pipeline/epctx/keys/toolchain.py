"""Toolchain of a build: epctx's own code, its libraries, and the EPs."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from epctx import codec
from epctx.errors import ManifestError, ProviderUnavailable
from epctx.files import digest, listing
from epctx.graph.passes import registry as passes
from epctx.keys import installed
from epctx.manifest import OptionValue, ProviderSpec
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.providers.onnxruntime import host, packages, plugins

if TYPE_CHECKING:
    from epctx.cache.digests import FileDigests

K = TypeVar("K")
V = TypeVar("V")
EVERY: Final = (
    "_version.py",
    "actions/*.py",
    "arguments.py",
    "codec.py",
    "error_codes.py",
    "errors.py",
    "files/*.py",
    "graph/**/*.py",
    "limits.py",
    "manifest.py",
    "providers/*.py",
    "quantization/__init__.py",
    "quantization/report.py",
    "stages/__init__.py",
    "stages/report.py",
    "text.py",
    "verification/__init__.py",
    "verification/findings.py",
    "verification/request.py",
    "worker/*.py",
)
"""Sources of epctx that every action uses."""
_AGAIN = "install it again"
_LIBRARIES = "LD_LIBRARY_PATH"


class _Once(Generic[K, V]):
    """Values that are made once, on first use; other threads wait for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[K, Future[V]] = {}

    def get(self, name: K, make: Callable[[], V]) -> V:
        """Return the value of a name; raise the error of `make` each time."""
        future: Future[V] = Future()
        with self._lock:
            first = self._known.setdefault(name, future)
        if first is future:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
        return first.result()


class ProviderRecord(Struct, frozen=True, kw_only=True):
    """An EP of the model group, bound to its options.

    Attributes:
        provider: ONNX Runtime's name of it.
        options: its options; a path-valued one has the digest of its content.
        code: its package, and the digest of its code: `epctx blake3:…`, `package 1.2 blake3:…`.
        toolchain: its fingerprint: versions, digests of libraries.
        host: facts of the host that its bytes depend on.
    """

    provider: str
    options: Mapping[str, OptionValue]
    code: str
    toolchain: Mapping[str, str]
    host: Mapping[str, str]


class Traits(Struct, frozen=True, kw_only=True):
    """Facts about an EP that a build needs (`providers.base.ExecutionProvider`).

    Attributes:
        device: kind of device that its models run on; None if it is not known.
        inference_options: provider options that a session needs.
        chips: the chips that it compiles for, in words; empty if it names none.
    """

    name: str
    sources: tuple[str, ...]
    isolated: bool
    native: bool
    device: str | None = None
    inference_options: Mapping[str, str] = field(default_factory=dict)
    chips: str = ""


class Described(Struct, frozen=True, kw_only=True):
    """An EP, bound to its options, on one machine.

    Attributes:
        record: its part of a key.
        drivers: drivers of its devices, as in `Toolchain.devices`.
    """

    record: ProviderRecord
    traits: Traits
    drivers: Mapping[str, str]


class Eps(Protocol):
    """EPs of other machines. Thread-safe. Methods raise as those of `Toolchain`."""

    def described(self, spec: ProviderSpec) -> Described:
        """Return the description of an EP."""
        ...

    def cpu(self, specs: Sequence[ProviderSpec]) -> host.Cpu:
        """Return the CPU of the machines that run jobs with these EPs."""
        ...


class Toolchain:
    """Toolchain of this process's environment; each part is read once. Thread-safe.

    Args:
        digests: digests files.
        eps: EPs of other machines; None for this machine.
    """

    def __init__(self, digests: FileDigests, eps: Eps | None = None) -> None:
        self._digests = digests
        self._remote_eps = eps
        self._actions = _Once[tuple[tuple[str, ...], tuple[str, ...]], Mapping[str, str]]()
        self._sources = _Once[str, Mapping[str, str]]()
        self._libraries = _Once[str, Mapping[str, str]]()
        self._eps = _Once[bytes, ExecutionProvider]()
        self._providers = _Once[bytes, ProviderRecord]()
        self._traits = _Once[bytes, Traits]()
        self._driven = _Once[bytes, Mapping[str, str]]()

    def of(self, sources: tuple[str, ...], libraries: tuple[str, ...]) -> Mapping[str, str]:
        """Return the digest of epctx sources and the versions of libraries, by name. A library
        outside its distribution's folder also has a digest.

        Args:
            sources: glob patterns, besides `EVERY`.
            libraries: distributions.
        """
        return self._actions.get((sources, libraries), lambda: self._action(sources, libraries))

    def native(self, specs: Iterable[ProviderSpec]) -> bool:
        """Tell whether one of these EPs is onnxruntime's, whose outputs depend on the host."""
        return any(self.traits(spec).native for spec in specs)

    def passes(self, wanted: Sequence[str]) -> Mapping[str, str]:
        """Return the passes of other packages, each with its package, version and code digest.

        Raises:
            ManifestError: a pass does not exist, or its package is broken.
        """
        if not wanted:
            return {}  # searching for them takes time

        return {
            name: f"{passes.package_of(entry)} {self._code_of_pass(entry)}"
            for name, entry in passes.of_others(wanted).items()
        }

    def provider(self, spec: ProviderSpec) -> ProviderRecord:
        """Return an EP's part of a key. This loads the EP, but not onnxruntime.

        Raises:
            ProviderUnavailable: it is not installed, or its package is broken.
            ManifestError: it refuses the options, or a path-valued one leads nowhere.
        """
        if self._remote_eps is not None:
            return self._remote_eps.described(spec).record
        name = codec.encode((spec.provider, spec.options, spec.path_options))
        return self._providers.get(name, lambda: self._provider(spec))

    def traits(self, spec: ProviderSpec) -> Traits:
        """Return the traits of an EP. Raises as `provider`."""
        if self._remote_eps is not None:
            return self._remote_eps.described(spec).traits
        name = codec.encode((spec.provider, spec.options))
        return self._traits.get(name, lambda: self._traits_of(spec))

    def describe(self, spec: ProviderSpec) -> Described:
        """Return the description of an EP for other machines. Raises as `provider`."""
        return Described(
            record=self.provider(spec), traits=self.traits(spec), drivers=self._drivers(spec)
        )

    def ep(self, spec: ProviderSpec) -> ExecutionProvider:
        """Return the EP of this machine, bound to its options; made once. Raises as `provider`."""
        name = codec.encode((spec.provider, spec.options))
        return self._eps.get(name, lambda: registry.create(spec))

    def devices(self, specs: Iterable[ProviderSpec]) -> Mapping[str, str]:
        """Return the devices that run models on this host: its CPU, and drivers of the EPs.

        An EP whose devices are hidden is marked as such, since a host that shows them can check
        more. Raises as `provider`.
        """
        eps = tuple(specs)
        cpu = self.cpu(eps)
        devices = {
            "cpu": f"{cpu.vendor} family {cpu.family} model {cpu.model}",
            "cpu flags": " ".join(cpu.flags),
        }
        for spec in eps:
            devices |= self._drivers(spec)
        return devices

    def cpu(self, specs: Sequence[ProviderSpec]) -> host.Cpu:
        """Return the CPU of the machines that run jobs with these EPs."""
        return host.cpu() if self._remote_eps is None else self._remote_eps.cpu(specs)

    def own(self, patterns: Iterable[str]) -> str:
        """Return the digest of epctx's own files that match glob patterns in its package.

        The files are small and read once, which is faster than remembered digests.
        """
        root = Path(__file__).parents[1]
        digests: dict[str, str] = {}
        for pattern in patterns:
            digests |= self._sources.get(pattern, functools.partial(_digests_below, root, pattern))
        return str(digest.of_json(digests))

    def _action(self, sources: tuple[str, ...], libraries: tuple[str, ...]) -> Mapping[str, str]:
        versions = {"epctx": self.own((*EVERY, *sources))}
        for name in libraries:
            versions |= self._libraries.get(name, functools.partial(self._distribution, name))
        return versions

    def _drivers(self, spec: ProviderSpec) -> Mapping[str, str]:
        if self._remote_eps is not None:
            return self._remote_eps.described(spec).drivers
        name = codec.encode((spec.provider, spec.options))
        return self._driven.get(name, lambda: self._driver(spec))

    def _driver(self, spec: ProviderSpec) -> Mapping[str, str]:
        provider = self.ep(spec)
        driven = {f"{spec.provider}: {key}": v for key, v in provider.drivers().items()}
        if spec.provider in plugins.hidden():
            driven[f"{spec.provider}: devices"] = "hidden"
        return driven

    def _traits_of(self, spec: ProviderSpec) -> Traits:
        provider = self.ep(spec)
        return Traits(
            name=provider.name,
            sources=tuple(sorted(provider.sources)),
            isolated=provider.isolated,
            native=provider.native,
            device=provider.device_kind(),
            inference_options=provider.inference_options(),
            chips=provider.chips(),
        )

    def _provider(self, spec: ProviderSpec) -> ProviderRecord:
        provider = self.ep(spec)
        fingerprint = provider.fingerprint()
        toolchain = dict(fingerprint.toolchain)
        for label, path in (*fingerprint.files.items(), *_before(fingerprint.files.values())):
            toolchain[label] = self._library(spec.provider, path)
        return ProviderRecord(
            provider=spec.provider,
            options=options(spec, self._digests),
            code=self._provider_code(spec.provider, provider.__class__.__module__),
            toolchain=dict(sorted(toolchain.items())),
            host=dict(fingerprint.host),
        )

    def _library(self, provider: str, path: Path) -> str:
        with ProviderUnavailable.if_refused(
            f"the library {path} of {provider} cannot be read",
            remedy="check the path, or install the package again",
        ):
            return str(self._digests.of(path))

    def _provider_code(self, name: str, module: str) -> str:
        """Return the package of an EP, and the digest of the code of its class."""
        package, _, rest = module.partition(".")
        if package == "epctx":
            # For `epctx.providers.onnxruntime.qnn.provider`: the files in `onnxruntime` and in
            # `onnxruntime/qnn`, but not in the siblings of `qnn`, which are other EPs' code.
            folders = rest.split(".")[1:-1]
            own = ["/".join(folders[: i + 1]) for i in range(len(folders))]
            return f"epctx {self.own(f'providers/{folder}/*.py' for folder in own)}"
        entry = registry.entry_of(name)
        # A class may live in another package than the one that announces it.
        modules = {entry.module.partition(".")[0]: entry.module, package: module}
        code = " ".join(self._code_of(each, entry) for _, each in sorted(modules.items()))
        return f"{registry.package_of(entry)} {code}"

    def _code_of(self, module: str, entry: EntryPoint) -> str:
        package = f"the package {module.partition('.')[0]}"
        with ProviderUnavailable.if_refused(f"{package} cannot be read", remedy=_AGAIN):
            code = installed.code_of(module, entry.dist, self._digests)
        if code is None:
            raise ProviderUnavailable(f"{package} cannot be found", remedy=_AGAIN)
        return str(code)

    def _code_of_pass(self, entry: EntryPoint) -> str:
        where = f"optimize pass {entry.name}"
        with ManifestError.if_refused(f"{entry.module} cannot be read", where=where, remedy=_AGAIN):
            code = installed.code_of(entry.module, entry.dist, self._digests)
        if code is None:
            raise ManifestError(f"{entry.module} cannot be found", where=where, remedy=_AGAIN)
        return str(code)

    def _distribution(self, name: str) -> Mapping[str, str]:
        versions = {name: version(name)}
        with ProviderUnavailable.if_refused(f"{name} cannot be read", remedy=_AGAIN):
            sources = installed.sources_of(versions[name].rpartition(" ")[0] or name, self._digests)
        return versions if sources is None else {**versions, f"{name}/sources": str(sources)}


def _digests_below(folder: Path, pattern: str) -> Mapping[str, str]:
    """Return the digests of the files below a folder that match a glob pattern, by path in it."""
    return {
        file.relative_to(folder).as_posix(): str(digest.of_bytes(file.read_bytes()))
        for file in folder.glob(pattern)
    }


def options(spec: ProviderSpec, digests: FileDigests) -> Mapping[str, OptionValue]:
    """Return an EP's options for keys; a path-valued option becomes the digest of its content.

    Raises:
        ManifestError: a path leads nowhere.
    """
    values = dict(spec.options)
    for name in spec.path_options:
        if name in values:
            values[name] = _content(spec, name, Path(str(values[name])), digests)
    return values


def _content(spec: ProviderSpec, option: str, path: Path, digests: FileDigests) -> str:
    with ManifestError.if_refused(
        f"the option {option} names {path}, which cannot be read",
        where=f"execution_providers.{spec.alias}.options",
        remedy="correct the path",
    ):
        if path.is_dir():
            files = [file for file in listing.below(path) if file.is_file()]
            return str(digests.of_tree(path, files))
        return str(digests.of(path))


def _before(libraries: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield libraries in LD_LIBRARY_PATH, which workers inherit, that replace libraries of an EP.

    The loader searches it before a RUNPATH, which OpenVINO's plugin uses.
    """
    folders = os.environ.get(_LIBRARIES, "").split(":") if sys.platform == "linux" else ()
    names = sorted({path.name for path in libraries})
    for number, folder in enumerate(filter(None, folders)):
        for name in names:
            if (path := Path(folder, name)).is_file():
                yield f"{_LIBRARIES} {number}/{name}", path


@functools.cache
def version(distribution: str) -> str:
    """Return the version of a distribution; for onnxruntime, with the distribution that owns it.

    Raises:
        ProviderUnavailable: several distributions own onnxruntime, or none.
    """
    if distribution == "onnxruntime":
        installed_onnxruntime = packages.onnxruntime()
        if installed_onnxruntime.distribution != distribution:
            return f"{installed_onnxruntime.distribution} {installed_onnxruntime.version}"
        return installed_onnxruntime.version
    return importlib.metadata.version(distribution)
