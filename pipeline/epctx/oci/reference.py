"""References to artifacts: `oci://HOST/REPO:TAG@sha256:…`."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files.digest import Digest

SCHEME: Final = "oci://"
_WORD: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
REPOSITORY: Final = re.compile(rf"{_WORD}(?:/{_WORD})*")
"""Names of repositories that the distribution specification allows."""
_REFERENCE: Final = re.compile(
    r"oci://(?P<host>(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?)"
    rf"/(?P<repository>{REPOSITORY.pattern})"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@sha256:(?P<digest>[0-9a-f]{64}))?"
)
_LONGEST: Final = 255
"""Greatest number of characters of a repository with its host."""
_HUB: Final = "docker.io"
_HUB_REGISTRY: Final = "registry-1.docker.io"


class Reference(Struct, frozen=True, kw_only=True):
    """An artifact in a registry.

    Attributes:
        host: host of the registry, with its port if that is given.
        repository: path of the repository.
        tag: None if the artifact is named by its digest alone.
        digest: digest of the manifest; None for the current manifest of the tag.
    """

    host: str
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @property
    def registry(self) -> str:
        """Host that answers requests; Docker Hub's has another name."""
        return _HUB_REGISTRY if self.host == _HUB else self.host

    @property
    def name(self) -> str:
        """Name in requests: the digest if there is one, since a tag may move; else the tag."""
        return str(self.digest) if self.digest is not None else self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{SCHEME}{self.host}/{self.repository}{tag}{digest}"


def is_reference(text: str) -> bool:
    """Return whether a text is meant as a reference, not as a path."""
    return text.startswith(SCHEME)


def parse(text: str) -> Reference:
    """Parse a reference; without tag and digest it means `latest`.

    Raises:
        UsageError: the text is not a reference.
    """
    parts = _REFERENCE.fullmatch(text)
    if parts is None or len(f"{parts['host']}/{parts['repository']}") > _LONGEST:
        raise UsageError(
            f"{text!r} is not a reference to an artifact in a registry",
            remedy="write it as oci://HOST[:PORT]/REPOSITORY[:TAG][@sha256:DIGEST], with the "
            "repository in lower case, and without user name or password",
            code=Code.COMMAND_LINE,
        )
    digest = Digest("sha256", parts["digest"]) if parts["digest"] else None
    tag = parts["tag"] if parts["tag"] or digest else "latest"
    return Reference(host=parts["host"], repository=parts["repository"], tag=tag, digest=digest)
