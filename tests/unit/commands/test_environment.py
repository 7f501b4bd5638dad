"""Variables of the environment: listed, checked, and those that nobody reads told."""

import re
from pathlib import Path

import pytest

import epctx
from epctx import api, limits
from epctx.commands import environment

SOURCES = Path(epctx.__file__).parent


def test_every_variable_that_the_package_reads_is_listed() -> None:
    texts = (path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    read = set(re.findall(r'"(EPCTX_[A-Z_]*[A-Z])"', "\n".join(texts)))
    listed = {each.name for each in api.env()}
    told_to_workers = {"EPCTX_WORKER_PLACE", "EPCTX_SAMPLES"}
    assert read - told_to_workers == listed - {each.variable for each in limits.ALL}
    assert {each.variable for each in limits.ALL} < listed


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment._MEANINGS, "EPCTX_TOKEN", ("none", "opens a door"))
    found = {each.name: each.value for each in environment.variables({}, {"EPCTX_TOKEN": "sesame"})}
    assert found["EPCTX_TOKEN"] == "(set)"


def test_an_unknown_variable_is_told_with_the_nearest() -> None:
    given = {"EPCTX_CACHEDIR": "/c", "EPCTX_WORKER_PLACE": "1", "EPCTX_CACHE_DIR": "/c", "PATH": ""}
    assert dict(environment.unknown({}, given)) == {
        "EPCTX_CACHEDIR": 'did you mean "EPCTX_CACHE_DIR"?'
    }
