"""Faults of registries: each ends in time, with the right package or none, and without a secret.

Before the registry stands a proxy that wants a token, before that one the fault.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from epctx import api
from epctx.errors import EpctxError, StorageError
from epctx.files import digest, outputs
from epctx.oci import artifact, registry
from tests.kit import registries, small_registry
from tests.kit import store_proxy as proxies
from tests.kit.packaged import tree
from tests.kit.registries import (
    SECRETS,
    blobs_sent,
    edited,
    guarded,
    of_blobs,
    only,
    renamed,
    said,
)
from tests.kit.store_proxy import ALL, WRITES, Answer, Fault, Handler, Proxy, status

RIGHT, ERROR, WRONG, REFUSED = "right", 9, 7, 2
"""The same package, or the exit code."""
_SOON, _AGAIN = ("Retry-After", "0"), ("Retry-After", "1")
_LATE: Final = ("Retry-After", "3600")
_NOWHERE: Final = "http://127.0.0.1:9/"
_TOO_MANY: Final = artifact.index([artifact.Descriptor(mediaType="x", digest="x", size=1)] * 101)
_HEADS: Final = frozenset({"HEAD"})
_PUTS: Final = frozenset({"PUT"})


def _to(place: str) -> tuple[str, str]:
    return "Location", place


def _itself(handler: Handler) -> None:
    status(307, _to(handler.path))(handler)


def _challenge(handler: Handler) -> None:
    realm = f'Bearer realm="http://{handler.headers["Host"]}/token",service="x"'
    if handler.path.startswith("/token"):
        handler.tell(handler.ask())
    else:
        status(401, ("WWW-Authenticate", realm))(handler)


def _layer(**change: Any) -> Any:
    return edited(lambda document: document["layers"][0].update(change))


def _whole(**change: Any) -> Any:
    return edited(lambda document: document.update(change))


def _many(document: dict[str, Any]) -> None:
    first = document["layers"][0]
    document["layers"] = [
        {**first, "annotations": {artifact.PATH: f"f{number}"}} for number in range(11_000)
    ]


def _million(document: dict[str, Any]) -> None:
    document["layers"] *= 50_000


def _doubled(document: dict[str, Any]) -> None:
    document["layers"].append(document["layers"][0])


def _index(answer: Answer) -> None:
    said(artifact.index([]))(answer)


def _referrers(content: bytes) -> Any:
    """Another list of what refers to the artifact."""
    told = Answer(200, [("Content-Type", artifact.INDEX)], content, len(content))
    return only("/referrers/", lambda handler: handler.tell(told))


def _listed(**change: Any) -> Any:
    described = {
        "mediaType": artifact.MANIFEST,
        "artifactType": artifact.SIGNATURE,
        "digest": f"sha256:{'0' * 64}",
        "size": 7,
    }
    listed = {"schemaVersion": 2, "manifests": [described | change]}
    return _referrers(json.dumps(listed).encode())


def _swallow(handler: Handler) -> None:
    handler.body()
    handler.tell(Answer(201, [], b"", 0))


def _elsewhere(place: str) -> Any:
    def move(answer: Answer) -> None:
        answer.headers = [each for each in answer.headers if each[0] != "Location"]
        answer.headers += [("Location", place)] if place else []

    return move


def _ranged(text: str) -> Any:
    def tell(answer: Answer) -> None:
        answer.headers = [each for each in answer.headers if each[0] != "Range"]
        answer.headers += [("Range", text)] if text else []

    return tell


def _row(name: str, *ends: str | int, **fault: Any) -> tuple[Fault, frozenset[str | int]]:
    return Fault(name=name, **fault), frozenset(ends)


PULLING: Final = (
    _row("answers 500", ERROR, before=status(500)),
    _row("answers 500 once", RIGHT, before=status(500), times=1),
    _row("answers 503 and asks to wait an hour", ERROR, before=status(503, _LATE)),
    _row("answers 503 once and asks to wait", RIGHT, before=status(503, _AGAIN), times=1),
    _row("answers 429", ERROR, before=status(429, _SOON)),
    _row("answers 429 once", RIGHT, before=status(429, _SOON), times=1),
    _row("answers 401", ERROR, before=status(401)),
    _row("answers 401 and takes no token", ERROR, before=_challenge),
    _row("answers 403", ERROR, before=status(403)),
    _row("answers 404", ERROR, before=status(404)),
    _row("answers 404 of a blob", ERROR, before=only("/blobs/", status(404))),
    _row("answers 418", ERROR, before=status(418)),
    _row(
        "redirects a blob to where nobody is",
        ERROR,
        before=only("/blobs/", status(307, _to(_NOWHERE))),
    ),
    _row("redirects a blob to nowhere", ERROR, before=only("/blobs/", status(307))),
    _row(
        "redirects a blob to a file",
        ERROR,
        before=only("/blobs/", status(307, _to("file:///etc/passwd"))),
    ),
    _row("redirects a blob without end", ERROR, before=only("/blobs/", _itself)),
    _row("does not answer", ERROR, before=proxies.unanswered),
    _row("does not answer once", RIGHT, before=proxies.unanswered, times=1),
    _row("answers garbage", ERROR, before=proxies.garbage),
    _row("breaks a blob off", ERROR, send=blobs_sent(proxies.cut_body)),
    _row("breaks off once", RIGHT, send=proxies.cut_body, times=1),
    _row("sends less of a blob", ERROR, change=of_blobs(proxies.shorter)),
    _row("sends a blob twice", ERROR, change=of_blobs(proxies.twice)),
    _row("says that there is more of a blob", ERROR, change=of_blobs(proxies.told_longer)),
    _row("says that there is less of a blob", ERROR, change=of_blobs(proxies.told_shorter)),
    _row("sends another part of a blob", ERROR, change=of_blobs(proxies.elsewhere)),
    _row("sends another bit of a blob", WRONG, change=of_blobs(proxies.flipped)),
    _row("never ends a blob", ERROR, send=blobs_sent(proxies.endless_body)),
    _row("never ends a manifest", ERROR, send=proxies.endless_body),
    _row("says that a blob is packed", ERROR, RIGHT, change=of_blobs(proxies.packed)),
    _row("sends a page instead of a manifest", WRONG, change=said(b"<html>log in</html>")),
    _row("sends an index instead of a manifest", WRONG, change=_index),
    _row("sends nothing instead of a manifest", WRONG, change=said(b"")),
    _row("sends a manifest nested without end", WRONG, change=said(b"[" * 100_000)),
    _row("sends another bit of a manifest", WRONG, change=registries.of_manifests(proxies.flipped)),
    _row("tells of a larger file", ERROR, change=_layer(size=10**6)),
    _row("tells of a smaller file", ERROR, change=_layer(size=1)),
    _row("tells of a file larger than the disk", ERROR, change=_layer(size=200 << 30)),
    _row("tells of a file that cannot be", WRONG, change=_layer(size=1 << 60)),
    _row("tells of less than nothing", WRONG, change=_layer(size=-1)),
    _row("tells a size in words", WRONG, change=_layer(size="7")),
    _row("tells of a blob that is not there", ERROR, change=_layer(digest=f"sha256:{'0' * 64}")),
    _row("tells a digest that is none", WRONG, change=_layer(digest="sha256:../../x")),
    _row("tells a digest of another kind", WRONG, change=_layer(digest=f"sha512:{'0' * 128}")),
    _row(
        "tells a layer that is packed",
        WRONG,
        change=_layer(mediaType="application/x-tar"),
    ),
    _row("tells another type", WRONG, change=_whole(artifactType="application/x")),
    _row("tells another version", WRONG, change=_whole(schemaVersion=1)),
    _row("tells of no file", WRONG, change=_whole(layers=[])),
    _row("tells of a file twice", WRONG, change=edited(_doubled)),
    _row("tells of ten thousand files", WRONG, change=edited(_many)),
    _row("tells of a million files", ERROR, change=edited(_million)),
    *(
        _row(f"tells the path {path!r}", WRONG, change=renamed(path))
        for path in (
            *("../x", "a/../../x", "/etc/x", "C:x", "a\\b", "a\0b", "", ".", "a//b", "./a", "a/"),
            *("default/MAIN/weights.bin", "default/main/weights.bin/x", "x" * 300, "a:b"),
        )
    ),
    _row("lists garbage about it", WRONG, before=_referrers(b"<html>")),
    _row("lists a signature that is not there", WRONG, before=_listed()),
    _row("lists a digest that is a path", WRONG, before=_listed(digest="sha256:../../x")),
    _row("lists too much", WRONG, before=_referrers(_TOO_MANY)),
)
IN_TIME: Final = (
    _row("is silent", ERROR, before=proxies.silent),
    _row("is silent once", RIGHT, before=proxies.silent, times=1),
    _row("falls silent", ERROR, send=blobs_sent(proxies.stalled_body)),
    _row("drips", ERROR, send=blobs_sent(proxies.dripping_body)),
    _row("drips headers", ERROR, send=proxies.dripping_head),
)
PUSHING: Final = (
    _row("answers 500", ERROR, before=status(500), of=WRITES),
    _row("answers 500 once", RIGHT, before=status(500), of=WRITES, times=1),
    _row(
        "answers 503 once and asks to wait", RIGHT, before=status(503, _AGAIN), of=WRITES, times=1
    ),
    _row("answers 401", ERROR, before=status(401), of=WRITES),
    _row("answers 403", ERROR, before=status(403), of=WRITES),
    _row("answers 404", ERROR, before=status(404), of=WRITES),
    _row("answers 413", ERROR, before=status(413), of=WRITES),
    _row("answers 429 once", RIGHT, before=status(429, _SOON), of=WRITES, times=1),
    _row("answers 507", ERROR, before=status(507), of=WRITES),
    _row("redirects", ERROR, before=status(307, _to(_NOWHERE)), of=WRITES),
    _row("does not answer", ERROR, before=proxies.unanswered, of=WRITES),
    _row("does not answer once", RIGHT, before=proxies.unanswered, of=WRITES, times=1),
    _row("loses an answer once", RIGHT, send=proxies.lost, of=WRITES, times=1),
    _row("answers garbage", ERROR, before=proxies.garbage, of=WRITES),
    _row("takes a manifest and keeps none", ERROR, before=only("/manifests/", _swallow), of=_PUTS),
    _row("takes an upload that has not begun", ERROR, before=_swallow, of=frozenset({"POST"})),
    _row(
        "sends uploads to where nobody is",
        ERROR,
        change=_elsewhere(_NOWHERE),
        of=WRITES,
    ),
    _row("sends uploads to a file", ERROR, change=_elsewhere("file:///tmp/x"), of=WRITES),
    _row("has more of an upload than was sent", ERROR, change=_ranged("0-99999999"), of=WRITES),
    _row("has something of an upload", ERROR, change=_ranged("some"), of=WRITES),
    _row("says nothing of an upload", ERROR, change=_ranged(""), of=WRITES),
    _row("says that all is there", RIGHT, ERROR, before=status(200), of=_HEADS),
    _row("says that nothing is there", RIGHT, before=status(404), of=_HEADS),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is pushed: the files of a group, of which one goes in pieces."""
    found = tmp_path_factory.mktemp("dist") / "m"
    inner = found / "default" / "main"
    inner.mkdir(parents=True)
    held = {"a_ctx.onnx": b"model" * 100, "weights.bin": os.urandom(20_000)}
    for name, content in held.items():
        (inner / name).write_bytes(content)
    lines = (f"{digest.of_bytes(c, 'sha256').hex}  {n}\n" for n, c in held.items())
    (inner / "SHA256SUMS").write_text("".join(lines))
    return found


@pytest.fixture(
    scope="module",
    params=["small", pytest.param("debian", marks=registries.NEEDED)],
)
def proxy(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """Before a registry that has the package."""
    place = tmp_path_factory.mktemp("registry")
    with (
        pytest.MonkeyPatch.context() as patch,
        _upstream(request.param, place) as port,
        proxies.before(port) as guard,
        proxies.before(guard.server_port) as found,
    ):
        guard.begin(Fault(name="", before=guarded(), of=ALL))
        registries.login(place, f"127.0.0.1:{found.server_port}")
        patch.setenv("DOCKER_CONFIG", str(place))
        api.push(folder, _name(found), insecure=True)
        yield found


def _upstream(kind: str, place: Path) -> Any:
    return small_registry.port() if kind == "small" else registries.registry(place)


def _name(proxy: Proxy, tag: str = "v1") -> str:
    return registries.reference(proxy.server_port, "some/model", tag)


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small waits, small pieces."""
    for name in ("CONNECT_SECONDS", "STALL_SECONDS", "SECONDS", "WAIT_SECONDS"):
        monkeypatch.setenv(f"EPCTX_LIMIT_REMOTE_{name}", "1")
    monkeypatch.setenv("EPCTX_LIMIT_REMOTE_ATTEMPTS", "2")
    monkeypatch.setattr(registry, "CHUNK", 1 << 13)


def _same(one: Path, other: Path) -> bool:
    return {n: (one / n).read_bytes() for n in tree(one)} == {
        n: (other / n).read_bytes() for n in tree(other)
    }


def _pulled(name: str, target: Path, folder: Path) -> tuple[str | int, str]:
    """How it ended, and what was said."""
    try:
        api.pull(name, target, insecure=True)
    except EpctxError as error:
        assert not target.exists(), "something is there"
        assert {e.name for e in target.parent.iterdir()} <= {f".{target.name}.pulling"}
        return error.exit_code, str(error)
    return (RIGHT if _same(target, folder) else "another package"), ""


def _check(told: str) -> None:
    assert not [each for each in SECRETS if each in told] and len(told) < 600, told


def _pulls(
    proxy: Proxy, folder: Path, tmp_path: Path, fault: Fault, ends: frozenset[str | int]
) -> None:
    target = tmp_path / "in" / "got"
    target.parent.mkdir()
    proxy.begin(fault)
    ended, told = _pulled(_name(proxy), target, folder)
    _check(told)
    assert ended in ends, told
    assert fault.of & set(proxy.seen), "the fault did not come about"
    proxy.begin(None)
    assert _pulled(_name(proxy), target, folder)[0] == RIGHT
    assert {each.name for each in target.parent.iterdir()} == {"got"}
    assert {each.name for each in tmp_path.iterdir()} == {"in"}, "something is elsewhere"


@pytest.mark.wide(2)
@pytest.mark.parametrize(("fault", "ends"), PULLING, ids=lambda each: getattr(each, "name", ""))
def test_a_pull_ends_well(
    proxy: Proxy, folder: Path, tmp_path: Path, fault: Fault, ends: frozenset[str | int]
) -> None:
    _pulls(proxy, folder, tmp_path, fault, ends)


@pytest.mark.parametrize(("fault", "ends"), IN_TIME, ids=lambda each: getattr(each, "name", ""))
def test_a_pull_ends_in_time(
    proxy: Proxy, folder: Path, tmp_path: Path, fault: Fault, ends: frozenset[str | int]
) -> None:
    _pulls(proxy, folder, tmp_path, fault, ends)


@pytest.mark.wide(2)
@pytest.mark.parametrize(("fault", "ends"), PUSHING, ids=lambda each: getattr(each, "name", ""))
def test_what_is_pushed_is_whole(
    proxy: Proxy, folder: Path, tmp_path: Path, fault: Fault, ends: frozenset[str | int]
) -> None:
    """Or it is not there; then the next push is as if nothing was."""
    own = tmp_path / "m"
    (own / "t" / "g").mkdir(parents=True)
    content = os.urandom(20_000)
    (own / "t" / "g" / "weights.bin").write_bytes(content)
    sums = f"{digest.of_bytes(content, 'sha256').hex}  weights.bin\n"
    (own / "t" / "g" / "SHA256SUMS").write_text(sums)
    ended: str | int = RIGHT
    name, told = _name(proxy, "new"), ""
    proxy.begin(fault)
    try:
        api.push(own, name, insecure=True)
    except EpctxError as error:
        ended, told = error.exit_code, str(error)
    _check(told)
    assert ended in ends, told
    assert fault.of & set(proxy.seen), "the fault did not come about"
    proxy.begin(None)
    api.push(own, name, insecure=True)
    if fault.of != _HEADS:
        assert _pulled(name, tmp_path / "in" / "got", own)[0] == RIGHT


def test_the_table_is_large_enough() -> None:
    assert len(PULLING) + len(IN_TIME) + len(PUSHING) >= 90


def test_a_manifest_of_another_digest_is_told(proxy: Proxy, tmp_path: Path) -> None:
    """Also where it is the registry that says so."""
    proxy.begin(None)
    name = f"{_name(proxy)}@{api.pull(_name(proxy), tmp_path / 'one', insecure=True).digest}"
    assert api.pull(name, tmp_path / "two", insecure=True).state == "pulled"
    proxy.begin(Fault(name="", change=said(b'{"schemaVersion": 2}')))
    with pytest.raises(StorageError, match="a manifest of another digest"):
        api.pull(name, tmp_path / "three", insecure=True)


def test_a_full_disk(
    proxy: Proxy, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    proxy.begin(None)
    target = tmp_path / "in" / "got"
    target.parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "sync_files", full)
        code, told = _pulled(_name(proxy), target, folder)
        assert code == ERROR and "No space left" in told
    assert _pulled(_name(proxy), target, folder)[0] == RIGHT


def test_what_an_earlier_pull_left_is_believed_in_nothing(
    proxy: Proxy, folder: Path, tmp_path: Path
) -> None:
    """Spoilt, longer, or a link to somewhere else."""
    proxy.begin(None)
    work = tmp_path / ".got.pulling"
    work.mkdir()
    (tmp_path / "precious").write_bytes(b"precious")
    blobs = [digest.of_file(folder / name, "sha256").hex for name in sorted(tree(folder))]
    (work / blobs[0]).write_bytes(b"x" * 10_000)
    (work / blobs[1]).write_bytes(b"x" * 10)
    (work / blobs[2]).symlink_to(tmp_path / "precious")
    api.pull(_name(proxy), tmp_path / "got", insecure=True)
    assert _same(tmp_path / "got", folder)
    assert (tmp_path / "precious").read_bytes() == b"precious"
