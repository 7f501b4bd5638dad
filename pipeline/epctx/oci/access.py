"""Access to a registry: credentials go to it and to whom it names for tokens, and nobody else."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec
import requests
from msgspec import Struct
from requests.auth import AuthBase

from epctx import codec, limits
from epctx.oci.credentials import Credentials
from epctx.transfer import asking
from epctx.transfer.asking import Asking
from epctx.transfer.attempts import StoreError

_PARAMETER: Final = re.compile(r'([a-z_]+)="([^"]*)"')
_CLIENT: Final = "epctx"


class _Told(Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class Header(AuthBase):
    """Puts this, and nothing that ~/.netrc has, into a request; "": nothing at all."""

    def __init__(self, text: str = "") -> None:
        self._text = text

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """See `AuthBase`."""
        if self._text:
            request.headers["Authorization"] = self._text
        return request


class Access:
    """What lets requests into a registry, found out when it first refuses one. Thread-safe.

    Args:
        insecure: whom it names for tokens may be asked without TLS, if that is the registry itself.
        find: gives the credentials, when they are asked for.
    """

    def __init__(
        self, host: str, *, insecure: bool, find: Callable[[], Credentials | None]
    ) -> None:
        self._host, self._insecure, self._find = host, insecure, find
        self._asking = Asking()
        self._lock = threading.Lock()
        self._header = ""

    @property
    def header(self) -> str:
        """What is sent with a request; "": nothing is known yet."""
        return self._header

    def renew(self, refused: str, challenge: str) -> None:
        """Find what the registry wants, unless another thread has found it since.

        Args:
            refused: the header that was not taken.
            challenge: what the registry says that it wants.

        Raises:
            StoreError: nobody gives it.
        """
        with self._lock:
            if self._header == refused:
                self._header = self._found(challenge)

    def _found(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        credentials = self._find()
        if scheme.lower() == "bearer":
            return f"Bearer {self._token(dict(_PARAMETER.findall(rest)), credentials)}"
        if scheme.lower() != "basic":
            raise StoreError(
                "it wants credentials of a kind that epctx does not know", lasting=True
            )
        if credentials is None or not credentials.user:
            raise StoreError("it wants a user and a password: `docker login` first", lasting=True)
        return credentials.basic

    def _token(self, wanted: Mapping[str, str], credentials: Credentials | None) -> str:
        realm = urlsplit(wanted.get("realm", ""))
        own = self._insecure and realm.netloc == self._host
        if not (realm.netloc and (realm.scheme == "https" or (own and realm.scheme == "http"))):
            raise StoreError("it names a place for tokens that is not safe", lasting=True)
        query = {key: wanted[key] for key in ("service", "scope") if key in wanted}
        if credentials is not None and not credentials.user:
            form = query | {
                "grant_type": "refresh_token",
                "client_id": _CLIENT,
                "refresh_token": credentials.secret,
            }
            return self._given("POST", realm.geturl(), Header(), urlencode(form).encode())
        scopes = [("scope", each) for each in query.pop("scope", "").split()]
        joint = "&" if realm.query else "?"
        place = realm.geturl() + joint + urlencode([*query.items(), *scopes])
        return self._given("GET", place, Header(credentials.basic if credentials else ""))

    def _given(self, method: str, place: str, auth: Header, data: bytes | None = None) -> str:
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if data else {}
        asked = self._asking.asked(method, place, auth=auth, headers=headers, data=data)
        try:
            with asked as answer:
                content = asking.whole(answer, limits.REGISTRY_MANIFEST_BYTES.value)
            told = codec.decode(content, _Told)
        except msgspec.MsgspecError:
            raise StoreError("who gives its tokens answers none", lasting=True) from None
        token = told.token or told.access_token
        if not (token.isascii() and token.isprintable() and token):
            raise StoreError("who gives its tokens answers none", lasting=True)
        return token
