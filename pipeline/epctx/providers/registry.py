"""The installed execution providers, found by entry point and loaded on demand.

An entry point of the group `epctx.execution_providers` has ONNX Runtime's name of the EP, and leads
to a `ProviderFactory`. If a package does not load, only requests for its EP fail, with an error
that names the package (design section 8).
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, entry_points

from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, ProviderUnavailable, UsageError
from epctx.manifest import ENTRY_POINTS, OptionValue, ProviderSpec
from epctx.providers.base import ExecutionProvider, ProviderFactory
from epctx.providers.guard import guard
from epctx.providers.onnxruntime import builtin, plugins
from epctx.text import did_you_mean

_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


def names() -> tuple[str, ...]:
    """Return the names of all installed EPs, sorted; none of them is loaded."""
    return tuple(sorted(_entries()))


def create(spec: ProviderSpec) -> ExecutionProvider:
    """Return the EP that `spec` names, bound to its options.

    Raises:
        ProviderUnavailable: no package provides the EP, or its package cannot be loaded.
        ManifestError: the EP refuses the options.
    """
    try:
        return bind(spec.provider, spec.options)
    except ManifestError as error:
        where = error.where or f"execution_providers.{spec.alias}.options"
        raise ManifestError.of(dataclasses.replace(error.failure, where=where)) from error


def bind(name: str, options: Mapping[str, OptionValue]) -> ExecutionProvider:
    """Return an EP bound to options, for callers without a manifest; see `create`.

    If no entry point has the name, the EP may be built into the installed onnxruntime, or be a
    plugin that the options name.
    """
    if name not in _entries() and builtin.offers(name, options):
        return guard(builtin.create(name, options), name)
    entry = entry_of(name)
    try:
        factory: ProviderFactory = entry.load()
        provider: object = factory(options)
        if not isinstance(provider, ExecutionProvider):
            raise TypeError(f"{type(provider).__name__} is not a subclass of ExecutionProvider")
        return guard(provider, name, functools.partial(package_of, entry))
    except EpctxError:
        raise
    except ImportError as error:
        raise _unloadable(entry, error, _import_remedy(entry, error)) from error
    except (Exception, SystemExit) as error:
        raise _unloadable(
            entry,
            error,
            f"report it to the maker of {package_of(entry)}, or uninstall that package",
        ) from error


def check_hidden() -> None:
    """Check that every EP in `EPCTX_HIDE_DEVICES` is one whose devices can be hidden.

    Raises:
        UsageError: the variable names something else, which would hide nothing.
    """
    for name in plugins.hidden():
        if name in names():
            try:
                provider = bind(name, {})
            except EpctxError:
                continue  # The EP is not usable, or needs options.
            if provider.native:
                continue
            raise UsageError(
                f"{plugins.HIDE} names {name}, which has no devices of onnxruntime",
                remedy=f"take it out of {plugins.HIDE}",
                code=Code.ENVIRONMENT,
            )
        if not builtin.offers(name, {}):
            candidates = sorted({*names(), *builtin.known()})
            raise UsageError(
                f"{plugins.HIDE} names {name!r}, which is not a known execution provider",
                remedy=did_you_mean(name, candidates),
                code=Code.ENVIRONMENT,
            )


def needs_static_shapes(name: str) -> bool:
    """Tell whether the EP's class says that the EP compiles models of static shapes only; see
    `class_says`.
    """
    return class_says(name, "static_shapes")


def class_says(name: str, trait: str) -> bool:
    """Read a boolean trait from an EP's class. It holds for all options; the EP need not be usable
    here.

    False if the class does not set the trait, or its package cannot be loaded.
    """
    try:
        factory: object = entry_of(name).load()
    except (Exception, SystemExit):  # A third party's module may raise anything.
        return False
    return getattr(factory, trait, False) is True


def is_isolated(spec: ProviderSpec) -> bool:
    """Tell whether the EP needs a fresh process for each session group. Raises as `create` does."""
    return create(spec).isolated


def needs_isolation(spec: ProviderSpec) -> bool:
    """Tell whether the EP needs processes of its own; False for an EP that is not installed."""
    try:
        return is_isolated(spec)
    except EpctxError:
        return False


def accepting(source: str) -> ExecutionProvider | None:
    """Return the EP that takes EPContext nodes of this `source`, with its default options.

    None if no usable installed EP takes them. If an EP's source is an option, only the option's
    default is tried.
    """
    for name in names():
        try:
            provider = bind(name, {})
        except EpctxError:
            continue
        if source in provider.sources:
            return provider
    return None


def _entries() -> Mapping[str, Sequence[EntryPoint]]:
    """Return the entry points by name; several for a name that several packages claim."""
    return _entries_on(tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _entries_on(path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    # Reading every package's metadata takes longer than opening a small session.
    entries_by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        entries = entries_by_name.setdefault(entry.name, [])
        if entry.value not in [known.value for known in entries]:
            entries.append(entry)
    return entries_by_name


def entry_of(name: str) -> EntryPoint:
    """Return the entry point that leads to the EP of this name; it is not loaded.

    Raises:
        ProviderUnavailable: no package provides the EP, or several do.
    """
    entries = _entries().get(name)
    if entries is None:
        raise ProviderUnavailable(
            f"the execution provider {name!r} is not installed",
            remedy=f"{did_you_mean(name, names())} (or install the package that provides it)",
            code=Code.NOT_INSTALLED,
        )
    if len(entries) > 1:
        raise ProviderUnavailable(
            f"several packages provide the execution provider {name!r}: "
            + ", ".join(sorted(map(package_of, entries))),
            remedy="uninstall all but one of them",
            code=Code.PACKAGES_CLASH,
        )
    return entries[0]


def package_of(entry: EntryPoint) -> str:
    """Return the distribution of an entry point, with its version."""
    dist = entry.dist
    return f"{dist.name} {dist.version}" if dist is not None else entry.module


def _unloadable(entry: EntryPoint, error: BaseException, remedy: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"the execution provider {entry.name!r} of {package_of(entry)} cannot be loaded",
        why=f"{type(error).__name__}: {error}",
        remedy=remedy,
    )


def _import_remedy(entry: EntryPoint, error: ImportError) -> str:
    """Return the command that installs a missing module, if the package has an extra for it."""
    missing = (error.name or "").partition(".")[0]
    if entry.dist is not None and missing:
        extra = _extra(entry.dist, missing)
        if extra is not None:
            return f'pip install "{entry.dist.name}[{extra}]"'
    return f"install {missing or 'what it needs'}, or reinstall {package_of(entry)}"


def _extra(dist: Distribution, module: str) -> str | None:
    """Return the extra of `dist` that requires the distribution whose import name is `module`."""
    requirements: Sequence[str] = dist.requires or ()
    for requirement in requirements:
        name, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if name and extra and re.sub(r"[-.]", "_", name[0]).lower() == module.lower():
            return extra[1]
    return None
