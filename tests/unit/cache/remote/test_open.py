"""What a URL names, and what may not be in one."""

import subprocess
import sys
from pathlib import Path

import pytest

from epctx.cache.remote.open import open_store
from epctx.errors import UsageError

SECRET = "s3cr3t-nobody-may-tell"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/prefix",
        f"https://user:{SECRET}@host/cache",
        f"https://host/cache?sig={SECRET}",
        f"https://host/cache#{SECRET}",
        f"key:{SECRET}@bucket",
        f"s3://key:{SECRET}/x@bucket",
        f"file://user:{SECRET}@host/share",
        f"ftp://user:{SECRET}@host",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_told(url: str) -> None:
    with pytest.raises(UsageError) as error:
        open_store(url)
    assert SECRET not in str(error.value) and error.value.exit_code == 2


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "has no host"),
        ("bucket/prefix", "has no host"),
        ("s3:///prefix", "has no host"),
        ("https://:80/x", "has no host"),
        ("ftp://host/x", "not a shared cache that epctx supports"),
        ("bazel+ftp://host/x", "not a shared cache that epctx supports"),
        ("https://host:port/x", "is not valid"),
        ("http://[::1/x", "is not valid"),
        ("file://host/x", "names no folder"),
        ("file:x", "names no folder"),
        ("http://example.org/x", "insecure+http://"),
        ("bazel+http://example.org", "insecure+bazel+http://"),
        ("az://container", "AZURE_"),
    ],
)
def test_what_names_no_store_is_told(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError) as error:
        open_store(url)
    assert told in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/some/prefix",
        "s3://bucket",
        "gs://bucket/prefix",
        "https://host:8443/path",
        "http://127.0.0.1:80/path",
        "http://[::1]/path",
        "bazel+https://host/instance",
        "insecure+http://host/path",
        "insecure+bazel+http://host",
    ],
)
def test_a_store_says_where_it_is(url: str) -> None:
    assert open_store(url).url == url


def test_a_folder(tmp_path: Path) -> None:
    url = (tmp_path / "a folder @work").as_uri()
    store = open_store(url)
    store.write(f"v1/actions/{'a' * 64}", b"x")
    assert store.url == url and (tmp_path / "a folder @work" / "v1" / "actions").is_dir()


@pytest.mark.parametrize(("url", "module"), [("s3://b", "objects"), ("https://h/x", "http")])
def test_the_extra_is_asked_for(url: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"objects": "obstore", "http": "requests"}[module]
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"epctx.cache.remote.{module}", raising=False)
    with pytest.raises(UsageError, match=r'pip install "epctx\[remote\]"'):
        open_store(url)


def test_nothing_of_the_extra_is_imported_before_a_store_is_opened() -> None:
    code = (
        "import sys, epctx.cache.remote.open as opening\n"
        "opening.open_store('file:///tmp/nowhere')\n"
        "assert not {'obstore', 'requests', 'urllib3', 'cryptography'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
