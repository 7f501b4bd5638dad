"""Opens the store that a URL names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import url2pathname

from epctx.cache.remote.folder import FolderStore
from epctx.cache.remote.store import Store
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.transfer.attempts import StoreError
from epctx.transfer.hosts import is_loopback

TOKEN_VARIABLE: Final = "EPCTX_REMOTE_CACHE_TOKEN"
_OBJECT_STORES: Final = ("s3", "gs", "az")
_WORDS: Final = frozenset({"bazel", "insecure"})
"""Words that may stand before `http` or `https`, with a `+`."""
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": (),
}
_ALLOWING: Final = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP"}
_EXAMPLE: Final = (
    "give it as s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
    "file:///mnt/share/folder, https://host/path or bazel+https://host"
)


def open_store(url: str, environment: Mapping[str, str] = os.environ) -> Store:
    """Open the store that a URL names; no request is sent yet.

    Args:
        url: URL as the user gave it.
        environment: variables with the token and the endpoint; the client of an object store also
            reads the variables of this process.

    Raises:
        UsageError: the URL names no store or has forbidden parts, or an extra is not installed.
    """
    parts = _split(url)
    try:
        if parts.scheme == "file":
            return _folder(url, parts)
        if parts.scheme in _OBJECT_STORES:
            return _objects(url, parts, environment)
        return _http(url, parts, environment)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a shared cache at {parts.scheme}:// needs {error.name}, which is not installed",
            remedy='install it: pip install "epctx[remote]"',
            code=Code.ENVIRONMENT,
        ) from error


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError
    except ValueError:
        raise _refused("the URL of the shared cache is not valid", _EXAMPLE) from None
    named = parts.netloc if parts.scheme == "file" else url
    if "@" in named or parts.query or parts.fragment or "\\" in url or not url.isprintable():
        raise _refused(
            "the URL of the shared cache must not contain credentials, a query or a fragment",
            "leave out user names, passwords, ?… and #…: credentials are taken from the client's"
            f" own variables (AWS_…, AZURE_…, GOOGLE_…), from {TOKEN_VARIABLE} or from ~/.netrc",
        )
    if parts.scheme != "file" and not parts.hostname:
        raise _refused("the URL of the shared cache has no host", _EXAMPLE)
    return parts


def _folder(url: str, parts: SplitResult) -> Store:

    share = sys.platform == "win32" and parts.netloc
    path = Path(url2pathname(f"//{parts.netloc}{parts.path}" if share else parts.path))
    if (parts.netloc and not share) or not path.is_absolute():
        raise _refused(f"{url!r} names no folder", "give it as file:///mnt/share/folder")
    return FolderStore(url, path)


def _objects(url: str, parts: SplitResult, environment: Mapping[str, str]) -> Store:
    from epctx.cache.remote.objects import ObjectStore

    kind = parts.scheme
    allowed = environment.get(_ALLOWING[kind], "").lower() in ("1", "true")
    ends = (urlsplit(environment.get(each, "")) for each in _ENDPOINTS[kind])
    local = any(end.scheme == "http" and is_loopback(end.hostname) for end in ends)
    try:
        return ObjectStore(url, allow_http=allowed or local)
    except StoreError as error:
        raise _refused(
            f"the shared cache {url} cannot be used: {error}",
            "set the client's own variables: AWS_…, AZURE_… or GOOGLE_…",
        ) from None


def _http(url: str, parts: SplitResult, environment: Mapping[str, str]) -> Store:
    *words, transport = parts.scheme.split("+")
    if transport not in ("http", "https") or not _WORDS.issuperset(words):
        raise _refused(f"{parts.scheme}:// is not a shared cache that epctx supports", _EXAMPLE)
    if transport == "http" and "insecure" not in words and not is_loopback(parts.hostname):
        raise _refused(
            f"{url} would send cached files and credentials unencrypted",
            f"use https://, or allow it explicitly: {'+'.join(['insecure', parts.scheme])}://…",
        )
    from epctx.cache.remote.http import HttpStore

    base = parts._replace(scheme=transport).geturl()
    token = environment.get(TOKEN_VARIABLE)
    return HttpStore(url, base=base, token=token, bazel="bazel" in words)


def _refused(what: str, remedy: str) -> UsageError:
    return UsageError(what, remedy=remedy, code=Code.ENVIRONMENT)
