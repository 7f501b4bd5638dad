"""The public API: its names, its docstrings, and what it says of a name where a list belongs."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import epctx
from epctx import errors, provider_tests, runtime
from epctx.errors import UsageError
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


@pytest.mark.parametrize(
    ("name", "given", "what"),
    [
        ("partition", {"exclude_nodes": ["x"]}, "not a PartitionSettings"),
        ("partition", {}, "not a PartitionSettings"),
        ("dimensions", ["x"], "not a Mapping"),
        ("shapes", [1], "not a Mapping"),
    ],
)
def test_compile_model_refuses_an_argument_of_another_type(
    name: str, given: object, what: str
) -> None:
    """It was an AttributeError from within, and `{}` passed for the default."""
    arguments: dict[str, Any] = {name: given}
    with pytest.raises(UsageError, match=f"^{name} is .*, {what}"):
        epctx.compile_model("a.onnx", output="a_ctx.onnx", **arguments)
