"""Checks of the arguments of public functions: their types, and what is at their paths."""

from __future__ import annotations

import functools
import inspect
import os
import re
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files.entries import Kind, kind_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LIKE: Final[Mapping[object, Any]] = {float: int | float, Sequence: Collection, tuple: list | tuple}
"""Types whose values are accepted for a type in an annotation."""


class Place(Struct, frozen=True, kw_only=True):
    """Annotation of a path.

    Attributes:
        kinds: what may be there. A pipe is read once, to its end.
        refuse: returns message and remedy for a path that is often confused; None for any other.
    """

    kinds: tuple[Kind, ...] = ("file",)
    refuse: Callable[[Path], tuple[str, str] | None] = lambda path: None

    def check(self, path: Path) -> Kind | None:
        """Return what is at a path; None if nothing is there.

        Raises:
            UsageError: the parameter does not take what is there.
        """
        try:
            kind = kind_of(path.stat())
        except (OSError, ValueError):  # whoever opens it says why
            kind = None
        names = " or a ".join(each for each in self.kinds if each != "pipe")
        fits = kind is None or kind in self.kinds
        refusal = self.refuse(path) or (None if fits else (f"is a {kind}", f"name a {names}"))
        if refusal is None:
            return kind
        what, remedy = refusal
        raise UsageError(what, file=path.as_posix(), remedy=remedy, code=Code.NO_SUCH_PATH)


def checked(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a function that first checks its arguments by its annotations.

    Raises:
        UsageError: an argument has another type, or a path leads to something that the parameter
            does not take.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            annotation = evaluated(signature.parameters[name], function).annotation
            if annotation is not inspect.Parameter.empty:
                _check(name, value, annotation, function.__qualname__.removesuffix(".__init__"))
        return function(*args, **kwargs)

    return call


def evaluated(parameter: inspect.Parameter, function: Callable[..., object]) -> inspect.Parameter:
    """Return a parameter with its annotation as a type.

    Other annotations of the function stay text, since types of results may be imported only for
    type checkers.
    """
    scope: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    given = parameter.annotation
    if isinstance(given, str):  # after Ctrl-C in `eval` of a text, Python ends as by a signal
        given = eval(compile(given, "annotation", "eval"), scope)
    return parameter.replace(annotation=given)


def _check(name: str, value: Any, annotation: Any, function: str) -> None:
    is_marked = get_origin(annotation) is Annotated
    kind, *marks = get_args(annotation) if is_marked else (annotation,)
    if not _fits(value, kind):
        shown = reprlib.repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
        if isinstance(value, str | os.PathLike) and _fits([value], kind):
            raise UsageError(f"{name} is {shown}, not a list", remedy=f"write {name}=[{shown}]")
        expected = re.sub(r"\w+\.", "", inspect.formatannotation(kind))
        raise UsageError(f"{name} is {shown}, not {expected}", remedy=f"see help on {function}")
    places = [mark for mark in marks if isinstance(mark, Place)]
    for path in value if isinstance(value, list | tuple) else [value]:
        for place in places if isinstance(path, str | os.PathLike) else ():
            place.check(Path(path))


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type, its items included."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if not isinstance(value, _LIKE.get(origin, origin)):
        return False
    if origin is Mapping:
        return all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if origin is tuple and inner[-1] is not ...:
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if origin in (Sequence, tuple):
        is_text = isinstance(value, str | bytes | Mapping)
        return not is_text and all(_fits(each, inner[0]) for each in value)
    return True
