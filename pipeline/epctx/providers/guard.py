"""Report exceptions of an execution provider as errors of the provider, never as bugs in epctx.

The traceback goes to the logger `epctx`: a worker writes it to its log, and `-v` prints it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from epctx.errors import CompileError, EpctxError, InvalidGraph, ProviderUnavailable
from epctx.files import outputs
from epctx.manifest import Tolerance
from epctx.providers.base import Capability, ExecutionProvider, Fingerprint, Workspace

_ASKING: Final = frozenset({"fingerprint", "drivers", "unavailable"})
_READING: Final = frozenset(
    {"load", "recognizes", "inspect_binary", "wrap_binary", "misfits", "merge_binaries"}
)
_TYPES: Final[Mapping[str, type]] = {
    "fingerprint": Fingerprint,
    "get_capability": Capability,
    "tolerance": Tolerance,
}
_OPTIONAL: Final = frozenset({"tolerance"})
"""Methods of `_TYPES` that may return None."""
_log: Final = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


def guard(
    provider: ExecutionProvider, name: str, maker: Callable[[], str] | None = None
) -> ExecutionProvider:
    """Wrap a provider: an exception that it or its workspace raises becomes an EpctxError.

    The wrapper passes the same `isinstance` checks as the provider. EpctxErrors of the provider,
    and OSErrors of a full or broken disk, pass through. Calls inside the provider are not wrapped.

    Args:
        name: the provider's name, for messages.
        maker: returns the package to which messages say to report the error; None for the
            provider's name.
    """
    names = {*dir(provider), *ExecutionProvider.__annotations__}
    return cast(
        ExecutionProvider, _wrap(provider, names, partial(_call, name, maker or (lambda: name)))
    )


def _wrap(target: object, names: Set[str], call: Callable[..., Any]) -> object:
    def attribute(name: str) -> property:
        def read(_: object) -> object:
            value = call(name, getattr, target, name)
            return partial(call, name, value) if callable(value) else value

        return property(read)

    members = {name: attribute(name) for name in names if name[0] != "_"}
    members["__class__"] = property(lambda _: type(target))
    return type(type(target).__name__, (), members)()


def _call(
    name: str,
    maker: Callable[[], str],
    method: str,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    try:
        result = function(*args, **kwargs)
        if function is getattr:
            return result
        return _checked(partial(_call, name, maker), method, result)
    except (Exception, SystemExit) as error:
        full = isinstance(error, OSError) and error.errno in outputs.REFUSED
        if isinstance(error, EpctxError) or (full and not isinstance(error, PermissionError)):
            raise
        _log.error("%s failed in `%s`:", name, method, exc_info=error)
        asking = ProviderUnavailable if method in _ASKING else CompileError
        raise (InvalidGraph if method in _READING else asking)(
            f"{name} failed in `{method}`",
            why=" ".join("".join(traceback.format_exception_only(error)).split()),
            remedy=f"report it to the maker of {maker()}, or leave this execution provider out; "
            "the log or `-v` has its traceback",
        ) from error


def _checked(call: Callable[..., Any], method: str, result: Any) -> Any:
    """Refuse a result of the wrong type; wrap workspaces, chunks and iterators that the provider
    returns.
    """
    if result is None and method in _OPTIONAL:
        return None
    if not issubclass(type(result), _TYPES.get(method, object)):
        raise TypeError(f"it returned {type(result).__name__}, not {_TYPES[method].__name__}")
    if method == "open_workspace":
        return _wrap(result, {*dir(result), *dir(Workspace)}, call)
    if method == "finish":
        return [replace(each, chunks=partial(call, "chunks", each.chunks)) for each in result]
    if method == "compile":
        return list(result)
    return _pieces(call, method, result) if isinstance(result, Iterator) else result


def _pieces(call: Callable[..., Any], method: str, pieces: Iterator[Any]) -> Iterator[Any]:
    while (piece := call(method, next, pieces, call)) is not call:
        yield piece
