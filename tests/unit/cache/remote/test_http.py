"""Stores that speak HTTP, and WebDAV's listings."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import requests

from epctx.cache.remote import http
from epctx.cache.remote.http import HttpStore
from epctx.cache.remote.store import Stored
from epctx.transfer import client
from epctx.transfer.attempts import StoreError

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


ONE = (
    "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:getcontentlength>{size}"
    "</D:getcontentlength><D:getlastmodified>Mon, 23 Nov 2026 13:52:55 GMT</D:getlastmodified>"
    "</D:prop></D:propstat></D:response>"
)


def _listing(*hrefs: str, size: str = "5") -> list[bytes]:
    """In pieces that end anywhere."""
    inside = "".join(ONE.format(href=each, size=size) for each in hrefs)
    text = f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{inside}</D:multistatus>'.encode()
    return [text[start : start + 7] for start in range(0, len(text), 7)]


def test_blobs_are_told_by_the_last_part_of_a_path() -> None:
    hex_ = "ab" * 32
    hrefs = ("/deep/v1/objects/", f"/deep/v1/objects/{hex_}", "https://elsewhere/../../etc/passwd")
    name = f"v1/objects/{hex_}"
    assert list(http.listed_blobs(_listing(*hrefs), "v1/objects")) == [
        Stored(name=name, size=5, modified=1795441975.0)
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"no XML"],
        [b"<D:multistatus xmlns:D='DAV:'>"],
        _listing(f"/{'a' * 64}", size="many"),
        [
            b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">',
            *(b'<!ENTITY %c "%b">' % (98 + n, b"&%c;" % (97 + n) * 50) for n in range(12)),
            b"]><x>&m;</x>",
        ],
    ],
)
def test_what_cannot_be_read_is_told(pieces: list[bytes]) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        list(http.listed_blobs(pieces, "v1/objects"))


def test_names_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_REMOTE_NAMES", "3")
    pieces = _listing(*(f"/{each:064x}" for each in range(9)))
    with pytest.raises(StoreError, match="more than 3 names"):
        list(http.listed_blobs(pieces, "v1/objects"))
    assert http.most_listing_bytes() == 3 << 10
