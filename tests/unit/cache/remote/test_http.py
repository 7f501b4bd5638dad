"""Names, headers and credentials of a store that speaks HTTP. Servers: tests/integration."""

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import requests

from epctx.cache.remote.http import HttpStore
from epctx.transfer import client

NAME = f"v1/objects/{'a' * 64}"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[requests.PreparedRequest]:
    """What would be sent; each is answered with 404."""
    requested: list[requests.PreparedRequest] = []

    def send(_: object, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        requested.append(request)
        answer = requests.Response()
        answer.raw = io.BytesIO()
        answer.status_code, answer.request, answer.url = 404, request, request.url or ""
        return answer

    monkeypatch.setattr(client.Adapter, "send", send)
    return requested


def _store(*, token: str | None = None, bazel: bool = False) -> HttpStore:
    return HttpStore("u", base="https://host/cache/", token=token, bazel=bazel)


def test_names_are_below_the_base(sent: list[requests.PreparedRequest]) -> None:
    assert _store().size(NAME) is None
    assert sent[0].url == f"https://host/cache/{NAME}"


def test_bazel_remote_gets_names_that_it_takes(sent: list[requests.PreparedRequest]) -> None:
    assert _store(bazel=True).read(NAME, 1) is None
    sha256 = hashlib.sha256(NAME.encode()).hexdigest()
    assert sent[0].url == f"https://host/cache/ac/{sha256}"


def test_a_token_goes_before_netrc(
    sent: list[requests.PreparedRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine host login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    _store(token="token").size(NAME)
    _store().size(NAME)
    first, second = (each.headers["Authorization"] for each in sent)
    assert first == "Bearer token" and second.startswith("Basic ")
