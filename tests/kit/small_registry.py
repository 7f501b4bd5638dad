"""A registry with what Debian's lacks: the Referrers API, and uploads that go on after a break.

By the distribution specification 1.1, in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from epctx.oci import artifact

_MANIFESTS: Final = re.compile(r"/v2/(.+)/manifests/(.+)")
_REFERRERS: Final = re.compile(r"/v2/(.+)/referrers/(.+)")
_BLOB: Final = re.compile(r"/v2/(.+)/blobs/(sha256:.+)")
_UPLOADS: Final = re.compile(r"/v2/(.+)/blobs/uploads/(.*)")


class SmallRegistry(ThreadingHTTPServer):
    """Has no names but digests and tags: all repositories are one.

    Attributes:
        manifests: by digest and by tag.
        uploads: what came of each so far.
        page: so many referrers come at a time.
    """

    daemon_threads = True
    page = 1

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}

    def handle_error(self, *of: object) -> None:
        """A client that goes away is none."""

    def referrers(self, subject: str) -> list[dict[str, Any]]:
        found = []
        for name, content in self.manifests.items():
            document = json.loads(content)
            if ":" in name and document.get("subject", {}).get("digest") == subject:
                described = {"mediaType": artifact.MANIFEST, "digest": name, "size": len(content)}
                found.append(described | {"artifactType": document["artifactType"]})
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SmallRegistry

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response_only(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if found := _MANIFESTS.fullmatch(parts.path):
            self._give(self.server.manifests.get(found[2]), artifact.MANIFEST)
        elif found := _BLOB.fullmatch(parts.path):
            self._give(self.server.blobs.get(found[2]), "application/octet-stream")
        elif found := _UPLOADS.fullmatch(parts.path):
            self._told(204, found[2])
        elif found := _REFERRERS.fullmatch(parts.path):
            self._list(found[2], int(parse_qs(parts.query).get("from", ["0"])[0]))

    do_HEAD = do_GET

    def _give(self, content: bytes | None, kind: str) -> None:
        self._answer(404 if content is None else 200, content or b"", Content_Type=kind)

    def _list(self, subject: str, first: int) -> None:
        listed, page = self.server.referrers(subject), self.server.page
        document = {"schemaVersion": 2, "manifests": listed[first : first + page]}
        more = {}
        if first + page < len(listed):
            path = urlsplit(self.path).path
            more = {"Link": f'<{path}?from={first + page}>; rel="next"'}
        self._answer(200, json.dumps(document).encode(), Content_Type=artifact.INDEX, **more)

    def _told(self, status: int, upload: str) -> None:
        if upload not in self.server.uploads:
            self._answer(404)
            return
        last = max(0, len(self.server.uploads[upload]) - 1)
        self._answer(status, Location=f"/v2/x/blobs/uploads/{upload}", Range=f"0-{last}")

    def do_POST(self) -> None:
        self._body()
        upload = uuid.uuid4().hex
        self.server.uploads[upload] = b""
        self._told(202, upload)

    def do_PATCH(self) -> None:
        found = _UPLOADS.fullmatch(self.path)
        assert found is not None
        begin = int(self.headers["Content-Range"].partition("-")[0])
        content, so_far = self._body(), self.server.uploads.get(found[2])
        if so_far is None or begin != len(so_far):
            self._answer(416)
            return
        self.server.uploads[found[2]] += content
        self._told(202, found[2])

    def do_PUT(self) -> None:
        parts, content = urlsplit(self.path), self._body()
        told = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if found := _MANIFESTS.fullmatch(parts.path):
            self.server.manifests |= {found[2]: content, told: content}
            about = json.loads(content).get("subject", {}).get("digest")
            self._answer(201, **({"OCI_Subject": about} if about else {}))
            return
        found = _UPLOADS.fullmatch(parts.path)
        assert found is not None
        whole = self.server.uploads.pop(found[2]) + content
        wanted = parse_qs(parts.query)["digest"][0]
        if wanted != f"sha256:{hashlib.sha256(whole).hexdigest()}":
            self._answer(400)
            return
        self.server.blobs[wanted] = whole
        self._answer(201)

    def log_message(self, *of: object) -> None:
        """Of no use."""


@contextlib.contextmanager
def running() -> Iterator[SmallRegistry]:
    """A registry that has nothing."""
    with SmallRegistry() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextlib.contextmanager
def port() -> Iterator[int]:
    """The port of a registry that has nothing."""
    with running() as server:
        yield server.server_port
