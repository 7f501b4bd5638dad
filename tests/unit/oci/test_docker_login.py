"""Who we are to a registry, by docker's configuration and its helpers."""

import base64
import json
import sys
from pathlib import Path

import pytest

from epctx.errors import UsageError
from epctx.oci.access import Credentials, stored_credentials

SECRET = "word-nobody-may-tell"
AUTH = {"auth": base64.b64encode(f"me:{SECRET}".encode()).decode()}
ME = Credentials(user="me", secret=SECRET)


def _found(folder: Path, config: object, host: str = "host:5000") -> Credentials | None:
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return stored_credentials(host, {"DOCKER_CONFIG": str(folder)})


def test_nobody_has_logged_in(tmp_path: Path) -> None:
    assert stored_credentials("host", {"DOCKER_CONFIG": str(tmp_path)}) is None
    assert _found(tmp_path, {}) is None
    assert _found(tmp_path, {"auths": {"other": AUTH}}) is None


@pytest.mark.parametrize("name", ["host:5000", "https://host:5000", "https://host:5000/v2/"])
def test_what_docker_login_wrote(tmp_path: Path, name: str) -> None:
    assert _found(tmp_path, {"auths": {name: AUTH}}) == ME
    assert ME.basic == f"Basic {AUTH['auth']}"


def test_docker_hub_has_another_name(tmp_path: Path) -> None:
    config = {"auths": {"https://index.docker.io/v1/": AUTH}}
    assert _found(tmp_path, config, "docker.io") == ME


def test_a_token_to_ask_with(tmp_path: Path) -> None:
    config = {"auths": {"host:5000": {"identitytoken": SECRET}}}
    assert _found(tmp_path, config) == Credentials(user="", secret=SECRET)


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A helper of docker's that knows one host."""
    path = tmp_path / "docker-credential-own"
    path.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "assert sys.argv[1] == 'get'\n"
        "sys.exit(1) if sys.stdin.read() != 'host:5000' else "
        f"""print('{{"Username": "me", "Secret": "{SECRET}"}}')\n"""
    )
    path.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


@pytest.mark.needs("POSIX", "a program of a script")
def test_helpers_are_asked(tmp_path: Path, helper: Path) -> None:
    assert _found(tmp_path, {"credHelpers": {"host:5000": "own"}}) == ME
    assert _found(tmp_path, {"credsStore": "own"}) == ME
    assert _found(tmp_path, {"credsStore": "own"}, "elsewhere") is None
    assert _found(tmp_path, {"credsStore": "own", "auths": {"elsewhere": AUTH}}, "elsewhere") == ME
    helper.write_text("#!/bin/sh\necho nothing\n")
    with pytest.raises(UsageError, match="returned no valid credentials"):
        _found(tmp_path, {"credsStore": "own"})


@pytest.mark.parametrize(
    "config",
    [
        *("no JSON", {"auths": 7}, {"auths": {"host:5000": {"auth": SECRET}}}),
        *({"credsStore": "none-such"}, {"credsStore": "../own"}),
    ],
)
def test_what_is_none_is_told_without_a_secret(tmp_path: Path, config: object) -> None:
    with pytest.raises(UsageError) as error:
        _found(tmp_path, config)
    assert SECRET not in str(error.value)
