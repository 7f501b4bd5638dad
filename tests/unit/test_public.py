"""The public API: its names, its docstrings, and the arguments that it refuses."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args, get_origin

import pytest

import epctx
from epctx import errors, provider_tests, runtime
from epctx.arguments import Place, evaluated
from epctx.errors import UsageError
from epctx.files.entries import Kind
from epctx.inference.session import Session
from epctx.providers import base
from epctx.runtime import InferenceSession

NOT_SHIPPED = re.compile(r"design(\.md)? section|spec/|real-eps|house\.md|shared/|\bsection \d")
"""Documents that nobody has who installed epctx."""


def public() -> Iterator[tuple[str, object]]:
    """What people import: verbs, errors, the runtime, what an EP is made of."""
    yield from ((name, getattr(epctx, name)) for name in epctx.__all__)
    yield from vars(errors).items()
    yield from ((name, getattr(runtime, name)) for name in runtime.__all__)
    yield from ((each.__name__, each) for each in (Session, InferenceSession))
    yield base.__name__, base
    yield from vars(base).items()
    yield "provider_tests", provider_tests
    yield from ((n, getattr(provider_tests, n)) for n in provider_tests.__all__)


def docstrings() -> Iterator[tuple[str, str]]:
    for name, thing in public():
        if name.startswith("_") or not getattr(thing, "__module__", name).startswith("epctx"):
            continue
        yield name, inspect.getdoc(thing) or ""
        for inner, member in vars(thing).items() if inspect.isclass(thing) else ():
            if not inner.startswith("_") and callable(member):
                yield f"{name}.{inner}", inspect.getdoc(member) or ""


def test_docstrings_refer_to_what_is_shipped() -> None:
    found = list(docstrings())
    assert len(found) > 100
    assert [name for name, text in found if NOT_SHIPPED.search(text)] == []


def test_dir_shows_the_public_names() -> None:
    assert dir(epctx) == sorted(epctx.__all__)
    assert {"build", "errors", "explain", "runtime", "verify"} < set(dir(epctx))
    assert all(getattr(epctx, name) is not None for name in dir(epctx))
    assert epctx.errors.Code("E0312") is errors.Code.UNKNOWN_OPTION


def test_no_module_has_the_name_of_a_function() -> None:
    """To import it would put it in the function's place."""
    modules = {module.name for module in pkgutil.iter_modules(epctx.__path__)}
    assert modules & set(epctx.__all__) == {"errors", "runtime"}


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: epctx.build("m.yaml", only="llm"), "only is 'llm', not a list"),
        (lambda: epctx.plan("m.yaml", only="llm"), "only is 'llm', not a list"),
        (lambda: epctx.reproduce("m.yaml", vary="home"), "vary is 'home', not a list"),
        (lambda: epctx.init("a.onnx"), "models is 'a.onnx', not a list"),
        (lambda: epctx.init(cast("list[str]", Path("a.onnx"))), "models is 'a.onnx', not a list"),
        (lambda: epctx.run("m.onnx", inputs="x.npz"), "inputs is 'x.npz', not a list"),
        (lambda: epctx.run("m.onnx", providers="QNN"), "providers is 'QNN', not a list"),
        (lambda: epctx.compile_model("m.onnx", providers="QNN"), "providers is 'QNN', not a list"),
        (lambda: InferenceSession(b"", providers="QNN"), "providers is 'QNN', not a list"),
    ],
)
def test_a_name_where_a_list_belongs_is_refused(call: Callable[[], object], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.what == what
    name, _, value = what.removesuffix(", not a list").partition(" is ")
    assert caught.value.remedy == f"write {name}=[{value}]"


class Argument(NamedTuple):
    """A parameter of a public function, and values for those that have no default."""

    function: Callable[..., object]
    parameter: inspect.Parameter
    required: dict[str, object]


def arguments() -> Iterator[tuple[str, Argument]]:
    for function in (*(getattr(epctx, name) for name in epctx.__all__), InferenceSession):
        body = getattr(function, "__init__", None) if inspect.isclass(function) else function
        if not inspect.isfunction(body):
            continue
        parameters = inspect.signature(function).parameters.values()
        required: dict[str, object] = {p.name: "gone" for p in parameters if p.default is p.empty}
        for each in parameters:
            argument = Argument(function, evaluated(each, body), required)
            yield f"{function.__name__}-{each.name}", argument


def holds(kind: object, wanted: object) -> bool:
    return get_origin(kind) is wanted or any(holds(each, wanted) for each in get_args(kind))


ARGUMENTS = dict(arguments())
PATHS = {n: each for n, each in ARGUMENTS.items() if holds(each.parameter.annotation, os.PathLike)}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_of_another_type_is_refused_by_name(name: str) -> None:
    """It was a TypeError or an AttributeError from within."""
    function, parameter, required = ARGUMENTS[name]
    with pytest.raises(UsageError, match=f"^{parameter.name} is <object obj.*, not "):
        function(**required | {parameter.name: object()})


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ({"partition": {}}, "partition is {}, not PartitionSettings | None"),
        ({"shapes": {"x": "1"}}, "shapes is {'x': '1'}, not Mapping[str, Sequence[int]] | None"),
        ({"providers": [("a",)]}, "providers is [('a',)], not Sequence["),
        ({"session_options": {"a": 1}}, "session_options is {'a': 1}, not SessionOptions | "),
        ({"optimize": [1]}, "optimize is [1], not str | Sequence[str]"),
    ],
)
def test_the_items_of_an_argument_have_types_too(call: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        epctx.compile_model("a.onnx", **call)
    assert caught.value.what.startswith(what)


@pytest.mark.needs("POSIX", "has no FIFOs")
@pytest.mark.parametrize("name", PATHS)
def test_what_a_path_may_lead_to_is_declared_and_nothing_else_is_opened(
    name: str, tmp_path: Path
) -> None:
    """A folder, a device, or a pipe that nobody writes to: refused before anything is done."""
    function, parameter, required = PATHS[name]
    (place,) = (m for m in parameter.annotation.__metadata__ if isinstance(m, Place))
    make: dict[Kind, Callable[[Path], None]] = {
        "file": Path.touch,
        "folder": Path.mkdir,
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
    }
    for kind in make.keys() - set(place.kinds):
        path = tmp_path / kind
        make[kind](path)
        given = [path] if holds(parameter.annotation, Sequence) else path
        with pytest.raises(UsageError, match=f"{kind}: is a {kind}\n  -> name a "):
            function(**required | {parameter.name: given})
