"""Real servers of shared caches, on loopback: each is started when it is first asked for.

Of bazel-remote there is a small server that keeps its documented rules, since it is in none of
Debian, PyPI and npm: https://github.com/buchgr/bazel-remote, with `--disable_http_ac_validation`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest
import requests
from msgspec import Struct

NODE: Final = Path(__file__).parents[2] / ".venv" / "node_modules"
"""Where `.ci/tools` puts azurite and s3rver."""
BUCKET: Final = "shared"
KEY: Final = "AKIDFORTESTS0SECRET0"
SECRET: Final = "d29yZHMtbm9ib2R5LW1heS10ZWxs"
TOKEN: Final = "token-nobody-may-tell"
_AZURE: Final = "devstoreaccount1"
_AZURE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own, which every copy of it has."""
SECRETS: Final = (KEY, SECRET, TOKEN, _AZURE_KEY)
_NODE_MARK: Final = pytest.mark.needs("azurite and s3rver", ".ci/tools installs them where npm is")
KINDS: Final = (
    pytest.param("s3", id="s3"),
    pytest.param("s3rver", marks=_NODE_MARK, id="s3rver"),
    pytest.param("az", marks=_NODE_MARK, id="az"),
    pytest.param("dav", id="dav"),
    pytest.param("nginx", marks=pytest.mark.needs("program nginx", "on Debian"), id="nginx"),
    pytest.param("bazel", id="bazel"),
)


class Server(Struct, frozen=True, kw_only=True):
    """A server that runs.

    Attributes:
        port: of loopback.
        scheme: of the URL that epctx is given.
        place: what stands after it, `{port}` apart.
        variables: of the environment, in which `{port}` is.
    """

    port: int
    scheme: str
    place: str
    variables: Mapping[str, str] = {}

    def url(self, port: int | None = None) -> str:
        """The URL that epctx is given; through a proxy at another port."""
        return f"{self.scheme}://{self.place.format(port=port or self.port)}"

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What the client is told besides."""
        at = str(port or self.port)
        return {name: text.replace("{port}", at) for name, text in self.variables.items()}


class Servers:
    """Those that were asked for, until the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Server] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __getitem__(self, kind: str) -> Server:
        if kind not in self._running:
            folder = self._folder / kind
            folder.mkdir()
            self._running[kind] = self._stack.enter_context(_STARTED[kind](folder))
        return self._running[kind]


@contextlib.contextmanager
def _process(command: list[str], folder: Path, tells: str) -> Iterator[int]:
    """A server that tells its port, and ends with the test."""
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=folder) as process,
    ):
        assert process.stdout is not None
        try:
            yield _told(process.stdout, tells, folder / "log")
        finally:
            process.kill()


def _told(lines: Iterator[bytes], tells: str, log: Path) -> int:
    for line in lines:
        if found := re.search(tells, line.decode()):
            return int(found[1])
    raise AssertionError(f"it told no port: {log.read_text()}")


_MOTO: Final = (
    "from moto.server import ThreadedMotoServer\n"
    "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)\n"
    "server.start()\n"
    "print('port', server.get_host_and_port()[1], flush=True)\n"
    "server._thread.join()\n"
)
_AWS: Final = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:{port}",
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
}


@contextlib.contextmanager
def _moto(folder: Path) -> Iterator[Server]:
    with _process([sys.executable, "-c", _MOTO], folder, r"port (\d+)") as port:
        requests.put(f"http://127.0.0.1:{port}/{BUCKET}", timeout=300).raise_for_status()
        yield Server(port=port, scheme="s3", place=f"{BUCKET}/some/prefix", variables=_AWS)


@contextlib.contextmanager
def _s3rver(folder: Path) -> Iterator[Server]:
    """It knows no conditions; its one pair of keys is this."""
    program = NODE / "s3rver" / "bin" / "s3rver.js"
    command = ["node", str(program), "-d", "data", "-a", "127.0.0.1", "-p", "0"]
    (folder / "data").mkdir()
    with _process([*command, "--configure-bucket", BUCKET], folder, r"127\.0\.0\.1:(\d+)") as port:
        own = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
        yield Server(port=port, scheme="s3", place=f"{BUCKET}/prefix", variables=_AWS | own)


@contextlib.contextmanager
def _azurite(folder: Path) -> Iterator[Server]:
    program = NODE / "azurite" / "dist" / "src" / "blob" / "main.js"
    options = ["--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", "0"]
    command = ["node", str(program), *options, "--disableTelemetry", "--skipApiVersionCheck"]
    with _process(command, folder, r"listens on http://127\.0\.0\.1:(\d+)") as port:
        _make_container(port)
        variables = {
            "AZURE_STORAGE_ACCOUNT_NAME": _AZURE,
            "AZURE_STORAGE_ACCOUNT_KEY": _AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{{port}}/{_AZURE}",
        }
        yield Server(port=port, scheme="az", place=f"{BUCKET}/prefix", variables=variables)


def _make_container(port: int) -> None:
    """Signed as https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    told = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = f"PUT{chr(10) * 12}{told}/{_AZURE}/{_AZURE}/{BUCKET}\nrestype:container"
    made = hmac.digest(base64.b64decode(_AZURE_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {_AZURE}:{base64.b64encode(made).decode()}"
    url = f"http://127.0.0.1:{port}/{_AZURE}/{BUCKET}?restype=container"
    requests.put(url, headers=headers, timeout=300).raise_for_status()


@contextlib.contextmanager
def _webdav(folder: Path) -> Iterator[Server]:
    from cheroot import wsgi
    from wsgidav.wsgidav_app import WsgiDAVApp

    anybody = {"*": True}
    application = WsgiDAVApp(
        {
            "provider_mapping": {"/": str(folder)},
            "simple_dc": {"user_mapping": anybody},
            "logging": {"enable": False},
            "verbose": 0,
        }
    )
    server = wsgi.Server(("127.0.0.1", 0), application)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield Server(port=server.bind_addr[1], scheme="http", place="127.0.0.1:{port}/deep/cache")
    finally:
        server.stop()
        thread.join()


_NGINX: Final = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{}}
http {{
  access_log off; client_max_body_size 0; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port}; root {folder}/data; sendfile on;
    location / {{ dav_methods PUT DELETE MKCOL; create_full_put_path on; dav_access all:rw; }}
  }}
}}
"""


@contextlib.contextmanager
def _nginx(folder: Path) -> Iterator[Server]:
    """It knows no conditions and cannot list; a port is chosen for it."""
    (folder / "data").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    (folder / "conf").write_text(_NGINX.format(folder=folder, port=port))
    command = ["nginx", "-p", str(folder), "-c", str(folder / "conf")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield Server(port=port, scheme="http", place="127.0.0.1:{port}/cache")
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"nothing listens at {port}")


class _Bazel(ThreadingHTTPServer):
    blobs: dict[str, bytes]

    def server_activate(self) -> None:
        self.blobs = {}
        super().server_activate()

    def handle_error(self, *of: object) -> None:
        """A client that goes away is none."""


class _BazelRemote(BaseHTTPRequestHandler):
    """`/ac/` and `/cas/`, GET, PUT and HEAD alone; no ranges, conditions or listings."""

    protocol_version = "HTTP/1.1"
    server: _Bazel

    def _answer(self, status: int, content: bytes = b"", *, length: bool = True) -> None:
        self.send_response(status)
        if length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _place(self) -> str | None:
        found = re.fullmatch(r"/?(.*/)?((ac|cas)/[a-f0-9]{64})", self.path)
        return found[2] if found else None

    def do_GET(self) -> None:
        blob = self.server.blobs.get(self._place() or "")
        self._answer(404 if blob is None else 200, blob or b"")

    def do_HEAD(self) -> None:
        """Versions up to 2.4 tell no length."""
        blob = self.server.blobs.get(self._place() or "")
        self._answer(404 if blob is None else 200, length=False)

    def do_PUT(self) -> None:
        place, length = self._place(), self.headers.get("Content-Length")
        if place is None or length is None:
            self.close_connection = True
            self._answer(400)
            return
        content = self.rfile.read(int(length))
        if place.startswith("cas/") and place[4:] != hashlib.sha256(content).hexdigest():
            self._answer(500)
            return
        self.server.blobs[place] = content
        self._answer(200)

    def do_other(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(405)

    do_PROPFIND = do_DELETE = do_MKCOL = do_other

    def log_message(self, *of: object) -> None:
        """Of no use."""


@contextlib.contextmanager
def _bazel(folder: Path) -> Iterator[Server]:
    with _Bazel(("127.0.0.1", 0), _BazelRemote) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            port = server.server_port
            yield Server(port=port, scheme="bazel+http", place="127.0.0.1:{port}/instance")
        finally:
            server.shutdown()
            thread.join()


_STARTED: Final[Mapping[str, Callable[[Path], contextlib.AbstractContextManager[Server]]]] = {
    "s3": _moto,
    "s3rver": _s3rver,
    "az": _azurite,
    "dav": _webdav,
    "nginx": _nginx,
    "bazel": _bazel,
}


def has_node_servers() -> bool:
    """Whether azurite and s3rver are where `.ci/tools` puts them."""
    return all((NODE / each).is_dir() for each in ("azurite", "s3rver"))


def without_credentials() -> dict[str, str]:
    """The environment, but for what clients of object stores would take from it."""
    of_clients = ("AWS_", "AZURE_", "GOOGLE_")
    return {name: text for name, text in os.environ.items() if not name.startswith(of_clients)}
