"""The tree of errors: its exit codes, its messages."""

import re

import pytest

from epctx import errors
from epctx.errors import EpctxError, InvalidGraph, InvalidManifest, ManifestError, Violation

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
