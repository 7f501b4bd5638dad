"""Arguments and options of the command line, made from the signatures of `epctx.api`.

A positional parameter becomes an argument, a keyword an option. A flag that is on by default
becomes `--no-…`, a sequence an option that may be repeated, a mapping an option that takes
NAME=VALUE. The command's own code passes functions (listeners) and other objects. The help is the
parameter's entry under `Args` of the docstring; if it has none, the entry of `api.build`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

import typer

from epctx import api
from epctx.arguments import evaluated
from epctx.cli import completion
from epctx.commands.options import AnyPath, Option, entries
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.parsing import load
from epctx.text import bytes_of

_Command = TypeVar("_Command", bound=Callable[..., int | None])
_ATTRIBUTE: Final = "__declared_by__"
_PATHS: Final = (AnyPath, Sequence[AnyPath], AnyPath | Sequence[AnyPath])


def by(
    function: Callable[..., object], *, without: Collection[str] = ()
) -> Callable[[_Command], _Command]:
    """Give a command `command(ui, call, …)` the parameters of a function of `epctx.api`.

    `call` is that function with the values of the command line bound. If the command itself has a
    parameter of the same name, it also gets the value.

    Args:
        without: parameters that the command line does not have.
    """

    def mark(command: _Command) -> _Command:
        setattr(command, _ATTRIBUTE, (function, without))
        return command

    return mark


class Parameter:
    """A parameter of an API function, converted for the command line.

    Attributes:
        own: the parameter of the API function.
        shown: the parameter for Typer.
    """

    def __init__(self, own: inspect.Parameter, help: str) -> None:
        self.own = own
        annotation = own.annotation
        self.marks: tuple[object, ...] = ()
        if get_origin(annotation) is Annotated:
            annotation, *marks = get_args(annotation)
            self.marks = tuple(marks)
        option = next((m for m in self.marks if isinstance(m, Option)), Option())
        self._option = option
        kind = _without_none(annotation)
        self._values = get_args(kind)[1] if get_origin(kind) is Mapping else None
        self._negated = kind is bool and own.default is True
        self._many = self._values is not None or get_origin(kind) is Sequence or kind in _PATHS[1:]
        self.shown = own.replace(
            kind=inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if own.default is own.empty else self._default(),
            annotation=Annotated[self._typed(kind), self._info(help), *self.marks],
        )

    @property
    def flag(self) -> str:
        """The option's name on the command line."""
        name = (self._option.name or self.own.name).replace("_", "-")
        return f"--no-{name}" if self._negated else f"--{name}"

    def value(self, given: Any) -> Any:
        """Convert a value from the command line to the API's value.

        Raises:
            UsageError: a NAME=VALUE is malformed.
        """
        if self._negated:
            return not given
        if self._values is not None:
            convert = _CONVERT[self._values]
            return {n: convert(n, text, self.flag) for n, text in pairs(given, self.flag).items()}
        if self._many:
            return [getattr(each, "value", each) for each in given or ()] or self.own.default
        return given

    def _default(self) -> object:
        default = self.own.default
        if self._negated:
            return False
        return None if default == () else Path(default) if self._is_path() else default

    def _is_path(self) -> bool:
        annotation = self.own.annotation
        plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        return _without_none(plain) in _PATHS and isinstance(self.own.default, str)

    def _typed(self, kind: Any) -> Any:
        if self._values is not None:
            typed: Any = list[str]
        elif kind in _PATHS:
            path = Path if self._option.parser is None else Any  # Typer would convert it to a path
            typed = list.__class_getitem__(path) if self._many else path
        elif get_origin(kind) is Sequence:
            inner: Any = get_args(kind)[0]
            if get_origin(inner) is Literal:  # Typer does not support lists of literals
                inner = _enumeration(get_args(inner))
            typed = list.__class_getitem__(inner)
        else:
            typed = kind
        return typed if self.own.default is self.own.empty or kind is bool else typed | None

    def _info(self, help: str) -> object:
        option = self._option
        words = f"do not {help}" if self._negated and help else help
        # Without docstrings (`python -OO`) there is no help.
        shown = f"{words[:1].upper()}{words[1:]}." if words else ""
        settings: dict[str, Any] = {"help": shown, "metavar": option.metavar, "min": option.least}
        if option.complete is not None:
            settings["autocompletion"] = getattr(completion, option.complete)
        if self.own.default is None or self.own.default == ():
            settings["show_default"] = False
        if option.parser is not None:
            settings["parser"] = _PARSERS[option.parser]
        if self.own.kind is not inspect.Parameter.KEYWORD_ONLY and option.name is None:
            return typer.Argument(**settings)
        short = (f"-{option.short}",) if option.short else ()
        return typer.Option(self.flag, *short, **settings)


def _enumeration(values: Sequence[str]) -> type[Enum]:
    return cast("type[Enum]", Enum("Choice", [(each, each) for each in values]))


def parameters(command: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters that a command takes from its API function, by name."""
    function, without = getattr(command, _ATTRIBUTE, (None, ()))
    if function is None:
        return {}
    helps = entries(api.build) | entries(function)
    every = [evaluated(each, function) for each in inspect.signature(function).parameters.values()]
    return {
        each.name: Parameter(each, helps.get(each.name, ""))
        for each in every
        if _is_option(each.annotation) and each.name not in without
    }


def bound(command: Callable[..., object], values: dict[str, Any]) -> list[partial[object]]:
    """Bind a command's API function to the values of the command line, and remove these from
    `values`.

    Returns:
        The bound function; empty if the command has no API function.
    """
    function, _ = getattr(command, _ATTRIBUTE, (None, ()))
    if function is None:
        return []
    own = inspect.signature(command).parameters
    converted = {n: each.value(values.pop(n)) for n, each in parameters(command).items()}
    values.update((name, value) for name, value in converted.items() if name in own)
    return [partial(function, **converted)]


def help_of(command: Callable[..., object]) -> str:
    """Return the help of a command: the docstring of its API function, up to `Args`."""
    function, _ = getattr(command, _ATTRIBUTE, (command, ()))
    text = inspect.getdoc(function) or ""
    return re.split(r"^(?:Args|Returns|Raises):$", text, maxsplit=1, flags=re.MULTILINE)[0].strip()


def _is_option(annotation: Any) -> bool:
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    kind = _without_none(plain)
    inner = get_args(kind)
    if get_origin(kind) is Mapping:
        return inner[1] in _CONVERT
    if get_origin(kind) is Sequence and kind not in _PATHS:
        (kind,) = inner
    return kind in (str, int, float, bool, *_PATHS) or get_origin(kind) is Literal


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    rest = tuple(each for each in get_args(annotation) if each is not NoneType)
    return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - of a tuple


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Return the values of a repeated option NAME=VALUE, by name.

    Raises:
        UsageError: a text is not NAME=VALUE, or a name is given twice.
    """
    values: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{option} {text}",
                remedy=f"write it as {option} NAME=VALUE",
                code=Code.COMMAND_LINE,
            )
        if name in values:
            raise UsageError(
                f"{option} gives {name} twice: {values[name]} and {value}",
                remedy="keep one of them",
                code=Code.COMMAND_LINE,
            )
        values[name] = value
    return values


def _size(name: str, text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"{option} {name}={text}",
            why=f"{text!r} is not a size",
            remedy=f"write sizes of at least 1, as {option} {name}=1",
            code=Code.COMMAND_LINE,
        )
    return int(text)


def _shape(name: str, text: str, option: str) -> tuple[int, ...]:
    return tuple(_size(name, part.strip(), option) for part in text.split(","))


def _range(name: str, text: str, option: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{option} {name}={text}",
            remedy=f"write two numbers: {option} {name}=0,1",
            code=Code.COMMAND_LINE,
        ) from None
    return low, high


def _duration(text: str) -> float:
    try:
        return load.seconds(text)
    except ValueError as error:
        raise _wrong(str(error), "90s, 10m or 1h30m") from None


def size(text: str) -> int:
    """Parse a size like `10GB` into bytes. Raises UsageError."""
    value = bytes_of(text)
    if value is None:
        raise _wrong(f"{text!r} is not a size", "10GB or 500MiB")
    return value


def age(text: str) -> float:
    """Parse an age like `30d` into seconds. Raises UsageError."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise _wrong(f"{text!r} is not an age", "30d, 12h or 2w")
    return float(match[1]) * _SECONDS[match[2].lower()]


def place(text: str) -> Path | str:
    """Return a registry reference as text, and any other text as a path."""
    return text if text.startswith("oci://") else Path(text)


def _wrong(what: str, example: str) -> UsageError:
    return UsageError(what, remedy=f"write it like {example}", code=Code.COMMAND_LINE)


_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII | re.IGNORECASE)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "duration": _duration,
    "age": age,
    "size": size,
    "place": place,
}
_CONVERT: Final[Mapping[object, Callable[[str, str, str], object]]] = {
    str: lambda name, text, option: text,
    int: _size,
    Sequence[int]: _shape,
    tuple[float, float]: _range,
}
"""Conversion of a VALUE, by the type of the mapping's values."""
