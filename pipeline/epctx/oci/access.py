"""Access to a registry, with the credentials of `docker login`: in its configuration or a helper.

Credentials go to the registry and to the host that it names for tokens, and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec
from msgspec import Struct, field

from epctx import codec, limits
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files.entries import read_document
from epctx.transfer import client
from epctx.transfer.attempts import StoreError
from epctx.transfer.client import Header, HttpClient
from epctx.transfer.hosts import is_internal

_HELPER: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_TOKEN_USER: Final = "<token>"
_HUB: Final = ("https://index.docker.io/v1/", "index.docker.io")
"""Names of Docker Hub in docker's configuration."""
_PARAMETER: Final = re.compile(r'([a-z_]+)="([^"]*)"')
_CLIENT: Final = "epctx"


class Credentials(Struct, frozen=True, kw_only=True):
    """User and password; or a refresh token, which has no user."""

    user: str
    secret: str

    @property
    def basic(self) -> str:
        """Header of HTTP's basic authentication."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


class _Auth(Struct, frozen=True):
    auth: str = ""
    identitytoken: str = ""


class _Config(Struct, frozen=True):
    auths: Mapping[str, _Auth] = field(default_factory=dict)
    credHelpers: Mapping[str, str] = field(default_factory=dict)
    credsStore: str = ""


class _Answer(Struct, frozen=True):
    Username: str
    Secret: str


def stored_credentials(
    host: str, environment: Mapping[str, str] = os.environ
) -> Credentials | None:
    """Return the credentials for a registry; None if nobody has logged in there.

    Raises:
        UsageError: docker's configuration, or the answer of a helper, cannot be read.
    """
    folder = environment.get("DOCKER_CONFIG")
    config = _read((Path(folder) if folder else Path.home() / ".docker") / "config.json")
    names = (host, *(_HUB if host == "docker.io" else (f"https://{host}", f"https://{host}/v2/")))
    if helper := next((config.credHelpers[n] for n in names if n in config.credHelpers), ""):
        return _from_helper(helper, host)
    if config.credsStore:
        name = _HUB[0] if host == "docker.io" else host
        credentials = _from_helper(config.credsStore, name)
        if credentials is not None:
            return credentials
    return next((_decoded(config.auths[n], host) for n in names if n in config.auths), None)


def _read(path: Path) -> _Config:
    try:
        content = read_document(path, limits.REGISTRY_MANIFEST_BYTES.value)
        return codec.decode(content, _Config)
    except FileNotFoundError:
        return _Config()
    except (OSError, msgspec.MsgspecError) as error:
        raise _refused("is not a configuration of docker", path.as_posix()) from error


def _decoded(auth: _Auth, host: str) -> Credentials | None:
    """Decode an entry of the configuration; None if it has no secret, as with a helper."""
    if auth.identitytoken:
        return Credentials(user="", secret=auth.identitytoken)
    if not auth.auth:
        return None
    try:
        user, _, secret = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise _refused(f"has invalid credentials for {host}", "docker's config.json") from None
    return Credentials(user=user, secret=secret.rstrip("\0"))


def _from_helper(helper: str, host: str) -> Credentials | None:
    """Run `docker-credential-HELPER get`; None if it has no credentials for the host."""
    program = f"docker-credential-{helper}"
    path = shutil.which(program) if _HELPER.fullmatch(helper) else None
    if path is None:
        raise _refused("is not installed, but docker's config.json names it", program)
    try:
        ran = subprocess.run(
            [path, "get"],
            input=host.encode(),
            capture_output=True,
            timeout=limits.SIGNING_SECONDS.value,
            check=False,
        )
        if ran.returncode:
            return None
        answer = codec.decode(ran.stdout, _Answer)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        raise _refused("returned no valid credentials", program) from None
    user = "" if answer.Username == _TOKEN_USER else answer.Username
    return Credentials(user=user, secret=answer.Secret)


def _refused(what: str, where: str) -> UsageError:
    return UsageError(
        what,
        where=where,
        remedy="log in again with `docker login`, or name another folder in DOCKER_CONFIG",
        code=Code.ENVIRONMENT,
    )


class _Tokens(Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class Access:
    """Authorization of requests to a registry, determined when it first refuses one. Thread-safe.

    Args:
        host: host of the registry, with its port if that is given.
        insecure: allow tokens of the registry itself over plain HTTP.
        find: returns the credentials.
    """

    def __init__(
        self, host: str, *, insecure: bool, find: Callable[[], Credentials | None]
    ) -> None:
        self._host, self._insecure, self._find = host, insecure, find
        self._client = HttpClient()
        self._lock = threading.Lock()
        self._header = ""

    @property
    def header(self) -> str:
        """`Authorization` of a request; empty until the registry has refused one."""
        return self._header

    def renew(self, refused: str, challenge: str) -> None:
        """Determine a new header, unless another thread has done so.

        Args:
            refused: header that the registry refused.
            challenge: its `WWW-Authenticate`.

        Raises:
            StoreError: epctx has no credentials that the registry may accept.
        """
        with self._lock:
            if self._header == refused:
                self._header = self._authorization(challenge)

    def _authorization(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        credentials = self._find()
        if scheme.lower() == "bearer":
            return f"Bearer {self._token(dict(_PARAMETER.findall(rest)), credentials)}"
        if scheme.lower() != "basic":
            raise StoreError(
                "it asks for a kind of credentials that epctx does not support", lasting=True
            )
        if credentials is None or not credentials.user:
            raise StoreError(
                "it asks for a user and a password: run `docker login` first", lasting=True
            )
        return credentials.basic

    def _token(self, challenge: Mapping[str, str], credentials: Credentials | None) -> str:
        try:
            realm = urlsplit(challenge.get("realm", ""))
            safe = self._may_have_credentials(realm)
        except ValueError:  # an invalid IPv6 address
            safe = False
        if not safe:
            raise StoreError("it names an unsafe address for tokens", lasting=True)
        query = {key: challenge[key] for key in ("service", "scope") if key in challenge}
        if credentials is not None and not credentials.user:
            form = query | {
                "grant_type": "refresh_token",
                "client_id": _CLIENT,
                "refresh_token": credentials.secret,
            }
            return self._request_token("POST", realm.geturl(), Header(), urlencode(form).encode())
        scopes = [("scope", each) for each in query.pop("scope", "").split()]
        joint = "&" if realm.query else "?"
        place = realm.geturl() + joint + urlencode([*query.items(), *scopes])
        return self._request_token("GET", place, Header(credentials.basic if credentials else ""))

    def _may_have_credentials(self, realm: SplitResult) -> bool:
        """Return whether credentials may go to the address that a registry names for tokens.

        Some registries use another host for tokens (Docker Hub, GitLab), so another host is
        allowed. An internal address is not, since a registry could make this host send requests to
        hosts that the registry cannot reach.
        """
        if not realm.hostname or "@" in realm.netloc or "\\" in realm.netloc:
            return False
        if realm.netloc == self._host:
            return realm.scheme == "https" or (self._insecure and realm.scheme == "http")
        own = realm.hostname == urlsplit(f"//{self._host}").hostname
        return realm.scheme == "https" and (own or not is_internal(realm.hostname))

    def _request_token(
        self, method: str, place: str, auth: Header, data: bytes | None = None
    ) -> str:
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if data else {}
        request = self._client.request(method, place, auth=auth, headers=headers, data=data)
        try:
            with request as answer:
                content = client.read_all(answer, limits.REGISTRY_MANIFEST_BYTES.value)
            tokens = codec.decode(content, _Tokens)
        except msgspec.MsgspecError:
            raise StoreError("its token service returned no valid token", lasting=True) from None
        token = tokens.token or tokens.access_token
        if not (token.isascii() and token.isprintable() and token):
            raise StoreError("its token service returned no valid token", lasting=True)
        return token
