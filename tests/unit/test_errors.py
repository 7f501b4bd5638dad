"""The tree of errors: its exit codes, its messages."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from epctx import codec, errors
from epctx.errors import (
    EpctxError,
    Failure,
    InvalidGraph,
    InvalidManifest,
    ManifestError,
    ModelError,
    StorageError,
    UsageError,
    Violation,
)
from epctx.worker import protocol

VIOLATION = Violation(
    file="m.yaml", line=3, column=5, path="models.a", what="has no path", remedy="add it"
)


def every_error() -> list[type[EpctxError]]:
    found = [EpctxError]
    for error in found:
        found.extend(error.__subclasses__())
    return [error for error in found if error.__module__ == "epctx.errors"]


def test_exit_codes_are_those_of_the_contract() -> None:
    codes = {error.__name__: error.exit_code for error in every_error()}
    assert codes == {
        "EpctxError": 1,
        "UsageError": 2,
        "ManifestError": 3,
        "InvalidManifest": 3,
        "ModelError": 4,
        "ProviderUnavailable": 5,
        "CompileError": 6,
        "VerificationError": 7,
        "InvalidGraph": 7,
        "LockError": 8,
        "StorageError": 9,
        "TimedOut": 10,
        "Interrupted": 130,
    }


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = dict(re.findall(r"(\w+) +(\d+)  ", errors.__doc__ or ""))
    assert drawn == {error.__name__: str(error.exit_code) for error in every_error()}


@pytest.mark.parametrize(
    ("where", "why", "head"),
    [
        (None, None, "it is broken"),
        ("a.onnx", None, "a.onnx: it is broken"),
        (None, "no data", "it is broken: no data"),
        ("a.onnx", "no data", "a.onnx: it is broken: no data"),
    ],
)
def test_a_message_says_where_what_why_and_ends_with_the_remedy(
    where: str | None, why: str | None, head: str
) -> None:
    error = EpctxError("it is broken", where=where, why=why, remedy="mend it")
    assert str(error) == f"{head}\n  -> mend it"


def test_an_invalid_graph_names_onnx_runtimes_code() -> None:
    assert str(InvalidGraph("it is broken", remedy="mend it")).startswith("INVALID_GRAPH: it is")


def test_a_violation_has_a_place_that_editors_link() -> None:
    assert str(VIOLATION) == "m.yaml:3:5: models.a: has no path\n  -> add it"


def test_a_violation_without_a_place_names_the_file() -> None:
    nowhere = Violation(file="m.yaml", line=0, column=0, path="", what="is empty", remedy="fill it")
    assert str(nowhere) == "m.yaml: is empty\n  -> fill it"


def test_an_invalid_manifest_tells_every_violation() -> None:
    other = Violation(file="m.yaml", line=9, column=1, path="x", what="unknown", remedy="remove it")
    error = InvalidManifest([VIOLATION, other])
    assert isinstance(error, ManifestError)
    assert str(error) == f"{VIOLATION}\n{other}"
    assert error.violations == (VIOLATION, other)
    assert (error.where, error.what, error.remedy) == (
        "m.yaml:3:5",
        "models.a: has no path",
        "add it",
    )
    assert error.why == "and 1 more"


# --- fields, for programs ---


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, None),
        ({"file": "a.onnx"}, "a.onnx"),
        ({"file": "m.yaml", "line": 3, "column": 5}, "m.yaml:3:5"),
        ({"file": "a.onnx", "node": "/add: 1"}, "a.onnx, node '/add: 1'"),
        ({"model": "prefill"}, "model prefill"),
        ({"model": "prefill", "file": "a.onnx"}, "a.onnx"),
        ({"where": "verify.inputs", "file": "m.yaml"}, "verify.inputs"),
    ],
)
def test_fields_say_where_in_words_too(fields: dict[str, Any], where: str | None) -> None:
    assert EpctxError("it is broken", remedy="mend it", **fields).where == where


def test_who_passes_an_error_on_adds_what_is_missing() -> None:
    with pytest.raises(ModelError) as caught, errors.about(file="outer.onnx", model="outer"):
        raise ModelError("it is broken", file="inner.onnx", remedy="mend it")
    assert (caught.value.file, caught.value.model) == ("inner.onnx", "outer")


@pytest.mark.parametrize(("file", "where"), [("a.npz", "inputs: a.npz"), (None, "inputs")])
def test_a_key_comes_before_the_place(file: str | None, where: str) -> None:
    with pytest.raises(ModelError) as caught, errors.about(key="inputs"):
        raise ModelError("it is broken", file=file, remedy="mend it")
    assert caught.value.where == where


@pytest.mark.parametrize("kind", [each for each in every_error() if each is not EpctxError])
def test_an_error_is_the_same_after_it_crossed_to_another_process(
    kind: type[EpctxError], tmp_path: Path
) -> None:
    error: EpctxError
    if issubclass(kind, InvalidManifest):
        error = kind([VIOLATION])
    else:
        fields: dict[str, Any] = {"file": "a.onnx", "line": 2, "column": 3, "model": "m"}
        error = kind("it is broken", why="no data", remedy="mend it", node="n: 1", **fields)
    error.group = "llm@default"
    sent = codec.decode(codec.encode(protocol.report(error)), Failure)
    back = protocol.restore(sent, log=tmp_path)
    kinds = (ManifestError if kind is InvalidManifest else kind, error.exit_code)
    assert (type(back), back.exit_code) == kinds
    assert dataclasses.replace(back.failure, kind="") == dataclasses.replace(error.failure, kind="")


def test_the_group_comes_first() -> None:
    error = EpctxError("it is broken", file="a.onnx", remedy="mend it")
    error.group = "llm@default"
    assert str(error) == "llm@default: a.onnx: it is broken\n  -> mend it"
    assert error.where == "a.onnx"


def test_what_the_system_refuses_is_the_why() -> None:
    with (
        pytest.raises(StorageError) as caught,
        StorageError.if_refused("cannot be read", file="m.bin", remedy="look at the disk"),
    ):
        raise OSError(5, "Input/output error", "m.bin")
    assert str(caught.value) == "m.bin: cannot be read: Input/output error\n  -> look at the disk"
    with (
        pytest.raises(StorageError, match="no number"),
        StorageError.if_refused("cannot be read", remedy="look at the disk"),
    ):
        raise OSError("no number")


def test_another_error_passes_through() -> None:
    with (
        pytest.raises(ManifestError, match="is empty"),
        StorageError.if_refused("cannot be read", remedy="look at the disk"),
    ):
        raise ManifestError("is empty", remedy="fill it")


def test_what_is_there_is_no_error_and_what_is_not_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    UsageError.if_missing("jinja2", "report")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match="the package jinja2, which is not installed") as caught:
        UsageError.if_missing("jinja2", "report")
    assert caught.value.remedy == 'pip install "epctx[report]"'


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("oci://user:pass@host/repo", "oci://…@host/repo"),
        ("'dask://user:p/a:ss@host:8786' names", "'dask://…@host:8786' names"),
        ("https://ghp_token@host/x and s3://a:b@c", "https://…@host/x and s3://…@c"),
        ("oci://user:p@ss@host/repo", "oci://…@host/repo"),
        ("https://host/x?X-Amz-Signature=ab12&a=1", "https://host/x?X-Amz-Signature=…&a=1"),
        ("dask://local?workers=0", "dask://local?workers=0"),
        ("oci://host:5000/r@sha256:00", "oci://host:5000/r@sha256:00"),
        ("oci://host/r:tag, by me@example.com", "oci://host/r:tag, by me@example.com"),
    ],
)
def test_no_message_has_credentials(said: str, shown: str) -> None:
    error = EpctxError(said, remedy=said, where=said, why=said, file=said)
    parts = (error.what, error.remedy, error.where, error.why, error.file)
    assert parts == (shown,) * 5
    violation = Violation(file="m.yaml", line=1, column=1, path="", what=said, remedy=said)
    assert (violation.what, violation.remedy) == (shown, shown)
