"""A repository that is asked: uploads that go on, lists in pages. Others: tests/faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from epctx import api
from epctx.errors import StorageError
from epctx.files import digest
from epctx.oci import reference, registry
from epctx.transfer.attempts import StoreError
from tests.kit import registries, small_registry
from tests.kit import store_proxy as proxies
from tests.kit.small_registry import SmallRegistry
from tests.kit.store_proxy import Fault, Proxy


@pytest.fixture
def server() -> Iterator[SmallRegistry]:
    with small_registry.running() as found:
        yield found


@pytest.fixture
def proxy(server: SmallRegistry) -> Iterator[Proxy]:
    with proxies.before(server.server_port) as found:
        yield found


def _folder(place: Path, size: int) -> Path:
    """A group with one large file."""
    folder = place / "dist" / "large"
    (folder / "t" / "g").mkdir(parents=True)
    weights = os.urandom(size)
    (folder / "t" / "g" / "weights.bin").write_bytes(weights)
    sums = f"{digest.of_bytes(weights, 'sha256').hex}  weights.bin\n"
    (folder / "t" / "g" / "SHA256SUMS").write_text(sums)
    return folder


def test_a_large_file_goes_on_where_it_broke_off(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up and down, and the rest of a pull that was ended is all that the next one asks for."""
    monkeypatch.setattr(registry, "CHUNK", 1 << 20)
    folder = _folder(tmp_path, 5 << 20)
    name = registries.reference(proxy.server_port, "large/model")
    proxy.begin(Fault(name="", send=proxies.lost, of=frozenset({"PATCH"}), times=1))
    api.push(folder, name, insecure=True)
    assert proxy.seen.count("PATCH") == 4, "none was sent again"

    def cut(handler: proxies.Handler, answer: proxies.Answer) -> None:
        (proxies.cut_body if len(answer.body) > 1 << 20 else proxies.Handler.tell)(handler, answer)

    proxy.begin(Fault(name="", send=cut))
    monkeypatch.setenv("EPCTX_LIMIT_REMOTE_ATTEMPTS", "1")
    with pytest.raises(StorageError, match="breaks off"):
        api.pull(name, tmp_path / "got", insecure=True)
    assert not (tmp_path / "got").exists()
    (left,) = (e for e in (tmp_path / ".got.pulling").iterdir() if e.stat().st_size >= 1 << 20)
    begun = left.stat().st_size
    asked: list[str] = []

    def note(handler: proxies.Handler) -> None:
        asked.append(handler.headers.get("Range", ""))
        handler.tell(handler.ask())

    proxy.begin(Fault(name="", before=note))
    assert api.pull(name, tmp_path / "got", insecure=True).state == "pulled"
    pulled, pushed = (each / "t" / "g" / "weights.bin" for each in (tmp_path / "got", folder))
    assert pulled.read_bytes() == pushed.read_bytes()
    assert f"bytes={begun}-" in asked
    assert not (tmp_path / ".got.pulling").exists()


def test_an_upload_that_the_registry_forgot_is_begun_anew(
    proxy: Proxy, server: SmallRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "CHUNK", 1 << 20)
    name = registries.reference(proxy.server_port, "large/model")

    def forget(handler: proxies.Handler) -> None:
        server.uploads.pop(handler.path.rpartition("/")[2])
        handler.tell(handler.ask())

    proxy.begin(Fault(name="", before=forget, of=frozenset({"PATCH"}), times=1))
    assert api.push(_folder(tmp_path, 3 << 20), name, insecure=True).state == "pushed"
    assert proxy.seen.count("POST") == 4, "two files, the configuration, and once more"


def test_a_registry_that_lists_what_refers_to_an_artifact_gets_no_tag_for_it(
    server: SmallRegistry, tmp_path: Path
) -> None:
    """And its list may come in pages; of one name what comes last counts."""
    folder, name = _folder(tmp_path, 10), registries.reference(server.server_port, "some/model")
    for content in (b"one", b"two"):
        (folder / "model.sig").write_bytes(content)
        report = api.push(folder, name, insecure=True)
        assert report.state == "pushed"
    assert api.push(folder, name, insecure=True).state == "up to date"
    assert not [each for each in server.manifests if each.startswith("sha256-")]
    assert len(server.referrers(report.digest)) == 2
    assert api.pull(name, tmp_path / "got", insecure=True).attached == ("model.sig",)
    assert (tmp_path / "got" / "model.sig").read_bytes() == b"two"


def test_a_list_without_end_is_none(proxy: Proxy, tmp_path: Path) -> None:
    name = registries.reference(proxy.server_port, "some/model")
    api.push(_folder(tmp_path, 10), name, insecure=True)

    def again(answer: proxies.Answer) -> None:
        answer.headers.append(("Link", '</v2/some/model/referrers/sha256:0>; rel="next"'))

    proxy.begin(Fault(name="", change=again))
    with pytest.raises(StorageError, match="does not end"):
        api.pull(name, tmp_path / "got", insecure=True)
    away = ("Link", '<http://127.0.0.1:9/v2/>; rel="next"')
    proxy.begin(Fault(name="", change=lambda answer: answer.headers.append(away)))
    with pytest.raises(StorageError, match="another host"):
        api.pull(name, tmp_path / "got", insecure=True)
    none = ("Link", '<https://[x>; rel="next"')
    proxy.begin(Fault(name="", change=lambda answer: answer.headers.append(none)))
    with pytest.raises(StorageError, match="an invalid address"):
        api.pull(name, tmp_path / "got", insecure=True)


@pytest.mark.parametrize(
    ("insecure", "place"),
    [
        (False, "http://127.0.0.1:9/blob"),
        (False, "file:///etc/passwd"),
        (True, "file:///etc/passwd"),
        (True, "http:///blob"),
        (False, ""),
    ],
)
def test_nobody_is_redirected_to_what_is_not_safe(insecure: bool, place: str) -> None:
    """Above all from TLS to none."""
    repository = registry.Repository(reference.parse("oci://example.com/m"), insecure=insecure)
    with pytest.raises(StoreError, match="an unsafe address"):
        repository._elsewhere(place)
    assert repository._elsewhere("https://other.example.com/x")
