"""A blob of 2 GB to a shared cache and back, against its client alone: whole processes.

Both hash what they get and write it to a file, as the cache does. The server is s3rver, which keeps
blobs in files: moto reads the whole of a blob for each of its parts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.bench import measuring
from tests.bench.measuring import REMOTE_DOWN, REMOTE_UP, Row, ratio, wall
from tests.kit.store_servers import Servers

pytestmark = [
    pytest.mark.bench,
    pytest.mark.needs("azurite and s3rver", ".ci/tools installs them where npm is"),
]
SIZE = 2 << 30
NAME = f"v1/objects/{'a' * 64}"
MEMORY = 200e6
OURS = """
import sys
from pathlib import Path
from epctx.cache.remote.open import open_store
what, url, name, file, size = sys.argv[1:]
store = open_store(url)
def upload():
    store.delete([name])
    store.upload(name, Path(file))
def pieces():
    return store.stream(name, int(size))
"""
BARE = """
import sys
from pathlib import Path
import obstore
what, url, name, file, size = sys.argv[1:]
bucket, _, prefix = url.partition("://")[2].partition("/")
store = obstore.store.S3Store(
    bucket, prefix=prefix, client_options={"allow_http": True, "timeout": "1000s"}
)
def upload():
    obstore.delete(store, [name])
    obstore.put(store, name, Path(file))
def pieces():
    return obstore.get(store, name).stream()
"""
BOTH = """
import blake3
if what == "up":
    upload()
else:
    hasher = blake3.blake3()
    with open(file, "wb", buffering=0) as target:
        for piece in pieces():
            hasher.update(piece)
            target.write(piece)
        assert target.tell() == int(size)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blob") / "source"
    with path.open("wb") as target:
        for _ in range(SIZE >> 24):
            target.write(os.urandom(1 << 24))
    return path


@pytest.mark.parametrize(("what", "row"), [("up", REMOTE_UP), ("down", REMOTE_DOWN)])
def test_a_large_blob(
    store_servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
    source: Path,
    what: str,
    row: Row,
) -> None:
    server = store_servers["s3rver"]
    for name, text in server.environment().items():
        monkeypatch.setenv(name, text)
    file = source if what == "up" else source.with_name("target")

    def run(script: str) -> float:
        arguments = (what, server.url(), NAME, str(file), str(SIZE))
        return wall([sys.executable, "-c", script + BOTH, *arguments], source.parent)

    ratio(row, lambda: run(OURS), lambda: run(BARE), runs=3)
    assert (measuring.found[row].memory or 0) < MEMORY
