"""A real registry on loopback, Debian's docker-registry, and what no good registry answers."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from epctx.files import digest
from epctx.oci import artifact
from tests.kit.store_proxy import Answer, Handler

NEEDED: Final = pytest.mark.needs("program docker-registry", ".ci/tools installs it on Debian")
USER: Final = "somebody"
PASSWORD: Final = "password-nobody-may-tell"
TOKEN: Final = "token-nobody-may-tell"
SECRETS: Final = (PASSWORD, TOKEN)
_CONFIG: Final = """\
version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:0"}}
"""


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[int]:
    """A registry that has nothing; its port. It has no Referrers API, as Debian's has none."""
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder / "data"), encoding="utf-8")
    command = ["docker-registry", "serve", str(folder / "config.yml")]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=log) as process,
    ):
        assert process.stderr is not None
        try:
            told = (re.search(rb"listening on 127\.0\.0\.1:(\d+)", x) for x in process.stderr)
            port = int(next(found[1] for found in told if found is not None))
            with contextlib.suppress(OSError):
                _drain(process)
            yield port
        finally:
            process.kill()


def _drain(process: subprocess.Popen[bytes]) -> None:
    """A pipe that nobody reads would stop it."""
    import threading

    def read() -> None:
        assert process.stderr is not None
        with contextlib.suppress(ValueError):
            for _ in process.stderr:
                pass

    threading.Thread(target=read, daemon=True).start()


def reference(port: int, repository: str, tag: str = "v1") -> str:
    return f"oci://127.0.0.1:{port}/{repository}:{tag}"


def of_manifests(change: Callable[[Answer], None]) -> Callable[[Answer], None]:
    """A change of what a tag stands for, and of nothing else."""

    def changed(answer: Answer) -> None:
        kinds = dict(answer.headers).get("Content-Type", "")
        if answer.status == 200 and kinds == artifact.MANIFEST:
            change(answer)

    return changed


def of_blobs(change: Callable[[Answer], None]) -> Callable[[Answer], None]:
    """A change of blobs, and of nothing else."""

    def changed(answer: Answer) -> None:
        kinds = dict(answer.headers).get("Content-Type", "")
        if answer.status in (200, 206) and kinds == "application/octet-stream":
            change(answer)

    return changed


def blobs_sent(
    send: Callable[[Handler, Answer], None],
) -> Callable[[Handler, Answer], None]:
    """Another way of sending blobs, and nothing else."""

    def sent(handler: Handler, answer: Answer) -> None:
        blob = "/blobs/sha256:" in handler.path and answer.status in (200, 206)
        (send if blob else Handler.tell)(handler, answer)

    return sent


def only(part: str, answer: Callable[[Handler], None]) -> Callable[[Handler], None]:
    """Another answer where the path has this in it; the registry's own elsewhere."""

    def instead(handler: Handler) -> None:
        if part in handler.path:
            answer(handler)
        else:
            handler.tell(handler.ask())

    return instead


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Answer], None]:
    """Another manifest in the place of that which a tag stands for."""

    def edit(answer: Answer) -> None:
        document = json.loads(answer.body)
        change(document)
        answer.body = digest.canonical_json(document)
        answer.length = len(answer.body)

    return of_manifests(edit)


def said(content: bytes) -> Callable[[Answer], None]:
    """Something else in the place of a manifest."""

    def say(answer: Answer) -> None:
        answer.body, answer.length = content, len(content)

    return of_manifests(say)


def renamed(path: str, number: int = 0) -> Callable[[Answer], None]:
    """A manifest in which a file has another path."""

    def rename(document: dict[str, Any]) -> None:
        named = document["layers"][number]["annotations"]
        named[artifact.PATH] = named[artifact.TITLE] = path

    return edited(rename)


def guarded(realm: str = "") -> Callable[[Handler], None]:
    """Who has no token is sent to ask for one; who asks for it with the password gets it."""

    def answer(handler: Handler) -> None:
        here = f"http://{handler.headers['Host']}/token"
        if handler.path.startswith("/token"):
            named = handler.headers.get("Authorization", "").startswith("Basic ")
            body = json.dumps({"token": TOKEN}).encode() if named else b""
            handler.tell(Answer(200 if named else 401, [], body, len(body)))
        elif handler.headers.get("Authorization") == f"Bearer {TOKEN}":
            handler.tell(handler.ask())
        else:
            handler.body()
            scope = "repository:some/model:pull,push"
            wanted = f'Bearer realm="{realm or here}",service="registry",scope="{scope}"'
            handler.tell(Answer(401, [("WWW-Authenticate", wanted)], b"", 0))

    return answer


def login(folder: Path, host: str) -> None:
    """As `docker login` writes it."""
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
