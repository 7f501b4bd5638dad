"""Who we are to a registry: what `docker login` has left, in docker's configuration or a helper."""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from epctx import codec, limits
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files.entries import open_entry

_HELPER: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_TOKEN_USER: Final = "<token>"
_HUB: Final = ("https://index.docker.io/v1/", "index.docker.io")
"""What docker calls its own registry."""


class Credentials(Struct, frozen=True, kw_only=True):
    """A name and a password; or a token to ask for others with, which has no name."""

    user: str
    secret: str

    @property
    def basic(self) -> str:
        """As HTTP's basic authentication has them."""
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


def of(host: str, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """The credentials for a registry; None: nobody has logged in there.

    Raises:
        UsageError: docker's configuration, or what a helper says, is none.
    """
    config = _read(_place(environment))
    names = (host, *(_HUB if host == "docker.io" else (f"https://{host}", f"https://{host}/v2/")))
    if helper := next((config.credHelpers[n] for n in names if n in config.credHelpers), ""):
        return _asked(helper, host)
    if config.credsStore and (
        found := _asked(config.credsStore, _HUB[0] if _is_hub(host) else host)
    ):
        return found
    return next((_decoded(config.auths[n], host) for n in names if n in config.auths), None)


def _is_hub(host: str) -> bool:
    return host == "docker.io"


def _place(environment: Mapping[str, str]) -> Path:
    folder = environment.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def _read(path: Path) -> _Config:
    try:
        with open_entry(path.resolve()) as stream:
            return codec.decode(stream.read(limits.REGISTRY_MANIFEST_BYTES.value), _Config)
    except FileNotFoundError:
        return _Config()
    except (OSError, msgspec.MsgspecError) as error:
        raise _refused("is no configuration of docker's", path.as_posix()) from error


def _decoded(auth: _Auth, host: str) -> Credentials | None:
    """What is written in the configuration itself; None: an entry of a helper's, without any."""
    if auth.identitytoken:
        return Credentials(user="", secret=auth.identitytoken)
    if not auth.auth:
        return None
    try:
        user, _, secret = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise _refused(
            f"has credentials for {host} that are none", "docker's config.json"
        ) from None
    return Credentials(user=user, secret=secret.rstrip("\0"))


def _asked(helper: str, host: str) -> Credentials | None:
    """What `docker-credential-HELPER get` says; None: it has nothing for the host."""
    program = f"docker-credential-{helper}"
    found = shutil.which(program) if _HELPER.fullmatch(helper) else None
    if found is None:
        raise _refused("is not installed, and docker's config.json names it", program)
    try:
        ran = subprocess.run(
            [found, "get"],
            input=host.encode(),
            capture_output=True,
            timeout=limits.SIGNING_SECONDS.value,
            check=False,
        )
        if ran.returncode:
            return None
        told = codec.decode(ran.stdout, _Answer)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        raise _refused("tells no credentials", program) from None
    user = "" if told.Username == _TOKEN_USER else told.Username
    return Credentials(user=user, secret=told.Secret)


def _refused(what: str, where: str) -> UsageError:
    return UsageError(
        what,
        where=where,
        remedy="log in again with `docker login`, or name another folder in DOCKER_CONFIG",
        code=Code.ENVIRONMENT,
    )
