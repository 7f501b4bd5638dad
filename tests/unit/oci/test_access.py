"""What a registry wants, and who gets credentials. Servers: tests/integration/test_registry.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from epctx.oci.access import Access, Credentials
from epctx.transfer.attempts import StoreError
from epctx.transfer.client import Header, HttpClient

ME = Credentials(user="me", secret="word")


class _Answer:
    def __init__(self, content: bytes) -> None:
        self.raw = self
        self._content = content

    def stream(self, size: int, *, decode_content: bool) -> Iterator[bytes]:
        yield self._content


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str, Any]]:
    """Method, place, credentials and form of each request for a token, which is given."""
    seen: list[tuple[str, str, str, Any]] = []

    @contextlib.contextmanager
    def ask(
        self: HttpClient, method: str, place: str, *, auth: Header, data: Any = None, **more: Any
    ) -> Iterator[_Answer]:
        prepared = requests.Request(method, place).prepare()
        auth(prepared)
        seen.append((method, place, prepared.headers.get("Authorization", ""), data))
        yield _Answer(b'{"token": "given"}')

    monkeypatch.setattr(HttpClient, "request", ask)
    return seen


def _access(
    credentials: Credentials | None, *, host: str = "host", insecure: bool = False
) -> Access:
    return Access(host, insecure=insecure, find=lambda: credentials)


CHALLENGE = (
    'Bearer realm="https://tokens/t",service="host",scope="repository:a:pull repository:b:pull"'
)


def test_a_token_is_asked_for_with_the_password(asked: list[tuple[str, str, str, Any]]) -> None:
    access = _access(ME)
    assert access.header == ""
    access.renew("", CHALLENGE)
    assert access.header == "Bearer given"
    access.renew("", CHALLENGE)  # another thread's, which knew of none
    ((method, place, told, _),) = asked
    scopes = "scope=repository%3Aa%3Apull&scope=repository%3Ab%3Apull"
    assert (method, told) == ("GET", ME.basic)
    assert place == f"https://tokens/t?service=host&{scopes}"


def test_nobody_asks_without_a_password(asked: list[tuple[str, str, str, Any]]) -> None:
    _access(None).renew("", CHALLENGE)
    assert asked[0][2] == ""


def test_a_token_to_ask_with_goes_in_a_form(asked: list[tuple[str, str, str, Any]]) -> None:
    _access(Credentials(user="", secret="refresh")).renew("", CHALLENGE)
    method, place, told, form = asked[0]
    assert (method, place, told) == ("POST", "https://tokens/t", "")
    assert b"grant_type=refresh_token" in form and b"refresh_token=refresh" in form


def test_basic_needs_a_password() -> None:
    access = _access(ME)
    access.renew("", 'Basic realm="x"')
    assert access.header == ME.basic
    with pytest.raises(StoreError, match="docker login"):
        _access(None).renew("", "Basic")


@pytest.mark.parametrize(
    "challenge",
    [
        *("", "Negotiate", 'Bearer realm=""', 'Bearer realm="http://tokens/t"'),
        *('Bearer realm="file:///etc/passwd"', 'Bearer realm="http://host/t"'),
        *('Bearer realm="https://169.254.169.254/t"', 'Bearer realm="https://10.0.0.1/t"'),
        *('Bearer realm="https://127.1/t"', 'Bearer realm="https://localhost/t"'),
        *('Bearer realm="https://[::ffff:10.0.0.1]/t"', 'Bearer realm="https://0.0.0.0/t"'),
        *('Bearer realm="https://10.0.0.1\\@host/t"', 'Bearer realm="https://[x/t"'),
    ],
)
def test_nothing_goes_where_it_is_not_safe(
    asked: list[tuple[str, str, str, Any]], challenge: str
) -> None:
    with pytest.raises(StoreError):
        _access(ME).renew("", challenge)
    assert not asked


def test_a_registry_of_plain_http_may_give_its_own_tokens(
    asked: list[tuple[str, str, str, Any]],
) -> None:
    _access(ME, insecure=True).renew("", 'Bearer realm="http://host/t?x=1"')
    assert asked[0][1].startswith("http://host/t?x=1&")
    with pytest.raises(StoreError, match="unsafe address"):
        _access(ME, insecure=True).renew("", 'Bearer realm="http://other/t"')


@pytest.mark.parametrize(
    ("host", "realm"),
    [
        ("registry-1.docker.io", "https://auth.docker.io/token"),
        ("registry.example.com", "https://93.184.216.34/token"),
        ("10.0.0.1:5000", "https://10.0.0.1/token"),
        ("localhost:5000", "https://localhost:5000/token"),
    ],
)
def test_another_host_of_the_internet_and_the_registry_itself_may_give_tokens(
    asked: list[tuple[str, str, str, Any]], host: str, realm: str
) -> None:
    _access(ME, host=host).renew("", f'Bearer realm="{realm}"')
    assert asked[0][1:3] == (f"{realm}?", ME.basic)
