"""Limits are in one place, each can be set, and what sets none is refused."""

import ast
from pathlib import Path

import pytest

import epctx
from epctx import errors, limits
from epctx.errors import InvalidManifest, ModelError, UsageError
from epctx.parsing import document
from epctx.worker.process import environment
from tests.kit import command_line

ROOT = Path(epctx.__file__).parent


def test_a_variable_sets_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(limits.MANIFEST_BYTES) == "4 MiB"
    monkeypatch.setenv("EPCTX_LIMIT_MANIFEST_BYTES", "10")
    assert str(limits.MANIFEST_BYTES) == "10 bytes"
    with pytest.raises(InvalidManifest, match=r"larger than 10 bytes") as error:
        document.parse(b"name: more than ten bytes", file="m.yaml", path=Path("m.yaml"))
    assert "raise EPCTX_LIMIT_MANIFEST_BYTES, which is 10" in str(error.value)


@pytest.mark.parametrize("text", ["", "0", "-1", "4M", "1e3", "1_000", "٣", "9" * 30])
def test_what_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_MODEL_NODES", text)
    with pytest.raises(UsageError, match="EPCTX_LIMIT_MODEL_NODES is"):
        limits.check()


def test_a_misspelt_limit_is_refused_by_each_command(tmp_path: Path) -> None:
    ended = command_line.epctx("schema", cwd=tmp_path, EPCTX_LIMIT_MODEL_NODE="7")
    assert ended.returncode == 2
    assert 'did you mean "EPCTX_LIMIT_MODEL_NODES"?' in ended.stderr


def test_workers_have_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_MODEL_NODES", "7")
    assert environment({})["EPCTX_LIMIT_MODEL_NODES"] == "7"


def test_names_are_those_of_the_variables() -> None:
    for limit in limits.ALL:
        assert getattr(limits, limit.name) is limit


def test_each_limit_is_used() -> None:
    used = {
        node.attr
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "limits"
    }
    assert {limit.name for limit in limits.ALL} <= used


def test_a_message_is_bounded_whatever_a_model_calls_its_nodes() -> None:
    error = ModelError(f"node {'n' * 10**7} is broken", where="w" * 10**6, remedy="none")
    assert len(str(error)) < 3 * errors.MESSAGE_LENGTH
    assert str(error).startswith("www") and "is broken" in str(error)
    assert "characters more" in str(error)
    assert str(ModelError("://x" * 10**6, remedy="none")).startswith("://x")
